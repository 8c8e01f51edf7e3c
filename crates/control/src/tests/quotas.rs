//! The stated maxima: the last that fits is taken, the next is refused with the limit and the
//! value.

use super::world::*;
use crate::limits;
use crate::model::{Direction, Group, Nic, Peer, Ports, Rule, RuleMatch};
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
