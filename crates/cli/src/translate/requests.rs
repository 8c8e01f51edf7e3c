//! A configuration as v0 requests that make it: what `dump` writes.

use api::v0::message_v0 as v0;
use api::v0::{Message, MessageV0, Messages, REVISION};
use api::v1;

use super::{Untranslatable, group, nic};

/// The requests, groups first, a sniffer behind its target; and a sentence for each value that v0
/// cannot say.
pub fn from_config(config: &v1::Config) -> Result<(Messages, Vec<String>), Untranslatable> {
    let (mut requests, mut warnings) = (Vec::new(), Vec::new());
    for group in &config.groups {
        let (sg, lost) = group::to_v0(group).map_err(|Untranslatable(what)| {
            Untranslatable(format!("{what} of group {}", group.id))
        })?;
        warnings.extend(
            lost.iter()
                .map(|name| format!("group {}: API v0 has no {name}", group.id)),
        );
        requests.push(v0::Request {
            sg_add: Some(sg),
            ..Default::default()
        });
    }
    let (targets, sniffers): (Vec<_>, Vec<_>) = config
        .nics
        .iter()
        .partition(|nic| nic.sniff_target.is_empty());
    for nic in targets.into_iter().chain(sniffers) {
        let (nic_add, mut lost) = nic::to_v0(&v1::Nic {
            // Said, because the APIs' defaults differ.
            anti_spoof: Some(nic.anti_spoof.unwrap_or(true)),
            ..nic.clone()
        });
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
    let strict = |nic: &&v1::Nic| !(nic.allow_dhcp_server && nic.allow_router_advertisements);
    let strict = config.nics.iter().filter(strict).count();
    if strict > 0 {
        warnings.push(format!(
            "{strict} of {} NICs may not answer DHCP or send router advertisements, which over API \
             v0 all may",
            config.nics.len()
        ));
    }
    let overlay = [
        ("endpoints", config.endpoints.len()),
        ("words on networks", config.networks.len()),
        ("bindings", config.bindings.len()),
    ];
    let lost = overlay.iter().filter(|(_, count)| *count > 0);
    warnings.extend(lost.map(|(what, count)| format!("{count} {what}: API v0 has none")));
    Ok((envelope(requests), warnings))
}

/// Requests in their envelopes.
pub fn envelope(requests: Vec<v0::Request>) -> Messages {
    let message = |request| Message {
        revision: REVISION,
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
            packet_trace: Some(false),
            allow_dhcp_server: true,
            allow_router_advertisements: true,
            ..vnic("vnic_1")
        };
        let config = v1::Config {
            nics: vec![nic],
            groups: vec![group],
            ..Default::default()
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
            ..Default::default()
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
        assert_eq!(
            messages.messages.iter().map(id).collect::<Vec<_>>(),
            ["b", "a"]
        );
    }

    #[test]
    fn what_is_lost_is_said() {
        let nic = v1::Nic {
            mtu: 9000,
            ..vnic("a")
        };
        let group = v1::Group {
            id: "g".into(),
            allow_midstream: true,
            ..Default::default()
        };
        let (_, warnings) = from_config(&v1::Config {
            nics: vec![nic],
            groups: vec![group],
            endpoints: vec![v1::Endpoint::default(); 2],
            ..Default::default()
        })
        .unwrap();
        assert_eq!(
            warnings,
            [
                "group g: API v0 has no allow_midstream",
                "NIC a: API v0 has no mtu",
                "1 of 1 NICs may not answer DHCP or send router advertisements, which over API v0 \
                 all may",
                "2 endpoints: API v0 has none"
            ]
        );
    }

    #[test]
    fn anti_spoofing_is_said_because_the_defaults_differ() {
        let (messages, _) = from_config(&v1::Config {
            nics: vec![vnic("a")],
            groups: vec![],
            ..Default::default()
        })
        .unwrap();
        assert!(text_format::print(&messages).contains("ip_anti_spoof: true"));
    }
}
