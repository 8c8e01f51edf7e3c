//! `butterfly forward` between two hosts, each a namespace of its own with the kernel's stack: what
//! it prints, and that packets go on when it ends, however it ends.

use testkit::process::{Process, state};
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::{PATIENCE, wait_for};

fn forward(hosts: &RoutedHosts, options: &str) -> Process {
    begin(hosts, options, "are followed.")
}

/// Until it has said something.
fn begin(hosts: &RoutedHosts, options: &str, said: &str) -> Process {
    let command = format!(
        "{} forward east0 west0 {options}",
        env!("CARGO_BIN_EXE_butterfly")
    );
    let process = hosts.router.start("forward", &command).expect("butterfly");
    wait_for("the interfaces", PATIENCE, || {
        Ok(process.log().contains(said).then_some(()))
    })
    .expect("a start");
    process
}

fn pinging(hosts: &RoutedHosts, meanwhile: impl FnOnce()) {
    let passed = hosts.pinging(|| {
        meanwhile();
        Ok(())
    });
    passed.expect("all are answered");
}

/// Echo requests in both families from before `meanwhile` until after it, however long it takes:
/// all of them are answered.
fn under_load(hosts: &RoutedHosts, meanwhile: impl FnOnce()) {
    let mut loads = WEST.map(|address| {
        let rounds = format!(
            "sh -c 'trap ended=1 TERM; until [ \"$ended\" ]; do ping -q -i 0.002 -c 200 {address}; \
             done'"
        );
        let name = format!("load-{}", address.len());
        hosts.east.start(&name, &rounds).expect("ping")
    });
    more_arrive(hosts);
    meanwhile();
    more_arrive(hosts);
    for load in &mut loads {
        load.terminate(PATIENCE).expect("an end");
        let log = load.log();
        let rounds = log.matches(" packets transmitted").count();
        let whole = log.matches("200 packets transmitted, 200 received").count();
        assert!(rounds > 0 && whole == rounds, "requests were lost:\n{log}");
    }
}

/// Waits until some more echo requests of each family have reached the west.
fn more_arrive(hosts: &RoutedHosts) {
    for address in WEST {
        let before = hosts.seen(address).expect("a counter").0;
        wait_for("more requests in the west", PATIENCE, || {
            Ok((hosts.seen(address)?.0 >= before + 20).then_some(()))
        })
        .expect("packets pass");
    }
}

#[test]
fn it_takes_over_and_gives_back_under_load() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    hosts.count_requests().expect("nftables");
    under_load(&hosts, || {
        let mut first = forward(&hosts, "--routes");
        let log = first.log();
        for line in [
            "east0: flags=<UP,RUNNING> mtu 1500",
            "       inet 10.1.0.1/24",
            "taking over east0: at tc ingress (veth).",
            "taking over west0: at tc ingress (veth).",
            "10.2.0.0/24                                           U        west0",
            "? (10.2.0.2) at ",
        ] {
            assert!(log.contains(line), "no '{line}' in:\n{log}");
        }
        more_arrive(&hosts);
        first.terminate(PATIENCE).expect("an end");
        let log = first.log();
        assert!(log.contains("  forwarded  "), "{log}");
    });
    under_load(&hosts, || {
        // What is killed leaves its socket.
        let mut second = forward(&hosts, "--socket none");
        more_arrive(&hosts);
        second.kill();
    });
    assert!(!hosts.has_program("east0").expect("ip"));
    pinging(&hosts, || {});
    assert!(hosts.west.succeeds("true").expect("it is there"));
}

/// With --stay no packet is lost when it ends and the next one begins, and none is the kernel's but
/// where that takes long; counters go on. The rules of a file stay in force with nobody there.
#[test]
fn it_goes_on_where_another_ended() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    hosts.count_requests().expect("nftables");
    let folder = hosts
        .router
        .ok("stat -Lc %i /proc/self/ns/net")
        .expect("stat");
    let folder = format!("/sys/fs/bpf/butterfly/forward-{}", folder.trim());
    let mut first = forward(&hosts, "--stay");
    let counted = |forward: &Process| -> u64 {
        let log = forward.log();
        let mut lines = log
            .lines()
            .filter(|line| line.trim_start().starts_with("forwarded "));
        let words = lines.next_back().expect("counters").split_whitespace();
        words
            .skip(1)
            .find_map(|word| word.parse().ok())
            .expect("a number")
    };
    under_load(&hosts, || {
        for _ in 0..2 {
            first.terminate(PATIENCE).expect("an end");
            let log = first.log();
            let said = "the programs stay, and the kernel forwards in 5 s: east0, west0. The next \
                        with --stay goes on; rm -r ";
            assert!(log.contains(said) && log.contains(&folder), "{log}");
            assert!(hosts.has_program("east0").expect("ip"));
            let before = counted(&first);
            first = forward(&hosts, "--stay --watch");
            wait_for("its counters", PATIENCE, || {
                Ok(first.log().contains("  forwarded  ").then_some(()))
            })
            .expect("a report");
            assert!(counted(&first) >= before);
            more_arrive(&hosts);
        }
        first.kill();
        assert!(hosts.has_program("east0").expect("ip"));
        more_arrive(&hosts);
        first = forward(&hosts, "--stay");
    });
    first.terminate(PATIENCE).expect("an end");
    let refused = format!(
        "{} forward east0 west0 2>&1; true",
        env!("CARGO_BIN_EXE_butterfly")
    );
    let said = hosts.router.ok(&refused).expect("a sentence");
    assert!(
        said.contains(&format!("rm -r {folder} ends them")),
        "{said}"
    );
    // A list that lets IPv6 pass alone.
    let acl = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(acl.path(), "deny ipv4 proto icmp\ndefault allow\n").expect("a file");
    let options = format!("--stay --socket none --acl {}", acl.path().display());
    let mut last = forward(&hosts, &options);
    last.kill();
    // The kernel forwards by then.
    std::thread::sleep(std::time::Duration::from_secs(7));
    let ping = |address: &str| hosts.east.succeeds(&format!("ping -q -c 2 -W 1 {address}"));
    assert!(!ping(WEST[0]).expect("ping"), "it is denied");
    assert!(ping(WEST[1]).expect("ping"), "it is allowed");
    // What the rules have counted goes on.
    let mut last = forward(&hosts, &options);
    last.terminate(PATIENCE).expect("an end");
    let log = last.log();
    let denied = log.lines().find(|line| line.contains("deny ipv4"));
    let denied = denied.expect("the rule in the last report");
    assert!(denied.split_whitespace().any(|word| word == "2"), "{log}");
    hosts.router.ok(&format!("rm -r {folder}")).expect("rm");
    assert!(!hosts.has_program("east0").expect("ip"));
    assert!(
        ping(WEST[0]).expect("ping"),
        "the kernel forwards by its own rules"
    );
}

#[test]
fn it_counts_what_the_far_host_counts() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    hosts.count_requests().expect("nftables");
    let mut forward = begin(&hosts, "--json", "\"notes\"");
    pinging(&hosts, || {});
    forward.terminate(PATIENCE).expect("an end");
    let log = forward.log();
    let last = log.lines().rfind(|line| line.starts_with('{'));
    let last = last.expect("a report");
    let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
    for (family, address) in [("ipv4", WEST[0]), ("ipv6", WEST[1])] {
        let (packets, bytes) = hosts.seen(address).expect("a counter");
        let counted = &report["interfaces"][0][family];
        assert_eq!(
            (&counted["forwarded"], &counted["forwarded_bytes"], packets),
            (&packets.into(), &bytes.into(), 500),
            "{family}: {report}"
        );
    }
}

/// While it stands still (SIGSTOP) nobody follows the routes: five seconds later packets are the
/// kernel's, so that a route that has come meanwhile is in force. When it goes on, so does the fast
/// path.
#[test]
fn hanging_it_leaves_packets_to_the_kernel() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    let mut process = begin(&hosts, "--json --watch --socket none", "\"notes\"");
    let counted = |process: &Process, name: &str| -> [u64; 2] {
        let log = process.log();
        let mut reports = log.lines().rev();
        // The last line may not be whole yet.
        let report = reports.find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let east = &report.expect("a report")["interfaces"][0];
        ["ipv4", "ipv6"].map(|family| east[family][name].as_u64().expect("a counter"))
    };
    let reported = |process: &Process, name: &str, least: [u64; 2], meanwhile: &dyn Fn()| {
        wait_for(&format!("a report of packets {name}"), PATIENCE, || {
            meanwhile();
            let now = counted(process, name);
            Ok((now[0] >= least[0] && now[1] >= least[1]).then_some(()))
        })
        .expect("packets are counted");
    };
    let ping = || pinging(&hosts, || {});
    reported(&process, "forwarded", [500; 2], &ping);
    process.signal("STOP").expect("a signal");
    wait_for("it to stand still", PATIENCE, || {
        Ok((state(process.pid()) == Some(b'T')).then_some(()))
    })
    .expect("it is stopped");
    let blackholes = |verb: &str| {
        for address in WEST {
            let line = format!("ip route {verb} blackhole {address}");
            hosts.router.ok(&line).expect("a route");
        }
    };
    blackholes("add");
    // Five seconds, by a look each second.
    std::thread::sleep(std::time::Duration::from_secs(7));
    for address in WEST {
        let ping = format!("ping -q -c 1 -W 1 {address}");
        assert!(
            !hosts.east.succeeds(&ping).expect("ping"),
            "{address} is in a blackhole"
        );
    }
    blackholes("del");
    ping();
    process.signal("CONT").expect("a signal");
    reported(&process, "hung", [501; 2], &|| {});
    let before = counted(&process, "forwarded");
    reported(&process, "forwarded", before.map(|n| n + 500), &ping);
}

#[test]
fn what_it_cannot_do_it_says() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    let butterfly = env!("CARGO_BIN_EXE_butterfly");
    let said = |command: &str| {
        let text = hosts
            .router
            .ok(&format!("{butterfly} forward {command} 2>&1; true"))
            .expect("a shell");
        text.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(
        said("nothing0"),
        "butterfly: interface nothing0: there is no such interface"
    );
    hosts.west.ok("ethtool -K eth0 gro off").expect("ethtool");
    let forward = forward(&hosts, "--mode=native --socket none");
    assert!(
        forward
            .log()
            .contains("packets to west0 are left to the kernel: its driver takes no"),
        "{}",
        forward.log()
    );
    pinging(&hosts, || {});
    drop(forward);
    assert_eq!(
        said("lo"),
        "butterfly: interface lo: it is no Ethernet interface"
    );
    hosts
        .router
        .ok("ip link add bridge0 type bridge && ip link set east0 master bridge0")
        .expect("a bridge");
    assert_eq!(
        said("east0"),
        "butterfly: interface east0: it belongs to the bridge bridge0, which has its packets"
    );
}

/// What a shell runs with a folder of query sockets of its own: other tests have theirs. All of
/// `/run` is its own: were it that folder alone, the last `forward` of another test would remove
/// it, and what is mounted on it here.
const ALONE: &str = "mount -t tmpfs tmpfs /run && mkdir /run/butterfly-alone";

/// netmap-fwd had a socket that its commands ask; so has a router without a daemon, and the
/// commands of the daemon's router find it.
#[test]
fn it_is_asked_what_it_knows() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    let butterfly = env!("CARGO_BIN_EXE_butterfly");
    let script = format!(
        "{ALONE}
         {butterfly} forward east0 west0 > /run/butterfly-alone/log 2>&1 &
         for try in $(seq 200); do {butterfly} router list >/dev/null 2>&1 && break; sleep 0.05
         done
         ping -c 2 10.2.0.2 >/dev/null
         echo '== route'; {butterfly} route show 10.2.0.0/16
         echo '== json'; {butterfly} route list 10.2.0.0/16 --json
         echo '== to'; {butterfly} route show 10.2.0.2
         echo '== neigh'; {butterfly} neigh list -4
         echo '== arp'; {butterfly} arp
         echo '== interface'; {butterfly} interface show east0
         echo '== router'; {butterfly} router show
         echo '== refused'; {butterfly} router add lo 2>&1 || echo code $?
         echo '== two'
         {butterfly} forward --socket /run/butterfly-alone/forward-0.sock lo 2>&1 || echo code $?
         kill $!; wait
         echo '== after'; ls /run/butterfly-alone; {butterfly} route show 2>&1; echo code $?"
    );
    let script = hosts.router.ok(&format!(
        "unshare -m sh -c '{}'",
        script.replace('\'', "\"")
    ));
    let said = script.expect("a shell");
    let part = |name: &str| {
        let begin = said
            .split(&format!("== {name}\n"))
            .nth(1)
            .unwrap_or_default();
        begin.split("== ").next().unwrap_or_default().to_owned()
    };
    for (name, line) in [
        ("route", "10.2.0.0/24"),
        ("route", "west0        fast"),
        ("json", "\"prefix\":\"10.2.0.0/24\""),
        ("to", "10.2.0.0/24"),
        ("neigh", "10.2.0.2"),
        ("arp", "? (10.2.0.2) at "),
        ("interface", "east0: flags=<UP,RUNNING> mtu 1500"),
        ("interface", "tc router"),
        ("router", "east0      forwarded"),
        ("refused", "whose command line says what it does"),
        ("refused", "code 1"),
        ("two", "it is no Ethernet interface"),
        ("after", "log\n"),
        ("after", "code 3"),
    ] {
        assert!(part(name).contains(line), "no '{line}' in {name}:\n{said}");
    }
    assert!(!part("after").contains("forward-"), "{said}");
}

/// Only root and whose the socket is are answered, whatever the file's mode says.
#[test]
fn strangers_ask_in_vain() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    let butterfly = env!("CARGO_BIN_EXE_butterfly");
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("a mode");
    let program = dir.path().join("butterfly");
    std::fs::copy(butterfly, &program).expect("a copy that everybody may run");
    let (program, socket) = (program.display(), dir.path().join("query"));
    let process = forward(&hosts, &format!("--socket {}", socket.display()));
    let ask = |who: &str| {
        let socket = socket.display();
        let command = format!("{who} {program} -e unix:{socket} router list 2>&1; echo code $?");
        hosts.router.ok(&command).expect("a shell")
    };
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    assert!(ask("").contains("east0"), "{}", process.log());
    let closed = ask(nobody);
    assert!(
        closed.contains("Permission denied") && closed.contains("code 3"),
        "{closed}"
    );
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("a mode");
    let open = ask(nobody);
    assert!(
        open.ends_with("code 3\n") && !open.contains("east0"),
        "{open}"
    );
    drop(process);
}

/// A disk that is full, or whoever reads its log and goes away: it prints no more, and forwards on.
#[test]
fn what_it_cannot_print_ends_no_forwarding() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    let said = "forwarding goes on, and prints nothing any more: No space left on device";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "default allow\n").expect("a file");
    let options = format!("--watch --acl {} >/dev/full", file.path().display());
    let mut process = begin(&hosts, &options, said);
    assert!(hosts.has_program("east0").expect("ip"));
    pinging(&hosts, || {});
    // There is more to print.
    std::fs::write(file.path(), "default deny\n").expect("a file");
    process.signal("HUP").expect("a signal");
    let ping = format!("ping -q -c 1 -W 0.2 {}", WEST[0]);
    wait_for("the list to be read again", PATIENCE, || {
        Ok((!hosts.east.succeeds(&ping)?).then_some(()))
    })
    .expect("it is in force");
    let ended = process.terminate(PATIENCE).expect("an end");
    assert_eq!(ended.code(), Some(4));
    let log = process.log();
    assert_eq!(log.matches(said).count(), 1, "{log}");
    let last = "butterfly: cannot write the output: No space left on device (os error 28)\n";
    assert!(log.ends_with(last), "{log}");
}

#[test]
fn the_access_list_of_a_file_is_followed() {
    let hosts = RoutedHosts::new().expect("the kernel forwards");
    hosts.first_answers().expect("neighbours");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("a file");
    let path = file.path().display().to_string();
    // A mistake at the start: nothing is taken over.
    write("default deny\nallow proto tpc\n");
    let butterfly = env!("CARGO_BIN_EXE_butterfly");
    let said = hosts
        .router
        .ok(&format!(
            "{butterfly} forward east0 west0 --acl {path} 2>&1; true"
        ))
        .expect("a shell");
    let why = "line 2: 'tpc' is no protocol: a name, or a number from 0 to 255";
    assert_eq!(
        said.lines().last(),
        Some(format!("butterfly: {path}: {why}").as_str())
    );
    assert!(!hosts.has_program("east0").expect("ip"));
    write("default deny\nallow in east0 proto icmp\nallow proto icmp\nallow proto icmpv6\n");
    let mut process = forward(&hosts, &format!("--acl {path}"));
    pinging(&hosts, || {});
    let mut again = |text: &str, said: &str| {
        write(text);
        process.signal("HUP").expect("a signal");
        wait_for(said, PATIENCE, || {
            Ok(process.log().contains(said).then_some(()))
        })
        .expect("it is read");
    };
    again(
        "default deny\nallow from 10.0.0.1/8\n",
        "the access list is as it was: ",
    );
    pinging(&hosts, || {});
    again(
        "default deny\nallow in east0 proto icmp\n",
        "was read again: 1 rules.",
    );
    let ping = format!("ping -q -c 3 -i 0.05 -W 0.2 {}", WEST[0]);
    assert!(!hosts.east.succeeds(&ping).expect("ping"), "no way back");
    process.terminate(PATIENCE).expect("an end");
    let log = process.log();
    let rule = log
        .lines()
        .find(|line| line.ends_with("allow in east0 proto icmp"))
        .unwrap_or_else(|| panic!("no rule in:\n{log}"));
    let packets = rule.split_whitespace().next().map(str::parse::<u64>);
    // Those of the rule as it was, too.
    assert!(matches!(packets, Some(Ok(503..))), "{rule}");
    assert!(log.contains("  denied  "), "{log}");
    // The rules end with the process.
    pinging(&hosts, || {});
}
