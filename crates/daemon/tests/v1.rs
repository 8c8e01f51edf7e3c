//! Sessions with the v1 API against the real daemon: what v0 can do, and what only v1 can.

mod common;

use api::v1::butterfly_client::ButterflyClient;
use api::v1::{self, event::Kind};
use common::{Daemon, within};
use tonic::transport::Channel;
use tonic::{Code, Status};

type Client = ButterflyClient<Channel>;

fn nic(id: &str, last: u8) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: format!("52:54:00:12:34:{last:02x}"),
        vni: 1337,
        addresses: vec![format!("42.0.0.{last}")],
        ..Default::default()
    }
}

/// What the daemon makes of [`nic`]: every default filled in.
fn shown(id: &str, last: u8) -> v1::Nic {
    v1::Nic {
        anti_spoof: Some(true),
        kind: v1::NicKind::VhostUser.into(),
        packet_trace: Some(false),
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: 432_000,
            udp_secs: 30,
            udp_stream_secs: 180,
        }),
        ..nic(id, last)
    }
}

fn http(cidr: &str) -> v1::Rule {
    v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(6),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange { start: 80, end: 80 })),
        peer: Some(v1::rule::Peer::Cidr(cidr.into())),
    }
}

fn group(id: &str) -> v1::Group {
    v1::Group {
        id: id.into(),
        removal: v1::Removal::Cut.into(),
        ..Default::default()
    }
}

async fn put_nic(client: &mut Client, nic: v1::Nic) -> Result<v1::NicStatus, Status> {
    within(client.put_nic(v1::PutNicRequest {
        nic: Some(nic),
        create_only: false,
    }))
    .await
    .map(|answer| answer.into_inner())
}

/// What a daemon has that was told nothing.
fn nothing() -> v1::Config {
    v1::Config {
        balancer: Some(v1::BalancerConfig {
            interfaces: Some(v1::BalancerInterfaces::default()),
            ..Default::default()
        }),
        router: Some(v1::RouterConfig::default()),
        uplinks: Some(v1::UplinkConfig::default()),
        ..Default::default()
    }
}

async fn config(client: &mut Client) -> v1::Config {
    within(client.get_config(v1::GetConfigRequest {}))
        .await
        .unwrap()
        .into_inner()
}

#[tokio::test]
async fn a_nic_s_life() {
    let daemon = Daemon::start(&["-m", "9000"]);
    let client = &mut daemon.v1().await;
    let status = put_nic(client, nic("vnic_1", 1)).await.unwrap();
    let expected = v1::NicStatus {
        nic: Some(shown("vnic_1", 1)),
        path: daemon.path("qemu-vhost-vnic_1").display().to_string(),
        state: v1::PortState::Down.into(),
        detail: String::new(),
        packet_trace_path: format!("/tmp/butterfly-{}-vnic_1.pcap", daemon.pid()),
        mtu: 9000,
        missing_security_groups: shown("vnic_1", 1).security_groups,
        sniff_target_elsewhere: false,
    };
    assert_eq!(status, expected);
    assert!(daemon.path("qemu-vhost-vnic_1").exists());

    let update = v1::UpdateNicRequest {
        id: "vnic_1".into(),
        addresses: Some(v1::AddressList {
            addresses: vec!["FE80:0::1".into()],
        }),
        security_groups: Some(v1::GroupList {
            groups: vec!["web".into(), "web".into()],
        }),
        allowed_address_pairs: Some(v1::AddressPairList {
            pairs: vec![v1::AddressPair {
                net: "10.1.2.3/8".into(),
                mac: "52:54:00:12:34:FF".into(),
            }],
        }),
        timeouts: Some(v1::Timeouts {
            udp_secs: 60,
            ..Default::default()
        }),
        link_down: Some(true),
        ..Default::default()
    };
    let updated = within(client.update_nic(update))
        .await
        .unwrap()
        .into_inner();
    let changed = v1::Nic {
        addresses: vec!["fe80::1".into()],
        security_groups: vec!["web".into()],
        allowed_address_pairs: vec![v1::AddressPair {
            net: "10.0.0.0/8".into(),
            mac: "52:54:00:12:34:ff".into(),
        }],
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: 432_000,
            udp_secs: 60,
            udp_stream_secs: 180,
        }),
        link_down: true,
        ..shown("vnic_1", 1)
    };
    assert_eq!(
        updated,
        v1::NicStatus {
            nic: Some(changed),
            missing_security_groups: vec!["web".into()],
            ..expected
        }
    );
    // An MTU of one's own, and the daemon's again.
    for (given, own, offered) in [(1400, 1400, 1400), (0, 0, 9000)] {
        let update = v1::UpdateNicRequest {
            id: "vnic_1".into(),
            mtu: Some(given),
            ..Default::default()
        };
        let status = within(client.update_nic(update))
            .await
            .unwrap()
            .into_inner();
        assert_eq!((status.nic.unwrap().mtu, status.mtu), (own, offered));
    }
    let got = within(client.get_nic(v1::GetNicRequest {
        id: "vnic_1".into(),
    }))
    .await
    .unwrap()
    .into_inner();
    assert_eq!(got, updated);
    let listed = within(client.list_nics(v1::ListNicsRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.nics, [updated]);
    let stats = within(client.get_nic_stats(v1::GetNicStatsRequest {
        id: "vnic_1".into(),
    }))
    .await
    .unwrap();
    assert_eq!(
        stats.into_inner(),
        v1::NicStats {
            id: "vnic_1".into(),
            ..Default::default()
        }
    );

    let state = within(client.export_nic(v1::ExportNicRequest {
        id: "vnic_1".into(),
    }))
    .await
    .unwrap()
    .into_inner()
    .state;
    let import = |state| v1::ImportNicRequest {
        id: "vnic_1".into(),
        state,
    };
    assert_eq!(
        within(client.import_nic(import(state)))
            .await
            .unwrap()
            .into_inner()
            .flows,
        0
    );
    let refused = within(client.import_nic(import(b"nonsense".to_vec())))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);

    for _ in 0..2 {
        within(client.delete_nic(v1::DeleteNicRequest {
            id: "vnic_1".into(),
        }))
        .await
        .unwrap();
        assert_eq!(config(client).await, nothing());
        assert!(!daemon.path("qemu-vhost-vnic_1").exists());
    }
}

/// Two clients at once, fifty times each: a list that is read, changed and written back would lose
/// some.
#[tokio::test]
async fn groups_are_joined_and_left_without_losing_another_client_s_changes() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    put_nic(&mut client, nic("a", 1)).await.unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for name in ["x", "y"] {
        let mut client = daemon.v1().await;
        clients.spawn(async move {
            for round in 0..50 {
                let update = v1::UpdateNicRequest {
                    id: "a".into(),
                    leave_groups: vec![format!("{name}{round}"), "nobody-s".into()],
                    join_groups: vec![format!("{name}{}", round + 1)],
                    ..Default::default()
                };
                within(client.update_nic(update)).await.unwrap();
            }
        });
    }
    clients.join_all().await;
    let get = || v1::GetNicRequest { id: "a".into() };
    let mut groups = within(client.get_nic(get()))
        .await
        .unwrap()
        .into_inner()
        .nic
        .unwrap()
        .security_groups;
    groups.retain(|group| !nic("a", 1).security_groups.contains(group));
    groups.sort();
    assert_eq!(groups, ["x50", "y50"]);

    let both = v1::UpdateNicRequest {
        id: "a".into(),
        security_groups: Some(v1::GroupList {
            groups: vec!["one".into(), "two".into()],
        }),
        leave_groups: vec!["one".into()],
        join_groups: vec!["two".into(), "three".into()],
        ..Default::default()
    };
    let nic = within(client.update_nic(both))
        .await
        .unwrap()
        .into_inner()
        .nic
        .unwrap();
    assert_eq!(nic.security_groups, ["two", "three"]);
}

#[tokio::test]
async fn a_group_s_settings_change_and_its_rules_stay() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let update = |removal, allow_midstream| v1::UpdateGroupRequest {
        id: "web".into(),
        removal,
        allow_midstream,
        silent_midstream: None,
    };
    let made = within(client.update_group(update(None, None)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made, group("web"), "made when missing");
    let rule = v1::RuleRequest {
        group: "web".into(),
        rule: Some(http("0.0.0.0/0")),
        brief: false,
    };
    let with_rule = within(client.add_rule(rule)).await.unwrap().into_inner();
    let same = within(client.update_group(update(None, None)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(same, with_rule);
    let drain = Some(v1::Removal::Drain.into());
    let drained = within(client.update_group(update(drain, Some(true))))
        .await
        .unwrap()
        .into_inner();
    let expected = v1::Group {
        removal: v1::Removal::Drain.into(),
        allow_midstream: true,
        ..with_rule
    };
    assert_eq!(drained, expected);
    let silent = v1::UpdateGroupRequest {
        silent_midstream: Some(true),
        ..update(None, None)
    };
    let silenced = within(client.update_group(silent))
        .await
        .unwrap()
        .into_inner();
    let expected = v1::Group {
        silent_midstream: true,
        ..expected
    };
    assert_eq!(silenced, expected);
    let refused = within(client.update_group(update(Some(9), None)))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "group 'web': removal '9' is neither cut nor drain"
        )
    );
}

#[tokio::test]
async fn a_group_s_life() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    let request = |rule| v1::RuleRequest {
        group: "web".into(),
        rule: Some(rule),
        brief: false,
    };
    let member = |member: &str| v1::MemberRequest {
        group: "web".into(),
        member: member.into(),
        brief: false,
    };

    let after = within(client.add_rule(request(http("10.1.2.3/8"))))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        after,
        v1::Group {
            rules: vec![http("10.1.2.3/8")],
            ..group("web")
        }
    );
    assert_eq!(
        within(client.add_rule(request(http("10.1.2.3/8"))))
            .await
            .unwrap()
            .into_inner(),
        after
    );
    let brief = within(client.add_rule(v1::RuleRequest {
        brief: true,
        ..request(http("10.1.2.3/8"))
    }));
    let name_alone = v1::Group {
        id: "web".into(),
        ..Default::default()
    };
    assert_eq!(brief.await.unwrap().into_inner(), name_alone);
    let after = within(client.add_member(member("FE80:0::1")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(after.members, ["fe80::1"]);
    let echo = v1::Rule {
        direction: v1::Direction::Egress.into(),
        protocol: Some(1),
        r#match: Some(v1::rule::Match::Icmp(v1::IcmpMatch {
            r#type: Some(8),
            code: None,
        })),
        peer: Some(v1::rule::Peer::Group("users".into())),
    };
    let whole = v1::Group {
        rules: vec![echo.clone(), http("::/0")],
        removal: v1::Removal::Drain.into(),
        allow_midstream: true,
        silent_midstream: true,
        ..group("web")
    };
    let put = v1::PutGroupRequest {
        group: Some(whole.clone()),
    };
    assert_eq!(
        within(client.put_group(put)).await.unwrap().into_inner(),
        whole
    );
    let counters = within(client.list_rule_counters(v1::ListRuleCountersRequest::default()))
        .await
        .unwrap()
        .into_inner();
    let zero = |rule| v1::RuleCounter {
        group: "web".into(),
        rule: Some(rule),
        ..Default::default()
    };
    assert_eq!(counters.counters, [zero(echo.clone()), zero(http("::/0"))]);
    let after = within(client.delete_rule(request(echo)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(after.rules, [http("::/0")]);
    within(client.delete_member(member("fe80::1")))
        .await
        .unwrap();
    let got = within(client.get_group(v1::GetGroupRequest { id: "web".into() }))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(got, after);
    assert_eq!(
        within(client.list_groups(v1::ListGroupsRequest {}))
            .await
            .unwrap()
            .into_inner()
            .groups,
        [after]
    );
    for _ in 0..2 {
        within(client.delete_group(v1::DeleteGroupRequest { id: "web".into() }))
            .await
            .unwrap();
    }
    // Taken away from a group that is not there: so it is already, and no group is made.
    assert_eq!(
        within(client.delete_rule(request(http("::/0"))))
            .await
            .unwrap()
            .into_inner(),
        v1::Group {
            id: "web".into(),
            removal: v1::Removal::Cut.into(),
            ..Default::default()
        }
    );
    assert_eq!(config(client).await, nothing());
}

#[tokio::test]
async fn errors_have_codes_and_change_nothing() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    put_nic(client, nic("a", 1)).await.unwrap();
    let before = config(client).await;

    let change = |change: fn(&mut v1::Nic)| {
        let mut nic = nic("b", 2);
        change(&mut nic);
        nic
    };
    for (bad, code, sentence) in [
        (
            change(|n| n.mac = "x".into()),
            Code::InvalidArgument,
            "NIC 'b': MAC 'x'",
        ),
        (
            change(|n| n.mac = "01:00:5e:00:00:01".into()),
            Code::InvalidArgument,
            "group address",
        ),
        (
            change(|n| n.vni = 1 << 24),
            Code::InvalidArgument,
            "VNI '16777216'",
        ),
        (
            change(|n| n.id = "a/b".into()),
            Code::InvalidArgument,
            "NIC id 'a/b'",
        ),
        (
            change(|n| n.addresses = vec!["1.2.3".into()]),
            Code::InvalidArgument,
            "IP '1.2.3'",
        ),
        (change(|n| n.kind = 9), Code::InvalidArgument, "kind '9'"),
        (
            change(|n| n.kind = v1::NicKind::Bench.into()),
            Code::InvalidArgument,
            "bench role '0'",
        ),
        (
            change(|n| n.bench = Some(v1::Bench::default())),
            Code::InvalidArgument,
            "another kind",
        ),
        (change(|n| n.mtu = 67), Code::InvalidArgument, "MTU '67'"),
        (
            change(|n| n.mtu = 65536),
            Code::InvalidArgument,
            "MTU '65536'",
        ),
        (
            change(|n| {
                n.timeouts = Some(v1::Timeouts {
                    udp_secs: 61,
                    ..Default::default()
                })
            }),
            Code::InvalidArgument,
            "'61'",
        ),
        (
            change(|n| n.security_groups = (0..65).map(|i| format!("g{i}")).collect()),
            Code::ResourceExhausted,
            "the limit is 64",
        ),
        (
            change(|n| n.mac = "52:54:00:12:34:01".into()),
            Code::FailedPrecondition,
            "already that of NIC 'a'",
        ),
        (
            change(|n| n.path = "/nonexistent/dir/sock".into()),
            Code::FailedPrecondition,
            "/nonexistent/dir/sock",
        ),
    ] {
        let error = put_nic(client, bad).await.unwrap_err();
        assert_eq!(error.code(), code, "{error:?}");
        assert!(error.message().contains(sentence), "{error:?}");
    }
    let missing = within(client.put_nic(v1::PutNicRequest::default()))
        .await
        .unwrap_err();
    assert_eq!(
        (missing.code(), missing.message()),
        (Code::InvalidArgument, "the request has no nic")
    );
    let absent = within(client.get_nic(v1::GetNicRequest { id: "z".into() }))
        .await
        .unwrap_err();
    assert_eq!(
        (absent.code(), absent.message()),
        (Code::NotFound, "there is no NIC 'z'")
    );
    let absent = within(client.get_group(v1::GetGroupRequest { id: "z".into() }))
        .await
        .unwrap_err();
    assert_eq!(
        (absent.code(), absent.message()),
        (Code::NotFound, "there is no security group 'z'")
    );
    let undirected = v1::RuleRequest {
        group: "g".into(),
        rule: Some(v1::Rule::default()),
        brief: false,
    };
    assert_eq!(
        within(client.add_rule(undirected))
            .await
            .unwrap_err()
            .code(),
        Code::InvalidArgument
    );
    let loud = within(client.set_log_level(v1::SetLogLevelRequest {
        level: "loud".into(),
    }))
    .await
    .unwrap_err();
    assert_eq!(loud.code(), Code::InvalidArgument);
    assert_eq!(config(client).await, before);
}

#[tokio::test]
async fn a_declared_configuration_is_applied_whole_or_not_at_all() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    put_nic(client, nic("goes", 9)).await.unwrap();
    put_nic(client, nic("stays", 1)).await.unwrap();
    let web = v1::Group {
        rules: vec![http("0.0.0.0/0")],
        members: vec!["10.0.0.1".into()],
        ..group("web")
    };
    let moved = v1::Nic {
        vni: 7,
        security_groups: vec!["web".into()],
        ..shown("stays", 1)
    };
    let declared = v1::Config {
        nics: vec![shown("comes", 2), moved],
        groups: vec![web],
        ..nothing()
    };
    let apply = |config: &v1::Config, dry_run| v1::ApplyRequest {
        config: Some(config.clone()),
        dry_run,
    };

    let before = config(client).await;
    let tried = within(client.apply(apply(&declared, true)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(config(client).await, before);
    let done = within(client.apply(apply(&declared, false)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(done, tried);
    let seen: Vec<_> = done
        .changes
        .iter()
        .map(|change| {
            (
                change.action(),
                change.subject.clone().unwrap(),
                change.details.as_slice(),
            )
        })
        .collect();
    use v1::change::{Action, Subject};
    let web_details = [
        "+ rule ingress tcp 80 from 0.0.0.0/0".to_owned(),
        "+ member 10.0.0.1".to_owned(),
    ];
    let stays_details = [
        "vni: 1337 -> 7".to_owned(),
        "security_groups: (none) -> web".to_owned(),
    ];
    let expected = [
        (
            Action::Create,
            Subject::Group("web".into()),
            &web_details[..],
        ),
        (Action::Create, Subject::Nic("comes".into()), &[][..]),
        (Action::Delete, Subject::Nic("goes".into()), &[][..]),
        (
            Action::Update,
            Subject::Nic("stays".into()),
            &stays_details[..],
        ),
    ];
    assert_eq!(seen, expected);
    assert_eq!(config(client).await, declared);
    assert_eq!(
        daemon.files(),
        ["qemu-vhost-comes", "qemu-vhost-stays", "v0.sock", "v1.sock"]
    );
    assert_eq!(
        within(client.apply(apply(&declared, false)))
            .await
            .unwrap()
            .into_inner()
            .changes,
        []
    );

    // One NIC of three is impossible: nothing of it happens. Neither for two of one id, nor without
    // a configuration.
    let mut bad = declared.clone();
    bad.nics.push(v1::Nic {
        path: "/nonexistent/dir/sock".into(),
        ..nic("zz", 3)
    });
    bad.groups.clear();
    assert_eq!(
        within(client.apply(apply(&bad, false)))
            .await
            .unwrap_err()
            .code(),
        Code::FailedPrecondition
    );
    let mut twice = declared.clone();
    twice.nics.push(nic("comes", 5));
    let error = within(client.apply(apply(&twice, false)))
        .await
        .unwrap_err();
    assert!(
        error
            .message()
            .contains("NIC 'comes': id 'comes' is given twice"),
        "{error:?}"
    );
    let nothing = v1::ApplyRequest {
        config: None,
        dry_run: false,
    };
    assert_eq!(
        within(client.apply(nothing)).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(config(client).await, declared);
}

#[tokio::test]
async fn a_watcher_sees_what_is_and_every_change() {
    let mut daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    put_nic(client, nic("a", 1)).await.unwrap();
    within(client.put_group(v1::PutGroupRequest {
        group: Some(group("g")),
    }))
    .await
    .unwrap();
    let mut events = within(client.watch(v1::WatchRequest { snapshot: true }))
        .await
        .unwrap()
        .into_inner();
    let mut changes = within(client.watch(v1::WatchRequest { snapshot: false }))
        .await
        .unwrap()
        .into_inner();

    let mut next = async || within(events.message()).await.unwrap().unwrap();
    assert_eq!(next().await.kind, Some(Kind::GroupChanged(group("g"))));
    let Some(Kind::NicChanged(status)) = next().await.kind else {
        panic!("the NIC comes second")
    };
    assert_eq!(status.nic, Some(shown("a", 1)));
    assert_eq!(
        next().await.kind,
        Some(Kind::SnapshotEnd(v1::SnapshotEnd {}))
    );

    within(client.add_member(v1::MemberRequest {
        group: "g".into(),
        member: "10.0.0.1".into(),
        brief: false,
    }))
    .await
    .unwrap();
    within(client.delete_group(v1::DeleteGroupRequest { id: "g".into() }))
        .await
        .unwrap();
    within(client.delete_nic(v1::DeleteNicRequest { id: "a".into() }))
        .await
        .unwrap();
    // The first may have come when the group was gone already: its content then is not told any
    // more.
    let mut event = next().await;
    if let Some(Kind::GroupChanged(changed)) = &event.kind {
        assert_eq!(changed.members, ["10.0.0.1"]);
        event = next().await;
    }
    assert_eq!(event.kind, Some(Kind::GroupDeleted("g".into())));
    let last = next().await;
    assert_eq!(last.kind, Some(Kind::NicDeleted("a".into())));
    assert!(last.sequence > event.sequence && last.epoch > event.epoch && last.time_unix_nanos > 0);

    // The one that asked for no snapshot has seen changes alone, and both end with the daemon.
    let first = within(changes.message()).await.unwrap().unwrap();
    assert!(
        matches!(
            first.kind,
            Some(Kind::GroupChanged(_) | Kind::GroupDeleted(_))
        ),
        "{first:?}"
    );
    daemon.signal(rustix::process::Signal::TERM);
    assert!(
        within(events.message())
            .await
            .is_ok_and(|event| event.is_none())
    );
    assert!(daemon.wait().0.success());
}

#[tokio::test]
async fn what_can_be_seen_of_the_daemon() {
    let daemon = Daemon::start(&["-l", "warning", "--max-flows", "4096"]);
    let client = &mut daemon.v1().await;
    put_nic(client, nic("a", 1)).await.unwrap();
    within(client.set_log_level(v1::SetLogLevelRequest {
        level: "debug".into(),
    }))
    .await
    .unwrap();
    let status = within(client.get_status(v1::GetStatusRequest::default()))
        .await
        .unwrap()
        .into_inner();
    let worker = &status.workers[0];
    assert_eq!(
        (status.workers.len(), worker.core, worker.max_flows),
        (1, None, 4096)
    );
    assert!(worker.load_percent <= 100);
    let expected = v1::Status {
        audit_lines_lost: 0,
        version: env!("CARGO_PKG_VERSION").into(),
        pid: daemon.pid(),
        start_unix_secs: status.start_unix_secs,
        current_unix_secs: status.current_unix_secs,
        uptime_secs: status.current_unix_secs - status.start_unix_secs,
        requests: 2,
        epoch: 1,
        nics: 1,
        groups: 0,
        rules: 0,
        networks: 1,
        remote_endpoints: 0,
        bindings: 0,
        socket_dir: daemon.dir.path().to_str().unwrap().into(),
        endpoints: vec![
            daemon.v0.clone(),
            format!("unix:{}", daemon.path("v1.sock").display()),
        ],
        log_level: "debug".into(),
        workers: status.workers.clone(),
        graph_dot: status.graph_dot.clone(),
        uplink: String::new(),
        router: String::new(),
        warnings: Vec::new(),
        forgotten: Vec::new(),
    };
    assert_eq!(status, expected);
    let brief = v1::GetStatusRequest { brief: true };
    let brief = within(client.get_status(brief)).await.unwrap().into_inner();
    let expected = v1::Status {
        requests: 3,
        current_unix_secs: brief.current_unix_secs,
        uptime_secs: brief.uptime_secs,
        workers: Vec::new(),
        graph_dot: String::new(),
        ..expected
    };
    assert_eq!(brief, expected);
    assert!(
        status.graph_dot.starts_with("digraph") || status.graph_dot.starts_with("graph"),
        "{}",
        status.graph_dot
    );
    assert!(status.graph_dot.contains("1337"));

    let ask = |nic: &str, all| v1::ListDropsRequest {
        nic: nic.into(),
        all,
    };
    let none = within(client.list_drops(ask("", false)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(none, v1::ListDropsResponse::default());
    let all = within(client.list_drops(ask("a", true)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.totals, []);
    assert!(
        all.drops
            .iter()
            .any(|drop| drop.reason == "mac_spoofed" && !drop.description.is_empty())
    );
    assert!(
        all.drops
            .iter()
            .all(|drop| drop.nic == "a" && drop.frames == 0)
    );
    assert_eq!(
        within(client.list_drops(ask("z", false)))
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );

    let mut flows = within(client.list_flows(v1::ListFlowsRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(within(flows.message()).await.unwrap(), None);
    let absent = within(client.list_flows(flows_of("z"))).await;
    assert_eq!(absent.unwrap_err().code(), Code::NotFound);
}

fn flows_of(nic: &str) -> v1::ListFlowsRequest {
    v1::ListFlowsRequest {
        nic: nic.into(),
        ..Default::default()
    }
}

/// What would help is pasted into a shell, often root's; ids are chosen by tenants.
#[tokio::test]
async fn an_id_is_one_word_in_the_commands_that_would_help() {
    const SENDER: &str = "a;$(id)'";
    const TARGET: &str = "b;$(id)'";
    const GROUP: &str = "g;$(id)'";
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    within(client.put_group(v1::PutGroupRequest {
        group: Some(group(GROUP)),
    }))
    .await
    .unwrap();
    put_nic(client, nic(SENDER, 1)).await.unwrap();
    put_nic(client, nic("other", 3)).await.unwrap();
    let target = v1::Nic {
        security_groups: vec![GROUP.into()],
        ..nic(TARGET, 2)
    };
    put_nic(client, target).await.unwrap();
    // The words of each command that would help, as a shell has them.
    let mut help = async |from: &str, to: &str, source_mac: &str| -> Vec<Vec<String>> {
        let headers = v1::TraceHeaders {
            protocol: 6,
            destination: to.into(),
            destination_port: 80,
            source_mac: source_mac.into(),
            ..Default::default()
        };
        let trace = within(client.get_trace(v1::GetTraceRequest {
            from: Some(v1::get_trace_request::From::Nic(from.into())),
            what: Some(v1::get_trace_request::What::Headers(headers)),
        }));
        let trace = trace.await.unwrap().into_inner();
        let words = |line: &String| {
            let script = format!("printf '%s\\n' {line}");
            let mut sh = std::process::Command::new("sh");
            let said = sh.args(["-c", &script]).output().unwrap();
            assert!(said.status.success(), "{line}: {said:?}");
            let said = String::from_utf8(said.stdout).unwrap();
            said.lines().map(str::to_owned).collect()
        };
        trace.remedies.iter().map(words).collect()
    };
    let spoofed = help(SENDER, "42.0.0.2", "52:54:00:00:00:99").await;
    assert_eq!(spoofed.len(), 2, "{spoofed:?}");
    for words in &spoofed {
        assert_eq!(words[..4], ["butterfly", "nic", "update", SENDER]);
    }
    assert_eq!(spoofed[1][4..], ["--learn-macs"], "the rest is a comment");
    let no_rule = help(SENDER, "42.0.0.2", "").await;
    assert_eq!(no_rule.len(), 1, "{no_rule:?}");
    assert_eq!(no_rule[0][..5], ["butterfly", "sg", "rule", "add", GROUP]);
    let no_group = help("other", "42.0.0.1", "").await;
    let expected = ["butterfly", "nic", "sg", "add", SENDER, "GROUP"];
    assert_eq!(no_group.last().unwrap()[..], expected);
}

/// Two bench NICs talk through the whole path: what they send is counted, and tracked, and both
/// APIs say so.
#[tokio::test]
async fn bench_nics_talk_and_are_counted() {
    let daemon = Daemon::start(&[]);
    let client = &mut daemon.v1().await;
    within(client.add_rule(v1::RuleRequest {
        group: "ping".into(),
        rule: Some(v1::Rule {
            direction: v1::Direction::Ingress.into(),
            protocol: Some(1),
            ..Default::default()
        }),
        brief: false,
    }))
    .await
    .unwrap();
    let bench = |role: v1::bench::Role| v1::Bench {
        role: role.into(),
        target_ip: "42.0.0.2".into(),
        target_mac: "52:54:00:12:34:02".into(),
    };
    let receiver = v1::Nic {
        kind: v1::NicKind::Bench.into(),
        bench: Some(v1::Bench {
            role: v1::bench::Role::IcmpReceiver.into(),
            ..Default::default()
        }),
        security_groups: vec!["ping".into()],
        ..nic("receiver", 2)
    };
    let sender = v1::Nic {
        kind: v1::NicKind::Bench.into(),
        bench: Some(bench(v1::bench::Role::IcmpSender)),
        ..nic("sender", 1)
    };
    put_nic(client, receiver).await.unwrap();
    put_nic(client, sender).await.unwrap();
    let counted = async {
        loop {
            let stats = client
                .get_nic_stats(v1::GetNicStatsRequest {
                    id: "sender".into(),
                })
                .await
                .unwrap()
                .into_inner();
            if stats.ingress_frames > 1000 {
                return stats;
            }
            tokio::task::yield_now().await;
        }
    };
    let stats = within(counted).await;
    assert!(stats.egress_frames >= stats.ingress_frames, "{stats:?}");
    assert_eq!(stats.ingress_drops, 0, "{stats:?}");
    let mut flows = within(client.list_flows(flows_of("receiver")))
        .await
        .unwrap()
        .into_inner();
    let flow = within(flows.message()).await.unwrap().unwrap();
    assert_eq!(
        (
            flow.nic.as_str(),
            flow.peer_nic.as_str(),
            flow.direction(),
            flow.protocol,
            flow.source.as_str()
        ),
        ("receiver", "sender", v1::Direction::Ingress, 1, "42.0.0.1")
    );
    let counters = within(client.list_rule_counters(v1::ListRuleCountersRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert!(
        counters.counters[0].frames > 1000 && counters.counters[0].flows >= 1,
        "{counters:?}"
    );

    // A rule that goes stops what runs.
    let rule = counters.counters[0].rule.clone();
    within(client.delete_rule(v1::RuleRequest {
        group: "ping".into(),
        rule,
        brief: false,
    }))
    .await
    .unwrap();
    let before = within(client.get_nic_stats(v1::GetNicStatsRequest {
        id: "receiver".into(),
    }))
    .await
    .unwrap()
    .into_inner();
    let dropped = async {
        loop {
            let stats = client
                .get_nic_stats(v1::GetNicStatsRequest {
                    id: "receiver".into(),
                })
                .await
                .unwrap()
                .into_inner();
            if stats.ingress_drops > before.ingress_drops {
                return stats;
            }
            tokio::task::yield_now().await;
        }
    };
    let after = within(dropped).await;
    assert_eq!(after.ingress_frames, before.ingress_frames);
    let totals = within(client.list_drops(v1::ListDropsRequest::default()))
        .await
        .unwrap()
        .into_inner()
        .totals;
    assert!(
        totals
            .iter()
            .any(|drop| drop.direction() == v1::Direction::Ingress && drop.frames > 0),
        "{totals:?}"
    );
}

/// `nic add` asks for this; a replacement of a live NIC has to be meant.
#[tokio::test]
async fn a_nic_that_is_there_is_not_replaced_unasked() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let create = |nic: &v1::Nic| v1::PutNicRequest {
        nic: Some(nic.clone()),
        create_only: true,
    };
    let nic = v1::Nic {
        id: "a".into(),
        mac: "52:54:00:12:34:01".into(),
        vni: 7,
        addresses: vec!["10.0.0.1".into()],
        ..Default::default()
    };
    for _ in 0..2 {
        within(client.put_nic(create(&nic))).await.unwrap();
    }
    let other = v1::Nic {
        addresses: vec!["10.0.0.2".into()],
        ..nic.clone()
    };
    let error = within(client.put_nic(create(&other))).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::AlreadyExists);
    assert_eq!(
        error.message(),
        "NIC 'a' is there already with other values: ip is '10.0.0.1', not '10.0.0.2'"
    );
    let blank = v1::Nic {
        id: "a b".into(),
        ..nic.clone()
    };
    let error = within(client.put_nic(create(&blank))).await.unwrap_err();
    assert!(error.message().contains("printable word"), "{error}");
    let kept = within(client.get_nic(v1::GetNicRequest { id: "a".into() })).await;
    assert_eq!(
        kept.unwrap().into_inner().nic.unwrap().addresses,
        ["10.0.0.1"]
    );
    let replaced = v1::PutNicRequest {
        nic: Some(other),
        create_only: false,
    };
    within(client.put_nic(replaced)).await.unwrap();
}
