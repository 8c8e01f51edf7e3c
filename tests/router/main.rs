//! The router among real kernels: a host in the east, the daemon's host, a host in the west, each a
//! namespace. What the daemon counts is compared with what the hosts' own nftables count.

mod acl;
mod feeds;

use std::time::{Duration, Instant};

use butterfly_tests::Daemon;
use butterfly_tests::daemon::{number, program};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use testkit::process::Process;
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::{PATIENCE, Result, wait_for};

/// One trial.
type Session = fn(&mut Stage) -> Result<()>;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Session); 18] = trials![
        interfaces_are_taken_and_given_back,
        counters_are_those_of_an_outside_observer,
        routes_and_neighbours_show_as_they_change,
        what_happens_is_told,
        refusals_name_the_interface_and_what_holds_it,
        interfaces_come_back_under_their_names,
        interfaces_are_part_of_the_declared_configuration,
        killed_under_load_the_kernel_goes_on,
        an_upgrade_keeps_every_packet,
        interfaces_that_come_amid_an_upgrade_are_taken,
        a_kill_keeps_every_packet,
        what_nobody_follows_any_more_is_the_kernel_s,
        hanging_it_leaves_packets_to_the_kernel,
        acl::a_file_s_rules_are_followed,
        acl::a_list_that_finds_no_room_ends_nothing,
        acl::a_declared_list_is_stored_and_taken_back,
        feeds::bird_feeds_it,
        feeds::addresses_come_by_dhcp,
    ];
    let trials = trials.map(|(name, body)| {
        Trial::test(name, move || {
            let mut stage = Stage::start()?;
            body(&mut stage).map_err(|e| Failed::from(format!("{e}\n{}", stage.dump())))
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// The hosts, with a daemon on the router that has not been given an interface yet.
struct Stage {
    hosts: RoutedHosts,
    daemon: Daemon,
}

impl Stage {
    fn start() -> Result<Stage> {
        let hosts = RoutedHosts::new()?;
        let daemon = Daemon::start_on(Some(hosts.router.pid()), &[])?;
        Ok(Stage { hosts, daemon })
    }

    /// A daemon whose state is kept, in these modes on both interfaces.
    fn start_kept(&mut self, modes: [&str; 2], more: &[&str]) -> Result<()> {
        let options = [
            &["--store", "{dir}/store", "--keeper", "{dir}/keeper"],
            more,
        ]
        .concat();
        self.daemon = Daemon::start_on(Some(self.hosts.router.pid()), &options)?;
        for (interface, mode) in ["east0", "west0"].iter().zip(modes) {
            let add = format!("router add {interface} --mode {mode}");
            self.daemon.cli(&add)?;
        }
        Ok(())
    }

    /// Packets that the access list's first rule has taken.
    fn first_rule(&self) -> Result<u64> {
        let acl = self.daemon.json("router show")?["acl"].clone();
        number(&acl["rules"][0]["packets"]).ok_or_else(|| format!("no first rule: {acl}"))
    }

    fn take_both(&self) -> Result<()> {
        let said = self.daemon.cli("router add east0 west0")?;
        let expected = "taking over east0: at tc ingress\ntaking over west0: at tc ingress\n";
        check(said == expected, &format!("both are taken: {said}"))
    }

    /// A counter of an interface and a family, or the packets of a reason.
    fn counter(&self, interface: &str, family: &str, name: &str) -> Result<u64> {
        let status = self.daemon.json("router status")?;
        let all = status["interfaces"].as_array().ok_or("no interfaces")?;
        let one = all.iter().find(|one| one["interface"]["name"] == interface);
        let counters = &one.ok_or_else(|| format!("no {interface} in {status}"))?[family];
        if let Some(value) = number(&counters[name]) {
            return Ok(value);
        }
        let reasons = counters["reasons"].as_array().ok_or("no reasons")?;
        let reason = reasons.iter().find(|reason| reason["reason"] == name);
        Ok(reason
            .and_then(|reason| number(&reason["packets"]))
            .unwrap_or(0))
    }

    /// The only route that is shown.
    fn route(&self, to: &str) -> Result<Value> {
        self.daemon.json(&format!("route show {to}"))
    }

    fn treatment(&self, to: &str) -> Result<String> {
        let route = self.route(to)?;
        let treatment = route["treatment"].as_str().unwrap_or_default();
        Ok(treatment.replace("ROUTE_TREATMENT_", "").to_lowercase())
    }

    fn treated(&self, to: &str, expected: &str) -> Result<()> {
        wait_for(&format!("{to} to be {expected}"), PATIENCE, || {
            Ok((self.treatment(to).ok().as_deref() == Some(expected)).then_some(()))
        })
    }

    fn watching(&self, options: &str) -> Result<Process> {
        self.cli("watch", &format!("router watch {options}"))
    }

    /// `butterfly` that goes on.
    fn cli(&self, name: &str, line: &str) -> Result<Process> {
        let command = format!(
            "{} -e {} {line}",
            program("butterfly"),
            self.daemon.endpoint()
        );
        self.hosts.router.start(name, &command)
    }

    fn dump(&self) -> String {
        let mut text = String::new();
        for line in [
            "router list",
            "router status",
            "route show",
            "neigh",
            "interface",
        ] {
            text += &format!(
                "--- butterfly {line}\n{}\n",
                self.daemon.cli(line).unwrap_or_else(|e| e)
            );
        }
        text + &self.daemon.dump()
    }
}

fn said(watch: &Process, what: &str) -> Result<()> {
    wait_for(&format!("'{what}' in the stream"), PATIENCE, || {
        Ok(watch.log().contains(what).then_some(()))
    })
    .map_err(|e| format!("{e}:\n{}", watch.log()))
}

fn interfaces_are_taken_and_given_back(stage: &mut Stage) -> Result<()> {
    let none = stage.daemon.cli("router list")?;
    check(
        none.is_empty(),
        &format!("there is no interface yet: {none}"),
    )?;
    stage.take_both()?;
    check(stage.hosts.has_program("east0")?, "a program is attached")?;
    let status = stage.daemon.cli("status")?;
    check(
        status.contains("router:        east0: at tc ingress; west0: at tc ingress"),
        &format!("the status says so:\n{status}"),
    )?;
    stage.hosts.pinging(|| Ok(()))?;
    check(
        stage.counter("east0", "ipv4", "forwarded")? >= 400,
        "the program forwards",
    )?;
    let interface = stage.daemon.cli("interface east0")?;
    for line in [
        "east0: flags=<UP,RUNNING> mtu 1500",
        "       inet 10.1.0.1/24",
        "       tc router",
    ] {
        check(
            interface.contains(line),
            &format!("'{line}' is shown of it:\n{interface}"),
        )?;
    }
    // Once more is no change; another mode is one.
    stage.daemon.cli("router add east0")?;
    let generic = stage.daemon.cli("router add east0 --mode generic")?;
    check(
        generic == "taking over east0: generic XDP\n",
        &format!("it is generic now: {generic}"),
    )?;
    stage.daemon.cli("router del east0 west0 nothing0")?;
    check(
        !stage.hosts.has_program("east0")?,
        "the interface is the kernel's",
    )?;
    check(stage.daemon.cli("router list")?.is_empty(), "none is left")?;
    stage.hosts.pinging(|| Ok(()))?;
    // From the start, by an option.
    stage.daemon.stop()?;
    let options = ["--router", "east0", "--router", "west0"];
    stage.daemon = Daemon::start_on(Some(stage.hosts.router.pid()), &options)?;
    check(stage.hosts.has_program("west0")?, "the option takes it")?;
    stage.hosts.pinging(|| Ok(()))?;
    stage.daemon.stop()?;
    check(
        !stage.hosts.has_program("west0")?,
        "stopped, the daemon gives it back",
    )?;
    stage.hosts.pinging(|| Ok(()))
}

fn counters_are_those_of_an_outside_observer(stage: &mut Stage) -> Result<()> {
    stage.take_both()?;
    stage.hosts.count_requests()?;
    // Neighbours are known, and everything that follows is fast.
    stage.hosts.pinging(|| Ok(()))?;
    for (family, address) in [("ipv4", WEST[0]), ("ipv6", WEST[1])] {
        let names = [
            ("east0", "forwarded"),
            ("east0", "forwarded_bytes"),
            ("west0", "sent"),
            ("east0", "hop_limit"),
        ];
        let read = |stage: &Stage| -> Result<Vec<u64>> {
            let read = |(interface, name): &(&str, &str)| stage.counter(interface, family, name);
            names.iter().map(read).collect()
        };
        let (ours, theirs) = (read(stage)?, stage.hosts.seen(address)?);
        for size in [1, 500, 1400] {
            stage
                .hosts
                .east
                .ok(&format!("ping -q -i 0.002 -c 100 -s {size} {address}"))?;
        }
        // Used up on the way: the kernel's to answer.
        let expired = stage
            .hosts
            .east
            .succeeds(&format!("ping -q -c 3 -i 0.01 -W 1 -t 1 {address}"))?;
        check(!expired, "a TTL of one does not reach the west")?;
        let (now, seen) = (read(stage)?, stage.hosts.seen(address)?);
        let more: Vec<u64> = now
            .iter()
            .zip(&ours)
            .map(|(now, before)| now - before)
            .collect();
        let (packets, bytes) = (seen.0 - theirs.0, seen.1 - theirs.1);
        check(packets == 300, &format!("300 requests arrive, {packets}"))?;
        check(
            more == [packets, bytes, packets, 3],
            &format!("{names:?} are {more:?} for {packets} packets and {bytes} bytes of {family}"),
        )?;
    }
    let status = stage.daemon.json("router status")?;
    let kernel = status["kernel"].as_array().ok_or("no kernel's counters")?;
    let exceeded = kernel
        .iter()
        .find(|counter| counter["name"] == "time_exceeded_sent");
    let sent = exceeded.map(|counter| (number(&counter["ipv4"]), number(&counter["ipv6"])));
    check(
        matches!(sent, Some((Some(four), Some(six))) if four >= 1 && six >= 1),
        &format!("the kernel's answers are its own: {sent:?}"),
    )?;
    let text = stage.daemon.cli("router status")?;
    check(
        text.contains("to the kernel: TTL or hop limit is used up"),
        &format!("a reason is a sentence:\n{text}"),
    )?;
    let rates = stage.daemon.cli("router status --watch=0.05 --count 2")?;
    check(
        rates.contains("IPV4/s"),
        &format!("rates are printed:\n{rates}"),
    )
}

fn routes_and_neighbours_show_as_they_change(stage: &mut Stage) -> Result<()> {
    let refused = stage.daemon.cli("route show").err().unwrap_or_default();
    check(
        refused.contains("the router has no interface yet"),
        &format!("without an interface there is nothing to show: {refused}"),
    )?;
    stage.take_both()?;
    let router = &stage.hosts.router;
    router.ok(
        "ip route add 203.0.113.0/24 via 10.2.0.2 && ip route add blackhole 198.51.100.0/25 &&
               ip route add unreachable 198.51.100.128/25 &&
               ip -6 route add 2001:db8:f::/48 via 2001:db8:2::2 &&
               ip route add 192.0.2.0/24 via 10.2.0.99 &&
               ip route add 203.0.113.0/24 via 10.1.0.2 table 7",
    )?;
    for (to, expected) in [
        ("203.0.113.9", "fast"),
        ("198.51.100.1", "drop"),
        ("198.51.100.200", "kernel"),
        ("2001:db8:f::1", "fast"),
        ("10.2.0.2", "fast"),
        ("10.2.0.77", "kernel"),
        ("10.1.0.1", "kernel"),
        ("192.0.2.1", "kernel"),
    ] {
        stage.treated(to, expected)?;
    }
    let route = stage.route("203.0.113.9")?;
    let hop = &route["hops"][0];
    check(
        route["prefix"] == "203.0.113.0/24"
            && hop["gateway"] == "10.2.0.2"
            && hop["interface"] == "west0",
        &format!("the route is the kernel's: {route}"),
    )?;
    let mac = router.ok("ip neigh show 10.2.0.2 dev west0")?;
    check(
        mac.contains(hop["mac"].as_str().unwrap_or("none")),
        &format!("its neighbour is the kernel's, {mac}: {route}"),
    )?;
    let within = stage.daemon.cli("route show 203.0.113.0/24")?;
    check(
        within.contains("no rule leads to table 7") && within.lines().count() == 4,
        &format!("a prefix shows the routes of all tables:\n{within}"),
    )?;
    let all = stage.daemon.cli("route show")?;
    for line in [
        "Internet:",
        "Internet6:",
        "198.51.100.0/25",
        "2001:db8:f::/48",
    ] {
        check(all.contains(line), &format!("'{line}' is shown:\n{all}"))?;
    }
    // It changes under traffic, and shows.
    stage.hosts.pinging(|| {
        let router = &stage.hosts.router;
        router
            .ok("ip route replace 203.0.113.0/24 via 10.1.0.2 && ip route del 198.51.100.0/25")?;
        wait_for("the other gateway", PATIENCE, || {
            Ok((stage.route("203.0.113.9")?["hops"][0]["gateway"] == "10.1.0.2").then_some(()))
        })?;
        wait_for("the blackhole to go", PATIENCE, || {
            Ok(stage
                .daemon
                .cli("route show 198.51.100.1")
                .is_err()
                .then_some(()))
        })
    })?;
    neighbours_show(stage)
}

fn neighbours_show(stage: &Stage) -> Result<()> {
    let router = &stage.hosts.router;
    let arp = stage.daemon.cli("arp")?;
    for line in ["? (10.2.0.2) at ", "on east0 permanent"] {
        check(arp.contains(line), &format!("'{line}' is in arp's:\n{arp}"))?;
    }
    let of = |address: &str| -> Result<Value> {
        let all = stage.daemon.json("neigh")?;
        let found = all
            .as_array()
            .and_then(|all| all.iter().find(|one| one["address"] == address).cloned());
        Ok(found.unwrap_or_default())
    };
    router.ok("ip neigh replace 10.2.0.2 lladdr 02:00:00:00:00:77 dev west0 nud permanent")?;
    wait_for("the neighbour's other address", PATIENCE, || {
        Ok((of("10.2.0.2")?["mac"] == "02:00:00:00:00:77").then_some(()))
    })?;
    let neighbour = of("10.2.0.2")?;
    check(
        neighbour["fast"] == true
            && neighbour["state"] == "permanent"
            && neighbour.get("expires_ms").is_none_or(Value::is_null),
        &format!("a permanent one does not expire: {neighbour}"),
    )?;
    // Stale at once, and asked for by the router as soon as it is used: it has a time then.
    router.ok("ip neigh del 10.2.0.2 dev west0")?;
    stage.hosts.pinging(|| Ok(()))?;
    wait_for("a confirmed neighbour that expires", PATIENCE, || {
        stage.hosts.east.ok("ping -q -c 1 -W 1 10.2.0.2")?;
        let neighbour = of("10.2.0.2")?;
        let expires = number(&neighbour["expires_ms"]);
        Ok((neighbour["fast"] == true && expires.is_some()).then_some(()))
    })?;
    let table = stage.daemon.cli("neigh --interface west0 -4")?;
    check(
        table.contains("10.2.0.2") && !table.contains("10.1.0.2"),
        &format!("one interface's are shown:\n{table}"),
    )
}

fn what_happens_is_told(stage: &mut Stage) -> Result<()> {
    let watch = stage.watching("--snapshot --counters=0.2")?;
    said(&watch, "that is all there is now")?;
    stage.take_both()?;
    said(&watch, "routing on east0, at tc ingress")?;
    said(&watch, "packets forwarded")?;
    let router = &stage.hosts.router;
    let all_routes = stage.cli("all-routes", "route show --watch")?;
    let neighbours = stage.cli("neighbours", "neigh -i west0 -4 --watch")?;
    said(&all_routes, "10.2.0.0/24")?;
    said(&neighbours, "10.2.0.2")?;
    // One after the other: changes that come together are told as what is left of them.
    router.ok("ip route add 203.0.113.0/24 via 10.2.0.2")?;
    said(&watch, "route 203.0.113.0/24 via 10.2.0.2 dev west0")?;
    said(&all_routes, "route 203.0.113.0/24 via 10.2.0.2 dev west0")?;
    router.ok("ip route del 203.0.113.0/24 via 10.2.0.2")?;
    said(
        &watch,
        "deleted route 203.0.113.0/24 via 10.2.0.2 dev west0",
    )?;
    router.ok("ip neigh replace 10.2.0.9 lladdr 02:00:00:00:00:09 dev west0 nud permanent")?;
    said(
        &watch,
        "neighbour 10.2.0.9 at 02:00:00:00:00:09 on west0 permanent",
    )?;
    said(
        &neighbours,
        "neighbour 10.2.0.9 at 02:00:00:00:00:09 on west0 permanent",
    )?;
    check(
        !neighbours.log().contains("203.0.113.0"),
        "routes are no neighbours",
    )?;
    router.ok(
        "for n in $(seq 1 200); do echo route add 192.0.2.$n/32 via 10.2.0.2; done | ip -batch -",
    )?;
    wait_for("the routes in the table", PATIENCE, || {
        Ok((stage.treatment("192.0.2.200").ok().as_deref() == Some("fast")).then_some(()))
    })?;
    router.ok("nft 'add table ip filter; add chain ip filter forward \
         { type filter hook forward priority 0; };
         add rule ip filter forward meta mark 0 tcp dport 9 drop'")?;
    said(
        &watch,
        "IPv4 is left to the kernel: nftables ip filter forward",
    )?;
    stage.treated("192.0.2.200", "kernel")?;
    router.ok("nft flush ruleset")?;
    said(&watch, "no longer: IPv4 is left to the kernel")?;
    stage.treated("192.0.2.200", "fast")?;
    stage.daemon.cli("router del west0")?;
    said(&watch, "west0 is given back")?;
    // Both would write to one log.
    drop(watch);
    let json = stage.watching("--json --snapshot --count 2")?;
    wait_for("two events", PATIENCE, || {
        Ok((json.log().lines().count() == 2).then_some(()))
    })?;
    check(
        json.log().contains("\"interface\""),
        "the snapshot has what is left",
    )
}

fn refusals_name_the_interface_and_what_holds_it(stage: &mut Stage) -> Result<()> {
    let refused = |stage: &Stage, line: &str| stage.daemon.cli(line).err().unwrap_or_default();
    let router = &stage.hosts.router;
    router.ok(
        "ip link add bridge0 type bridge && ip link add spare type veth peer name other && \
         ip link set spare master bridge0",
    )?;
    for (name, why) in [
        ("nothing0", "there is no such interface"),
        ("lo", "it is no Ethernet interface"),
        (
            "spare",
            "it belongs to the bridge bridge0, which has its packets",
        ),
    ] {
        let said = refused(stage, &format!("router add {name}"));
        check(
            said.contains(&format!("interface {name}: {why}")),
            &format!("{name} is refused: {said}"),
        )?;
    }
    check(
        stage.daemon.cli("router list")?.is_empty(),
        "nothing was taken",
    )?;
    let said = refused(stage, "router add a/b");
    check(said.contains("'a/b' is no name of an interface"), &said)?;
    // Somebody else's program, in XDP, where there is room for one; those before it stay taken.
    let command = format!("{} forward west0 --mode native", program("butterfly"));
    let mut other = router.start("forward", &command)?;
    wait_for("the other router", PATIENCE, || {
        Ok(stage.hosts.has_program("west0")?.then_some(()))
    })?;
    let said = refused(stage, "router add east0 west0 --mode native");
    check(
        said.contains("interface west0: it has an XDP program already: ") && said.contains("(id "),
        &format!("the holder is named: {said}"),
    )?;
    let list = stage.daemon.cli("router list")?;
    check(list.contains("east0") && !list.contains("west0"), &list)?;
    other.terminate(Duration::from_secs(10))?;
    stage.daemon.cli("router add west0")?;
    stage.hosts.pinging(|| Ok(()))
}

fn interfaces_come_back_under_their_names(stage: &mut Stage) -> Result<()> {
    stage.take_both()?;
    stage.hosts.router.ok("ip link del west0")?;
    wait_for("the interface to be missed", PATIENCE, || {
        Ok(stage
            .daemon
            .cli("router list")?
            .contains("it has gone")
            .then_some(()))
    })?;
    stage.hosts.wire("west0", &stage.hosts.west, 2)?;
    stage.hosts.first_answers()?;
    wait_for("the interface to be taken again", PATIENCE, || {
        let list = stage.daemon.json("router list")?;
        Ok((list[1]["mode"] == "XDP_MODE_TC").then_some(()))
    })?;
    stage.hosts.pinging(|| Ok(()))?;
    stage.treated(WEST[0], "fast")?;
    // Given to a bridge it is the bridge's, and the router's again when it is freed.
    let why = "it belongs to the bridge bridge0, which has its packets";
    for (change, expected) in [
        (
            "ip link add bridge0 type bridge && ip link set west0 master bridge0",
            why,
        ),
        ("ip link set west0 nomaster", ""),
    ] {
        stage.hosts.router.ok(change)?;
        wait_for(&format!("'{expected}' of west0"), PATIENCE, || {
            let list = stage.daemon.json("router list")?;
            let now = list[1]["why"].as_str().unwrap_or_default();
            Ok((now == expected).then_some(()))
        })?;
    }
    stage.hosts.pinging(|| Ok(()))
}

fn interfaces_are_part_of_the_declared_configuration(stage: &mut Stage) -> Result<()> {
    let file = stage.daemon.dir().join("declared.json");
    let apply = |stage: &Stage, text: &str, options: &str| -> Result<String> {
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        stage
            .daemon
            .cli(&format!("apply {} {options}", file.display()))
    };
    let both = r#"{ "router": { "interfaces": [ { "name": "east0" }, { "name": "west0", "mode":
        "XDP_MODE_GENERIC" } ] } }"#;
    let told = apply(stage, both, "--dry-run")?;
    check(told == "+ router east0\n+ router west0\n", &told)?;
    check(
        stage.daemon.cli("router list")?.is_empty(),
        "a dry run takes nothing",
    )?;
    apply(stage, both, "")?;
    let list = "INTERFACE  MODE     WHY\neast0      tc       -\nwest0      generic  -\n";
    check(
        stage.daemon.cli("router list")? == list,
        "both are taken as declared",
    )?;
    check(apply(stage, both, "")?.is_empty(), "once more is no change")?;
    let config = stage.daemon.cli("config")?;
    check(
        config.contains("\"west0\""),
        &format!("it is printed:\n{config}"),
    )?;
    check(
        apply(stage, &config, "")?.is_empty(),
        "what is printed is what there is",
    )?;
    // Refused, it changed nothing; not spoken of, it stays.
    let wrong =
        r#"{ "router": { "interfaces": [ { "name": "east0" }, { "name": "nothing0" } ] } }"#;
    let refused = apply(stage, wrong, "").err().unwrap_or_default();
    check(
        refused.contains("interface nothing0: there is no such interface"),
        &refused,
    )?;
    check(
        stage.daemon.cli("router list")? == list,
        "a refused one changed nothing",
    )?;
    apply(stage, "{}", "")?;
    check(
        stage.daemon.cli("router list")? == list,
        "what is not spoken of stays",
    )?;
    let told = apply(stage, r#"{ "router": {} }"#, "")?;
    check(told == "- router east0\n- router west0\n", &told)?;
    check(
        !stage.hosts.has_program("east0")?,
        "it is the kernel's again",
    )
}

/// Another process takes the daemon's place: no packet is lost, none comes to the kernel to be
/// forwarded, and each is counted. At tc, in XDP, and at both.
fn an_upgrade_keeps_every_packet(stage: &mut Stage) -> Result<()> {
    every_packet_is_kept(stage, |stage| stage.daemon.upgrade())
}

/// Nor is a packet lost where the daemon is killed and started: its programs go on meanwhile, for
/// as long as what they know may be true.
fn a_kill_keeps_every_packet(stage: &mut Stage) -> Result<()> {
    every_packet_is_kept(stage, |stage| stage.daemon.kill_and_restart())
}

fn every_packet_is_kept(stage: &mut Stage, replace: fn(&mut Stage) -> Result<()>) -> Result<()> {
    stage.daemon.stop()?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let acl = folder.path().join("acl");
    let rules = "default allow\nallow ipv4 in east0 proto icmp\n";
    std::fs::write(&acl, rules).map_err(|e| e.to_string())?;
    for modes in [["tc", "tc"], ["generic", "generic"], ["tc", "generic"]] {
        stage.start_kept(modes, &["--router-acl", &acl.display().to_string()])?;
        let list = stage.daemon.cli("router list")?;
        // Neighbours are known then.
        stage.hosts.pinging(|| Ok(()))?;
        let forwarded = kernel_forwarded(&stage.hosts)?;
        let counted = stage.counter("east0", "ipv4", "forwarded")?;
        let taken = stage.first_rule()?;
        let start = |address: &&str| {
            let name = format!("long-ping-{}", address.len());
            let ping = format!("ping -q -i 0.002 {address}");
            stage.hosts.east.start(&name, &ping)
        };
        let pings = WEST.iter().map(start).collect::<Result<Vec<_>>>()?;
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            let begin = Instant::now();
            replace(stage)?;
            took = took.max(begin.elapsed());
        }
        let mut sent = 0;
        for mut ping in pings {
            ping.signal("INT")?;
            ping.wait(PATIENCE)?;
            let log = ping.log();
            check(
                log.contains(" 0% packet loss"),
                &format!("{modes:?}: echo requests were lost:\n{log}"),
            )?;
            if sent == 0 {
                let words = log.lines().find(|line| line.contains("transmitted"));
                let number = words.and_then(|line| line.split(' ').next()?.parse().ok());
                sent = number.ok_or_else(|| format!("no number of packets:\n{log}"))?;
            }
        }
        // What the programs of one that is killed know they go by for four seconds and more.
        let kernels = kernel_forwarded(&stage.hosts)? - forwarded;
        check(
            kernels == 0 || took > Duration::from_secs(4),
            &format!("{modes:?}: the kernel had {kernels} packets to forward, in {took:?}"),
        )?;
        let counted = stage.counter("east0", "ipv4", "forwarded")? - counted;
        check(
            counted == sent || kernels > 0 && counted <= sent,
            &format!("{modes:?}: {sent} were sent, of which {counted} are counted"),
        )?;
        let taken = stage.first_rule()? - taken;
        check(
            taken == sent || kernels > 0 && taken <= sent,
            &format!("{modes:?}: {sent} were sent, of which the rule has taken {taken}"),
        )?;
        let now = stage.daemon.cli("router list")?;
        check(now == list, &format!("the modes stay:\n{list}\n{now}"))?;
        stage.treated(WEST[0], "fast")?;
        stage.daemon.cli("router del east0 west0")?;
        check(
            !stage.hosts.has_program("east0")?,
            "it is the kernel's again",
        )?;
    }
    Ok(())
}

/// Of the two processes that there are then, the one that goes on takes it: the other one's program
/// neither keeps it out nor goes from the interface with its process.
fn interfaces_that_come_amid_an_upgrade_are_taken(stage: &mut Stage) -> Result<()> {
    stage.daemon.stop()?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let acl = folder.path().join("acl");
    let rules = "default allow\nallow ipv4 in west0 proto icmp\n";
    std::fs::write(&acl, rules).map_err(|e| e.to_string())?;
    stage.start_kept(
        ["tc", "generic"],
        &["--router-acl", &acl.display().to_string()],
    )?;
    for (turn, succeeds) in [false, true, false, true].into_iter().enumerate() {
        let hosts = &stage.hosts;
        stage.daemon.amid_an_upgrade(succeeds, || {
            hosts.router.ok("ip link del west0")?;
            hosts.wire("west0", &hosts.west, 2)?;
            // Both have heard of it by then.
            hosts.first_answers()
        })?;
        let what = format!("turn {turn}: the interface to have a program");
        wait_for(&what, PATIENCE, || {
            let list = stage.daemon.json("router list")?;
            let is_taken = list[1]["mode"] == "XDP_MODE_GENERIC";
            Ok((is_taken && stage.hosts.has_program("west0")?).then_some(()))
        })?;
        let taken = stage.first_rule()?;
        stage.hosts.pinging(|| Ok(()))?;
        let taken = stage.first_rule()? - taken;
        check(taken > 0, &format!("turn {turn}: the access list judges"))?;
        stage.treated(WEST[0], "fast")?;
    }
    Ok(())
}

/// What a killed daemon's programs know is true no longer when nobody has followed the kernel for a
/// while: it forwards then, and the next daemon has all as it was. One that is stopped leaves its
/// interfaces, and what they have counted; one that is to end for good leaves nothing.
fn what_nobody_follows_any_more_is_the_kernel_s(stage: &mut Stage) -> Result<()> {
    stage.daemon.stop()?;
    stage.start_kept(["tc", "generic"], &[])?;
    stage.hosts.pinging(|| Ok(()))?;
    let counted = stage.counter("east0", "ipv4", "forwarded")?;
    check(counted > 400, "packets by the fast path")?;
    stage.daemon.kill()?;
    check(stage.hosts.has_program("west0")?, "its programs stay")?;
    // Five seconds, by a look each second.
    std::thread::sleep(Duration::from_secs(7));
    let forwarded = kernel_forwarded(&stage.hosts)?;
    stage.hosts.pinging(|| Ok(()))?;
    let more = kernel_forwarded(&stage.hosts)? - forwarded;
    check(
        more == 1000,
        &format!("the kernel has forwarded {more} of 1000"),
    )?;
    stage.daemon.restart()?;
    check(
        stage.counter("east0", "ipv4", "hung")? == 500,
        "what was left to the kernel meanwhile is counted, too",
    )?;
    stage.hosts.pinging(|| Ok(()))?;
    let now = stage.counter("east0", "ipv4", "forwarded")?;
    check(
        now == counted + 500,
        &format!("{counted} and 500 are {now}"),
    )?;
    stage.daemon.stop()?;
    check(!stage.hosts.has_program("west0")?, "it is the kernel's")?;
    stage.daemon.restart()?;
    let again = stage.counter("east0", "ipv4", "forwarded")?;
    check(again == now, &format!("{again} are counted of {now}"))?;
    // Of an interface that was given back nothing is gone on with.
    stage.daemon.cli("router del east0 west0")?;
    stage.daemon.cli("router add east0 west0")?;
    check(
        stage.counter("east0", "ipv4", "forwarded")? == 0,
        "it begins anew",
    )?;
    stage.daemon.cli("shutdown --yes")?;
    let keeper = stage.daemon.dir().join("keeper");
    wait_for("the keeper to end", PATIENCE, || {
        Ok((!keeper.exists()).then_some(()))
    })?;
    check(!stage.hosts.has_program("east0")?, "nothing is left")
}

/// Packets that the router's kernel has forwarded itself, of IPv4.
fn kernel_forwarded(hosts: &RoutedHosts) -> Result<u64> {
    let said = hosts.router.ok("nstat -asz IpForwDatagrams")?;
    let number = said.lines().last().and_then(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "IpForwDatagrams")?;
        words.next()?.parse().ok()
    });
    number.ok_or_else(|| format!("no number in {said}"))
}

fn killed_under_load_the_kernel_goes_on(stage: &mut Stage) -> Result<()> {
    stage.take_both()?;
    let Stage { hosts, daemon } = stage;
    hosts.pinging(|| {
        let forwarded = || -> Result<bool> {
            let status = daemon.json("router status")?;
            Ok(number(&status["interfaces"][0]["ipv4"]["forwarded"]).unwrap_or(0) > 20)
        };
        wait_for("packets by the fast path", PATIENCE, || {
            Ok(forwarded()?.then_some(()))
        })?;
        daemon.kill_and_restart()
    })?;
    check(!hosts.has_program("east0")?, "its programs went with it")?;
    hosts.pinging(|| Ok(()))
}

fn hanging_it_leaves_packets_to_the_kernel(stage: &mut Stage) -> Result<()> {
    stage.take_both()?;
    stage.hosts.pinging(|| Ok(()))?;
    check(stage.counter("east0", "ipv4", "hung")? == 0, "it is there")?;
    let still = stage.daemon.stand_still()?;
    // Five seconds, by a look each second.
    std::thread::sleep(Duration::from_secs(7));
    stage.hosts.pinging(|| Ok(()))?;
    drop(still);
    for family in ["ipv4", "ipv6"] {
        let left = stage.counter("east0", family, "hung")?;
        check(
            left == 500,
            &format!("{family}: {left} of 500 left to the kernel"),
        )?;
    }
    // Those of before the stop, of which the kernel may have had the first.
    let before = stage.counter("east0", "ipv4", "forwarded")?;
    wait_for("packets by the fast path again", PATIENCE, || {
        stage.hosts.pinging(|| Ok(()))?;
        let now = stage.counter("east0", "ipv4", "forwarded")?;
        Ok((now >= before + 500).then_some(()))
    })
}
