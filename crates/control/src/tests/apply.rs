//! A whole declared configuration: shown, tried, applied, all or nothing.

use super::world::*;
use crate::model::{AccessList, Direction, Group, Nic, Peer, Rule};
use crate::{AclChange, Amounts, Declared, Diff, NicState};
use std::sync::Arc;

#[test]
fn a_diff_reads_as_what_will_happen() {
    let (mut controller, shared) = controller();
    let before = config(
        vec![nic("a", 1, &["web"]), nic("gone", 9, &[])],
        vec![
            group("web", &["42.0.0.9"], &[tcp(80, Peer::Any)]),
            group("old", &[], &[]),
        ],
    );
    controller.apply(before, false).unwrap();
    let mut a = nic("a", 1, &["web"]);
    a.ips = vec![ip("42.0.0.3"), ip("fd00::1")];
    let after = config(
        vec![a, nic("b", 2, &["web", "db"])],
        vec![group(
            "web",
            &["42.0.0.8"],
            &[tcp(443, Peer::Group(group_id("db")))],
        )],
    );
    let shown = controller.apply(after.clone(), true).unwrap();
    assert_eq!(
        shown.to_string(),
        "~ nic a: ip 42.0.0.1 -> 42.0.0.3,fd00::1\n\
         + nic b: mac 52:54:00:12:34:02, vni 42, ip 42.0.0.2, groups web,db\n\
         - nic gone\n\
         - group old\n\
         ~ group web:\n\
         \x20   + rule ingress tcp 443 from group db\n\
         \x20   - rule ingress tcp 80 from anybody\n\
         \x20   + member 42.0.0.8\n\
         \x20   - member 42.0.0.9\n"
    );
    assert_eq!(
        (controller.nic_ids().len(), shared.world().snapshots.len()),
        (2, 1),
        "a dry run does nothing"
    );

    assert_eq!(controller.apply(after.clone(), false).unwrap(), shown);
    assert!(controller.config() == after);
    assert_eq!(shared.world().snapshots.len(), 2);
    assert!(
        controller
            .apply(controller.config(), false)
            .unwrap()
            .is_empty()
    );
    assert_eq!(shared.world().snapshots.len(), 2);
}

/// By kind, and of groups that stay by what they have less.
#[test]
fn what_goes_is_counted() {
    let (mut controller, _shared) = controller();
    let rules = [80, 81, 82].map(|port| tcp(port, Peer::Any));
    let before = config(
        vec![nic("a", 1, &["web"]), nic("gone", 9, &[])],
        vec![
            group("web", &["42.0.0.8", "42.0.0.9"], &rules),
            group("old", &[], &rules[..1]),
        ],
    );
    controller.apply(before, false).unwrap();
    let there = Amounts {
        nics: 2,
        groups: 2,
        rules: 4,
        members: 2,
        ..Amounts::default()
    };
    assert_eq!(controller.amounts(), there);
    let after = config(
        vec![nic("a", 1, &["web"])],
        vec![group(
            "web",
            &["42.0.0.7"],
            &[rules[0].clone(), tcp(443, Peer::Any)],
        )],
    );
    let gone = Amounts {
        nics: 1,
        groups: 1,
        rules: 1,
        members: 1,
        ..Amounts::default()
    };
    let shown = controller.apply(after, true).unwrap();
    assert_eq!(shown.deleted(), gone);
    let list = |rules: usize| {
        Some(Arc::new(AccessList {
            rules: vec!["allow proto tcp".parse().unwrap(); rules],
            default_allows: false,
        }))
    };
    let of_list = |to| {
        let diff = Diff {
            router_acl: Some(AclChange { from: list(3), to }),
            ..Diff::default()
        };
        let deleted = diff.deleted();
        (deleted.router_acls, deleted.router_acl_rules)
    };
    assert_eq!(of_list(list(1)), (0, 2));
    assert_eq!(of_list(list(4)), (0, 0));
    assert_eq!(of_list(None), (1, 3));
}

#[test]
fn one_socket_that_cannot_be_made_undoes_all() {
    let (mut controller, shared) = controller();
    controller
        .apply(
            config(vec![nic("a", 1, &[]), nic("z", 4, &[])], vec![]),
            false,
        )
        .unwrap();
    shared
        .world()
        .refused
        .insert("/run/butterfly/qemu-vhost-c".to_owned());
    let wanted = config(
        vec![nic("b", 2, &[]), nic("c", 3, &[]), nic("z", 5, &["web"])],
        vec![group("web", &[], &[tcp(80, Peer::Any)])],
    );
    shared.log();
    let error = refused(&mut controller, &shared, |c| c.apply(wanted.clone(), false));
    assert_eq!(
        error,
        "NIC 'c': /run/butterfly/qemu-vhost-c: permission denied"
    );
    assert_eq!(
        shared.log(),
        ["open b /run/butterfly/qemu-vhost-b", "close b"]
    );

    shared.world().refused.clear();
    shared.world().refuse_publish = true;
    let error = refused(&mut controller, &shared, |c| c.apply(wanted.clone(), false));
    assert_eq!(
        error,
        "the data plane did not take the change: the worker is gone"
    );
    shared.world().refuse_publish = false;
    controller.apply(wanted.clone(), false).unwrap();
    assert!(controller.config() == wanted);
}

#[test]
fn nics_exchange_their_macs_in_one_step_only() {
    let (mut controller, shared) = controller();
    controller
        .apply(
            config(vec![nic("a", 1, &[]), nic("b", 2, &[])], vec![]),
            false,
        )
        .unwrap();
    let (a, b) = (nic("a", 1, &[]), nic("b", 2, &[]));
    let crossed = |of: &Nic, with: &Nic| Nic {
        mac: with.mac,
        ips: with.ips.clone(),
        ..of.clone()
    };
    refused(&mut controller, &shared, |c| c.put_nic(crossed(&a, &b)));
    controller
        .apply(
            config(vec![crossed(&a, &b), crossed(&b, &a)], vec![]),
            false,
        )
        .unwrap();
    let network = port(&controller, &shared, "a").network;
    let network = shared.world().snapshots.last().unwrap().networks[network.0 as usize]
        .clone()
        .unwrap();
    assert_eq!(
        network.macs[&b.mac],
        controller.nic(&nic_id("a")).unwrap().slot
    );
    assert_eq!(
        network.macs[&a.mac],
        controller.nic(&nic_id("b")).unwrap().slot
    );
    assert_eq!((network.macs.len(), network.ports.len()), (2, 2));
}

#[test]
fn a_socket_does_not_pass_from_one_nic_to_another_in_one_step() {
    let (mut controller, shared) = controller();
    let at = |nic: Nic, path: &str| Nic {
        path: Some(path.to_owned()),
        ..nic
    };
    controller.put_nic(at(nic("a", 1, &[]), "/run/x")).unwrap();
    controller
        .put_nic(Nic {
            packet_trace: true,
            ..nic("c", 3, &[])
        })
        .unwrap();
    let heir = config(vec![at(nic("b", 1, &[]), "/run/x")], vec![]);
    for dry_run in [true, false] {
        let error = refused(&mut controller, &shared, |c| c.apply(heir.clone(), dry_run));
        assert_eq!(error, "NIC 'b': path '/run/x' is already that of NIC 'a'");
    }
    let trace_path = Some("/tmp/butterfly-42-c.pcap".to_owned());
    let heir = Nic {
        packet_trace: true,
        packet_trace_path: trace_path,
        ..nic("b", 1, &[])
    };
    refused(&mut controller, &shared, |c| {
        c.apply(config(vec![heir], vec![]), false)
    });
    controller.delete_nic(&nic_id("a")).unwrap();
    controller.put_nic(at(nic("b", 1, &[]), "/run/x")).unwrap();
}

#[test]
fn ten_thousand_rules_come_in_one_snapshot() {
    let (mut controller, shared) = controller();
    let rules: Vec<_> = (0..10_000).map(|port| tcp(port, Peer::Any)).collect();
    let diff = controller
        .apply(
            config(vec![nic("a", 1, &["web"])], vec![group("web", &[], &rules)]),
            false,
        )
        .unwrap();
    assert_eq!(diff.groups[0].diff.rules_added.len(), 10_000);
    assert_eq!(
        (
            shared.world().snapshots.len(),
            controller.last_work().rule_sets
        ),
        (1, 1)
    );
    assert_eq!(
        controller
            .group_stats(&group_id("web"))
            .unwrap()
            .rules
            .len(),
        10_000
    );
}

/// What a fuzzer found: `fuzz/regressions/v1/rule-order`.
#[test]
fn another_order_of_rules_or_members_is_a_change_of_nothing_else() {
    let (mut controller, _) = controller();
    let rule = |direction, net: &str| {
        let (address, length) = net.split_once('/').unwrap();
        let cidr = Some((address, length.parse().unwrap()));
        Rule::from_v0(direction, -1, None, None, cidr, None).unwrap()
    };
    let rules =
        ["10.0.0.1/8", "10.0.0.0/8", "10.1.0.0/16"].map(|net| rule(Direction::Ingress, net));
    let group = |order: [usize; 3], members: [&str; 2]| Group {
        rules: order.map(|at| rules[at].clone()).into_iter().collect(),
        members: members.into_iter().map(ip).collect(),
        ..Group::new("web".parse().unwrap())
    };
    let of = |controller: &crate::Controller| controller.group(&"web".parse().unwrap()).unwrap();
    let first = group([0, 1, 2], ["10.0.0.9", "10.0.0.1"]);
    controller.put_group(first.clone()).unwrap();
    assert!(controller.put_group(first).unwrap().is_empty());
    for (order, members) in [
        ([2, 0, 1], ["10.0.0.9", "10.0.0.1"]),
        ([2, 0, 1], ["10.0.0.1", "10.0.0.9"]),
    ] {
        let diff = controller.put_group(group(order, members)).unwrap();
        assert_eq!(
            diff.to_string(),
            "~ group web:\n    ~ order of rules or members\n"
        );
        assert_eq!(*of(&controller), group(order, members));
    }
    // A rule that comes in the middle stands there.
    let mut more = group([2, 0, 1], ["10.0.0.1", "10.0.0.9"]);
    more.rules.insert(1, rule(Direction::Egress, "::/0"));
    controller.put_group(more.clone()).unwrap();
    assert_eq!(*of(&controller), more);
}

#[test]
fn what_is_broken_is_tried_again_and_said() {
    let (mut controller, shared) = controller();
    let both = || config(vec![nic("a", 1, &[]), nic("b", 2, &[])], vec![]);
    let diff = controller.apply(both(), false).unwrap();
    let broken = |why: &str| NicState::Broken(why.to_owned());
    assert_eq!(controller.heal(Declared::InDocument, &diff, false), []);
    for (id, why) in [("b", "it went"), ("a", "it lies")] {
        let slot = controller.nic(&nic_id(id)).unwrap().slot;
        controller.port_state(slot, broken(why));
    }
    shared.log();
    controller.take_changed();
    let healed = |controller: &mut crate::Controller, dry_run| {
        let diff = controller.apply(both(), dry_run).unwrap();
        assert!(diff.is_empty());
        let healed = controller.heal(Declared::InDocument, &diff, dry_run);
        let each = healed
            .into_iter()
            .map(|one| (one.nic.to_string(), one.was, one.state));
        each.collect::<Vec<_>>()
    };
    let a = |state| ("a".to_owned(), "it lies".to_owned(), state);
    let b = |state| ("b".to_owned(), "it went".to_owned(), state);
    assert_eq!(
        healed(&mut controller, true),
        [a(broken("it lies")), b(broken("it went"))]
    );
    assert_eq!(shared.log(), [] as [&str; 0], "a dry run tries nothing");
    assert_eq!(controller.take_changed(), None);
    // Of what would go nothing is to be healed.
    let gone = controller.apply(config(vec![], vec![]), true).unwrap();
    assert_eq!(controller.heal(Declared::InDocument, &gone, true), []);

    shared.world().heals.insert("b".to_owned(), NicState::Up);
    let mut events = controller.subscribe();
    // Of `a` its world does not know anything.
    assert_eq!(
        healed(&mut controller, false),
        [a(broken("it lies")), b(NicState::Up)]
    );
    assert_eq!(shared.log(), ["heal a", "heal b"]);
    let tried = crate::Changed::default();
    assert_eq!(controller.take_changed(), Some(tried), "it had an effect");
    assert!(events.try_recv().is_ok(), "it is told");
    assert!(events.try_recv().is_err(), "once");
    assert_eq!(controller.nic(&nic_id("b")).unwrap().state, NicState::Up);
    assert_eq!(healed(&mut controller, false), [a(broken("it lies"))]);
}

#[test]
fn what_goes_on_of_an_operation_is_given_out_once() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    let (mut controller, shared) = controller();
    controller
        .apply(config(vec![nic("a", 1, &[])], vec![]), false)
        .unwrap();
    assert!(controller.take_ending().is_none());
    let over = Arc::new(AtomicBool::new(false));
    shared.world().ending = Some(over.clone());
    controller.apply(config(vec![], vec![]), false).unwrap();
    let ending = controller.take_ending().unwrap();
    assert!(controller.take_ending().is_none());
    ending.wait();
    assert!(over.load(std::sync::atomic::Ordering::Relaxed));
}
