//! Two hosts: guests of one network reach each other across a cable that the kernel goes on using,
//! as the original's scenarios have it. Guests are containers; two hosts with real guests are the
//! demo's second act.

#[path = "hosts/by_kernel.rs"]
mod by_kernel;
#[path = "hosts/upgrade.rs"]
mod upgrade;

use std::net::{Ipv4Addr, Ipv6Addr};

use butterfly_tests::Daemon;
use butterfly_tests::daemon::number;
use butterfly_tests::hosts::{
    Family, Host, Hosts, UPLINK, address, answers, cable, kernel_vxlan, mac, serve, tool,
};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};
use wire::{Mac, build};

fn main() {
    run_each(trials![
        as_the_original_over_ipv4,
        as_the_original_over_ipv6,
        first_contact_over_ipv4,
        first_contact_over_ipv6,
        hosts_that_are_told_of_each_other,
        networks_do_not_hear_each_other,
        a_host_that_forges,
        the_kernel_s_own_vxlan,
        a_host_without_an_interface,
        a_bridge_that_looks_at_groups,
        large_frames_with_and_without,
        the_kernel_keeps_its_interface,
        links_addresses_and_nics_come_and_go,
        larger_frames_on_a_larger_uplink,
        an_uplink_is_named_while_it_runs,
        a_switch_that_stands_still,
        by_kernel::containers_talk_by_the_kernel_both_ways,
        upgrade::an_upgrade_under_load,
        upgrade::an_upgrade_in_generic_mode,
        upgrade::an_upgrade_by_packet_sockets,
        upgrade::an_upgrade_without_an_interface,
        upgrade::a_killed_daemon_leaves_its_device_in_its_bridge,
        upgrade::an_upgrade_of_several_workers_and_queues,
    ])
}

/// Runs a trial on two hosts, and explains its failure.
fn on(hosts: &Hosts, trial: impl FnOnce() -> Result<()>) -> Result<()> {
    trial().map_err(|e| format!("{e}\n{}", hosts.dump()))
}

/// Everything that two guests say to each other: ICMP, TCP both ways, UDP in fragments too; SCTP
/// where this machine's kernel has it (real guests have it always).
fn exchange(from: &Namespace, at: &Namespace, last: u8) -> Result<()> {
    let _servers = [
        serve(at, "tcp-serve 80")?,
        serve(at, "tcp-sink 81")?,
        serve(at, "udp-serve 53")?,
    ];
    let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    let sctp = match protocols.contains("SCTP") {
        true => Some(serve(at, "sctp-serve 9")?),
        false => None,
    };
    for to in [format!("10.1.0.{last}"), format!("fd01::{last}")] {
        answers(from, &to)?;
        from.ok(&tool(&format!("tcp-get {to} 80 5000000 20")))?;
        from.ok(&tool(&format!("tcp-put {to} 81 5000000 20")))?;
        from.ok(&tool(&format!("udp-ping {to} 53 3 6000")))?;
        if sctp.is_some() {
            from.ok(&tool(&format!("sctp-ping {to} 9 3 5")))?;
        }
    }
    Ok(())
}

fn as_the_original_over_ipv4() -> Result<()> {
    as_the_original(Family::V4)
}

fn as_the_original_over_ipv6() -> Result<()> {
    as_the_original(Family::V6)
}

fn first_contact_over_ipv4() -> Result<()> {
    first_contact(Family::V4)
}

fn first_contact_over_ipv6() -> Result<()> {
    first_contact(Family::V6)
}

/// Nobody has told either host of the other: multicast and learning.
fn as_the_original(family: Family) -> Result<()> {
    let hosts = Hosts::start(family, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        exchange(&a, &b, 2)?;
        exchange(&b, &a, 1)?;
        // A second guest on each host: both are reached here and there.
        let c = hosts.left.guest("c", 42, 3)?;
        let d = hosts.right.guest("d", 42, 4)?;
        for (from, to) in [(&a, 3), (&a, 4), (&c, 2), (&d, 3), (&d, 2)] {
            answers(from, &format!("10.1.0.{to}"))?;
            answers(from, &format!("fd01::{to}"))?;
        }
        let learnt = hosts.left.daemon.cli("network show 42")?;
        for last in [2, 4] {
            let line = format!("learnt:    {} at {}, ", mac(last), family.address(2));
            check(
                learnt.contains(&line),
                &format!("it is shown that '{line}':\n{learnt}"),
            )?;
        }
        // What a rule does not allow does not come from another host either.
        hosts.right.daemon.cli("sg rule del open --ip-proto all")?;
        check(
            !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.2")?,
            "without its rule it is dropped",
        )
    })
}

/// What a guest says first to one on a host that is not in the kernel's table of neighbours
/// arrives: a ping, a connection. In both directions, over multicast and learning, and then with
/// bindings.
fn first_contact(family: Family) -> Result<()> {
    let hosts = Hosts::start(family, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        let _servers = [serve(&a, "tcp-serve 80")?, serve(&b, "tcp-serve 80")?];
        let strangers = || -> Result<()> {
            for namespace in [&hosts.left.namespace, &hosts.right.namespace] {
                namespace.ok(&format!("ip neigh flush dev {UPLINK}"))?;
            }
            for guest in [&a, &b] {
                guest.ok("ip neigh flush dev eth0")?;
            }
            Ok(())
        };
        let rounds = || -> Result<()> {
            for round in 0..10 {
                let (from, last) = if round % 2 == 0 { (&a, 2) } else { (&b, 1) };
                for to in [format!("10.1.0.{last}"), format!("fd01::{last}")] {
                    strangers()?;
                    from.ok(&format!("ping -q -c 1 -W 2 {to}"))?;
                    strangers()?;
                    from.ok(&tool(&format!("tcp-get {to} 80 1000 20")))?;
                }
            }
            Ok(())
        };
        rounds()?;
        hosts.left.daemon.cli(&format!(
            "binding add --vni 42 --mac {} --host {}",
            mac(2),
            family.address(2)
        ))?;
        hosts.right.daemon.cli(&format!(
            "binding add --vni 42 --mac {} --host {}",
            mac(1),
            family.address(1)
        ))?;
        rounds()?;
        for guest in [&a, &b] {
            let counters = guest.ok("cat /proc/net/netstat")?;
            check(
                counter(&counters, "TCPSynRetrans") == Some(0),
                &format!("no connection had to be asked for twice:\n{counters}"),
            )?;
        }
        let waited = hosts.left.daemon.cli("worker show 0")?;
        check(
            waited.contains("0 frames wait for one") && !waited.contains("wait for one, 0 have"),
            &format!("frames have waited:\n{waited}"),
        )
    })
}

/// A counter of /proc/net/netstat, where a line of names is followed by one of numbers.
fn counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let found = lines.chunks(2).find_map(|pair| {
        let [names, numbers] = pair else { return None };
        let at = names.iter().position(|other| *other == name)?;
        numbers.get(at).copied()
    });
    found?.parse().ok()
}

/// The daemon is stopped (SIGSTOP) while two guests talk: what is for guests is lost and nobody
/// else's, all else of the interface stays the kernel's, and when it goes on so do they. That
/// frames were lost is told, and is no reason to take the daemon for sick.
fn a_switch_that_stands_still() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    on(&hosts, || {
        let (left, right) = (&hosts.left, &hosts.right);
        let a = left.guest("a", 42, 1)?;
        let b = right.guest("b", 42, 2)?;
        answers(&b, "10.1.0.1")?;
        check(left.daemon.health()?.1.is_empty(), "nothing is wrong yet")?;
        let server = serve(&a, "tcp-serve 80 2000000")?;
        let read = b.start("tcp-get", &tool("tcp-get 10.1.0.1 80 20000000 60"))?;
        let heard = b.counter("rx_bytes")?;
        wait_for("the connection to be under way", PATIENCE, || {
            Ok((b.counter("rx_bytes")? > heard + 100_000).then_some(()))
        })?;
        let kernel = || {
            left.namespace
                .ok("nstat -asz UdpInDatagrams UdpNoPorts UdpInErrors")
        };
        let before = kernel()?;
        let still = left.daemon.stand_still()?;
        // More than there is room for, and for longer than the router is waited for.
        b.ok(
            "python3 -c \"import socket, time; s = socket.socket(socket.AF_INET, \
             socket.SOCK_DGRAM)\nfor n in range(6000): s.sendto(b'x' * 100, ('10.1.0.1', 9)); \
             n % 50 or time.sleep(0.05)\"",
        )?;
        check(
            !b.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.1")?,
            "no guest is reached",
        )?;
        left.namespace.ok("ping -q -c 20 -i 0.02 -W 1 192.0.2.2")?;
        right.namespace.ok("ping -q -c 20 -i 0.02 -W 1 192.0.2.1")?;
        let after = kernel()?;
        check(
            before == after,
            &format!("the kernel got none of it:\n{before}\n{after}"),
        )?;
        drop(still);
        answers(&b, "10.1.0.1")?;
        let lost = left.daemon.json("uplink list")?;
        let lost = number(&lost["uplinks"][0]["lost_by_kernel"]).unwrap_or(0);
        check(lost > 1000, &format!("{lost} are counted as lost"))?;
        wait_for("that to be told", PATIENCE, || {
            let warnings = left.daemon.json("status")?["warnings"].to_string();
            let told = format!("uplink {UPLINK} loses frames for want of room");
            Ok(warnings.contains(&told).then_some(()))
        })?;
        let (_, warned) = left.daemon.health()?;
        check(warned.contains("loses frames"), &warned)?;
        wait_for("the connection to end as it should", PATIENCE, || {
            Ok(read.log().contains("end=done").then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", read.log()))?;
        drop(server);
        Ok(())
    })
}

/// Endpoints and bindings on both sides: ARP is answered at home, and nothing is flooded.
fn hosts_that_are_told_of_each_other() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        let binding = |last: u8, host: u8| {
            let mac = mac(last);
            format!(
                "binding add --vni 42 --mac {mac} --ip 10.1.0.{last} fd01::{last} --host \
                 192.0.2.{host}"
            )
        };
        hosts.left.daemon.cli(&binding(2, 2))?;
        hosts.right.daemon.cli(&binding(1, 1))?;
        let heard = b.start("tcpdump", "tcpdump -i eth0 -n -l arp or icmp6")?;
        wait_for("tcpdump", PATIENCE, || {
            Ok(heard.log().contains("listening").then_some(()))
        })?;
        answers(&a, "10.1.0.2")?;
        answers(&a, "fd01::2")?;
        let asked = heard.log();
        check(
            !asked.contains("who-has 10.1.0.2") && !asked.contains("who has fd01::2"),
            &format!("nobody there was asked who has it:\n{asked}"),
        )?;
        exchange(&a, &b, 2)?;
        // The binding goes, and with it the way; nothing is learnt in such a network.
        hosts.left.daemon.cli(&format!(
            "binding add --vni 42 --mac {} --host 192.0.2.9",
            mac(2)
        ))?;
        check(
            !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.2")?,
            "it is sought at another host",
        )?;
        hosts.left.daemon.cli(&binding(2, 2))?;
        answers(&a, "10.1.0.2")?;
        // A host that is not known is not listened to.
        hosts.right.daemon.cli(&format!(
            "binding add --vni 42 --mac {} --ip 10.1.0.1 --host 192.0.2.9 + host del 192.0.2.1",
            mac(1)
        ))?;
        check(
            !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.2")?,
            "its frames are dropped",
        )
    })
}

/// Two networks have guests with the same addresses and MACs.
fn networks_do_not_hear_each_other() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        let twin = hosts.right.guest("twin", 43, 2)?;
        let other = hosts.right.guest("other", 43, 5)?;
        answers(&a, "10.1.0.2")?;
        let before = twin.counter("rx_packets")?;
        a.ok("ip neigh flush dev eth0; ping -q -c 20 -i 0.02 -W 1 10.1.0.2")?;
        check(
            !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.5")?,
            "who is in the other network alone is not there",
        )?;
        check(
            twin.counter("rx_packets")? < before + 20 && b.counter("rx_packets")? >= 20,
            "the network that was meant heard it",
        )?;
        answers(&other, "10.1.0.2")
    })
}

/// The other end of the cable sends what it likes, from its own address and from others': a host of
/// the network that speaks in the name of another, one of other networks, and one that nobody
/// knows. Guest `a` gets what is honest, and nothing else.
fn a_host_that_forges() -> Result<()> {
    let (left, right) = cable(1500)?;
    let left = Host::start(left, 1, Family::V4, &[])?;
    for host in [3, 4, 9] {
        right.ok(&format!("ip addr add 192.0.2.{host}/24 dev {UPLINK}"))?;
    }
    let told = |e| format!("{e}\n{}", left.daemon.dump());
    let bind = |last: u8, host: u8| {
        let mac = mac(last);
        format!(
            "binding add --vni 42 --mac {mac} --ip 10.1.0.{last} fd01::{last} --host 192.0.2.{host}"
        )
    };
    // Machine 2 is on host 2, machine 3 on host 3; host 4 is of network 43 alone.
    left.daemon.cli(&format!(
        "{} + {} + host add 192.0.2.4 --vni 43",
        bind(2, 2),
        bind(3, 3)
    ))?;
    let a = left.guest("a", 42, 1)?;
    let _other = left.guest("other", 43, 1)?;
    let heard = a.start("tcpdump", "tcpdump -i eth0 -n -l -Q in udp or arp or icmp6")?;
    wait_for("tcpdump", PATIENCE, || {
        Ok(heard.log().contains("listening").then_some(()))
    })?;
    let dropped = |reason: &str| -> Result<u64> {
        let all = left.daemon.json("uplink list")?;
        let drops = all["uplinks"][0]["drops"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let named = drops.iter().filter(|drop| drop["reason"] == reason);
        Ok(named.filter_map(|drop| number(&drop["frames"])).sum())
    };
    let machine = |last: u8| Mac([0x52, 0x54, 0, 0, 7, last]);
    let v4 = |last: u8| Ipv4Addr::new(10, 1, 0, last);
    let v6 = |last: u8| -> Ipv6Addr { format!("fd01::{last}").parse().expect("an address") };
    // From a machine's MAC, in a machine's name, to a port that tells which it was.
    let udp = |by: u8, of: u8, port: u16| {
        let frame = build::frame(machine(by), machine(1)).ip(v4(of), v4(1));
        frame.udp(1000, port).payload(b"hello").build()
    };
    let send = |host: u8, vni: u8, inner: &[u8]| {
        let vxlan = [&[8, 0, 0, 0, 0, 0, vni, 0], inner].concat();
        let hex: String = vxlan.iter().map(|byte| format!("{byte:02x}")).collect();
        right.ok(&format!(
            "python3 -c \"import socket as s; u = s.socket(s.AF_INET, s.SOCK_DGRAM); \
             u.bind(('192.0.2.{host}', 0)); \
             u.sendto(bytes.fromhex('{hex}'), ('192.0.2.1', 4789))\""
        ))
    };
    let arrives = |port: u16| {
        wait_for(&format!("what was sent to port {port}"), PATIENCE, || {
            Ok(heard
                .log()
                .contains(&format!("10.1.0.1.{port}:"))
                .then_some(()))
        })
    };
    let trial = || -> Result<()> {
        send(2, 42, &udp(2, 2, 5001))?;
        send(3, 42, &udp(3, 3, 5002))?;
        arrives(5001)?;
        arrives(5002)?;
        let before = heard.log();
        let forgeries: [(u8, u8, Vec<u8>, &str); 11] = [
            (9, 42, udp(2, 2, 6000), "unknown_endpoint"),
            (4, 42, udp(2, 2, 6000), "endpoint_not_in_vni"),
            (2, 43, udp(2, 2, 6000), "endpoint_not_in_vni"),
            (3, 42, udp(2, 2, 6000), "remote_spoofed"),
            (3, 42, udp(1, 3, 6000), "remote_spoofed"),
            // The very packet of a flow that is there.
            (3, 42, udp(3, 2, 5001), "remote_ip_spoofed"),
            (3, 42, udp(77, 77, 6000), "remote_unbound"),
            (
                3,
                42,
                build::arp_reply(machine(3), v4(2), machine(1), v4(1)),
                "remote_ip_spoofed",
            ),
            (
                3,
                42,
                build::neighbour_advertisement(machine(3), v6(2), machine(1), v6(1)),
                "remote_ip_spoofed",
            ),
            (
                3,
                42,
                build::dhcp_answer(machine(3), v4(3), machine(1), v4(1), 5, 7),
                "remote_dhcp_server",
            ),
            (
                3,
                42,
                build::router_advertisement(machine(3)),
                "remote_router",
            ),
        ];
        for (host, vni, inner, reason) in &forgeries {
            let counted = dropped(reason)?;
            send(*host, *vni, inner)?;
            wait_for(
                &format!("a frame of host {host} to be {reason}"),
                PATIENCE,
                || Ok((dropped(reason)? == counted + 1).then_some(())),
            )?;
        }
        // Behind them comes an honest one, and nothing was between.
        send(2, 42, &udp(2, 2, 5003))?;
        arrives(5003)?;
        let log = heard.log();
        let since = log.strip_prefix(&before).unwrap_or(&log);
        check(
            since.lines().count() == 1 && since.contains("10.1.0.1.5003:"),
            &format!("nothing but that arrived:\n{since}"),
        )?;
        // What is asked for by name passes.
        left.daemon.cli(
            "network set 42 --from anybody --learning on --dhcp-server 192.0.2.3 --router \
             192.0.2.3",
        )?;
        send(9, 42, &udp(77, 77, 5004))?;
        arrives(5004)?;
        send(
            3,
            42,
            &build::dhcp_answer(machine(3), v4(3), machine(1), v4(1), 5, 7),
        )?;
        arrives(68)?;
        send(3, 42, &build::router_advertisement(machine(3)))?;
        wait_for("the router advertisement", PATIENCE, || {
            Ok(heard.log().contains("router advertisement").then_some(()))
        })
    };
    trial().map_err(told)
}

/// The other host is the kernel's vxlan device, which learns and floods to us alone. Between veths
/// it leaves checksums and segments to a NIC that never comes: with native XDP on our side, and
/// behind a bridge in generic mode, where they come whole.
fn the_kernel_s_own_vxlan() -> Result<()> {
    for (family, bridged) in [
        (Family::V4, false),
        (Family::V6, false),
        (Family::V4, true),
        (Family::V6, true),
    ] {
        let (left, right) = cable(1500)?;
        if bridged {
            left.ok(&format!(
                "ip addr flush dev {UPLINK}; ip link set {UPLINK} down; \
                 ip link set {UPLINK} name port0; ip link add {UPLINK} type bridge; \
                 ip link set port0 master {UPLINK}; ip link set port0 up"
            ))?;
            address(&left, 1)?;
        }
        let left = Host::start(left, 1, family, &[])?;
        let told = |e| format!("{family:?}, bridged {bridged}: {e}\n{}", left.daemon.dump());
        let mode = if bridged { "generic XDP" } else { "native XDP" };
        wait_for(mode, PATIENCE, || {
            Ok(left.daemon.cli("status")?.contains(mode).then_some(()))
        })?;
        let a = left.guest("a", 42, 1)?;
        let (local, remote) = (family.address(2), family.address(1));
        kernel_vxlan(&right, UPLINK, &local, &remote)?;
        // It hears no group: it is told to us as a host.
        left.daemon.cli(&format!("host add {local} --vni 42"))?;
        a.ok("ip link set eth0 mtu 1430")?;
        exchange(&a, &right, 2).map_err(told)?;
        exchange(&right, &a, 1).map_err(told)?;
    }
    Ok(())
}

/// No interface has our address: the daemon makes one, as the original did, and the kernel at its
/// other end is the other host.
fn a_host_without_an_interface() -> Result<()> {
    const TAP: &str = "butterfly0";
    for family in [Family::V4, Family::V6] {
        let host = Host::start(Namespace::new()?, 1, family, &[])?;
        let told = |e| format!("{family:?}: {e}\n{}", host.daemon.dump());
        let line = host.daemon.cli("status")?;
        let why = format!(
            "{TAP}: TAP (no interface is named, and none has {})",
            family.address(1)
        );
        check(line.contains(&why), &format!("the status says so:\n{line}"))?;
        let (local, remote) = (family.address(2), family.address(1));
        let network = if family == Family::V4 {
            "24"
        } else {
            "64 nodad"
        };
        host.namespace
            .ok(&format!("ip addr add dev {TAP} {local}/{network}"))?;
        kernel_vxlan(&host.namespace, TAP, &local, &remote)?;
        host.daemon.cli(&format!("host add {local} --vni 42"))?;
        let a = host.guest("a", 42, 1)?;
        a.ok("ip link set eth0 mtu 1430")?;
        exchange(&a, &host.namespace, 2).map_err(told)?;
        exchange(&host.namespace, &a, 1).map_err(told)?;
    }
    Ok(())
}

/// A host without an interface, on a bridge that hands a group's packets to those alone who have
/// asked for them (IGMP and MLD snooping); the other host's kernel asks for itself.
fn a_bridge_that_looks_at_groups() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let (left, right) = cable(1500)?;
        // A bridge asks, and hands a group's packets to its members, from its second query on if
        // its own address was not there yet for the first: by default 31 seconds later.
        left.ok(&format!(
            "ip addr flush dev {UPLINK}; sysctl -q -w net.ipv6.conf.{UPLINK}.disable_ipv6=1; \
             ip link add br0 type bridge mcast_snooping 1 mcast_query_interval 200 \
             mcast_query_response_interval 100 mcast_startup_query_interval 200; \
             ip link set br0 type bridge mcast_querier 1; \
             sysctl -q -w net.ipv6.conf.br0.accept_dad=0; \
             ip link set {UPLINK} master br0; ip link set br0 up"
        ))?;
        let left = Host::start(left, 1, family, &[])?;
        // What nobody has asked for does not get there.
        let join =
            "ip link set butterfly0 master br0; bridge link set dev butterfly0 mcast_flood off";
        left.namespace.ok(join)?;
        let hosts = Hosts {
            left,
            right: Host::start(right, 2, family, &[])?,
        };
        on(&hosts, || {
            if family == Family::V6 {
                // That of the VNI has no scope, and switches hear nothing of it.
                for host in [&hosts.left, &hosts.right] {
                    // What is said of a network ends that anybody is heard, unless that is said.
                    host.daemon.cli(
                        "network set 42 --learning on --flood multicast --group ff0e::42 \
                         --from anybody",
                    )?;
                }
            }
            let members = |wanted: bool| {
                let what = format!("{family:?}: a member of the network's group: {wanted}");
                wait_for(&what, PATIENCE, || {
                    let members = hosts.left.namespace.ok("bridge mdb show dev br0")?;
                    let groups = match family {
                        Family::V4 => "grp 230.",
                        Family::V6 => "grp ff0e::42",
                    };
                    let is_there = members
                        .lines()
                        .any(|line| line.contains("port butterfly0") && line.contains(groups));
                    Ok((is_there == wanted).then_some(()))
                })
            };
            let a = hosts.left.guest("a", 42, 1)?;
            members(true)?;
            let b = hosts.right.guest("b", 42, 2)?;
            exchange(&b, &a, 1)?;
            exchange(&a, &b, 2)?;
            hosts.left.daemon.cli("nic del a")?;
            members(false)
        })?;
    }
    Ok(())
}

/// What a guest sends in large frames is cut for the wire, and reaches a guest there in large
/// frames again; with `--no-offload` neither is so. The guests are the kernel's own stack, which
/// finds wrong checksums and lost pieces.
fn large_frames_with_and_without() -> Result<()> {
    const BYTES: u64 = 5_000_000;
    for options in [&[][..], &["--no-offload"]] {
        let hosts = Hosts::start(Family::V4, options)?;
        on(&hosts, || {
            let a = hosts.left.guest("a", 42, 1)?;
            let b = hosts.right.guest("b", 42, 2)?;
            answers(&a, "10.1.0.2")?;
            let whole = options.is_empty();
            let sink = serve(&b, "tcp-sink 81")?;
            let segments = BYTES / 1448;
            let before = b.counter("rx_packets")?;
            a.ok(&tool(&format!("tcp-put 10.1.0.2 81 {BYTES} 20")))?;
            let taken = b.counter("rx_packets")? - before;
            drop(sink);
            check(
                (taken < segments) == whole,
                &format!("{taken} frames of at least {segments} segments with {options:?}"),
            )?;
            for to in ["10.1.0.2", "fd01::2"] {
                datagrams(&a, &b, to, whole)?;
            }
            exchange(&a, &b, 2)
        })?;
    }
    Ok(())
}

/// Twenty datagrams of 1,000 bytes in one frame of the sender's (UDP_SEGMENT) arrive as such; in
/// fewer frames, if that is to be, by the fifth time at the latest: on the way they may be looked
/// at one by one.
fn datagrams(from: &Namespace, at: &Namespace, to: &str, merged: bool) -> Result<()> {
    let socket =
        "import socket as s; u = s.socket(s.AF_INET6 if ':' in to else s.AF_INET, s.SOCK_DGRAM)";
    let mut taken = 0;
    for _ in 0..5 {
        let receive = format!(
            "to = '{to}'; {socket}; u.bind((to, 5000)); u.settimeout(10); \
             print('bound', flush=True); \
             print([len(u.recv(9000)) for n in range(20)] == [1000] * 20, flush=True)"
        );
        let receiver = at.start("receiver", &format!("python3 -c \"{receive}\""))?;
        let said = |word: &str| {
            let log = receiver.log();
            wait_for(&format!("'{word}': {log}"), PATIENCE, || {
                Ok(receiver.log().contains(word).then_some(()))
            })
        };
        said("bound")?;
        let before = at.counter("rx_packets")?;
        from.ok(&format!(
            "python3 -c \"to = '{to}'; {socket}; u.setsockopt(s.IPPROTO_UDP, 103, 1000); \
             u.sendto(bytes(20000), (to, 5000))\""
        ))?;
        said("True")?;
        taken = at.counter("rx_packets")? - before;
        if merged == (taken < 20) {
            return Ok(());
        }
    }
    check(
        !merged && taken >= 20,
        &format!("{taken} frames of 20 datagrams to {to}"),
    )
}

/// While guests talk across it, the kernel's own services answer on the same address.
fn the_kernel_keeps_its_interface() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        answers(&a, "10.1.0.2")?;
        let _guests = serve(&b, "tcp-serve 80")?;
        let _hosts = serve(&hosts.right.namespace, "tcp-serve 22")?;
        let traffic = a.start("traffic", &tool("tcp-get 10.1.0.2 80 0 20"))?;
        for to in ["192.0.2.2", "fd0c::2"] {
            let left = &hosts.left.namespace;
            left.ok(&tool(&format!("tcp-get {to} 22 2000000 10")))?;
            left.ok(&format!("ping -q -c 3 -i 0.2 -W 1 {to}"))?;
        }
        drop(traffic);
        // The daemon is killed: the kernel has the interface as before, and the program is gone.
        let right = &hosts.right.namespace;
        check(
            right.ok(&format!("ip link show {UPLINK}"))?.contains("xdp"),
            "a program takes VXLAN",
        )?;
        right.ok(&format!("kill -9 {}", hosts.right.daemon.pid()))?;
        wait_for("the program to go", PATIENCE, || {
            Ok((!right.ok(&format!("ip link show {UPLINK}"))?.contains("xdp")).then_some(()))
        })?;
        hosts
            .left
            .namespace
            .ok(&tool("tcp-get 192.0.2.2 22 2000000 10"))
            .map(drop)
    })
}

fn links_addresses_and_nics_come_and_go() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    on(&hosts, || {
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        answers(&a, "10.1.0.2")?;
        let ping = a.start("ping", "ping -q -i 0.1 10.1.0.2")?;
        // NICs under traffic.
        for _ in 0..3 {
            drop(hosts.right.guest("c", 42, 3)?);
            hosts.right.daemon.cli("nic del c")?;
        }
        let c = hosts.right.guest("c", 42, 3)?;
        answers(&a, "10.1.0.3")?;
        // A flapping link.
        for _ in 0..3 {
            hosts.left.namespace.ok(&format!(
                "ip link set {UPLINK} down; ip link set {UPLINK} up"
            ))?;
        }
        answers(&a, "10.1.0.2")?;
        // The address goes and returns; so does the other host's MAC address.
        hosts
            .left
            .namespace
            .ok(&format!("ip addr del 192.0.2.1/24 dev {UPLINK}"))?;
        check(
            !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.2")?,
            "without our address there is no way",
        )?;
        hosts
            .left
            .namespace
            .ok(&format!("ip addr add 192.0.2.1/24 dev {UPLINK}"))?;
        answers(&a, "10.1.0.2")?;
        hosts.right.namespace.ok(&format!(
            "ip link set {UPLINK} down; ip link set {UPLINK} address 52:54:00:00:08:02; \
             ip link set {UPLINK} up"
        ))?;
        hosts
            .left
            .namespace
            .ok(&format!("ip neigh flush dev {UPLINK}"))?;
        answers(&a, "10.1.0.2")?;
        drop(ping);
        // The interface itself goes and returns.
        hosts.left.namespace.ok(&format!("ip link del {UPLINK}"))?;
        let [left, right] = [hosts.left.namespace.pid(), hosts.right.namespace.pid()];
        testkit::process::run(&[
            "ip",
            "link",
            "add",
            "name",
            UPLINK,
            "netns",
            &left.to_string(),
            "type",
            "veth",
            "peer",
            "name",
            UPLINK,
            "netns",
            &right.to_string(),
        ])?;
        address(&hosts.left.namespace, 1)?;
        address(&hosts.right.namespace, 2)?;
        answers(&a, "10.1.0.2")?;
        answers(&c, "10.1.0.1")?;
        drop(b);
        Ok(())
    })
}

fn larger_frames_on_a_larger_uplink() -> Result<()> {
    let (left, right) = cable(9000)?;
    let hosts = Hosts {
        left: Host::start(left, 1, Family::V4, &["--busy-poll"])?,
        right: Host::start(right, 2, Family::V4, &[])?,
    };
    on(&hosts, || {
        let said = hosts.left.daemon.cli("status")?;
        let mode = format!("{UPLINK}: AF_XDP, native XDP, copy, busy polling");
        check(
            said.contains(&mode),
            &format!("the status says '{mode}':\n{said}"),
        )?;
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        let link = || a.ok("ip -o link show eth0");
        check(
            link()?.contains("mtu 8950 "),
            &format!("the guest is told 9000 less the outer headers: {}", link()?),
        )?;
        answers(&a, "10.1.0.2")?;
        a.ok("ping -q -c 2 -i 0.2 -W 1 -M do -s 8922 10.1.0.2")?;
        exchange(&a, &b, 2)?;
        // The uplink becomes narrower: NICs follow, and who does not is told so.
        for host in [&hosts.left, &hosts.right] {
            host.namespace
                .ok(&format!("ip link set {UPLINK} mtu 1500"))?;
        }
        wait_for("the NICs to follow", PATIENCE, || {
            Ok(link()?.contains("mtu 1450 ").then_some(()))
        })?;
        exchange(&a, &b, 2)
    })
}

/// Daemons that know nothing of other hosts when they start: an uplink is named, stays over a
/// restart, and is left. A name may come before its interface.
fn an_uplink_is_named_while_it_runs() -> Result<()> {
    let (left, right) = cable(1500)?;
    let start = |namespace: Namespace| -> Result<Host> {
        let options = ["--store", "{dir}/store"];
        let daemon = Daemon::start_on(Some(namespace.pid()), &options)?;
        daemon.cli("sg rule add open --ip-proto all")?;
        Ok(Host { daemon, namespace })
    };
    let mut hosts = Hosts {
        left: start(left)?,
        right: start(right)?,
    };
    // What is declared before there is an uplink is in force with it.
    for (host, mac, last, other) in [(&hosts.left, mac(2), 2, 2), (&hosts.right, mac(1), 1, 1)] {
        host.daemon.cli(&format!(
            "binding add --vni 42 --mac {mac} --ip 10.1.0.{last} --host 192.0.2.{other}"
        ))?;
    }
    let a = hosts.left.guest("a", 42, 1)?;
    let b = hosts.right.guest("b", 42, 2)?;
    for guest in [&a, &b] {
        guest.ok("ip link set eth0 mtu 1450")?;
    }
    let uplinks = |host: &Host| {
        host.daemon
            .json("config get")
            .map(|it| it["uplinks"]["interfaces"].clone())
    };
    check(uplinks(&hosts.left)?.is_null(), "no uplink is named")?;
    check(
        !hosts
            .left
            .namespace
            .ok("ip link show uplink0")?
            .contains("xdp"),
        "nor joined",
    )?;
    check(
        !a.succeeds("ping -q -c 1 -W 1 10.1.0.2")?,
        "nor is there a way",
    )?;

    let said = hosts.left.daemon.cli("uplink add eth9 uplink0")?;
    let expected = "eth9: not joined: there is no interface 'eth9'\nuplink0: AF_XDP";
    check(said.starts_with(expected), &format!("it says how: {said}"))?;
    hosts.right.daemon.cli("uplink add uplink0")?;
    on(&hosts, || answers(&a, "10.1.0.2"))?;
    let named = uplinks(&hosts.left)?;
    check(
        named == serde_json::json!(["eth9", "uplink0"]),
        &format!("the document has them: {named}"),
    )?;
    // Another daemon in this namespace cannot have it.
    let pid = hosts.left.namespace.pid();
    let other = Daemon::start_on(Some(pid), &[])?;
    let refused = other.cli("uplink add uplink0").err().unwrap_or_default();
    check(
        refused.contains("the uplink uplink0 is that of process"),
        &format!("it says whose it is: {refused}"),
    )?;
    check(
        other.json("config get")?["uplinks"]["interfaces"].is_null(),
        "and nothing is named",
    )?;
    drop(other);
    on(&hosts, || answers(&a, "10.1.0.2"))?;

    // What comes is joined, whatever it was before.
    hosts.left.namespace.ok(
        "ip link add eth9 type veth peer name other9 && ip link set eth9 up && \
         ip link set other9 up",
    )?;
    wait_for("eth9 to be joined", PATIENCE, || {
        let shown = hosts.left.daemon.json("uplink show eth9")?;
        Ok((shown["uplinks"][0]["joined"] == true).then_some(()))
    })?;
    for (line, why) in [
        ("uplink add a/b", "'a/b' is no name of an interface"),
        ("uplink show eth8", "there is no uplink 'eth8'"),
        (
            "uplink add e1 e2 e3 e4 e5 e6 e7 e8 e10 e11 e12 e13 e14 e15 e16",
            "17 uplinks",
        ),
    ] {
        let refused = hosts.left.daemon.cli(line).err().unwrap_or_default();
        check(refused.contains(why), &format!("{line}: {refused}"))?;
    }
    hosts
        .left
        .daemon
        .cli("uplink del eth9 e1 e2 e3 e4 e5 e6 e7 e8 e10 e11 e12 e13 e14 e15")?;
    hosts.left.daemon.kill_and_restart()?;
    let shown = hosts.left.daemon.cli("uplink list")?;
    check(
        shown.contains("uplink0    up"),
        &format!("joined again: {shown}"),
    )?;
    check(
        !shown.contains("eth9"),
        &format!("and nothing else: {shown}"),
    )?;
    hosts
        .left
        .daemon
        .cli("uplink del uplink0 + uplink del uplink0")?;
    let left = &hosts.left;
    check(
        left.daemon.json("uplink list")?["uplinks"] == serde_json::json!([]),
        "it is left",
    )?;
    check(
        !left.namespace.ok("ip link show uplink0")?.contains("xdp"),
        "to the kernel",
    )?;

    // One that has this host's address is an uplink for that.
    let right = hosts.right;
    right.daemon.cli("uplink del uplink0")?;
    let address = Host::start(right.namespace, 2, Family::V4, &[])?;
    let refused = address
        .daemon
        .cli("uplink del uplink0")
        .err()
        .unwrap_or_default();
    let why = "uplink0 is an uplink because it has the address 192.0.2.2 of this host";
    check(refused.contains(why), &format!("it says why: {refused}"))?;
    address
        .daemon
        .cli("uplink add uplink0 + uplink del uplink0 + uplink show uplink0")
        .map(drop)
}
