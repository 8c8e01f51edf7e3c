//! A rule: direction x protocol x ports or ICMP type x peer (security-groups.md 2 and 3). Rules
//! only allow. Two rules are the same when all of this is; there is no id. The fields are private:
//! a `Rule` that exists is a rule that can match.

use super::{GroupId, parse_masked};
use crate::error::Error;
use ipnet::IpNet;
use std::fmt;

/// From the guest's view: ingress enters it, egress leaves it. v0 says INBOUND and OUTBOUND.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Towards the guest.
    Ingress,
    /// From the guest.
    Egress,
}

/// Destination ports, both ends included, `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ports {
    /// First port.
    pub start: u16,
    /// Last port.
    pub end: u16,
}

/// ICMP type and code; `None` is any. A code needs a type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Icmp {
    /// Type (of ICMPv6 when the packet is IPv6).
    pub kind: Option<u8>,
    /// Code of that type.
    pub code: Option<u8>,
}

/// What of the protocol a rule allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RuleMatch {
    /// Everything of the protocol.
    Any,
    /// Destination ports: TCP, UDP, SCTP.
    Ports(Ports),
    /// Type and code: ICMP (1, which stands for ICMPv6 in IPv6 packets) and ICMPv6 (58).
    Icmp(Icmp),
}

/// Who is at the other end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// Anybody, IPv4 and IPv6.
    Any,
    /// A network with the host bits that it was written with: it matches as if they were zero, and
    /// is another peer than the network without them, so that what was written is given back and
    /// can be taken away.
    Net(IpNet),
    /// The members of a group, which may not exist (yet): then nobody.
    Group(GroupId),
}

/// One rule of a group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule {
    direction: Direction,
    protocol: Option<u8>,
    matching: RuleMatch,
    peer: Peer,
}

/// Protocol numbers (IANA) that rules know more about.
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

impl Rule {
    /// A rule; `protocol` `None` is all protocols. Ports that are all ports and ICMP that is any
    /// type become [`RuleMatch::Any`].
    pub fn new(
        direction: Direction,
        protocol: Option<u8>,
        matching: RuleMatch,
        peer: Peer,
    ) -> Result<Rule, Error> {
        let refuse = |why: String| Err(Error::Rule(why));
        let name = protocol.map_or("all protocols".to_owned(), |p| format!("protocol {p}"));
        let matching = match matching {
            RuleMatch::Ports(_) if !matches!(protocol, Some(TCP | UDP | SCTP)) => {
                return refuse(format!("ports are for TCP, UDP and SCTP, not for {name}"));
            }
            RuleMatch::Ports(Ports { start, end }) if start > end => {
                return refuse(format!("port range {start}-{end} ends before it starts"));
            }
            RuleMatch::Ports(Ports {
                start: 0,
                end: u16::MAX,
            }) => RuleMatch::Any,
            RuleMatch::Icmp(_) if !matches!(protocol, Some(ICMP | ICMPV6)) => {
                return refuse(format!("an ICMP type is for ICMP, not for {name}"));
            }
            RuleMatch::Icmp(Icmp {
                kind: None,
                code: Some(code),
            }) => {
                return refuse(format!("ICMP code {code} has no type"));
            }
            RuleMatch::Icmp(Icmp {
                kind: None,
                code: None,
            }) => RuleMatch::Any,
            other => other,
        };
        Ok(Rule {
            direction,
            protocol,
            matching,
            peer,
        })
    }

    /// A rule as v0 states it: protocol -1 is all, TCP and UDP must have both ports, no CIDR and no
    /// group is anybody. SCTP may have ports. Ports of any other protocol are ignored, as the
    /// original did.
    pub fn from_v0(
        direction: Direction,
        protocol: i32,
        port_start: Option<u32>,
        port_end: Option<u32>,
        cidr: Option<(&str, u32)>,
        security_group: Option<&str>,
    ) -> Result<Rule, Error> {
        let refuse = |why: String| Err(Error::Rule(why));
        let protocol = match protocol {
            -1 => None,
            number => match u8::try_from(number) {
                Ok(number) => Some(number),
                Err(_) => return refuse(format!("protocol {number} is not -1 (all) or 0 to 255")),
            },
        };
        let matching = match (protocol, port_start, port_end) {
            (Some(TCP | UDP | SCTP), Some(start), Some(end)) => {
                let port = |number: u32| {
                    u16::try_from(number)
                        .map_err(|_| Error::Rule(format!("port {number} is above 65535")))
                };
                RuleMatch::Ports(Ports {
                    start: port(start)?,
                    end: port(end)?,
                })
            }
            (Some(SCTP), None, None) => RuleMatch::Any,
            (Some(TCP | UDP | SCTP), ..) => {
                return refuse("TCP and UDP need both a first and a last port".to_owned());
            }
            _ => RuleMatch::Any,
        };
        let peer = match (cidr, security_group) {
            (Some(_), Some(_)) => {
                return refuse("has a CIDR and a security group, only one is allowed".to_owned());
            }
            (Some((address, length)), None) => Peer::Net(parse_masked(&"rule", address, length)?),
            (None, Some(group)) => Peer::Group(GroupId::new(group)?),
            (None, None) => Peer::Any,
        };
        Rule::new(direction, protocol, matching, peer)
    }

    /// Towards the guest or from it.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// IANA number, `None` for all protocols.
    pub fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// Ports or ICMP type.
    pub fn matching(&self) -> RuleMatch {
        self.matching
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The destination ports as a range: 0..65535 when the rule names none and the protocol has
    /// ports; `None` for protocols without ports. What v0 gives back for TCP and UDP.
    pub fn ports(&self) -> Option<Ports> {
        match (self.matching, self.protocol) {
            (RuleMatch::Ports(ports), _) => Some(ports),
            (_, Some(TCP | UDP | SCTP)) => Some(Ports {
                start: 0,
                end: u16::MAX,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    /// `ingress tcp 22-23 from 10.0.0.0/8`, `egress all to anybody`, `ingress icmp type 8 code 0
    /// from group users`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, towards) = match self.direction {
            Direction::Ingress => ("ingress", "from"),
            Direction::Egress => ("egress", "to"),
        };
        write!(f, "{direction} ")?;
        match self.protocol {
            None => f.write_str("all")?,
            Some(ICMP) => f.write_str("icmp")?,
            Some(TCP) => f.write_str("tcp")?,
            Some(UDP) => f.write_str("udp")?,
            Some(ICMPV6) => f.write_str("icmpv6")?,
            Some(SCTP) => f.write_str("sctp")?,
            Some(number) => write!(f, "protocol {number}")?,
        }
        match self.matching {
            RuleMatch::Any | RuleMatch::Icmp(Icmp { kind: None, .. }) => {}
            RuleMatch::Ports(Ports { start, end }) if start == end => write!(f, " {start}")?,
            RuleMatch::Ports(Ports { start, end }) => write!(f, " {start}-{end}")?,
            RuleMatch::Icmp(Icmp {
                kind: Some(kind),
                code: None,
            }) => write!(f, " type {kind}")?,
            RuleMatch::Icmp(Icmp {
                kind: Some(kind),
                code: Some(code),
            }) => {
                write!(f, " type {kind} code {code}")?;
            }
        }
        match &self.peer {
            Peer::Any => write!(f, " {towards} anybody"),
            Peer::Net(net) => write!(f, " {towards} {net}"),
            Peer::Group(group) => write!(f, " {towards} group {group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Egress, Ingress};
    use super::*;

    #[test]
    fn v0_rules_are_checked_and_normalised() {
        let rule = |protocol, start, end, cidr, group| {
            Rule::from_v0(Ingress, protocol, start, end, cidr, group)
                .map(|r| r.to_string())
                .map_err(|e| e.to_string())
        };
        let ok = |text: &str| Ok(text.to_owned());
        let no = |text: &str| Err(text.to_owned());
        assert_eq!(
            rule(6, Some(22), Some(22), Some(("42.0.3.1", 16)), None),
            ok("ingress tcp 22 from 42.0.3.1/16")
        );
        assert_eq!(
            rule(17, Some(1), Some(9), None, Some("users")),
            ok("ingress udp 1-9 from group users")
        );
        assert_eq!(
            rule(-1, Some(5), None, None, None),
            ok("ingress all from anybody")
        );
        assert_eq!(
            rule(1, None, None, Some(("::", 0)), None),
            ok("ingress icmp from ::/0")
        );
        assert_eq!(
            rule(132, Some(80), Some(80), None, None),
            ok("ingress sctp 80 from anybody")
        );
        assert_eq!(
            rule(132, None, None, None, None),
            ok("ingress sctp from anybody")
        );
        assert_eq!(
            rule(6, Some(22), None, None, None),
            no("rule: TCP and UDP need both a first and a last port")
        );
        assert_eq!(
            rule(6, Some(3), Some(2), None, None),
            no("rule: port range 3-2 ends before it starts")
        );
        assert_eq!(
            rule(6, Some(0), Some(65536), None, None),
            no("rule: port 65536 is above 65535")
        );
        assert_eq!(
            rule(256, None, None, None, None),
            no("rule: protocol 256 is not -1 (all) or 0 to 255")
        );
        assert_eq!(
            rule(-2, None, None, None, None),
            no("rule: protocol -2 is not -1 (all) or 0 to 255")
        );
        assert_eq!(
            rule(1, None, None, Some(("::", 0)), Some("a")),
            no("rule: has a CIDR and a security group, only one is allowed")
        );
        assert_eq!(
            rule(1, None, None, Some(("1.2.3.4", 33)), None),
            no("rule: CIDR '1.2.3.4/33' has a prefix length above 32 (IPv4) or 128 (IPv6)")
        );
    }

    #[test]
    fn all_ports_are_any_and_host_bits_stay() {
        let all = RuleMatch::Ports(Ports {
            start: 0,
            end: 65535,
        });
        let any = Rule::new(Egress, Some(6), RuleMatch::Any, Peer::Any).unwrap();
        assert_eq!(Rule::new(Egress, Some(6), all, Peer::Any).unwrap(), any);
        assert_eq!(
            any.ports(),
            Some(Ports {
                start: 0,
                end: 65535
            })
        );
        let net = |text: &str| Peer::Net(text.parse().unwrap());
        let written = Rule::new(Egress, None, RuleMatch::Any, net("10.1.1.1/8")).unwrap();
        assert_eq!(written.to_string(), "egress all to 10.1.1.1/8");
        let other = Rule::new(Egress, None, RuleMatch::Any, net("10.0.0.0/8")).unwrap();
        assert_ne!(written, other);
    }

    #[test]
    fn a_rule_that_cannot_match_is_not_made() {
        let icmp = |kind, code| RuleMatch::Icmp(Icmp { kind, code });
        let ports = RuleMatch::Ports(Ports { start: 1, end: 2 });
        for (protocol, matching) in [
            (None, ports),
            (Some(1), ports),
            (Some(6), icmp(Some(8), None)),
            (Some(1), icmp(None, Some(0))),
        ] {
            assert!(Rule::new(Ingress, protocol, matching, Peer::Any).is_err());
        }
        let echo = Rule::new(Ingress, Some(1), icmp(Some(8), Some(0)), Peer::Any).unwrap();
        assert_eq!(echo.to_string(), "ingress icmp type 8 code 0 from anybody");
    }
}
