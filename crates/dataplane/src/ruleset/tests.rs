//! The compiled rules against a walk through the list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::*;
use crate::address_set::AddressSet;
use crate::snapshot::Group;
use std::sync::Arc;

const NO_GROUPS: &[Option<Arc<Group>>] = &[];

/// security-groups.md 1 to 3, word for word: one rule after the other.
fn matches(rule: &RuleSpec, asked: &Asked, groups: &[Option<Arc<Group>>]) -> bool {
    let v6 = asked.peer.is_ipv6();
    let protocol = match rule.protocol {
        None => true,
        Some(ICMP) if v6 => asked.protocol == ICMPV6,
        Some(protocol) => protocol == asked.protocol,
    };
    let selector = rule.selector == (0..=u16::MAX)
        || asked.selector.is_some_and(|s| rule.selector.contains(&s));
    let peer = match rule.peer {
        Peer::Any => true,
        Peer::Net(net) => net.contains(&asked.peer),
        Peer::Group(group) => match groups.get(group.0 as usize) {
            Some(Some(group)) => group.members.contains(&asked.peer),
            _ => false,
        },
    };
    rule.direction == asked.direction && protocol && selector && peer
}

// Few different values, so that rules and packets meet.
fn address() -> impl Strategy<Value = IpAddr> {
    (any::<bool>(), 0u8..3, 0u8..4).prop_map(|(v6, net, host)| match v6 {
        false => Ipv4Addr::new(10, net, 0, host).into(),
        true => Ipv6Addr::new(0x2001, 0xdb8, net.into(), 0, 0, 0, 0, host.into()).into(),
    })
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        Just(Peer::Any),
        (0u32..4).prop_map(|group| Peer::Group(GroupIdx(group))),
        (address(), 0u8..=128).prop_map(|(address, length)| Peer::Net(match address {
            IpAddr::V4(a) => IpNet::V4(Ipv4Net::new(a, length.min(32)).unwrap()),
            IpAddr::V6(a) => IpNet::V6(Ipv6Net::new(a, length).unwrap()),
        })),
    ]
}

fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![Just(1), Just(6), Just(17), Just(47), Just(58), Just(132)]
}

fn selector() -> impl Strategy<Value = RangeInclusive<u16>> {
    prop_oneof![
        Just(0..=u16::MAX),
        (0u16..12).prop_map(|port| port..=port),
        (0u16..12, 0u16..12).prop_map(|(a, b)| a.min(b)..=a.max(b)),
    ]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Ingress), Just(Direction::Egress)]
}

fn rules() -> impl Strategy<Value = Vec<RuleSpec>> {
    let rule = (
        direction(),
        proptest::option::of(protocol()),
        selector(),
        peer(),
    );
    proptest::collection::vec(rule, 0..24).prop_map(|rules| {
        (0u32..)
            .zip(rules)
            .map(|(slot, (direction, protocol, selector, peer))| RuleSpec {
                direction,
                protocol,
                selector,
                peer,
                slot: RuleSlot(slot),
            })
            .collect()
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    (
        direction(),
        protocol(),
        proptest::option::of(0u16..14),
        address(),
    )
        .prop_map(|(direction, protocol, selector, peer)| Asked {
            direction,
            protocol,
            selector,
            peer,
        })
}

proptest! {
    #[test]
    fn the_compiled_set_allows_what_the_list_allows(
        rules in rules(),
        asked in proptest::collection::vec(asked(), 40),
        members in proptest::collection::vec(address(), 0..4),
    ) {
        // Group 0 has members, group 1 has none, group 2 is named and does not exist, group 3 was
        // never seen.
        let members: AddressSet = members.into_iter().collect();
        let groups = vec![
            Some(Arc::new(Group { members, ..Group::default() })),
            Some(Arc::new(Group::default())),
            None,
        ];
        let set = RuleSet::new(rules.clone());
        prop_assert_eq!(set.has_egress(),
            rules.iter().any(|rule| rule.direction == Direction::Egress));
        for asked in asked {
            let expected = rules.iter().any(|rule| matches(rule, &asked, &groups));
            let found = set.decide(&asked, &groups[..]);
            prop_assert_eq!(found.is_some(), expected, "{:?}", asked);
            if let Some(slot) = found {
                prop_assert!(matches(&rules[slot.0 as usize], &asked, &groups), "{:?} by {:?}",
                    asked, slot);
            }
            let v6 = asked.peer.is_ipv6();
            let open = rules.iter().any(|rule| {
                let everybody = match rule.peer {
                    Peer::Any => true,
                    Peer::Net(net) => net.prefix_len() == 0 && net.addr().is_ipv6() == v6,
                    Peer::Group(_) => false,
                };
                let everything = rule.protocol.is_none() && rule.selector == (0..=u16::MAX);
                rule.direction == asked.direction && everything && everybody
            });
            prop_assert_eq!(set.open(asked.direction, v6).is_some(), open);
        }
    }
}

#[test]
fn ten_thousand_rules_of_each_kind_are_found_without_a_walk() {
    let count = 10_000u16;
    let rule = |selector, peer, slot| RuleSpec {
        direction: Direction::Ingress,
        protocol: Some(6),
        selector,
        peer,
        slot: RuleSlot(slot),
    };
    let net = |n: u16| {
        Peer::Net(IpNet::new(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(n)).into(), 32).unwrap())
    };
    let exact: Vec<_> = (0..count)
        .map(|n| rule(n..=n, Peer::Any, n.into()))
        .collect();
    let ranges: Vec<_> = (0..count)
        .map(|n| rule(n * 4..=n * 4 + 2, Peer::Any, n.into()))
        .collect();
    let networks: Vec<_> = (0..count)
        .map(|n| rule(0..=u16::MAX, net(n), n.into()))
        .collect();
    let ask = |selector, host: u16| Asked {
        direction: Direction::Ingress,
        protocol: 6,
        selector: Some(selector),
        peer: Ipv4Addr::from_bits(0x0a00_0000 + u32::from(host)).into(),
    };
    let (exact, ranges, networks) = (
        RuleSet::new(exact),
        RuleSet::new(ranges),
        RuleSet::new(networks),
    );
    for n in 0..count {
        let slot = Some(RuleSlot(n.into()));
        assert_eq!(exact.decide(&ask(n, 0), NO_GROUPS), slot);
        assert_eq!(ranges.decide(&ask(n * 4 + 1, 0), NO_GROUPS), slot);
        assert_eq!(ranges.decide(&ask(n * 4 + 3, 0), NO_GROUPS), None);
        assert_eq!(networks.decide(&ask(1, n), NO_GROUPS), slot);
    }
    assert_eq!(exact.decide(&ask(count, 0), NO_GROUPS), None);
    assert_eq!(networks.decide(&ask(1, count), NO_GROUPS), None);
}

/// What a rule set is made of does not tell how it was made: rules that came one by one, with
/// others between them that went, decide as those that came at once.
#[test]
fn rules_that_come_and_go_leave_what_was_there() {
    let peers = |host: u16| {
        let net = Ipv4Net::new(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(host)), 32).unwrap();
        [
            Peer::Any,
            Peer::Net(net.into()),
            Peer::Group(GroupIdx(host.into())),
        ]
    };
    let mut specs = Vec::new();
    for n in 0..300u16 {
        for selector in [n..=n, n..=n + 7, 0..=u16::MAX] {
            let peer = peers(n % 50)[usize::from(n % 3)];
            let direction = match n % 5 {
                0 => Direction::Egress,
                _ => Direction::Ingress,
            };
            specs.push(RuleSpec {
                direction,
                protocol: (n % 7 != 0).then_some(6 + (n % 2) as u8 * 11),
                selector,
                peer,
                slot: RuleSlot(specs.len() as u32),
            });
        }
    }
    let kept: Vec<_> = specs.iter().step_by(2).cloned().collect();
    let mut set = RuleSet::new(specs.clone());
    let all = set.clone();
    let mut expected = all.clone();
    for gone in specs.iter().skip(1).step_by(2) {
        set.remove(gone);
    }
    let at_once = RuleSet::new(kept.clone());
    let ask = |set: &RuleSet| {
        let mut found = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            for selector in 0..310 {
                for (protocol, host) in [(6, 3), (17, 4), (6, 40), (47, 5)] {
                    found.push(set.decide(
                        &Asked {
                            direction,
                            protocol,
                            selector: Some(selector),
                            peer: Ipv4Addr::from_bits(0x0a00_0000 + host).into(),
                        },
                        NO_GROUPS,
                    ));
                }
            }
        }
        found
    };
    assert_eq!(ask(&set), ask(&at_once));
    assert_ne!(ask(&set), ask(&all), "what was removed decided something");
    assert_eq!(ask(&expected), ask(&all), "a copy is not changed with it");
    for rule in &specs {
        expected.remove(rule);
    }
    assert!(ask(&expected).iter().all(Option::is_none) && !expected.has_egress());
    for direction in [Direction::Ingress, Direction::Egress] {
        assert_eq!(expected.open(direction, false), None);
    }
}
