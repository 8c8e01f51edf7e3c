//! Security groups and their rules: v1 to v0 and back.

use api::v0::message_v0 as v0;
use api::v1;
use api::v1::rule::{Match, Peer};

use super::Untranslatable;
use crate::words::{SCTP, TCP, UDP, rule_words};

/// A group in v0's words, and the values (by their v1 names) that v0 has no word for. A rule that
/// v0 cannot say is an error: without it, or with a wider one, the group would be another.
pub fn to_v0(group: &v1::Group) -> Result<(v0::Sg, Vec<&'static str>), Untranslatable> {
    let lost = [
        ("removal", group.removal() == v1::Removal::Drain),
        ("allow_midstream", group.allow_midstream),
        ("silent_midstream", group.silent_midstream),
    ];
    let mut rules = Vec::with_capacity(group.rules.len());
    for rule in &group.rules {
        rules.extend(rules_to_v0(rule)?);
    }
    let sg = v0::Sg {
        id: group.id.clone(),
        member: group.members.clone(),
        rule: rules,
    };
    Ok((
        sg,
        lost.into_iter()
            .filter(|(_, is)| *is)
            .map(|(name, _)| name)
            .collect(),
    ))
}

/// A group as v0 gives it back, its rules one for one.
pub fn details_to_v0(group: &v1::Group) -> Result<v0::Sg, Untranslatable> {
    Ok(v0::Sg {
        id: group.id.clone(),
        member: group.members.clone(),
        rule: group
            .rules
            .iter()
            .map(rule_to_v0)
            .collect::<Result<_, _>>()?,
    })
}

/// A group in v1's words.
pub fn from_v0(sg: v0::Sg) -> Result<v1::Group, Untranslatable> {
    let rules = sg
        .rule
        .into_iter()
        .map(rule_from_v0)
        .collect::<Result<_, _>>()?;
    Ok(v1::Group {
        id: sg.id,
        members: sg.member,
        rules,
        ..Default::default()
    })
}

/// A rule as v0 takes it to add: one for anybody must be said as one for all of IPv4 and one for
/// all of IPv6.
pub fn rules_to_v0(rule: &v1::Rule) -> Result<Vec<v0::Rule>, Untranslatable> {
    let rule = rule_to_v0(rule)?;
    if rule.cidr.is_some() || rule.security_group.is_some() {
        return Ok(vec![rule]);
    }
    let all = |address: &str| v0::Rule {
        cidr: Some(v0::Cidr {
            address: address.into(),
            mask_size: 0,
        }),
        ..rule.clone()
    };
    Ok(vec![all("0.0.0.0"), all("::")])
}

/// A rule in v0's words, as it is given back: with neither a CIDR nor a group where it is for
/// anybody. TCP and UDP without ports get all ports, which v0 asks for.
pub fn rule_to_v0(rule: &v1::Rule) -> Result<v0::Rule, Untranslatable> {
    let cannot = || {
        Err(Untranslatable(format!(
            "the rule `{}`",
            rule_words(rule).join(" ")
        )))
    };
    let (port_start, port_end) = match (rule.protocol, &rule.r#match) {
        (Some(TCP | UDP), None) => (Some(0), Some(65535)),
        (Some(TCP | UDP | SCTP), Some(Match::Ports(range))) => (Some(range.start), Some(range.end)),
        (_, None) => (None, None),
        // v0 has no ICMP types, and would allow more than was asked for.
        (_, Some(_)) => return cannot(),
    };
    let (cidr, security_group) = match &rule.peer {
        Some(Peer::Cidr(cidr)) => match cidr
            .split_once('/')
            .map(|(address, mask)| (address, mask.parse()))
        {
            Some((address, Ok(mask_size))) => (
                Some(v0::Cidr {
                    address: address.into(),
                    mask_size,
                }),
                None,
            ),
            _ => return cannot(),
        },
        Some(Peer::Group(group)) => (None, Some(group.clone())),
        None => (None, None),
    };
    let direction = match rule.direction() {
        v1::Direction::Egress => v0::rule::Direction::Outbound,
        v1::Direction::Ingress | v1::Direction::Unspecified => v0::rule::Direction::Inbound,
    };
    let protocol = rule.protocol.map_or(-1, |protocol| protocol as i32);
    Ok(v0::Rule {
        direction: direction.into(),
        protocol,
        port_start,
        port_end,
        cidr,
        security_group,
    })
}

/// A rule to add in v1's words, refused as a v0 daemon refuses it.
pub fn new_rule_from_v0(rule: v0::Rule) -> Result<v1::Rule, Untranslatable> {
    if rule.cidr.is_none() && rule.security_group.is_none() {
        return Err(Untranslatable(
            "a rule has neither a cidr nor a security_group".into(),
        ));
    }
    rule_from_v0(rule)
}

/// A rule in v1's words.
pub fn rule_from_v0(rule: v0::Rule) -> Result<v1::Rule, Untranslatable> {
    let protocol = match rule.protocol {
        -1 => None,
        number @ 0..=255 => Some(number as u32),
        other => {
            return Err(Untranslatable(format!(
                "protocol {other} is neither -1 nor 0..255"
            )));
        }
    };
    let ports = match (protocol, rule.port_start, rule.port_end) {
        (Some(TCP | UDP | SCTP), Some(start), Some(end)) => {
            Some(Match::Ports(v1::PortRange { start, end }))
        }
        (Some(SCTP), None, None) => None,
        (Some(TCP | UDP | SCTP), ..) => {
            return Err(Untranslatable(format!(
                "a rule of protocol {} needs port_start and port_end",
                rule.protocol
            )));
        }
        _ => None,
    };
    let direction = match rule.direction() {
        v0::rule::Direction::Outbound => v1::Direction::Egress,
        v0::rule::Direction::Inbound => v1::Direction::Ingress,
    };
    let peer = match (rule.cidr, rule.security_group) {
        (Some(_), Some(group)) => {
            return Err(Untranslatable(format!(
                "a rule has a cidr or a security_group ({group}), not both"
            )));
        }
        (Some(cidr), None) => Some(Peer::Cidr(format!("{}/{}", cidr.address, cidr.mask_size))),
        (None, group) => group.map(Peer::Group),
    };
    Ok(v1::Rule {
        direction: direction.into(),
        protocol,
        r#match: ports,
        peer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(protocol: Option<u32>, r#match: Option<Match>, peer: Option<Peer>) -> v1::Rule {
        v1::Rule {
            direction: v1::Direction::Egress.into(),
            protocol,
            r#match,
            peer,
        }
    }

    fn ports(start: u32, end: u32) -> Option<Match> {
        Some(Match::Ports(v1::PortRange { start, end }))
    }

    #[test]
    fn rules_survive_the_round_trip() {
        for rule in [
            rule(
                Some(6),
                ports(22, 22),
                Some(Peer::Cidr("42.0.3.1/32".into())),
            ),
            rule(
                Some(17),
                ports(0, 65535),
                Some(Peer::Cidr("fd00::/8".into())),
            ),
            rule(Some(1), None, Some(Peer::Group("users".into()))),
            rule(Some(132), ports(80, 80), None),
            rule(Some(132), None, None),
            rule(None, None, None),
        ] {
            assert_eq!(rule_from_v0(rule_to_v0(&rule).unwrap()).unwrap(), rule);
        }
    }

    #[test]
    fn anybody_is_two_networks_over_v0() {
        let anybody = rule(Some(1), None, None);
        let networks: Vec<_> = rules_to_v0(&anybody)
            .unwrap()
            .into_iter()
            .map(|rule| new_rule_from_v0(rule).unwrap().peer)
            .collect();
        let net = |text: &str| Some(Peer::Cidr(text.into()));
        assert_eq!(networks, [net("0.0.0.0/0"), net("::/0")]);
        let refused = new_rule_from_v0(rule_to_v0(&anybody).unwrap()).unwrap_err();
        assert_eq!(refused.0, "a rule has neither a cidr nor a security_group");
    }

    #[test]
    fn all_ports_are_said_to_v0() {
        let v0 = rule_to_v0(&rule(Some(6), None, None)).unwrap();
        assert_eq!((v0.port_start, v0.port_end), (Some(0), Some(65535)));
    }

    #[test]
    fn what_v0_would_widen_is_refused() {
        let icmp = Match::Icmp(v1::IcmpMatch {
            r#type: Some(8),
            code: None,
        });
        let error = rule_to_v0(&rule(Some(1), Some(icmp), None)).unwrap_err();
        assert_eq!(error.0, "the rule `out icmp type=8 all`");
    }

    #[test]
    fn what_v0_refuses_is_refused() {
        let v0 = rule_to_v0(&rule(Some(6), ports(1, 2), Some(Peer::Cidr("::/0".into())))).unwrap();
        for broken in [
            v0::Rule {
                port_start: None,
                ..v0.clone()
            },
            v0::Rule {
                protocol: 256,
                ..v0.clone()
            },
            v0::Rule {
                protocol: -2,
                ..v0.clone()
            },
            v0::Rule {
                security_group: Some("g".into()),
                ..v0.clone()
            },
        ] {
            assert!(rule_from_v0(broken.clone()).is_err(), "{broken:?}");
        }
    }
}
