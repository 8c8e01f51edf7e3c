//! What would let a frame pass that a trace says is dropped: command lines where there are some.
//! Ids in them are quoted for a shell, and what is said of a command stands behind it as a comment.

use std::borrow::Cow;
use std::net::IpAddr;

use api::shell;
use control::NicStatus;
use control::model::NicId;
use dataplane::DropReason;
use dataplane::trial::Report;
use wire::parse::{IpPacket, L4, Net, protocol};

use crate::access::Permitted;

/// For a frame that ends before it has targets.
pub fn of_frame(reason: DropReason, sender: Option<&NicStatus>, report: &Report) -> Vec<String> {
    use DropReason::*;
    let nic = nic_word(sender.map(|nic| &nic.nic.id));
    let mac = report.packet.as_ref().map(|packet| packet.src.to_string());
    let mac = mac.unwrap_or_default();
    let source = claimed(report).map(|address| address.to_string());
    let source = source.unwrap_or_default();
    let vni = sender
        .map(|nic| nic.nic.vni.to_string())
        .unwrap_or_default();
    let from = report.arrival.map(|(_, host)| host.to_string());
    let from = from.unwrap_or_else(|| "HOST".into());
    match reason {
        LinkDown => vec![format!("butterfly nic update {nic} --link up")],
        MacSpoofed => vec![
            format!("butterfly nic update {nic} --allowed-address-pair {source},{mac}"),
            format!("butterfly nic update {nic} --learn-macs   # any MAC behind it"),
        ],
        IpSpoofed | ArpSpoofed | NdSpoofed => vec![
            format!("butterfly nic update {nic} --allowed-address-pair {source}"),
            format!("butterfly nic update {nic} --disable-antispoof   # any address"),
        ],
        DhcpServer => vec![format!("butterfly nic update {nic} --allow-dhcp-server")],
        RouterAdvertisement => {
            vec![format!(
                "butterfly nic update {nic} --allow-router-advertisements"
            )]
        }
        NoDestination => {
            let dst = report.packet.as_ref().map(|packet| packet.dst.to_string());
            vec![format!(
                "butterfly binding add --vni {} --mac {} --host HOST   # if it is on another host",
                if vni.is_empty() { "VNI" } else { &vni },
                dst.unwrap_or_default()
            )]
        }
        Ethertype => vec![
            "only ARP, IPv4 and IPv6 pass where rules are asked: both NICs would have to bypass \
             filtering"
                .into(),
        ],
        SnifferSends => vec!["a sniffer sends nothing: use another NIC".into()],
        UnknownHost => vec![format!("butterfly host add {from}")],
        HostNotInVni => vec![format!(
            "butterfly host add {from} --vni …   # with this network's VNI among them"
        )],
        UnknownVni => vec!["a NIC in this network on this host".into()],
        RemoteUnbound => vec![
            format!("butterfly binding add --vni VNI --mac {mac} --host {from}"),
            "butterfly network set VNI --learning on".into(),
        ],
        RemoteSpoofed | RemoteIpSpoofed => vec![format!(
            "the MAC or address is known to be elsewhere: butterfly binding show --vni VNI {mac}"
        )],
        FragmentWithoutFirst | FragmentOfDropped => {
            vec!["trace the datagram's first fragment: the others are judged like it".into()]
        }
        _ => Vec::new(),
    }
}

/// For a frame that one target is refused.
pub fn of_target(
    reason: DropReason,
    sender: Option<&NicStatus>,
    target: Option<&NicId>,
    control: &Permitted,
    report: &Report,
) -> Vec<String> {
    use DropReason::*;
    let ip = report.packet.as_ref().and_then(|packet| packet.ip());
    match (reason, ip) {
        (NoIngressRule, Some(ip)) => {
            let status = target.and_then(|id| control.nic(id).ok());
            status.map_or_else(Vec::new, |nic| rule_for(&nic, "in", ip, ip.src(), control))
        }
        (NoEgressRule, Some(ip)) => {
            sender.map_or_else(Vec::new, |nic| rule_for(nic, "out", ip, ip.dst(), control))
        }
        (ForeignSource, Some(ip)) => {
            let nic = nic_word(sender.map(|nic| &nic.nic.id));
            let source = ip.src();
            vec![format!(
                "butterfly nic update {nic} --allowed-address-pair {source}"
            )]
        }
        (TcpNotSyn, _) => vec![
            "the connection is not known here: trace its first packet (--tcp-flags syn)".into(),
            "butterfly sg add GROUP --allow-midstream   # takes connections up in their middle"
                .into(),
        ],
        (LinkDown, _) => {
            let nic = nic_word(target);
            vec![format!("butterfly nic update {nic} --link up")]
        }
        (TargetDown, _) => {
            let nic = nic_word(target);
            vec![format!(
                "its guest is not connected: butterfly nic show {nic} says what its port waits for"
            )]
        }
        (NoNextHop, _) => vec!["a route to that host (ip route)".into()],
        (MtuExceeded, _) => vec![
            "a larger MTU on the uplink and all the way, or a smaller one of the NIC: butterfly \
             nic update NIC --mtu"
                .into(),
        ],
        (FlowShareFull | FlowTableFull, _) => vec![
            "butterfly flows shows what it holds; butterflyd --max-flows and \
             --max-flows-per-nic are the bounds"
                .into(),
        ],
        _ => Vec::new(),
    }
}

/// The rule that would allow exactly this, in the first of the NIC's groups that the caller may
/// change.
fn rule_for(
    nic: &NicStatus,
    direction: &str,
    ip: &IpPacket,
    peer: IpAddr,
    control: &Permitted,
) -> Vec<String> {
    let bits = if peer.is_ipv6() { 128 } else { 32 };
    let protocol = match ip.protocol {
        protocol::TCP => "tcp".into(),
        protocol::UDP => "udp".into(),
        protocol::SCTP => "sctp".into(),
        protocol::ICMP => "icmp".into(),
        protocol::ICMPV6 => "icmpv6".into(),
        other => other.to_string(),
    };
    let selector = match ip.l4_info {
        L4::Icmp { kind, .. } => format!(" --icmp-type {kind}"),
        other => match other.ports() {
            Some((_, dport)) => format!(" --port {dport}"),
            None => String::new(),
        },
    };
    let add = |group: &str| {
        format!(
            "butterfly sg rule add {group} --dir {direction} --ip-proto {protocol}{selector} \
             --cidr {peer}/{bits}"
        )
    };
    let mut groups = nic.nic.security_groups.iter();
    match groups.find(|group| control.sees_group(group)) {
        Some(group) => vec![add(&shell::word(group.as_str()))],
        None => vec![
            add("GROUP"),
            format!("butterfly nic sg add {} GROUP", nic_word(Some(&nic.nic.id))),
        ],
    }
}

/// A NIC in a command line, or what stands for one.
fn nic_word(id: Option<&NicId>) -> Cow<'_, str> {
    id.map_or(Cow::Borrowed("NIC"), |id| shell::word(id.as_str()))
}

/// The address that the frame says is its sender's.
fn claimed(report: &Report) -> Option<IpAddr> {
    match &report.packet.as_ref()?.net {
        Net::Ip(ip) => Some(ip.src()),
        Net::Arp(arp) => Some(arp.sender_ip.into()),
        Net::Other => None,
    }
}
