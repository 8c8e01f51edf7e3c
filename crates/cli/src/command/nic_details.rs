//! A NIC as people read it: `name: value` lines. What API v1 alone knows comes last and where it is
//! not the default, so that both APIs show the same NIC alike.

use api::v1;

use super::{nic_limits, nic_mirror};
use crate::error::Error;
use crate::json;
use crate::output::Output;
use crate::session::Session;
use crate::words::{kind_name, state_name};

/// Prints the NICs of these ids; none given: all.
pub async fn run(ids: Vec<String>, session: &mut Session) -> Result<(), Error> {
    let client = session.client().await?;
    let nics = match ids.is_empty() {
        true => client.nics().await?,
        false => {
            let mut nics = Vec::new();
            for id in &ids {
                nics.push(client.nic(id).await?);
            }
            nics
        }
    };
    print(&nics, &mut session.out)
}

/// Prints NICs, a blank line between two.
pub fn print(nics: &[v1::NicStatus], out: &mut Output) -> Result<(), Error> {
    if out.json {
        return out.value(
            &nics
                .iter()
                .map(|nic| json::full("NicStatus", nic))
                .collect(),
        );
    }
    for (index, status) in nics.iter().enumerate() {
        if index > 0 {
            out.text("\n")?;
        }
        for (name, value) in detail_lines(status) {
            out.text(&format!("{:<19} {value}", format!("{name}:")))?;
        }
    }
    Ok(())
}

fn group_line(group: &String, status: &v1::NicStatus) -> String {
    match status.missing_security_groups.contains(group) {
        true => format!("{group} (not there)"),
        false => group.clone(),
    }
}

fn detail_lines(status: &v1::NicStatus) -> Vec<(&'static str, String)> {
    let nic = status.nic.clone().unwrap_or_default();
    let on = |is: bool| if is { "on" } else { "off" }.to_owned();
    let mut lines = vec![
        ("id", nic.id.clone()),
        ("mac", nic.mac.clone()),
        ("vni", nic.vni.to_string()),
    ];
    lines.extend(nic.addresses.iter().map(|address| ("ip", address.clone())));
    lines.extend(
        nic.security_groups
            .iter()
            .map(|group| ("sg", group_line(group, status))),
    );
    lines.push(("type", kind_name(nic.kind()).into()));
    if nic.vhost_mode() == v1::VhostMode::Client {
        lines.push(("vhost-mode", "client".into()));
    }
    lines.push(("path", status.path.clone()));
    for (name, value) in [
        ("socket-owner", &nic.socket_owner),
        ("socket-group", &nic.socket_group),
        ("socket-mode", &nic.socket_mode),
    ] {
        if !value.is_empty() {
            lines.push((name, value.clone()));
        }
    }
    lines.push(("anti-spoof", on(nic.anti_spoof.unwrap_or_default())));
    lines.extend(nic.allowed_address_pairs.iter().map(|pair| {
        (
            "allowed-pair",
            format!("{} {}", pair.net, pair.mac).trim_end().to_owned(),
        )
    }));
    lines.push(("bypass-filtering", on(nic.bypass_filtering)));
    lines.push(("packet-trace", on(nic.packet_trace.unwrap_or_default())));
    lines.push(("trace-path", status.packet_trace_path.clone()));
    if !nic.sniff_target.is_empty() {
        let of = nic.sniff_vni.filter(|vni| *vni != nic.vni);
        let of = of.map_or_else(String::new, |vni| format!(" of VNI {vni}"));
        let elsewhere = match status.sniff_target_elsewhere {
            true => " (no copies: the NIC of this id is in another VNI)",
            false => "",
        };
        lines.push((
            "sniff-target",
            format!("{}{of}{elsewhere}", nic.sniff_target),
        ));
    }
    if let Some(veth) = &nic.veth {
        lines.push(("netns", veth.netns.clone()));
        lines.push(("ifname", veth.ifname.clone()));
        for (name, values) in [("subnet", &veth.subnets), ("gateway", &veth.gateways)] {
            lines.extend(values.iter().map(|value| (name, value.clone())));
        }
        let route = |route: &v1::VethRoute| format!("{} {}", route.to, route.via);
        let routes = veth.routes.iter().map(route);
        lines.extend(routes.map(|route| ("route", route.trim_end().to_owned())));
    }
    if nic.kind() == v1::NicKind::VmTap {
        let tap = nic.vm_tap.unwrap_or_default();
        let root = (tap.uid, tap.gid) == (None, None);
        for (name, id) in [
            ("tap-uid", tap.uid.or(root.then_some(0))),
            ("tap-gid", tap.gid),
        ] {
            lines.extend(id.map(|id| (name, id.to_string())));
        }
        lines.push(("tap-multi-queue", on(tap.multi_queue)));
    }
    if let Some(bench) = &nic.bench {
        let role = match bench.role() {
            v1::bench::Role::IcmpSender => "ICMP_SND_LIKE",
            v1::bench::Role::IcmpReceiver => "ICMP_RCV_LIKE",
            v1::bench::Role::Unspecified => "-",
        };
        lines.push((
            "bench",
            format!("{role} {} {}", bench.target_ip, bench.target_mac)
                .trim_end()
                .to_owned(),
        ));
    }
    let timeouts = nic.timeouts.unwrap_or_default();
    for (name, secs, default) in [
        ("tcp-timeout", timeouts.tcp_established_secs, 432_000),
        ("udp-timeout", timeouts.udp_secs, 30),
        ("udp-stream-timeout", timeouts.udp_stream_secs, 180),
    ] {
        if secs != 0 && secs != default {
            lines.push((name, format!("{secs} s")));
        }
    }
    for (name, is) in [
        ("dhcp-server", nic.allow_dhcp_server),
        ("router-adverts", nic.allow_router_advertisements),
        ("learn-macs", nic.learn_macs),
    ] {
        if is {
            lines.push((name, "on".into()));
        }
    }
    if nic.link_down {
        lines.push(("link", "down".into()));
    }
    for (name, limits) in [("limit-out", &nic.limit_out), ("limit-in", &nic.limit_in)] {
        if let Some(limits) = limits {
            lines.push((name, nic_limits::text(limits)));
        }
    }
    if let Some(mirror) = &nic.mirror {
        lines.push(("mirror", nic_mirror::text(mirror)));
    }
    match nic.sflow_rate {
        None => {}
        Some(0) => lines.push(("sflow-rate", "0, not sampled".into())),
        Some(rate) => lines.push(("sflow-rate", format!("1 of {rate} frames"))),
    }
    if status.mtu != 0 {
        lines.push(("mtu", status.mtu.to_string()));
    }
    if status.state() != v1::PortState::Unspecified {
        let state = format!("{} {}", state_name(status.state()), status.detail);
        lines.push(("state", state.trim_end().to_owned()));
    }
    lines
}
