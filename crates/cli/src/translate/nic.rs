//! NICs: v1 to v0 and back.

use api::v0::message_v0 as v0;
use api::v1;

use super::Untranslatable;

/// `btype` of a NIC that sends echo requests.
const SENDER: &str = "ICMP_SND_LIKE";
/// `btype` of a NIC that answers them.
const RECEIVER: &str = "ICMP_RCV_LIKE";

/// The path of a bench NIC, which has none.
const NO_PATH: &str = "(nil)";

/// A NIC in v0's words, as the original's client writes them (booleans and the type always), and
/// the values (by their v1 names) that v0 has no word for. Over v0 every NIC may answer DHCP and
/// send router advertisements.
pub fn to_v0(nic: &v1::Nic) -> (v0::Nic, Vec<&'static str>) {
    let kind = match nic.kind() {
        v1::NicKind::Unspecified | v1::NicKind::VhostUser => v0::nic::Type::VhostUserServer,
        v1::NicKind::Tap | v1::NicKind::Veth | v1::NicKind::VmTap => v0::nic::Type::Tap,
        v1::NicKind::Bench => v0::nic::Type::Bench,
    };
    let btype = nic.bench.as_ref().map(|bench| match bench.role() {
        v1::bench::Role::IcmpReceiver => RECEIVER,
        v1::bench::Role::IcmpSender | v1::bench::Role::Unspecified => SENDER,
    });
    let bench = nic.bench.clone().unwrap_or_default();
    let lost = [
        (
            "allowed_address_pairs",
            !nic.allowed_address_pairs.is_empty(),
        ),
        (
            "timeouts",
            nic.timeouts.is_some_and(|timeouts| !are_default(timeouts)),
        ),
        ("learn_macs", nic.learn_macs),
        ("mtu", nic.mtu != 0),
        ("vhost_mode", nic.vhost_mode() == v1::VhostMode::Client),
        ("link_down", nic.link_down),
        ("veth", nic.kind() == v1::NicKind::Veth),
        ("vm_tap", nic.kind() == v1::NicKind::VmTap),
        ("limit_out", nic.limit_out.is_some()),
        ("limit_in", nic.limit_in.is_some()),
        ("mirror", nic.mirror.is_some()),
        ("sflow_rate", nic.sflow_rate.is_some()),
        ("socket_owner", !nic.socket_owner.is_empty()),
        ("socket_group", !nic.socket_group.is_empty()),
        ("socket_mode", !nic.socket_mode.is_empty()),
    ];
    let nic = v0::Nic {
        id: nic.id.clone(),
        mac: nic.mac.clone(),
        vni: nic.vni,
        ip: nic.addresses.clone(),
        security_group: nic.security_groups.clone(),
        ip_anti_spoof: Some(nic.anti_spoof.unwrap_or_default()),
        sniff_target_nic_id: given(nic.sniff_target.clone()),
        bypass_filtering: Some(nic.bypass_filtering),
        r#type: Some(kind.into()),
        path: given(nic.path.clone()),
        packet_trace: nic.packet_trace,
        packet_trace_path: given(nic.packet_trace_path.clone()),
        btype: btype.map(Into::into),
        dip: given(bench.target_ip),
        dmac: given(bench.target_mac),
    };
    (
        nic,
        lost.into_iter()
            .filter(|(_, is)| *is)
            .map(|(name, _)| name)
            .collect(),
    )
}

/// A NIC in v1's words, v0's defaults filled in where v1's are others.
pub fn from_v0(nic: v0::Nic) -> Result<v1::Nic, Untranslatable> {
    let kind = match nic.r#type() {
        v0::nic::Type::VhostUserServer => v1::NicKind::VhostUser,
        v0::nic::Type::Tap => v1::NicKind::Tap,
        v0::nic::Type::Bench => v1::NicKind::Bench,
    };
    let role = match nic.btype.as_deref() {
        Some(SENDER) => Some(v1::bench::Role::IcmpSender),
        Some(RECEIVER) => Some(v1::bench::Role::IcmpReceiver),
        Some(other) => {
            return Err(Untranslatable(format!(
                "NIC {}: btype {other:?} is not {SENDER} or {RECEIVER}",
                nic.id
            )));
        }
        None => None,
    };
    let bench = role.map(|role| v1::Bench {
        role: role.into(),
        target_ip: nic.dip.clone().unwrap_or_default(),
        target_mac: nic.dmac.clone().unwrap_or_default(),
    });
    Ok(v1::Nic {
        anti_spoof: Some(nic.ip_anti_spoof()),
        bypass_filtering: nic.bypass_filtering(),
        id: nic.id,
        mac: nic.mac,
        vni: nic.vni,
        addresses: nic.ip,
        security_groups: nic.security_group,
        sniff_target: nic.sniff_target_nic_id.unwrap_or_default(),
        kind: kind.into(),
        bench,
        path: path_from_v0(nic.path),
        packet_trace: nic.packet_trace,
        packet_trace_path: nic.packet_trace_path.unwrap_or_default(),
        allow_dhcp_server: true,
        allow_router_advertisements: true,
        lenient: true,
        ..Default::default()
    })
}

/// The answer to `nic_details` in v1's words: what the daemon made up from the id, its process and
/// its directories is told beside the NIC, whose own values are the declared ones.
pub fn status_from_v0(details: v0::Nic) -> Result<v1::NicStatus, Untranslatable> {
    let mut nic = from_v0(details)?;
    let (path, packet_trace_path) = (nic.path.clone(), nic.packet_trace_path.clone());
    if path.ends_with(&format!("/qemu-vhost-{}", nic.id)) {
        nic.path.clear();
    }
    // In whichever folder the daemon has its traces.
    let file = packet_trace_path.rsplit_once('/').map(|(_, file)| file);
    let pid = file.and_then(|file| file.strip_prefix("butterfly-"));
    let pid = pid.and_then(|rest| rest.strip_suffix(&format!("-{}.pcap", nic.id)));
    if pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())) {
        nic.packet_trace_path.clear();
    }
    Ok(v1::NicStatus {
        nic: Some(nic),
        path,
        packet_trace_path,
        ..Default::default()
    })
}

/// A NIC's state as the answer to `nic_details`, defaults said.
pub fn status_to_v0(status: v1::NicStatus) -> v0::Nic {
    let nic = v1::Nic {
        path: path_to_v0(status.path),
        packet_trace_path: status.packet_trace_path,
        ..status.nic.unwrap_or_default()
    };
    to_v0(&nic).0
}

/// A path that v0 told; empty where there is none.
pub fn path_from_v0(path: Option<String>) -> String {
    path.filter(|path| path != NO_PATH).unwrap_or_default()
}

/// The path in the answer to `nic_add`.
pub fn path_to_v0(path: String) -> String {
    match path.as_str() {
        "" => NO_PATH.to_owned(),
        _ => path,
    }
}

/// An update in v0's words; what v0 cannot update is an error that names it.
pub fn update_to_v0(update: v1::UpdateNicRequest) -> Result<v0::NicUpdateReq, Untranslatable> {
    for (name, is) in [
        (
            "allowed_address_pairs",
            update.allowed_address_pairs.is_some(),
        ),
        ("bypass_filtering", update.bypass_filtering.is_some()),
        ("timeouts", update.timeouts.is_some()),
        ("allow_dhcp_server", update.allow_dhcp_server.is_some()),
        (
            "allow_router_advertisements",
            update.allow_router_advertisements.is_some(),
        ),
        ("learn_macs", update.learn_macs.is_some()),
        ("mtu", update.mtu.is_some()),
        ("link_down", update.link_down.is_some()),
        ("limit_out", update.limit_out.is_some()),
        ("limit_in", update.limit_in.is_some()),
        ("mirror", update.mirror.is_some()),
        ("sflow_rate", update.sflow_rate.is_some()),
        ("socket_owner", update.socket_owner.is_some()),
        ("socket_group", update.socket_group.is_some()),
        ("socket_mode", update.socket_mode.is_some()),
    ] {
        if is {
            return Err(Untranslatable(format!(
                "changing {name} of NIC {}",
                update.id
            )));
        }
    }
    Ok(v0::NicUpdateReq {
        id: update.id,
        ip_anti_spoof: update.anti_spoof,
        ip: update
            .addresses
            .map(|list| or_one_empty(list.addresses))
            .unwrap_or_default(),
        security_group: update
            .security_groups
            .map(|list| or_one_empty(list.groups))
            .unwrap_or_default(),
        packet_trace: update.packet_trace,
        packet_trace_path: update.packet_trace_path,
    })
}

/// An update in v1's words.
pub fn update_from_v0(update: v0::NicUpdateReq) -> v1::UpdateNicRequest {
    // One "" empties the list; among others it is no value, which is the daemon's to refuse.
    let replacement = |list: Vec<String>| match list.as_slice() {
        [] => None,
        [only] if only.is_empty() => Some(Vec::new()),
        _ => Some(list),
    };
    v1::UpdateNicRequest {
        id: update.id,
        anti_spoof: update.ip_anti_spoof,
        addresses: replacement(update.ip).map(|addresses| v1::AddressList { addresses }),
        security_groups: replacement(update.security_group).map(|groups| v1::GroupList { groups }),
        packet_trace: update.packet_trace,
        packet_trace_path: update.packet_trace_path,
        ..Default::default()
    }
}

fn are_default(timeouts: v1::Timeouts) -> bool {
    matches!(timeouts.tcp_established_secs, 0 | 432_000)
        && matches!(timeouts.udp_secs, 0 | 30)
        && matches!(timeouts.udp_stream_secs, 0 | 180)
}

/// v0's way to say that a list becomes empty: one empty string.
fn or_one_empty(list: Vec<String>) -> Vec<String> {
    if list.is_empty() {
        vec![String::new()]
    } else {
        list
    }
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> v1::Nic {
        v1::Nic {
            id: "tap_1".into(),
            mac: "52:54:00:12:34:01".into(),
            vni: 42,
            addresses: vec!["42.0.0.1".into(), "fd00::1".into()],
            security_groups: vec!["web".into()],
            anti_spoof: Some(true),
            sniff_target: "vnic_1".into(),
            bypass_filtering: true,
            kind: v1::NicKind::Tap.into(),
            path: "tap0".into(),
            packet_trace: Some(false),
            packet_trace_path: "/tmp/t".into(),
            allow_dhcp_server: true,
            allow_router_advertisements: true,
            lenient: true,
            ..Default::default()
        }
    }

    #[test]
    fn what_v0_knows_survives_the_round_trip() {
        let (v0, lost) = to_v0(&plain());
        assert!(lost.is_empty());
        assert_eq!(from_v0(v0).unwrap(), plain());
    }

    #[test]
    fn a_bench_nic_survives_the_round_trip() {
        let target = |role: v1::bench::Role| v1::Bench {
            role: role.into(),
            target_ip: "42.0.0.9".into(),
            target_mac: "52:54:00:12:34:09".into(),
        };
        for role in [v1::bench::Role::IcmpSender, v1::bench::Role::IcmpReceiver] {
            let nic = v1::Nic {
                kind: v1::NicKind::Bench.into(),
                bench: Some(target(role)),
                ..plain()
            };
            assert_eq!(from_v0(to_v0(&nic).0).unwrap(), nic);
        }
    }

    #[test]
    fn what_v0_has_no_word_for_is_named() {
        let nic = v1::Nic {
            mtu: 9000,
            learn_macs: true,
            ..plain()
        };
        assert_eq!(to_v0(&nic).1, ["learn_macs", "mtu"]);
        let defaults = v1::Timeouts {
            tcp_established_secs: 432_000,
            udp_secs: 30,
            udp_stream_secs: 180,
        };
        assert!(
            to_v0(&v1::Nic {
                timeouts: Some(defaults),
                ..plain()
            })
            .1
            .is_empty()
        );
    }

    #[test]
    fn the_defaults_of_v0_are_said_to_v1() {
        let nic = v0::Nic {
            id: "a".into(),
            mac: "m".into(),
            vni: 1,
            ..Default::default()
        };
        assert_eq!(from_v0(nic).unwrap().anti_spoof, Some(false));
    }

    #[test]
    fn what_the_daemon_made_up_is_not_declared() {
        let details = |path: &str, trace: &str| v0::Nic {
            id: "a".into(),
            mac: "m".into(),
            vni: 1,
            path: Some(path.into()),
            packet_trace_path: Some(trace.into()),
            ..Default::default()
        };
        let declared = |path, trace| {
            let status = status_from_v0(details(path, trace)).unwrap();
            assert_eq!(
                (status.path.as_str(), status.packet_trace_path.as_str()),
                (path, trace)
            );
            let nic = status.nic.unwrap();
            (nic.path, nic.packet_trace_path)
        };
        let nothing = (String::new(), String::new());
        assert_eq!(
            declared("/run/butterfly/qemu-vhost-a", "/tmp/butterfly-4711-a.pcap"),
            nothing
        );
        assert_eq!(
            declared("/srv/qemu-vhost-a", "/srv/traces/butterfly-1-a.pcap"),
            nothing
        );
        let bench = status_from_v0(details("(nil)", "/tmp/t")).unwrap();
        assert_eq!(
            (bench.path.as_str(), bench.nic.unwrap().path.as_str()),
            ("", "")
        );
        let own = ("/srv/a".to_owned(), "/tmp/butterfly-x-a.pcap".to_owned());
        assert_eq!(declared(&own.0, &own.1), own);
    }

    #[test]
    fn an_unknown_btype_is_refused() {
        let nic = v0::Nic {
            id: "a".into(),
            btype: Some("FROB".into()),
            ..Default::default()
        };
        assert_eq!(
            from_v0(nic).unwrap_err().0,
            r#"NIC a: btype "FROB" is not ICMP_SND_LIKE or ICMP_RCV_LIKE"#
        );
    }

    #[test]
    fn none_is_one_empty_string_in_an_update() {
        let update = v1::UpdateNicRequest {
            id: "a".into(),
            security_groups: Some(v1::GroupList { groups: vec![] }),
            ..Default::default()
        };
        let v0 = update_to_v0(update.clone()).unwrap();
        assert_eq!(v0.security_group, [""]);
        assert!(v0.ip.is_empty());
        assert_eq!(update_from_v0(v0), update);
    }
}
