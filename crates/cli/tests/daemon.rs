//! The command against the real daemon, over both APIs.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::daemon::{Daemon, without_notes};
use common::{Ran, butterfly, command, run, until, words};

/// The original's README, word for word.
const SEEDS: &[&str] = &[
    "nic add --ip 42.0.0.1 --mac 52:54:00:12:34:01 --vni 1337 --id vnic_1",
    "sg rule add mysg --ip-proto tcp --port 22 --cidr 42.0.3.1/32",
    "sg rule add mysg --ip-proto tcp --port 80 --sg-members users",
    "nic add --ip 42.0.0.1 --mac 52:54:00:12:34:01 --vni 42 --id vnic_1",
    "nic add --ip 42.0.0.1 --mac 52:54:00:12:34:01 --vni 51 --id vnic_2",
    "nic add --ip 42.0.0.2 --mac 52:54:00:12:34:02 --vni 51 --id vnic_3",
    "nic add --ip 42.0.0.3 --mac 52:54:00:12:34:03 --vni 51 --id vnic_4",
    "nic add --ip 42.0.0.1 --mac 52:54:00:12:34:01 --vni 1337 --id vnic_5",
    "nic add --ip 42.0.0.2 --mac 52:54:00:12:34:02 --vni 1337 --id vnic_6",
    "sg add sg-web",
    "sg rule add sg-web --ip-proto tcp --port 80 --cidr 0.0.0.0/0",
    "nic sg add vnic_1 sg-web",
    "nic sg add vnic_2 sg-web",
    "status",
];

/// Commands that print the same over both APIs, in an order that makes sense.
const SAME: &[&str] = &[
    "nic list",
    "sg list",
    "nic add --id b --mac 52:54:00:12:34:0B --vni 42 --ip 42.0.0.2 FD00:0::2 42.0.0.2 --sg web \
     --disable-antispoof --allow-dhcp-server --allow-router-advertisements",
    "nic add --id a --mac 52:54:00:12:34:0a --vni 42 --ip 42.0.0.1 --sg web later \
     --enable-antispoof --allow-dhcp-server --allow-router-advertisements",
    "nic add --id spy --mac 52:54:00:12:34:0c --vni 42 --sniff-target a --enable-antispoof \
     --allow-dhcp-server --allow-router-advertisements",
    "nic add --id echo --mac 52:54:00:12:34:0d --vni 7 --ip 42.0.0.9 --type BENCH --btype \
     ICMP_RCV_LIKE --enable-antispoof --allow-dhcp-server --allow-router-advertisements",
    "nic list",
    "nic details a",
    "nic details",
    "sg rule add web --ip-proto tcp --port 8080,9000-9010 + sg rule del web --ip-proto tcp --port \
     9000-9010,8080",
    "nic list --long",
    "nic update a --ip 42.0.0.7 --disable-antispoof",
    "nic update a --packet-trace false",
    "nic sg list a",
    "nic sg add a ssh",
    "nic sg del a later",
    "nic sg list a",
    "nic sg set a web",
    "nic sg set b",
    "nic sg list b",
    "sg add web",
    "sg rule add web --ip-proto tcp --port 80 --cidr 0.0.0.0/0",
    "sg rule add web --ip-proto tcp --cidr 10.1.2.3/8",
    "sg rule add web --ip-proto udp --port-start 1000 --port-end 2000 --cidr FD00:0::/8 --dir out",
    "sg rule add web --ip-proto icmp --sg-members users",
    "sg rule add web --ip-proto all --cidr 42.1.2.3",
    "sg rule list web",
    "sg rule del web --ip-proto tcp --port 0-65535 --cidr 10.1.2.3/8",
    "sg rule list web",
    "sg member add users 42.0.3.2 FD00:0::1 42.0.3.1",
    "sg member del users 42.0.3.2",
    "sg member list users",
    "sg add web + sg details",
    "sg list",
    "sg rule list users",
    "dump",
    "config",
    "sg del users users + nic del spy nobody + nic list + sg list",
    "sg add web --replace + sg rule list web",
    // Refusals, in the daemon's words.
    "nic details nobody",
    "nic stats nobody",
    "nic update nobody --ip 42.0.0.1",
    "nic sg add nobody web",
    "nic export nobody",
    "nic add --id a --mac 52:54:00:12:34 --vni 42",
    "nic add --id a/b --mac 52:54:00:12:34:01 --vni 42",
    "sg details nobody",
    "sg rule list nobody",
    "sg member list nobody",
    "sg rule del nobody --ip-proto tcp --port 80",
    "sg member del nobody 42.0.0.1",
    "log-level warning",
];

/// What a run printed, the daemon's folder and the lines that API v1 alone knows left out.
fn without_place(ran: Ran, daemon: &Daemon) -> Ran {
    let pid = daemon.ok("status --json");
    let pid = serde_json::from_str::<serde_json::Value>(&pid).unwrap()["pid"].to_string();
    let clean = |text: String| {
        let text = text.replace(&daemon.dir().display().to_string(), "DIR");
        let text = text.replace(&format!("/butterfly-{pid}-"), "/butterfly-PID-");
        let text = text.replace(" (not there)", "");
        let v1_alone = |line: &&str| !line.starts_with("mtu: ") && !line.starts_with("state: ");
        text.lines()
            .filter(v1_alone)
            .map(|line| line.to_owned() + "\n")
            .collect::<String>()
    };
    Ran {
        code: ran.code,
        stdout: clean(ran.stdout),
        stderr: clean(without_notes(ran.stderr.as_bytes())),
    }
}

#[test]
fn the_originals_commands_work_word_for_word() {
    for over_v1 in [false, true] {
        let daemon = Daemon::start();
        let endpoint = if over_v1 { &daemon.v1 } else { &daemon.v0 };
        for line in SEEDS {
            let mut line = (*line).to_owned();
            if over_v1 && line == SEEDS[3] {
                // Over v1 a NIC that is there is replaced by who says so.
                let refused = butterfly(endpoint, &line);
                let why = "butterfly: NIC 'vnic_1' is there already with other values: \
                           vni is '1337', not '42'\n";
                assert_eq!((refused.code, refused.stderr.as_str()), (1, why));
                line.push_str(" --replace");
            }
            let output = command(&words(&line))
                .env("BUTTERFLY_ENDPOINT", endpoint)
                .output()
                .unwrap();
            assert!(
                output.status.success() && without_notes(&output.stderr).is_empty(),
                "butterfly {line}: {output:?}"
            );
        }
        assert_eq!(
            daemon.ok("nic list"),
            "vnic_1\nvnic_2\nvnic_3\nvnic_4\nvnic_5\nvnic_6\n"
        );
        assert_eq!(daemon.ok("nic sg list vnic_2"), "sg-web\n");
        let expected = "DIR  PROTO  PORTS  PEER\nin   tcp    22     42.0.3.1/32\n\
                        in   tcp    80     sg:users\n";
        assert_eq!(daemon.ok("sg rule list mysg"), expected);
        let path = daemon.dir().join("qemu-vhost-vnic_1");
        let again = daemon.ok(&format!("{} --replace", SEEDS[3]));
        assert_eq!(again, format!("{}\n", path.display()));
        assert!(path.exists());
    }
}

#[test]
fn both_apis_do_and_print_the_same() {
    let (first, second) = (Daemon::start(), Daemon::start());
    for line in SAME {
        let over_v0 = without_place(butterfly(&first.v0, line), &first);
        let mut over_v1 = without_place(butterfly(&second.v1, line), &second);
        if *line == "nic list --long" {
            // v0 does not know the state.
            over_v1.stdout = over_v1
                .stdout
                .replace("down ", "-    ")
                .replace("up   ", "-    ");
        }
        if *line == "config" {
            // Nor the timeouts, the removal, the mtu; both documents load all the same.
            let over_v0: serde_json::Value = serde_json::from_str(&over_v0.stdout).unwrap();
            let over_v1: serde_json::Value = serde_json::from_str(&over_v1.stdout).unwrap();
            assert_eq!(over_v0["nics"][0]["id"], over_v1["nics"][0]["id"]);
            assert_eq!(
                over_v0["groups"][0]["rules"][0],
                over_v1["groups"][0]["rules"][0]
            );
            continue;
        }
        assert_eq!(over_v0, over_v1, "butterfly {line}");
    }
}

#[test]
fn every_command_may_be_repeated() {
    let daemon = Daemon::start();
    for line in SAME
        .iter()
        .filter(|line| !line.contains("nobody") && !line.contains("a/b"))
    {
        let first = butterfly(&daemon.v1, line);
        let before = daemon.ok("config");
        let again = butterfly(&daemon.v1, line);
        assert_eq!(first, again, "butterfly {line}");
        assert_eq!(daemon.ok("config"), before, "butterfly {line}");
    }
}

#[test]
fn a_dump_restores_a_daemon_over_either_api() {
    let mut old = Daemon::start();
    old.ok(
        "sg rule add web --ip-proto tcp --port 80 --sg-members users + sg member add users \
         42.0.3.1 fd00::1",
    );
    old.ok("sg rule add web --ip-proto sctp --port 80 --dir out");
    old.ok(
        "nic add --id spy --mac 52:54:00:12:34:03 --vni 42 --sniff-target vnic \
         --allow-dhcp-server --allow-router-advertisements",
    );
    old.ok(
        "nic add --id vnic --mac 52:54:00:12:34:01 --vni 42 --ip 42.0.0.1 --sg web later \
         --allow-dhcp-server --allow-router-advertisements",
    );
    old.ok(
        "nic add --id open --mac 52:54:00:12:34:02 --vni 42 --no-anti-spoof --bypass-filtering \
         --allow-dhcp-server --allow-router-advertisements",
    );
    let dump = old.ok("dump");
    let saved = old.dir().join("saved");
    std::fs::write(&saved, &dump).unwrap();
    old.ok("shutdown --yes");
    assert_eq!(old.ended(), Some(0));

    let (over_v0, over_v1) = (Daemon::start(), Daemon::start());
    over_v0.ok_v0(&format!("request {}", saved.display()));
    over_v1.ok(&format!("request {}", saved.display()));
    assert_eq!(over_v0.ok("dump"), dump);
    assert_eq!(over_v1.ok("dump"), dump);
}

#[test]
fn nothing_configured_is_an_empty_dump() {
    let daemon = Daemon::start();
    let empty = daemon.dir().join("empty");
    std::fs::write(&empty, daemon.ok("dump")).unwrap();
    assert_eq!(std::fs::read(&empty).unwrap(), b"");
    daemon.ok(&format!("request {}", empty.display()));
    daemon.ok_v0(&format!("request {}", empty.display()));
}

#[test]
fn requests_are_answered_alike_over_both_apis() {
    let requests = [
        r#"nic_add { id: "a" mac: "52:54:00:12:34:01" vni: 42 ip: "42.0.0.1" security_group:
            "web" }"#,
        "nic_list: true",
        r#"nic_details: """#,
        r#"nic_details: "nobody""#,
        r#"nic_update { id: "a" ip: "" ip_anti_spoof: true }"#,
        r#"nic_details: "a""#,
        r#"nic_stats: "a""#,
        r#"sg_add { id: "web" member: "42.0.3.1" rule { direction: OUTBOUND protocol: -1 } }"#,
        r#"sg_rule_add { sg_id: "web" rule { direction: INBOUND protocol: 6 port_start: 1
            port_end: 2 cidr { address: "42.1.2.3" mask_size: 8 } } }"#,
        r#"sg_rule_add { sg_id: "web" rule { direction: INBOUND protocol: 6 } }"#,
        r#"sg_rule_list: "web""#,
        r#"sg_member_add { sg_id: "users" member: "fd00:0::1" }"#,
        r#"sg_member_list: "users""#,
        r#"sg_details: """#,
        "sg_list: true",
        r#"sg_del: "web""#,
        r#"nic_del: "a""#,
    ];
    let (first, second) = (Daemon::start(), Daemon::start());
    for request in requests {
        let ask = |daemon: &Daemon, endpoint: &str| {
            let text = format!(
                "messages {{ revision: 0 message_0 {{ request {{ {request} }} message_id: \"7\" }} \
                 }}"
            );
            let file = daemon.dir().join("request");
            std::fs::write(&file, text).unwrap();
            without_place(
                butterfly(endpoint, &format!("request {} --stdout", file.display())),
                daemon,
            )
        };
        let (over_v0, over_v1) = (ask(&first, &first.v0), ask(&second, &second.v1));
        // A malformed rule does not reach the daemon over v1: the reason is in the command's own
        // words.
        let but_the_reason = |ran: &Ran| {
            let lines = ran
                .stdout
                .lines()
                .filter(|line| !line.trim_start().starts_with("description:"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            but_the_reason(&over_v0),
            but_the_reason(&over_v1),
            "{request}"
        );
        assert_eq!(over_v0.code, over_v1.code, "{request}");
    }
}

#[test]
fn a_declared_configuration_is_compared_then_applied() {
    let daemon = Daemon::start();
    daemon.ok("sg add web + sg add old + nic add --id a --mac 52:54:00:12:34:01 --vni 42 --sg web");
    let file = daemon.dir().join("host.json");
    let mut config: serde_json::Value = serde_json::from_str(&daemon.ok("config")).unwrap();
    config["nics"][0]["bypass_filtering"] = true.into();
    config["groups"] = serde_json::json!([{ "id": "new" }, { "id": "web" }]);
    std::fs::write(&file, config.to_string()).unwrap();

    let before = daemon.ok("config");
    let planned = daemon.ok(&format!("apply {} --dry-run", file.display()));
    assert_eq!(daemon.ok("config"), before);
    for line in ["+ sg new", "- sg old", "~ nic a"] {
        assert!(
            planned.lines().any(|printed| printed == line),
            "{line} is not in:\n{planned}"
        );
    }
    assert!(!planned.contains("sg web"), "{planned}");
    assert_eq!(daemon.ok(&format!("apply {}", file.display())), planned);
    assert_eq!(daemon.ok("sg list"), "new\nweb\n");
    assert_eq!(daemon.ok(&format!("apply {}", file.display())), "");

    config["nics"][0]["mac"] = "nonsense".into();
    config["groups"] = serde_json::json!([]);
    std::fs::write(&file, config.to_string()).unwrap();
    let ran = butterfly(&daemon.v1, &format!("apply {}", file.display()));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("nonsense"), "{ran:?}");
    assert_eq!(daemon.ok("sg list"), "new\nweb\n", "all or nothing");
}

#[test]
fn a_wrong_document_deletes_nothing_much() {
    let daemon = Daemon::start();
    let add = |n: u8| format!("nic add --id nic-{n} --mac 52:54:00:12:34:{n:02x} --vni 42");
    daemon.ok(&(1..=12).map(add).collect::<Vec<_>>().join(" + "));
    let file = daemon.dir().join("host.json");
    let apply = |text: &str, options: &str| {
        std::fs::write(&file, text).unwrap();
        butterfly(&daemon.v1, &format!("apply {} {options}", file.display()))
    };
    let refused = |text: &str, why: &str| {
        let ran = apply(text, "");
        let error = ran.stderr.replace(&file.display().to_string(), "FILE");
        assert_eq!((ran.code, error.trim_end()), (2, why), "{text}");
        assert_eq!(daemon.ok("nic list").lines().count(), 12, "{text}");
    };
    let hint = "--dry-run shows what, --prune does it";
    let loss = |count: usize| format!("butterfly: FILE would delete {count} of 12 NICs: {hint}");
    refused("", &loss(12));
    refused("{}", &loss(12));
    let one = r#"{"nics": [{"id": "nic-1", "mac": "52:54:00:12:34:01", "vni": 42}]}"#;
    refused(one, &loss(11));
    refused(
        r#"{"groups": [], "groups": []}"#,
        "butterfly: FILE is no configuration: 'groups' is given twice at line 1 column 28",
    );
    assert_eq!(apply("{}", "--dry-run").stdout.lines().count(), 12);
    // Little is deleted as it always was, and much when it is asked for.
    let mut config: serde_json::Value = serde_json::from_str(&daemon.ok("config")).unwrap();
    config["nics"].as_array_mut().unwrap().remove(0);
    assert_eq!(apply(&config.to_string(), "").stdout, "- nic nic-1\n");
    assert_eq!(apply(one, "--prune").code, 0);
    assert_eq!(daemon.ok("nic list"), "nic-1\n");
    assert_eq!(apply("", "").code, 2);
    assert_eq!(apply("", "--yes").stdout, "- nic nic-1\n");
    assert_eq!(apply("", "").code, 0, "nothing is left to delete");
}

/// Of an empty host it says something of services and uplinks, and is not as short as `{}`.
#[test]
fn what_an_empty_host_prints_deletes_nothing_of_another() {
    let (empty, daemon) = (Daemon::start(), Daemon::start());
    daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42 + sg add web");
    let file = daemon.dir().join("host.json");
    std::fs::write(&file, empty.ok("config")).unwrap();
    let apply =
        |options: &str| butterfly(&daemon.v1, &format!("apply {} {options}", file.display()));
    let refused = apply("");
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("would delete 1 of 1 NICs, 1 of "),
        "{}",
        refused.stderr
    );
    assert_eq!(daemon.ok("nic list"), "a\n");
    assert_eq!(apply("--prune").code, 0);
    assert_eq!(daemon.ok("nic list"), "");
}

#[test]
fn events_are_watched() {
    let daemon = Daemon::start();
    daemon.ok("sg add web");
    let args = words(&format!(
        "-e {} watch --snapshot --json --count 4",
        daemon.v1
    ));
    let events = daemon.dir().join("events");
    let file = std::fs::File::create(&events).unwrap();
    let mut watch = command(&args).stdout(file).spawn().unwrap();
    let read = || std::fs::read_to_string(&events).unwrap();
    until("the snapshot", || read().contains("snapshot_end"));
    daemon.ok("sg member add web 42.0.3.1");
    // An event says what its subject is when it is sent: nothing of one that is gone by then.
    until("the member", || read().contains("42.0.3.1"));
    daemon.ok("sg del web");
    until("the end of the watch", || {
        watch.try_wait().unwrap().is_some()
    });
    let kinds: Vec<String> = read()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| {
            let group = &event["group_changed"];
            let members = group["members"].as_array().map(Vec::len);
            format!("{:?} {}", members, event["group_deleted"])
        })
        .collect();
    assert_eq!(
        kinds,
        ["Some(0) null", "None null", "Some(1) null", "None \"web\""]
    );
}

#[test]
fn what_the_data_plane_counts_is_shown() {
    let daemon = Daemon::start();
    daemon.ok(
        "sg rule add web --ip-proto tcp --port 80 + nic add --id a --mac 52:54:00:12:34:01 --vni \
         42 --sg web",
    );
    let counters = "DIR  PROTO  PORTS  PEER  FLOWS  FRAMES  BYTES\n\
                    in   tcp    80     all       0       0      0\n";
    assert_eq!(daemon.ok("sg rule list web --counters"), counters);
    assert_eq!(daemon.ok("flows"), "");
    assert_eq!(daemon.ok("flows --json"), "[]\n");
    assert_eq!(daemon.ok("drops a"), "");
    let all = daemon.ok("drops a --all");
    assert!(all.lines().count() > 10, "{all}");
    let stats: serde_json::Value = serde_json::from_str(&daemon.ok("nic stats a --json")).unwrap();
    assert_eq!(
        (&stats[0]["id"], &stats[0]["flows"]),
        (&"a".into(), &0.into())
    );
    let shown = daemon.ok("nic show a");
    assert!(shown.starts_with(&daemon.ok("nic details a")), "{shown}");
    let counted = "\
in:                 0 frames, 0 bytes, 0 dropped
out:                0 frames, 0 bytes, 0 dropped
flows:              0
queue pairs:        none: no guest's driver runs
";
    assert!(shown.ends_with(counted), "{shown}");
    assert_eq!(butterfly(&daemon.v1, "flows nobody").code, 1);
    assert_eq!(butterfly(&daemon.v1, "nic show nobody").code, 1);
    assert_eq!(butterfly(&daemon.v1, "drops nobody").code, 1);
}

/// A NIC whose group was forgotten is silent: its user is told when it is made, and when asked.
#[test]
fn a_group_that_is_not_there_is_named() {
    let daemon = Daemon::start();
    daemon.ok("sg add web");
    let said = |line: &str| butterfly(&daemon.v1, line).stderr;
    let add = "nic add --id a --mac 52:54:00:12:34:01 --vni 42 --ip 42.0.0.1 --sg web wbe";
    let why = "NIC a is in group wbe, which is not there";
    let text = said(add);
    assert!(text.contains(why) && !text.contains("group web"), "{text}");
    assert!(text.contains("`butterfly sg add wbe`"), "{text}");
    assert!(
        daemon
            .ok("nic details a")
            .contains("sg:                 wbe (not there)\n")
    );
    assert!(said("nic update a --link down").contains(why));
    assert!(said("nic sg add a ssh").contains("group ssh, which is not there"));
    daemon.ok("sg add wbe + sg add ssh");
    assert_eq!(said("nic update a --link up"), "");
    assert!(!daemon.ok("nic details a").contains("not there"));
}

/// Two bench NICs that talk as fast as they can, watched over both APIs.
#[test]
fn what_moves_is_watched_while_it_moves() {
    let daemon = Daemon::start();
    daemon.ok(
        "nic add --id echo --mac 52:54:00:12:34:02 --vni 42 --ip 42.0.0.2 --type bench \
         --btype ICMP_RCV_LIKE --bypass-filtering",
    );
    daemon.ok(
        "nic add --id ping --mac 52:54:00:12:34:01 --vni 42 --ip 42.0.0.1 --type bench \
         --btype ICMP_SND_LIKE --dip 42.0.0.2 --dmac 52:54:00:12:34:02 --bypass-filtering",
    );
    let cells = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let moves = |text: &str, column: usize| {
        let rows = text.lines().skip(1).take_while(|line| !line.is_empty());
        let numbers = rows.map(|row| cells(row)[column].parse::<f64>().unwrap_or(0.0));
        numbers.sum::<f64>() > 0.0
    };
    for (ok, frames) in [
        (daemon.ok("nic stats --watch=0.5 -n 2"), true),
        (daemon.ok_v0("nic stats --watch=0.5 -n 2"), false),
    ] {
        let (first, second) = ok.split_once("\n\n").expect("two tables");
        for table in [first, second] {
            assert_eq!(table.lines().count(), 3, "{table}");
            assert!(moves(table, 1) && moves(table, 2), "{table}");
            assert_eq!(moves(table, 3), frames, "{table}");
        }
    }
    let workers = daemon.ok("worker list");
    assert!(moves(&workers, 4), "{workers}");
    let worker: serde_json::Value =
        serde_json::from_str(&daemon.ok("worker show 0 --json")).unwrap();
    assert_eq!(worker["index"], 0);
    let text = daemon.ok("worker show 0 --watch=0.1 -n 1");
    assert!(
        text.starts_with("worker:          0\ntime:            busy "),
        "{text}"
    );
    let lines = daemon.ok("nic stats ping --watch=0.01 -n 3 --json");
    let frames: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|sample| sample["nics"][0]["ingress_frames"].as_u64().unwrap())
        .collect();
    assert!(frames.len() == 3 && frames.is_sorted(), "{frames:?}");
    assert_eq!(
        daemon.ok("drops --watch=0.01 -n 1"),
        "nothing was dropped\n"
    );
    let refused = butterfly(&daemon.v1, "nic stats nobody --watch");
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (1, "butterfly: there is no NIC 'nobody'\n")
    );
    let refused = butterfly(&daemon.v1, "worker show 99");
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (1, "butterfly: there is no worker 99\n")
    );
}

/// v0-contract.md 35.
#[test]
fn connections_are_exported_and_imported() {
    let daemon = Daemon::start();
    daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42");
    let state = daemon.dir().join("state");
    for endpoint in [&daemon.v0, &daemon.v1] {
        let ran = butterfly(
            endpoint,
            &format!("flows export a --file {}", state.display()),
        );
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert_eq!(
            daemon.ok(&format!("flows import a {}", state.display())),
            "0\n"
        );
    }
    std::fs::write(&state, "nonsense").unwrap();
    assert_eq!(
        butterfly(&daemon.v1, &format!("nic import a {}", state.display())).code,
        1
    );
}

/// What scripts say that were written before the words were the same everywhere.
#[test]
fn old_words_do_what_the_new_ones_do() {
    let daemon = Daemon::start();
    daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42 --sg web + sg add web");
    daemon.ok("endpoint add 192.168.0.2 --vni 42 + network set 42 --from endpoints");
    let state = daemon.dir().join("state").display().to_string();
    daemon.ok(&format!("nic export a --file {state}"));
    for (old, new) in [
        ("sg details web", "sg show web"),
        ("endpoint list", "host list"),
        ("interface lo", "interface show lo"),
        ("neigh", "neigh list"),
        ("flows a", "flows list a"),
        ("flows", "flows show"),
        (
            &format!("nic import a {state}"),
            &format!("flows import a {state}"),
        ),
    ] {
        let (old, new) = (daemon.ok(old), daemon.ok(new));
        assert_eq!(old, new);
    }
    assert_eq!(
        daemon.ok("network show 42").lines().nth(3),
        Some("from:      hosts (as said)")
    );
    let routing = |words: &str| butterfly(&daemon.v1, words).stderr;
    assert_eq!(routing("route list"), routing("route show"));
    assert_eq!(daemon.ok("router status"), daemon.ok("router show"));
    // Of NICs `show` has always said more than `details`.
    assert!(daemon.ok("nic show").starts_with(&daemon.ok("nic details")));
    assert_eq!(daemon.ok_v0("nic show"), daemon.ok_v0("nic details"));
}

#[test]
fn changes_are_told_as_json() {
    let daemon = Daemon::start();
    let done = |line: &str| -> serde_json::Value {
        let said = daemon.ok(&format!("{line} --json"));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["done"].clone()
    };
    let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let mut said = Vec::new();
    for (line, expected) in [
        ("sg add a b", r#"[{"group":"a"},{"group":"b"}]"#),
        (
            "sg member add a 42.0.0.1",
            r#"[{"group":"a","member":"42.0.0.1"}]"#,
        ),
        (
            "sg rule add a --ip-proto tcp --port 80,443",
            r#"[{"group":"a","rule":{"direction":"DIRECTION_INGRESS","protocol":6,
                "ports":{"start":80,"end":80}}},
                {"group":"a","rule":{"direction":"DIRECTION_INGRESS","protocol":6,
                    "ports":{"start":443,"end":443}}}]"#,
        ),
        ("host add 192.0.2.7", r#"[{"endpoint":"192.0.2.7"}]"#),
        (
            "binding add --vni 7 --mac 52:54:00:12:34:07 --host 192.0.2.7",
            r#"[{"binding":{"vni":7,"mac":"52:54:00:12:34:07"}}]"#,
        ),
        ("network set 7 --learning on", r#"[{"network":7}]"#),
        (
            "service add 192.0.2.9:80",
            r#"[{"service":"192.0.2.9:80/tcp"}]"#,
        ),
        (
            "service server add 192.0.2.9:80 10.0.0.1 10.0.0.2",
            r#"[{"service":"192.0.2.9:80/tcp","server":"10.0.0.1"},
                {"service":"192.0.2.9:80/tcp","server":"10.0.0.2"}]"#,
        ),
        ("sg del a", r#"[{"group":"a"}]"#),
        ("log-level warning", r#"[{"log_level":"warning"}]"#),
    ] {
        said.push((line, done(line), json(expected)));
    }
    for (line, said, expected) in said {
        assert_eq!(said, expected, "{line}");
    }
    // What was done before the failure is done, and told.
    daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42");
    let ran = butterfly(
        &daemon.v1,
        "sg add c + nic update nobody --ip 42.0.0.1 --json",
    );
    assert_eq!(
        (ran.code, json(&ran.stdout)),
        (1, json(r#"{"done":[{"group":"c"}]}"#))
    );
}

/// `start date: 2026-11-24 08:22:49 UTC`, a moment ago.
#[test]
fn dates_are_for_people_and_seconds_for_programs() {
    let daemon = Daemon::start();
    let status = daemon.ok("status");
    let date = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name).map(|date| date.trim().to_owned()))
    };
    let value: serde_json::Value = serde_json::from_str(&daemon.ok("status --json")).unwrap();
    let secs = value["start_unix_secs"].as_u64().unwrap();
    let by_date = std::process::Command::new("date")
        .args(["-u", "+%F %T UTC", "-d", &format!("@{secs}")])
        .output()
        .unwrap();
    let by_date = String::from_utf8(by_date.stdout).unwrap();
    assert_eq!(date("start date:").as_deref(), Some(by_date.trim()));
}

#[test]
fn shutdown_stops_it_over_either_api() {
    for over_v1 in [false, true] {
        let mut daemon = Daemon::start();
        daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42");
        let stopped = if over_v1 {
            // Nobody who could be asked is at this terminal.
            let refused = butterfly(&daemon.v1, "shutdown");
            assert_eq!(
                (refused.code, refused.stderr.as_str()),
                (
                    2,
                    "butterfly: a NIC loses its network: say --yes if that is meant\n"
                )
            );
            butterfly(&daemon.v1, "shutdown --yes")
        } else {
            // As the original's command, which asks nobody.
            butterfly(&daemon.v0, "shutdown")
        };
        assert_eq!(stopped.code, 0);
        assert_eq!(daemon.ended(), Some(0));
        assert_eq!(butterfly(&daemon.v0, "nic list").code, 3);
        assert_eq!(butterfly(&daemon.v1, "nic list").code, 3);
    }
}

#[test]
fn a_key_makes_api_v0_private() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let key = key.display().to_string();
    let daemon = Daemon::start_with(&["-k", &key]);
    assert_eq!(
        daemon.ok_v0(&format!("sg add web + sg list --k {key}")),
        "web\n"
    );
    let ran = butterfly(&daemon.v0, "sg list");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
}

#[test]
fn mutual_tls_lets_in_who_has_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let Some(certificates) = certificates(dir.path()) else {
        return eprintln!("skipped: no openssl to make certificates with");
    };
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let api = format!("tcp:127.0.0.1:{port}");
    let server = words(&certificates("server"));
    let mut options = vec!["--api", &api];
    options.extend(server.iter().map(String::as_str));
    let daemon = Daemon::start_with(&options);
    daemon.ok("sg add web");
    for endpoint in [format!("https://127.0.0.1:{port}"), api.clone()] {
        let ran = butterfly(&endpoint, &format!("sg list {}", certificates("client")));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "web\n"), "{ran:?}");
    }
    // Signed by nobody that the daemon trusts.
    let ran = run(&words(&format!(
        "-e https://127.0.0.1:{port} sg list {}",
        certificates("stranger")
    )));
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{ran:?}");
}

/// An authority, certificates of it for `server` and `client`, one of its own for `stranger`; the
/// options that name them.
fn certificates(dir: &std::path::Path) -> Option<impl Fn(&str) -> String + use<>> {
    let openssl = |line: &str| {
        let output = std::process::Command::new("openssl")
            .args(words(line))
            .current_dir(dir)
            .output()
            .ok()?;
        assert!(
            output.status.success(),
            "openssl {line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(())
    };
    std::fs::write(dir.join("extensions"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256";
    openssl(&format!(
        "{new} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"
    ))?;
    openssl(&format!(
        "{new} -x509 -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.pem"
    ))?;
    for name in ["server", "client"] {
        openssl(&format!(
            "{new} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ))?;
        let sign = "x509 -req -days 2 -sha256 -CA ca.pem -CAkey ca.key -CAcreateserial -extfile \
                    extensions";
        openssl(&format!("{sign} -in {name}.csr -out {name}.pem"))?;
    }
    let dir = dir.display().to_string();
    Some(move |name: &str| {
        format!("--tls-cert {dir}/{name}.pem --tls-key {dir}/{name}.key --tls-ca {dir}/ca.pem")
    })
}
