//! docs/security-groups.md with real kernels: every item of it that a guest can show. What no guest
//! does (malformed headers, full tables, time-outs) is tested in the crates.

use butterfly_tests::lab::{Download, Lab, check, pings, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::run_trials;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_trials::<Lab>(
        &[],
        &trials![
            by_default_nothing_comes_in,
            a_rule_lets_its_protocol_pass_and_no_other,
            a_port_range_has_two_ends,
            icmp_rules_know_type_and_code,
            three_nics_in_two_groups,
            egress_rules_narrow_what_leaves,
            an_answer_needs_no_rule,
            a_group_is_overwritten_deleted_and_returns,
            members_change_while_traffic_runs,
            nics_join_and_leave_while_traffic_runs,
            an_address_moves_to_another_machine,
            a_rule_taken_away_cuts,
            a_rule_taken_away_drains,
            icmp_errors_follow_their_flow,
            fragments_follow_their_first,
            broken_fragments_are_dropped,
            dhcp_passes_but_from_a_guest,
            a_guest_cannot_borrow_addresses,
            bypass_filtering_filters_nothing,
            a_sniffer_hears_all_and_says_nothing,
        ],
    );
}

const B4: &str = "10.0.0.2";
const B6: &str = "fd00::2";
const C4: &str = "10.0.0.3";

/// security-groups.md 4 and 13: ARP and neighbour discovery pass.
fn by_default_nothing_comes_in(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80")?;
    b.serve("guest udp-serve 53")?;
    b.serve("guest sctp-serve 9")?;
    let before = lab.daemon.drops("b", "INGRESS", &[])?;
    for to in [B4, B6] {
        check(!pings(a, to)?, "ping is dropped")?;
        check(
            !a.succeeds(&format!("guest tcp-get {to} 80 1 1"))?,
            "TCP is dropped",
        )?;
        check(
            !a.succeeds(&format!("guest udp-ping {to} 53 2 10"))?,
            "UDP is dropped",
        )?;
        check(
            !a.succeeds(&format!("guest sctp-ping {to} 9 1 1"))?,
            "SCTP is dropped",
        )?;
    }
    check(
        lab.daemon.drops("b", "INGRESS", &[])? >= before + 8,
        "each drop is counted at b",
    )?;
    check(
        lab.daemon.stat("c", "ingress_bytes")? < 2000,
        "c got no more than broadcasts and multicasts",
    )?;
    let neighbours = a.ok("ip neigh show dev eth0")?;
    for to in [B4, B6] {
        let known = neighbours
            .lines()
            .any(|l| l.starts_with(&format!("{to} ")) && l.contains("52:54:00:00:00:0b"));
        check(known, &format!("{to} was resolved: {neighbours}"))?;
    }
    Ok(())
}

/// security-groups.md 1 and 2.
fn a_rule_lets_its_protocol_pass_and_no_other(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    for server in [
        "tcp-serve 80",
        "udp-serve 80",
        "sctp-serve 80",
        "tcp-serve 81",
    ] {
        b.serve(&format!("guest {server}"))?;
    }
    lab.cli("nic sg set b web")?;
    for (to, cidr) in [(B4, "10.0.0.0/24"), (B6, "fd00::/64")] {
        // Seconds: an answer that is to come may take its time on a machine that is busy.
        let kinds = |wait: u32| {
            [
                (
                    "tcp --port 80",
                    format!("guest tcp-get {to} 80 1000 {wait}"),
                ),
                (
                    "udp --port 80",
                    format!("guest udp-ping {to} 80 2 {}", wait * 300),
                ),
                (
                    "sctp --port 80",
                    format!("guest sctp-ping {to} 80 2 {wait}"),
                ),
                ("icmp", format!("ping -c 2 -i 0.2 -W {wait} {to}")),
            ]
        };
        let [quick, patient] = [1, 5].map(kinds);
        for (chosen, (rule, _)) in quick.iter().enumerate() {
            lab.cli(&format!("sg rule add web --ip-proto {rule} --cidr {cidr}"))?;
            for index in 0..quick.len() {
                let (other, command) = if index == chosen {
                    &patient[index]
                } else {
                    &quick[index]
                };
                let passes = a.succeeds(command)?;
                check(
                    passes == (index == chosen),
                    &format!("under `{rule}` for {cidr}, `{other}` to {to}: {passes}"),
                )?;
            }
            check(
                !a.succeeds(&format!("guest tcp-get {to} 81 1 0.5"))?,
                "another port is dropped",
            )?;
            lab.cli(&format!("sg rule del web --ip-proto {rule} --cidr {cidr}"))?;
        }
    }
    Ok(())
}

/// security-groups.md 2.
fn a_port_range_has_two_ends(lab: &mut Lab) -> Result<()> {
    for port in [999, 1000, 1500, 2000, 2001] {
        lab.b().serve(&format!("guest tcp-serve {port}"))?;
    }
    lab.cli(
        "sg rule add web --ip-proto tcp --port-start 1000 --port-end 2000 --cidr 10.0.0.1/32 + \
         nic sg set b web",
    )?;
    for (port, passes) in [
        (999, false),
        (1000, true),
        (1500, true),
        (2000, true),
        (2001, false),
    ] {
        let passed = lab
            .a()
            .succeeds(&format!("guest tcp-get {B4} {port} 1000 1"))?;
        check(passed == passes, &format!("port {port}: {passed}"))?;
    }
    check(
        !lab.c().succeeds(&format!("guest tcp-get {B4} 1500 1 1"))?,
        "another source is dropped",
    )
}

/// security-groups.md 2.
fn icmp_rules_know_type_and_code(lab: &mut Lab) -> Result<()> {
    let echo = format!("guest icmp-ask {B4} 8 0 1");
    let timestamp = format!("guest icmp-ask {B4} 13 0 1");
    lab.cli("sg rule add web --ip-proto icmp --icmp-type 13 --icmp-code 0 + nic sg set b web")?;
    check(lab.a().succeeds(&timestamp)?, "a timestamp request passes")?;
    check(!lab.a().succeeds(&echo)?, "an echo request is dropped")?;
    lab.cli("sg rule add web --ip-proto icmp --icmp-type 8")?;
    check(lab.a().succeeds(&echo)?, "an echo request passes now")?;
    lab.cli("sg rule del web --ip-proto icmp --icmp-type 13 --icmp-code 0")?;
    check(
        !lab.a().succeeds(&timestamp)?,
        "a timestamp request is dropped now",
    )
}

/// security-groups.md 1, 3 and 4: `web` is a and b, `db` is b and c; `db` lets `web` in on one
/// port.
fn three_nics_in_two_groups(lab: &mut Lab) -> Result<()> {
    lab.cli("nic sg set a web + nic sg set b web db + nic sg set c db")?;
    lab.cli("sg rule add db --ip-proto tcp --port 5432 --sg-members web")?;
    lab.cli(
        "sg rule add web --ip-proto tcp --port 80 --sg-members db + sg rule add web --ip-proto \
         icmp --sg-members web",
    )?;
    for guest in &lab.guests {
        for port in [80, 5432] {
            guest.serve(&format!("guest tcp-serve {port}"))?;
        }
    }
    // from, to, port, passes
    let table = [
        (0, 1, 80, false),   // b's web lets db in; a is in web alone
        (0, 1, 5432, true),  // b's db lets web in
        (0, 2, 5432, true),  // c's db lets web in
        (0, 2, 80, false),   // c is not in web
        (1, 0, 80, true),    // a's web lets db in, b is in db
        (1, 0, 5432, false), // a is not in db
        (1, 2, 5432, true),  // b is in web
        (2, 0, 80, true),    // c is in db
        (2, 1, 80, true),    // c is in db, b in web
        (2, 1, 5432, false), // c is not in web
    ];
    for family in ["10.0.0.", "fd00::"] {
        for (from, to, port, passes) in table {
            let address = format!("{family}{}", to + 1);
            let passed =
                lab.guests[from].succeeds(&format!("guest tcp-get {address} {port} 1000 1"))?;
            check(
                passed == passes,
                &format!(
                    "{} to {address} port {port}: {passed}",
                    lab.guests[from].name()
                ),
            )?;
        }
    }
    check(pings(lab.a(), B4)?, "a and b of one group ping one another")?;
    check(!pings(lab.c(), B4)?, "c of another group cannot")
}

/// security-groups.md 4.
fn egress_rules_narrow_what_leaves(lab: &mut Lab) -> Result<()> {
    let a = lab.a();
    lab.cli(
        "sg rule add open --ip-proto all + nic sg set b open + nic sg set c open + nic sg set \
         a narrow",
    )?;
    check(
        !pings(a, B4)?,
        "a group that does not exist counts as one with an egress rule",
    )?;
    lab.cli("sg add narrow")?;
    check(
        pings(a, B4)? && pings(a, C4)?,
        "without an egress rule all leaves",
    )?;
    lab.cli("sg rule add narrow --dir out --ip-proto icmp --cidr 10.0.0.2/32")?;
    check(pings(a, B4)?, "what the egress rule allows leaves")?;
    check(!pings(a, C4)?, "another destination does not")?;
    check(!pings(a, B6)?, "nor another family")?;
    lab.cli("sg rule del narrow --dir out --ip-proto icmp --cidr 10.0.0.2/32")?;
    check(
        pings(a, C4)? && pings(a, B6)?,
        "with the last egress rule gone all leaves again",
    )
}

/// security-groups.md 6.
fn an_answer_needs_no_rule(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest udp-serve 53")?;
    b.serve("guest tcp-sink 81")?;
    lab.cli(
        "sg rule add dns --ip-proto udp --port 53 + sg rule add dns --ip-proto tcp --port 81 + \
         nic sg set b dns",
    )?;
    for to in [B4, B6] {
        a.ok(&format!("guest udp-ping {to} 53 3 100 4000"))?;
        a.ok(&format!("guest tcp-put {to} 81 300000 10"))?;
    }
    a.serve("guest udp-serve 4000")?;
    check(
        !b.succeeds("guest udp-ping 10.0.0.1 4000 1 10 54")?,
        "another port of b's is no answer",
    )?;
    check(!pings(b, "10.0.0.1")?, "b cannot begin")
}

/// security-groups.md 3 and 5.
fn a_group_is_overwritten_deleted_and_returns(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80")?;
    let tcp = format!("guest tcp-get {B4} 80 1000 1");
    lab.cli("nic sg set b web")?;
    check(!pings(a, B4)?, "a group that does not exist allows nothing")?;
    lab.cli("sg rule add web --ip-proto icmp + sg rule add web --ip-proto tcp --port 80")?;
    check(
        pings(a, B4)? && a.succeeds(&tcp)?,
        "it works once it exists",
    )?;
    lab.cli("sg add --replace web + sg rule add web --ip-proto tcp --port 80")?;
    check(
        !pings(a, B4)? && a.succeeds(&tcp)?,
        "overwritten, it allows what it allows now",
    )?;

    let download = Download::start(a, B4, 80)?;
    lab.cli("sg del web")?;
    download.stops()?;
    check(!a.succeeds(&tcp)?, "deleted, it allows nothing")?;
    check(
        lab.cli("nic sg list b")?.contains("web"),
        "the NIC still names it",
    )?;
    lab.cli("sg rule add web --ip-proto tcp --port 80")?;
    check(a.succeeds(&tcp)?, "it works again when it returns")?;

    // A rule may name a group that is not there, too.
    lab.cli("sg add --replace web + sg rule add web --ip-proto icmp --sg-members friends")?;
    check(
        !pings(a, B4)?,
        "a peer group that does not exist matches nobody",
    )?;
    // What a sends leaves by a rule of its other group: it is b that is asked.
    lab.cli("sg rule add out --dir out --ip-proto all + nic sg set a friends out")?;
    check(
        !pings(a, B4)?,
        "a group that NICs name and nobody made does not exist yet",
    )?;
    lab.cli("sg add friends")?;
    check(pings(a, B4)?, "made, it stands for the NICs in it")?;
    lab.cli("sg del friends")?;
    check(!pings(a, B4)?, "deleted, it matches nobody again")
}

/// security-groups.md 3, 5 and 9.
fn members_change_while_traffic_runs(lab: &mut Lab) -> Result<()> {
    let (a, b, c) = (lab.a(), lab.b(), lab.c());
    b.serve("guest tcp-serve 80 2000000")?;
    lab.cli("sg rule add web --ip-proto tcp --port 80 --sg-members users + nic sg set b web")?;
    lab.cli("sg member add users 10.0.0.1 + sg member add users 10.0.0.3")?;
    let first = Download::start(a, B4, 80)?;
    let other = Download::start(c, B4, 80)?;
    for _ in 0..20 {
        lab.cli("sg member add users 10.0.0.77 + sg member del users 10.0.0.77")?;
    }
    first.goes_on()?;
    lab.cli("sg member del users 10.0.0.1")?;
    first.stops()?;
    other.goes_on()?;
    lab.cli("sg member add users 10.0.0.1 + sg member add users fd00::1")?;
    a.ok(&format!("guest tcp-get {B4} 80 1000 2"))
        .map_err(|e| format!("allowed again: {e}"))?;
    check(
        a.succeeds(&format!("guest tcp-get {B6} 80 1000 2"))?,
        "an IPv6 member works alike",
    )?;
    other.goes_on()
}

/// security-groups.md 3 and 5: a NIC's addresses belong to the group it is in.
fn nics_join_and_leave_while_traffic_runs(lab: &mut Lab) -> Result<()> {
    let (a, b, c) = (lab.a(), lab.b(), lab.c());
    b.serve("guest tcp-serve 80 2000000")?;
    lab.cli(
        "sg add users + sg rule add web --ip-proto tcp --port 80 --sg-members users + nic sg \
         set b web",
    )?;
    check(
        !a.succeeds(&format!("guest tcp-get {B4} 80 1 1"))?,
        "nobody is in the group",
    )?;
    lab.cli("nic sg add a users + nic sg add c users")?;
    let (first, other) = (Download::start(a, B4, 80)?, Download::start(c, B4, 80)?);
    lab.cli("nic sg del a users")?;
    first.stops()?;
    other.goes_on()?;
    lab.cli("nic sg del b web")?;
    other.stops()
}

/// security-groups.md 3 and 5, and ARP: an address goes from b to c, and the rules that name its
/// groups go with it.
fn an_address_moves_to_another_machine(lab: &mut Lab) -> Result<()> {
    let (a, b, c) = (lab.a(), lab.b(), lab.c());
    const SHARED: &str = "10.0.0.99";
    lab.cli("sg rule add ping --ip-proto icmp + nic sg set b ping + nic sg set c ping")?;
    lab.cli("nic update b --ip 10.0.0.2 fd00::2 10.0.0.99")?;
    b.ok(&format!("ip addr add {SHARED}/24 dev eth0"))?;
    check(pings(a, SHARED)?, "the address is at b")?;
    // It may hear something else meanwhile: who was its neighbour in the trials before asks whether
    // it still is.
    const MANY: u64 = 40;
    let before = c.counter("eth0", "rx_packets")?;
    a.ok(&format!("ping -c {MANY} -i 0.05 -W 1 {SHARED}"))?;
    let heard = c.counter("eth0", "rx_packets")? - before;
    check(
        heard < MANY / 2,
        &format!("c hears nothing of it, but {heard} packets"),
    )?;

    b.ok(&format!("ip addr del {SHARED}/24 dev eth0"))?;
    lab.cli("nic update b --ip 10.0.0.2 fd00::2 + nic update c --ip 10.0.0.3 fd00::3 10.0.0.99")?;
    c.ok(&format!(
        "ip addr add {SHARED}/24 dev eth0 && arping -U -c 2 -I eth0 {SHARED}"
    ))?;
    soon(a, &format!("ping -c 1 -W 1 {SHARED}"))?;
    let mac = a.ok(&format!("ip neigh show {SHARED}"))?;
    check(
        mac.contains("52:54:00:00:00:0c"),
        &format!("a has learnt where it is now: {mac}"),
    )?;

    // b may not speak from it any more (anti-spoofing is on).
    b.ok(&format!("ip addr add {SHARED}/32 dev eth0"))?;
    check(
        !b.succeeds(&format!("ping -c 2 -W 1 -I {SHARED} 10.0.0.3"))?,
        "b cannot speak from it any more",
    )
}

/// security-groups.md 9, the default.
fn a_rule_taken_away_cuts(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80")?;
    b.serve("guest tcp-serve 81")?;
    lab.cli(
        "sg rule add web --ip-proto tcp --port 80 + sg rule add web --ip-proto tcp --port 81 + \
         nic sg set b web",
    )?;
    for to in [B4, B6] {
        let cut = Download::start(a, to, 80)?;
        let kept = Download::start(a, to, 81)?;
        lab.cli("sg rule del web --ip-proto tcp --port 80")?;
        cut.stops()?;
        kept.goes_on()?;
        lab.cli("sg rule add web --ip-proto tcp --port 80")?;
        a.quiet()?;
    }
    Ok(())
}

/// security-groups.md 9, as EC2.
fn a_rule_taken_away_drains(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80 2000000")?;
    lab.cli(
        "sg add --removal drain web + sg rule add web --ip-proto tcp --port 80 + nic sg set b web",
    )?;
    let download = Download::start(a, B4, 80)?;
    lab.cli("sg rule del web --ip-proto tcp --port 80")?;
    for _ in 0..3 {
        download.goes_on()?;
    }
    check(
        !a.succeeds(&format!("guest tcp-get {B4} 80 1 1"))?,
        "a new connection is refused",
    )?;
    download.goes_on()?;
    a.quiet()
}

/// security-groups.md 7, path-MTU discovery: a sends to c through b, whose route on has a smaller
/// MTU. The answer that says so comes from b, which no rule of a's lets in; it quotes a's own
/// connection.
fn icmp_errors_follow_their_flow(lab: &mut Lab) -> Result<()> {
    let (a, b, c) = (lab.a(), lab.b(), lab.c());
    let far = |last: &str| [format!("10.9.0.{last}"), format!("fd09::{last}")];
    // What b forwards is not from its own addresses: anti-spoofing has to be off, and an egress
    // rule has to allow it.
    lab.cli("sg rule add transit --ip-proto all + sg rule add transit --dir out --ip-proto all")?;
    lab.cli("nic sg set b transit + nic update b --disable-antispoof")?;
    lab.cli("sg rule add web --ip-proto tcp --port 81 + nic sg set c web")?;
    lab.cli("nic update c --ip 10.0.0.3 fd00::3 10.9.0.3 fd09::3")?;
    let no_redirects = "for f in /proc/sys/net/ipv4/conf/*/*_redirects; do echo 0 > $f; done; \
                        echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_redirects";
    for guest in [a, b, c] {
        guest.ok(no_redirects)?;
    }
    b.ok(
        "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; \
         ip route add 10.9.0.3/32 via 10.0.0.3 mtu 1300; ip -6 route add fd09::3/128 via fd00::3 \
         dev eth0 mtu 1300",
    )?;
    c.ok(
        "ip addr add 10.9.0.3/32 dev eth0; ip -6 addr add fd09::3/128 dev eth0; \
         ip route add 10.0.0.1/32 via 10.0.0.2; \
         ip -6 route add fd00::1/128 via fd00::2",
    )?;
    a.ok("ip route add 10.9.0.3/32 via 10.0.0.2; ip -6 route add fd09::3/128 via fd00::2")?;
    c.serve("guest tcp-sink 81")?;
    let errors = [
        "awk '/^Icmp: [0-9]/ { print $5 }' /proc/net/snmp", // InDestUnreachs
        "awk '/Icmp6InPktTooBigs/ { print $2 }' /proc/net/snmp6",
    ];
    for (to, counter) in far("3").iter().zip(errors) {
        let before: u64 = parse(&a.ok(counter)?)?;
        a.ok(&format!("guest tcp-put {to} 81 2000000 20"))?;
        let after: u64 = parse(&a.ok(counter)?)?;
        check(
            after > before,
            &format!("a was told of the smaller MTU on the way to {to}"),
        )?;
    }
    b.ok("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding")
        .map(drop)
}

/// security-groups.md 8.
fn fragments_follow_their_first(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest udp-serve 53")?;
    b.serve("guest udp-serve 54")?;
    lab.cli(
        "sg rule add web --ip-proto icmp + sg rule add web --ip-proto udp --port 53 + nic sg \
         set b web",
    )?;
    for to in [B4, B6] {
        a.ok(&format!("ping -c 3 -i 0.2 -W 2 -s 8000 {to}"))?;
        a.ok(&format!("guest udp-ping {to} 53 3 20000"))?;
        check(
            !a.succeeds(&format!("guest udp-ping {to} 54 2 20000"))?,
            "fragments of what is refused are refused",
        )?;
    }
    a.ok(&format!("guest fragments 10.0.0.1 {B4} 53 whole"))
        .map(drop)
}

/// security-groups.md 8: what arrives is what b's kernel counts as received UDP, known port or not,
/// and fragments waiting.
fn broken_fragments_are_dropped(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    lab.cli("sg rule add web --ip-proto all + nic sg set b web")?;
    let reassemblies = "awk '/^Ip: [0-9]/ { print $15 }' /proc/net/snmp"; // ReasmReqds
    let seen = || -> Result<u64> { parse(&b.ok(reassemblies)?) };
    // Not every drop: a connection that was cut before may send again at any moment.
    let reasons = [
        "fragment_tiny",
        "fragment_without_first",
        "fragment_overlap",
        "fragment_of_dropped",
        "fragment_table_full",
        "malformed",
        "truncated",
    ];
    let counted = || -> Result<u64> {
        Ok(lab.daemon.drops("b", "INGRESS", &reasons)?
            + lab.daemon.drops("a", "EGRESS", &reasons)?)
    };
    a.ok(&format!("ping -c 1 -W 2 {B4}"))?;
    for (kind, fragments) in [("whole", 2), ("later-only", 0), ("tiny", 0), ("overlap", 1)] {
        let (before, drops) = (seen()?, counted()?);
        // The ping comes behind the fragments: when it was answered, they have arrived or were
        // dropped.
        a.ok(&format!(
            "guest fragments 10.0.0.1 {B4} 53 {kind}; ping -c 1 -W 2 {B4}"
        ))?;
        let arrived = seen()? - before;
        check(
            arrived <= fragments,
            &format!("{kind}: {arrived} fragments arrived and not {fragments} at most"),
        )?;
        check(
            kind != "whole" || arrived == 2,
            "a good datagram's fragments arrive",
        )?;
        // A later fragment is held back for a while: its first one may come.
        let dropped = || -> Result<bool> { Ok(counted()? > drops) };
        if kind == "whole" {
            check(!dropped()?, "no drop is counted for a good datagram")?;
        } else {
            wait_for(&format!("a drop of {kind} to be counted"), PATIENCE, || {
                Ok(dropped()?.then_some(()))
            })?;
        }
    }
    Ok(())
}

/// security-groups.md 13: no group at all.
fn dhcp_passes_but_from_a_guest(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    let server = "printf 'start 10.0.0.50\\nend 10.0.0.60\\ninterface eth0\\nlease_file \
                  /tmp/leases\\n\
                  option subnet 255.255.255.0\\n' > /tmp/udhcpd.conf; touch /tmp/leases; \
                  udhcpd -f /tmp/udhcpd.conf >/tmp/udhcpd.log 2>&1 &";
    b.ok(server)?;
    a.ok("ip addr flush dev eth0")?;
    let client = "udhcpc -i eth0 -n -q -t 3 -T 1 -s /etc/udhcpc.script";
    check(
        !a.succeeds(client)?,
        "a guest that plays DHCP server is not heard",
    )?;
    check(
        lab.daemon.drops("b", "EGRESS", &[])? > 0,
        "its answers are counted as dropped",
    )?;
    lab.cli("nic update b --allow-dhcp-server")?;
    a.ok(client)?;
    let addresses = a.ok("ip addr show dev eth0")?;
    check(
        addresses.contains("inet 10.0.0.5"),
        &format!("a has an address of the server's: {addresses}"),
    )
}

/// security-groups.md 14.
fn a_guest_cannot_borrow_addresses(lab: &mut Lab) -> Result<()> {
    let (a, c) = (lab.a(), lab.c());
    lab.cli("sg rule add open --ip-proto all")?;
    for nic in ["a", "b", "c"] {
        lab.cli(&format!("nic sg set {nic} open"))?;
    }
    a.ok("ip addr add 10.0.0.66/24 dev eth0; ip addr add fd00::66/64 dev eth0")?;
    let (borrowed4, borrowed6) = (
        "ping -c 2 -i 0.2 -W 1 -I 10.0.0.66 10.0.0.2",
        "ping -c 2 -i 0.2 -W 1 -I fd00::66 fd00::2",
    );
    // The kernel would choose the newest address.
    let own =
        "ping -c 2 -i 0.2 -W 1 -I 10.0.0.1 10.0.0.2 && ping -c 2 -i 0.2 -W 1 -I fd00::1 fd00::2";
    check(a.succeeds(own)?, "its own addresses pass")?;
    check(
        !a.succeeds(borrowed4)? && !a.succeeds(borrowed6)?,
        "addresses that are not the NIC's are refused",
    )?;
    check(lab.daemon.drops("a", "EGRESS", &[])? >= 4, "and counted")?;
    check(!pings(c, "10.0.0.66")?, "nor can it answer ARP for one")?;
    lab.cli("nic update a --allowed-address-pair 10.0.0.64/30 fd00::66")?;
    check(
        a.succeeds(borrowed4)? && a.succeeds(borrowed6)?,
        "allowed pairs pass",
    )?;
    lab.cli("nic update a --allowed-address-pair ''")?;
    check(!a.succeeds(borrowed4)?, "until they are gone")?;
    lab.cli("nic update a --disable-antispoof")?;
    check(
        !a.succeeds(borrowed4)?,
        "without anti-spoofing it still takes a rule to leave from foreign addresses",
    )?;
    lab.cli("sg rule add open --dir out --ip-proto all")?;
    check(
        a.succeeds(borrowed4)? && a.succeeds(borrowed6)?,
        "with one all pass",
    )?;

    let before = lab.daemon.drops("a", "EGRESS", &[])?;
    a.ok(
        "ip link set eth0 down; ip link set eth0 address 52:54:00:00:00:66 up; \
         ip neigh flush dev eth0",
    )?;
    check(!pings(a, B4)?, "another MAC is refused all the same")?;
    check(
        lab.daemon.drops("a", "EGRESS", &[])? > before,
        "and counted",
    )
}

/// security-groups.md 15.
fn bypass_filtering_filters_nothing(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80")?;
    b.serve("guest sctp-serve 9")?;
    check(!pings(a, B4)?, "filtered at first")?;
    lab.cli("nic update b --bypass-filtering")?;
    for to in [B4, B6] {
        check(pings(a, to)?, "ping passes")?;
        a.ok(&format!(
            "guest tcp-get {to} 80 100000 5 && guest sctp-ping {to} 9 2 2"
        ))?;
    }
    lab.cli("nic update b --bypass-filtering=false")?;
    check(!pings(a, B4)?, "filtered again")
}

/// security-groups.md 15.
fn a_sniffer_hears_all_and_says_nothing(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    lab.cli("sg rule add web --ip-proto icmp + nic sg set b web")?;
    lab.cli(
        "nic add --id ear --mac 52:54:00:00:00:ee --vni 42 --type tap --path bf-ear \
         --sniff-target b",
    )?;
    let namespace = Namespace::new()?;
    namespace.adopt("bf-ear", "52:54:00:00:00:ee", &["10.0.0.200/24"])?;
    let tcpdump = namespace.start("tcpdump", "tcpdump -l -n -i eth0 icmp")?;
    wait_for("tcpdump to listen", PATIENCE, || {
        Ok(tcpdump.log().contains("listening").then_some(()))
    })?;
    a.ok(&format!("ping -c 3 -i 0.2 -W 1 {B4}"))?;
    wait_for("tcpdump to show the ping", PATIENCE, || {
        let log = tcpdump.log();
        let count = |what: &str| log.matches(what).count();
        Ok((count("10.0.0.1 > 10.0.0.2: ICMP echo request") == 3
            && count("10.0.0.2 > 10.0.0.1: ICMP echo reply") == 3)
            .then_some(()))
    })
    .map_err(|e| format!("{e}\n{}", tcpdump.log()))?;
    let before = lab.daemon.drops("ear", "EGRESS", &[])?;
    check(
        !namespace.succeeds(&format!("ping -c 2 -i 0.2 -W 1 {B4}"))?,
        "it gets no answer",
    )?;
    check(
        lab.daemon.drops("ear", "EGRESS", &[])? > before,
        "what it says is dropped",
    )?;
    check(
        !b.ok("ip neigh show dev eth0")?.contains("10.0.0.200"),
        "b has not heard its ARP",
    )
}

fn parse(text: &str) -> Result<u64> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))
}
