//! A configuration as v0 requests that make it: what `dump` writes.

use api::v0::message_v0 as v0;
use api::v0::{Message, MessageV0, Messages};
use api::v1;

use super::{Untranslatable, group, nic};

/// The requests, groups first, a sniffer behind its target; and a sentence for each value that v0 cannot say.
pub fn from_config(config: &v1::Config) -> Result<(Messages, Vec<String>), Untranslatable> {
    let (mut requests, mut warnings) = (Vec::new(), Vec::new());
    for group in &config.groups {
        let (sg, lost) = group::to_v0(group)
            .map_err(|Untranslatable(what)| Untranslatable(format!("{what} of group {}", group.id)))?;
        warnings.extend(
            lost.iter()
                .map(|name| format!("group {}: API v0 has no {name}", group.id)),
        );
        requests.push(v0::Request {
            sg_add: Some(sg),
            ..Default::default()
        });
    }
    let (targets, sniffers): (Vec<_>, Vec<_>) =
        config.nics.iter().partition(|nic| nic.sniff_target.is_empty());
    for nic in targets.into_iter().chain(sniffers) {
        let (nic_add, mut lost) = nic::to_v0(&without_derived(nic));
        if nic.kind() == v1::NicKind::Bench && nic.bench.is_none() {
            lost.push("word on what a bench NIC does");
        }
        warnings.extend(
            lost.iter()
                .map(|name| format!("NIC {}: API v0 has no {name}", nic.id)),
        );
        requests.push(v0::Request {
            nic_add: Some(nic_add),
            ..Default::default()
        });
    }
    Ok((envelope(requests), warnings))
}

/// Requests in their envelopes.
pub fn envelope(requests: Vec<v0::Request>) -> Messages {
    let message = |request| Message {
        revision: 0,
        error: None,
        message_0: Some(MessageV0 {
            request: Some(request),
            response: None,
            message_id: None,
        }),
    };
    Messages {
        messages: requests.into_iter().map(message).collect(),
        encrypted: None,
    }
}

/// The NIC without what the daemon made up from its id, its process and its directories: the next daemon makes
/// its own. Anti-spoofing is said, because the APIs' defaults differ.
fn without_derived(nic: &v1::Nic) -> v1::Nic {
    let mut nic = nic.clone();
    nic.anti_spoof.get_or_insert(true);
    if nic.path.ends_with(&format!("/qemu-vhost-{}", nic.id)) {
        nic.path.clear();
    }
    let pid = nic.packet_trace_path.strip_prefix("/tmp/butterfly-");
    let pid = pid.and_then(|rest| rest.strip_suffix(&format!("-{}.pcap", nic.id)));
    if pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())) {
        nic.packet_trace_path.clear();
    }
    nic
}

#[cfg(test)]
mod tests {
    use api::text_format;
    use api::v1::rule::{Match, Peer};

    use super::*;

    fn vnic(id: &str) -> v1::Nic {
        v1::Nic {
            id: id.into(),
            mac: "52:54:00:12:34:01".into(),
            vni: 42,
            ..Default::default()
        }
    }

    #[test]
    fn a_dump_is_these_very_lines() {
        let rule = v1::Rule {
            direction: v1::Direction::Ingress.into(),
            protocol: Some(6),
            r#match: Some(Match::Ports(v1::PortRange { start: 80, end: 80 })),
            peer: Some(Peer::Cidr("0.0.0.0/0".into())),
        };
        let group = v1::Group {
            id: "sg-web".into(),
            members: vec!["42.0.3.1".into()],
            rules: vec![rule],
            ..Default::default()
        };
        let nic = v1::Nic {
            addresses: vec!["42.0.0.1".into()],
            security_groups: vec!["sg-web".into()],
            anti_spoof: Some(false),
            path: "/run/butterfly/qemu-vhost-vnic_1".into(),
            packet_trace: Some(false),
            packet_trace_path: "/tmp/butterfly-4711-vnic_1.pcap".into(),
            ..vnic("vnic_1")
        };
        let config = v1::Config {
            nics: vec![nic],
            groups: vec![group],
        };
        let (messages, warnings) = from_config(&config).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let golden = include_str!("../../tests/dump.golden");
        assert_eq!(text_format::print(&messages), golden);
        assert_eq!(text_format::parse(golden).unwrap(), messages);
    }

    #[test]
    fn a_sniffer_comes_behind_its_target() {
        let sniffer = v1::Nic {
            sniff_target: "b".into(),
            ..vnic("a")
        };
        let config = v1::Config {
            nics: vec![sniffer, vnic("b")],
            groups: vec![],
        };
        let (messages, _) = from_config(&config).unwrap();
        let id = |message: &Message| {
            message
                .message_0
                .clone()
                .unwrap()
                .request
                .unwrap()
                .nic_add
                .unwrap()
                .id
        };
        assert_eq!(messages.messages.iter().map(id).collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn what_is_lost_is_said_and_what_is_the_users_stays() {
        let own = v1::Nic {
            mtu: 9000,
            path: "/srv/sockets/a".into(),
            packet_trace_path: "/srv/traces/a.pcapng".into(),
            ..vnic("a")
        };
        assert_eq!(without_derived(&own).path, own.path);
        assert_eq!(without_derived(&own).packet_trace_path, own.packet_trace_path);
        let (_, warnings) = from_config(&v1::Config {
            nics: vec![own],
            groups: vec![],
        })
        .unwrap();
        assert_eq!(warnings, ["NIC a: API v0 has no mtu"]);
    }
}
