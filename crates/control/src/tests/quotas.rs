//! The stated maxima: the last that fits is taken, the next is refused with the limit and the
//! value.

use super::world::*;
use crate::model::{
    Binding, Direction, Group, IdPattern, NetworkOptions, Nic, Part, PartLimits, Peer, Ports, Rule,
    RuleMatch,
};
use crate::{Author, Controller, limits};
use std::net::IpAddr;

fn address(n: usize) -> IpAddr {
    IpAddr::from((0x2001_0db8_u128 << 96 | n as u128).to_be_bytes())
}

/// `count` rules, none the same as those of another `salt`.
fn rules(salt: u16, count: usize) -> Vec<Rule> {
    let rule = |n: usize| {
        let ports = RuleMatch::Ports(Ports {
            start: n as u16,
            end: n as u16,
        });
        let peer = Peer::Net(IpAddr::from([10, 0, (salt >> 8) as u8, salt as u8]).into());
        Rule::new(Direction::Ingress, Some(6), ports, peer).unwrap()
    };
    (0..count).map(rule).collect()
}

/// security-groups.md 17.
#[test]
fn lists_of_a_nic_are_bounded() {
    let (mut controller, shared) = controller();
    let mut full = nic("a", 1, &[]);
    full.ips = (0..limits::IPS_PER_NIC).map(address).collect();
    full.security_groups = (0..limits::GROUPS_PER_NIC)
        .map(|n| group_id(&format!("g{n}")))
        .collect();
    controller.put_nic(full.clone()).unwrap();
    let mut more = full.clone();
    more.ips.push(address(1_000));
    let error = refused(&mut controller, &shared, |c| c.put_nic(more));
    assert_eq!(error, "NIC 'a' would have 257 IPs, the limit is 256");
    let mut more = full;
    more.security_groups.push(group_id("more"));
    let error = refused(&mut controller, &shared, |c| c.put_nic(more));
    assert_eq!(
        error,
        "NIC 'a' would have 65 security groups, the limit is 64"
    );
}

/// security-groups.md 17.
#[test]
fn lists_of_a_group_are_bounded() {
    let (mut controller, shared) = controller();
    let full = Group {
        members: (0..limits::MEMBERS_PER_GROUP).map(address).collect(),
        rules: rules(0, limits::RULES_PER_GROUP).into(),
        ..Group::new(group_id("web"))
    };
    controller.put_group(full).unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.add_member(&group_id("web"), address(100_000))
    });
    assert_eq!(
        error,
        "group 'web' would have 16385 members, the limit is 16384"
    );
    let error = refused(&mut controller, &shared, |c| {
        c.add_rule(&group_id("web"), tcp(1, Peer::Any))
    });
    assert_eq!(
        error,
        "group 'web' would have 10001 rules, the limit is 10000"
    );
    let again = rules(0, 1).remove(0);
    assert!(
        controller
            .add_rule(&group_id("web"), again)
            .unwrap()
            .is_empty()
    );
}

/// security-groups.md 17.
#[test]
fn rules_times_groups_of_a_nic_are_bounded_from_both_sides() {
    let (mut controller, shared) = controller();
    let groups: Vec<Group> = (0..11)
        .map(|n| Group {
            rules: rules(n, if n == 10 { 0 } else { limits::RULES_PER_GROUP }).into(),
            ..Group::new(group_id(&format!("g{n}")))
        })
        .collect();
    let names: Vec<String> = (0..11).map(|n| format!("g{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    controller
        .apply(config(vec![nic("a", 1, &names)], groups), false)
        .unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.add_rule(&group_id("g10"), tcp(1, Peer::Any))
    });
    assert_eq!(
        error,
        "NIC 'a' would have 100001 rules in all its groups, the limit is 100000"
    );

    controller
        .put_group(Group {
            rules: rules(99, 5).into(),
            ..Group::new(group_id("other"))
        })
        .unwrap();
    let mut more = names.clone();
    more.push("other");
    let error = refused(&mut controller, &shared, |c| c.put_nic(nic("a", 1, &more)));
    assert_eq!(
        error,
        "NIC 'a' would have 100005 rules in all its groups, the limit is 100000"
    );
    controller.put_nic(nic("a", 1, &names[1..])).unwrap();
    controller
        .add_rule(&group_id("g10"), tcp(1, Peer::Any))
        .unwrap();
}

#[test]
fn nics_are_bounded_by_the_ports_of_the_data_plane() {
    let (mut controller, shared) = controller();
    let many = |count: usize| {
        let nics = (0..count).map(|n| {
            let [.., a, b, c] = n.to_be_bytes();
            let mac = wire::Mac([2, 0, 0, a, b, c]);
            Nic::new(nic_id(&format!("n{n}")), mac, wire::Vni::new(42).unwrap())
        });
        config(nics.collect(), vec![])
    };
    controller.apply(many(limits::NICS), false).unwrap();
    assert_eq!(limits::NICS, dataplane::counters::MAX_PORTS);
    assert_eq!(limits::RULES, dataplane::counters::MAX_RULES);
    let error = refused(&mut controller, &shared, |c| c.put_nic(nic("more", 1, &[])));
    assert_eq!(
        error,
        "the daemon would have 16385 NICs, the limit is 16384"
    );
    controller.delete_nic(&nic_id("n5")).unwrap();
    controller.put_nic(nic("more", 1, &[])).unwrap();
}

/// The controller as somebody changes it who has these networks and groups.
fn bound_by(parts: &[Part]) -> (Controller, Shared) {
    let (mut controller, shared) = controller();
    controller.set_author(Author::Client("uid 60002".into()));
    controller.set_parts(parts.to_vec());
    (controller, shared)
}

fn part(networks: &[std::ops::RangeInclusive<u32>], groups: &[&str], limits: PartLimits) -> Part {
    let pattern = |text: &&str| match text.strip_suffix('*') {
        Some(prefix) => IdPattern::Prefix(prefix.to_owned()),
        None => IdPattern::Id((*text).to_owned()),
    };
    Part {
        networks: networks.to_vec(),
        groups: groups.iter().map(pattern).collect(),
        nics: None,
        limits,
    }
}

fn in_vni(id: &str, last: u8, vni: u32) -> Nic {
    Nic {
        vni: wire::Vni::new(vni).unwrap(),
        ..nic(id, last, &[])
    }
}

#[test]
fn a_part_has_no_more_nics_than_it_may_whoever_made_them() {
    let limits = PartLimits {
        nics: 3,
        ..PartLimits::default()
    };
    // A network is counted once, however often it is named.
    let part = part(&[42..=45, 42..=42], &[], limits);
    let (mut controller, shared) = bound_by(&[]);
    controller.put_nic(in_vni("of-root", 1, 42)).unwrap();
    controller.put_nic(in_vni("elsewhere", 2, 7)).unwrap();
    controller.set_parts(vec![part]);
    for last in [3, 4] {
        controller
            .put_nic(in_vni(&format!("n{last}"), last, 43))
            .unwrap();
    }
    let error = refused(&mut controller, &shared, |c| c.put_nic(in_vni("n5", 5, 45)));
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 NICs, the limit is 3"
    );
    // One of other values, or in another of its networks, is none more.
    controller.put_nic(in_vni("n4", 9, 44)).unwrap();
    controller.delete_nic(&nic_id("n3")).unwrap();
    controller.put_nic(in_vni("n5", 5, 45)).unwrap();
    // What comes to it from elsewhere is.
    let error = refused(&mut controller, &shared, |c| {
        c.put_nic(in_vni("elsewhere", 2, 42))
    });
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 NICs, the limit is 3"
    );
    // Who has all is not bound by it.
    controller.set_parts(Vec::new());
    controller.put_nic(in_vni("n6", 6, 42)).unwrap();
}

/// A limit that is lowered takes nothing away.
#[test]
fn what_is_beyond_a_limit_stays_and_can_be_changed_but_does_not_grow() {
    let (mut controller, shared) = bound_by(&[]);
    for last in 1..=3 {
        controller
            .put_nic(in_vni(&format!("n{last}"), last, 42))
            .unwrap();
    }
    let limits = PartLimits {
        nics: 1,
        ..PartLimits::default()
    };
    controller.set_parts(vec![part(&[42..=42], &[], limits)]);
    controller.put_nic(in_vni("n3", 33, 42)).unwrap();
    let error = refused(&mut controller, &shared, |c| c.put_nic(in_vni("n4", 4, 42)));
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 NICs, the limit is 1"
    );
    controller.delete_nic(&nic_id("n1")).unwrap();
    refused(&mut controller, &shared, |c| c.put_nic(in_vni("n4", 4, 42)));
}

#[test]
fn groups_of_a_part_with_their_rules_and_members_are_bounded() {
    let limits = PartLimits {
        groups: 2,
        rules: 3,
        members: 2,
        ..PartLimits::default()
    };
    // "blue-web" is named twice, and is one.
    let part = part(&[], &["blue-*", "blue-web", "shared"], limits);
    let (mut controller, shared) = bound_by(&[]);
    for other in ["blue", "bluf", "sharee", "a"] {
        controller.put_group(Group::new(group_id(other))).unwrap();
        controller
            .add_rule(&group_id(other), tcp(1, Peer::Any))
            .unwrap();
        controller.add_member(&group_id(other), address(1)).unwrap();
    }
    controller.set_parts(vec![part]);
    let web = Group {
        rules: rules(0, 2).into(),
        members: [address(1)].into_iter().collect(),
        ..Group::new(group_id("blue-web"))
    };
    controller.put_group(web).unwrap();
    controller
        .add_rule(&group_id("shared"), tcp(1, Peer::Any))
        .unwrap();
    // A group that an address is put into is made by that.
    for id in ["blue-db", "blue-"] {
        let error = refused(&mut controller, &shared, |c| {
            c.add_member(&group_id(id), address(2))
        });
        assert_eq!(
            error,
            "the part of uid 60002 would have 3 groups, the limit is 2"
        );
    }
    let error = refused(&mut controller, &shared, |c| {
        c.add_rule(&group_id("blue-web"), tcp(1, Peer::Any))
    });
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 rules, the limit is 3"
    );
    controller
        .add_member(&group_id("shared"), address(2))
        .unwrap();
    let error = refused(&mut controller, &shared, |c| {
        c.add_member(&group_id("shared"), address(3))
    });
    assert_eq!(
        error,
        "the part of uid 60002 would have 3 members, the limit is 2"
    );
    // The same in one request.
    let error = refused(&mut controller, &shared, |c| {
        c.put_group(Group {
            rules: rules(1, 2).into(),
            ..Group::new(group_id("shared"))
        })
    });
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 rules, the limit is 3"
    );
    // What goes makes room, of all kinds.
    controller.delete_group(&group_id("blue-web")).unwrap();
    let db = Group {
        rules: rules(0, 2).into(),
        members: [address(1)].into_iter().collect(),
        ..Group::new(group_id("blue-db"))
    };
    controller.put_group(db).unwrap();
}

#[test]
fn networks_and_bindings_of_a_part_are_bounded_all_or_nothing() {
    let limits = PartLimits {
        networks: 2,
        bindings: 3,
        binding_addresses: 4,
        ..PartLimits::default()
    };
    let part = part(&[100..=199, 150..=160], &[], limits);
    let binding = |vni: u32, last: u8, ips: usize| Binding {
        vni: wire::Vni::new(vni).unwrap(),
        mac: wire::Mac([2, 0, 0, 0, 0, last]),
        ips: (0..ips)
            .map(|n| address(n + usize::from(last) * 100))
            .collect(),
        host: ip("192.0.2.1"),
    };
    let (mut controller, shared) = bound_by(&[]);
    let others = (0..5).map(|last| binding(7, last, 1)).collect();
    controller.put_bindings(others).unwrap();
    controller.set_parts(vec![part]);
    controller
        .put_bindings(vec![binding(150, 1, 1), binding(151, 2, 1)])
        .unwrap();
    let two = vec![binding(150, 3, 1), binding(150, 4, 1)];
    let error = refused(&mut controller, &shared, |c| c.put_bindings(two));
    assert_eq!(
        error,
        "the part of uid 60002 would have 4 bindings, the limit is 3"
    );
    let large = vec![binding(150, 3, 3)];
    let error = refused(&mut controller, &shared, |c| c.put_bindings(large));
    assert_eq!(
        error,
        "the part of uid 60002 would have 5 IPs of bindings, the limit is 4"
    );
    let options = NetworkOptions {
        learning: Some(false),
        ..NetworkOptions::new(wire::Vni::new(152).unwrap())
    };
    let error = refused(&mut controller, &shared, |c| c.put_network(options));
    assert_eq!(
        error,
        "the part of uid 60002 would have 3 VNIs, the limit is 2"
    );
    let error = refused(&mut controller, &shared, |c| c.put_nic(in_vni("a", 9, 152)));
    assert_eq!(
        error,
        "the part of uid 60002 would have 3 VNIs, the limit is 2"
    );
    controller.put_nic(in_vni("a", 9, 151)).unwrap();
    // In the place of others there is room.
    let vni = wire::Vni::new(150).unwrap();
    let new = [binding(150, 7, 1), binding(150, 8, 1)];
    let new = new.into_iter().map(|new| ((vni, new.mac), new)).collect();
    controller.set_bindings(Some(vni), new, false).unwrap();
}

/// Grants add up, each with its own limits.
#[test]
fn of_two_parts_each_has_its_own_room_and_what_is_in_both_that_of_either() {
    let limits = |nics| PartLimits {
        nics,
        ..PartLimits::default()
    };
    let parts = [
        part(&[1..=9], &[], limits(3)),
        part(&[5..=5], &[], limits(1)),
        part(&[20..=20], &[], limits(1)),
    ];
    let (mut controller, shared) = bound_by(&parts);
    controller.put_nic(in_vni("a", 1, 5)).unwrap();
    controller.put_nic(in_vni("b", 2, 5)).unwrap();
    controller.put_nic(in_vni("c", 3, 20)).unwrap();
    let error = refused(&mut controller, &shared, |c| c.put_nic(in_vni("d", 4, 20)));
    assert_eq!(
        error,
        "the part of uid 60002 would have 2 NICs, the limit is 1"
    );
    controller.put_nic(in_vni("d", 4, 1)).unwrap();
    for vni in [1, 5] {
        let error = refused(&mut controller, &shared, |c| c.put_nic(in_vni("e", 5, vni)));
        assert_eq!(
            error,
            "the part of uid 60002 would have 4 NICs, the limit is 3"
        );
    }
}
