//! Groups: made and unmade in any order, what they stand for, what is counted, what is told to
//! subscribers, and what a change costs.

use super::world::*;
use crate::event::EventKind;
use crate::model::{Group, Nic, Peer, Removal};
use crate::{NicState, Work};
use dataplane::counters::RuleCounters;
use tokio::sync::broadcast::error::TryRecvError;

/// security-groups.md 3.
#[test]
fn a_group_is_named_before_it_exists_and_after() {
    let (mut controller, shared) = controller();
    controller.put_nic(nic("a", 1, &["web"])).unwrap();
    controller
        .add_rule(&group_id("db"), tcp(5432, Peer::Group(group_id("web"))))
        .unwrap();
    let web = port(&controller, &shared, "a").groups[0];
    assert!(
        compiled(&controller, &shared, "web").is_none(),
        "allows nothing, stands for nobody"
    );

    controller
        .put_group(group("web", &["42.0.0.200"], &[tcp(80, Peer::Any)]))
        .unwrap();
    assert_eq!(
        members(&controller, &shared, "web"),
        ["42.0.0.1", "42.0.0.200"]
    );
    controller.delete_group(&group_id("web")).unwrap();
    assert!(compiled(&controller, &shared, "web").is_none());
    assert_eq!(
        controller.group(&group_id("db")).unwrap().rules.len(),
        1,
        "the rule stays and is listed"
    );
    controller.put_group(Group::new(group_id("web"))).unwrap();
    assert_eq!(members(&controller, &shared, "web"), ["42.0.0.1"]);
    assert_eq!(
        port(&controller, &shared, "a").groups[0],
        web,
        "nothing else was compiled again"
    );
    assert_eq!(controller.group_nics(&group_id("web")), [nic_id("a")]);
}

/// security-groups.md 3.
#[test]
fn members_are_those_listed_and_those_of_nics() {
    let (mut controller, shared) = controller();
    let web = group_id("web");
    controller.add_member(&web, ip("42.0.0.1")).unwrap();
    let shared_by_all = |mut nic: Nic| {
        nic.shared = true;
        nic
    };
    let first = shared_by_all(nic("a", 1, &["web"]));
    controller.put_nic(first).unwrap();
    let mut twin = shared_by_all(nic("b", 2, &["web"]));
    twin.ips.push(ip("42.0.0.1"));
    controller.put_nic(twin).unwrap();
    assert_eq!(
        members(&controller, &shared, "web"),
        ["42.0.0.1", "42.0.0.2"]
    );
    controller.delete_member(&web, ip("42.0.0.1")).unwrap();
    controller.delete_nic(&nic_id("a")).unwrap();
    assert_eq!(
        members(&controller, &shared, "web"),
        ["42.0.0.1", "42.0.0.2"],
        "b has both"
    );
    controller.put_nic(nic("b", 2, &["web"])).unwrap();
    assert_eq!(members(&controller, &shared, "web"), ["42.0.0.2"]);
    controller.delete_nic(&nic_id("b")).unwrap();
    assert!(members(&controller, &shared, "web").is_empty());
}

#[test]
fn every_operation_on_groups_succeeds_twice_and_publishes_once() {
    let (mut controller, shared) = controller();
    let (web, rule) = (group_id("web"), tcp(80, Peer::Any));
    let mut published = 0;
    for step in 0..6 {
        for round in 0..2 {
            let diff = match step {
                0 => controller.add_rule(&web, rule.clone()),
                1 => controller.add_member(&web, ip("::1")),
                2 => controller.put_group(Group {
                    removal: Removal::Drain,
                    ..group("web", &["::1"], std::slice::from_ref(&rule))
                }),
                3 => controller.delete_rule(&web, &rule),
                4 => controller.delete_member(&web, ip("::1")),
                _ => controller.delete_group(&web),
            };
            assert_eq!(diff.unwrap().is_empty(), round == 1, "step {step}");
        }
        published += 1;
        assert_eq!(shared.world().snapshots.len(), published);
    }
    assert!(controller.delete_rule(&web, &rule).unwrap().is_empty());
    assert!(
        controller
            .delete_member(&web, ip("::1"))
            .unwrap()
            .is_empty()
    );
    assert!(controller.group(&web).is_err(), "deleting made no group");
}

#[test]
fn a_rule_counts_from_its_own_beginning() {
    let (mut controller, shared) = controller();
    let web = group_id("web");
    controller
        .put_group(group(
            "web",
            &[],
            &[tcp(80, Peer::Any), tcp(443, Peer::Any)],
        ))
        .unwrap();
    shared.world().rules.insert(
        0,
        RuleCounters {
            frames: 5,
            bytes: 500,
            flows: 1,
        },
    );
    shared.world().rules.insert(
        1,
        RuleCounters {
            frames: 7,
            bytes: 700,
            flows: 2,
        },
    );
    controller.delete_rule(&web, &tcp(80, Peer::Any)).unwrap();
    controller.add_rule(&web, tcp(22, Peer::Any)).unwrap();
    shared.world().rules.insert(
        0,
        RuleCounters {
            frames: 6,
            bytes: 560,
            flows: 2,
        },
    );
    let stats = controller.group_stats(&web).unwrap();
    let counts: Vec<_> = stats
        .rules
        .iter()
        .map(|r| (r.rule.clone(), r.frames, r.bytes, r.flows))
        .collect();
    assert_eq!(
        counts,
        [
            (tcp(443, Peer::Any), 7, 700, 2),
            (tcp(22, Peer::Any), 1, 60, 1)
        ]
    );
}

#[test]
fn subscribers_are_told_what_changed_in_order_and_that_they_missed_some() {
    let (mut controller, _shared) = controller();
    let mut events = controller.subscribe();
    let slot = controller.put_nic(nic("a", 1, &[])).unwrap().slot;
    controller.port_state(slot, NicState::Up);
    controller.port_state(slot, NicState::Up);
    controller
        .add_rule(&group_id("web"), tcp(80, Peer::Any))
        .unwrap();
    controller
        .add_rule(&group_id("web"), tcp(81, Peer::Any))
        .unwrap();
    controller.delete_nic(&nic_id("a")).unwrap();
    controller.port_state(slot, NicState::Down);
    let seen: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    assert_eq!(
        seen.iter().map(|event| event.sequence).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    assert_eq!(
        seen.iter().map(|event| event.epoch).collect::<Vec<_>>(),
        [1, 1, 2, 3, 4]
    );
    assert_eq!(seen[0].kind, EventKind::NicAdded(nic_id("a")));
    assert_eq!(seen[1].kind, EventKind::NicState(nic_id("a"), NicState::Up));
    assert_eq!(seen[2].kind, EventKind::GroupAdded(group_id("web")));
    assert_eq!(seen[3].kind, EventKind::GroupChanged(group_id("web")));
    assert_eq!(seen[4].kind, EventKind::NicRemoved(nic_id("a")));

    for port in 0..=crate::limits::EVENTS {
        let ip = std::net::IpAddr::from((port as u128).to_be_bytes());
        controller.add_member(&group_id("web"), ip).unwrap();
    }
    assert_eq!(events.try_recv(), Err(TryRecvError::Lagged(1)));
}

#[test]
fn an_operation_compiles_what_it_touches() {
    let (mut controller, shared) = controller();
    let nics = (0..1000u32).map(|n| {
        let [.., high, low] = n.to_be_bytes();
        let mut nic = nic(&format!("nic{n}"), 0, &["all", &format!("g{}", n % 10)]);
        nic.mac = wire::Mac([2, 0, 0, 0, high, low]);
        nic.ips = vec![std::net::IpAddr::from([42, 0, high, low])];
        nic
    });
    let groups = (0..10).map(|n| {
        group(
            &format!("g{n}"),
            &[],
            &[tcp(n + 1, Peer::Group(group_id("all")))],
        )
    });
    let everything = config(
        nics.collect(),
        groups.chain([group("all", &[], &[])]).collect(),
    );
    controller.apply(everything, false).unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            ports: 1000,
            networks: 1,
            rule_sets: 11,
            rules: 10,
            members: 2000,
            bindings: 0,
        }
    );
    assert_eq!(
        shared.world().snapshots.len(),
        1,
        "one snapshot for all of it"
    );

    controller
        .add_rule(&group_id("all"), tcp(22, Peer::Any))
        .unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            rule_sets: 1,
            rules: 1,
            ..Work::default()
        }
    );
    controller
        .delete_rule(&group_id("all"), &tcp(22, Peer::Any))
        .unwrap();
    assert_eq!(controller.last_work().rules, 1);
    controller.add_member(&group_id("all"), ip("::1")).unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            members: 1,
            ..Work::default()
        }
    );
    let new = crate::model::Nic {
        ips: vec![ip("43.0.0.1")],
        ..nic("new", 77, &["all"])
    };
    controller.put_nic(new).unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            ports: 1,
            networks: 1,
            members: 1,
            ..Work::default()
        }
    );
    controller
        .update_nic(
            &nic_id("new"),
            crate::model::NicUpdate {
                anti_spoof: Some(true),
                ..Default::default()
            },
        )
        .unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            ports: 1,
            ..Work::default()
        }
    );
    controller.delete_group(&group_id("all")).unwrap();
    assert_eq!(controller.last_work(), Work::default());
    controller.delete_nic(&nic_id("new")).unwrap();
    assert_eq!(
        controller.last_work(),
        Work {
            networks: 1,
            ..Work::default()
        }
    );
}

#[test]
fn status_and_graph_say_what_is_there() {
    let (mut controller, _shared) = controller();
    controller
        .put_nic(nic("a\"b", 1, &["web", "none"]))
        .unwrap();
    controller
        .add_rule(&group_id("web"), tcp(80, Peer::Any))
        .unwrap();
    controller.count_request();
    let status = controller.status();
    assert_eq!(
        (
            status.started_unix_secs,
            status.requests,
            status.epoch,
            status.event_sequence
        ),
        (7, 1, 2, 2)
    );
    assert_eq!(
        (status.nics, status.networks, status.groups, status.rules),
        (1, 1, 1, 1)
    );
    assert_eq!(
        controller.graph_dot(),
        r#"graph butterfly {
    node [shape=box];
    subgraph cluster_42 {
        label="VNI 42";
        "nic a\"b" [label="a\"b\n52:54:00:12:34:01\n42.0.0.1"];
    }
    "sg none" [shape=ellipse, color=grey, label="none\n0 rules"];
    "sg web" [shape=ellipse, color=black, label="web\n1 rules"];
    "nic a\"b" -- "sg web" [style=dashed];
    "nic a\"b" -- "sg none" [style=dashed];
}
"#
    );
}
