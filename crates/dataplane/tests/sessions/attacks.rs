//! What a tenant with root in a guest tries: each session is a way around the rules, or at a
//! neighbour, that is closed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dataplane::DropReason::*;
use dataplane::overlay::Trust;
use dataplane::ruleset::{Direction, Peer};
use dataplane::{AddressPair, GroupIdx, NetworkIdx, QueueId, Simulation, WorkerConfig};
use io::frame::BATCH;
use io::memory_port::MemoryPeer;
use io::port::Accepts;
use wire::build;
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::parse::{ArpPacket, TcpFlags};
use wire::vxlan::Ends;
use wire::{Mac, Vni};

use crate::captures::trace_live;
use crate::lab::*;
use crate::wire_lab::*;

const EVERYBODY: [(Family, &str); 2] = [(Family::V4, "255.255.255.255"), (Family::V6, "ff02::1:2")];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The ports of a DHCP client and server.
fn dhcp_ports(family: Family) -> (u16, u16) {
    match family {
        Family::V4 => (68, 67),
        Family::V6 => (546, 547),
    }
}

#[test]
fn a_checksum_left_undone_does_not_rewrite_what_was_judged() {
    let (mut lab, a, _) = Lab::pair(vec![allow_all_in(None)]);
    let honest = build::neighbour_advertisement(a.mac, a.v6, Mac::BROADCAST, Ipv6Addr::LOCALHOST);
    // The last two bytes of the target, and of the link-layer address in the option.
    for (start, offset) in [(62, 14), (70, 6), (78, 6), (84, 0)] {
        let before = lab.drops();
        let checksum = Some(PartialChecksum { start, offset });
        let offload = Offload {
            checksum,
            ..Offload::default()
        };
        lab.send_with(a, honest.clone(), offload);
        assert_eq!(difference(&before, &lab.drops()), [(BadOffload, 1)]);
        lab.silent();
    }
}

#[test]
fn segments_are_cut_of_what_they_are_and_not_too_many() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let large = |size| ip(a, b, family).udp(1, 2).payload(&[7; 9000]).gso(size);
        for (change, size) in [
            (
                (|o: &mut Offload| o.gso = Gso::Tcp4) as fn(&mut Offload),
                1000,
            ),
            (|o| o.gso = Gso::Tcp6, 1000),
            (|o| o.gso_size = 0, 1000),
            (|_| {}, 1),
        ] {
            let (frame, mut offload) = large(size).build_with_offload();
            change(&mut offload);
            let before = lab.drops();
            lab.send_with(a, frame, offload);
            assert_eq!(difference(&before, &lab.drops()), [(BadOffload, 1)]);
            lab.silent();
        }
    }
}

#[test]
fn requests_of_dhcp_clients_are_no_tunnel_to_other_guests() {
    for (family, everybody) in EVERYBODY {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let (client, server) = dhcp_ports(family);
        let to = |mac, ip: IpAddr| {
            let frame = build::frame(a.mac, mac).ip(a.ip(family), ip);
            frame.udp(client, server).payload(b"smuggled").build()
        };
        lab.refuses(a, to(b.mac, b.ip(family)), NoIngressRule);
        lab.refuses(a, to(b.mac, address(everybody)), NoIngressRule);
        lab.refuses(a, to(Mac::BROADCAST, b.ip(family)), NoIngressRule);
        // Nor past the sender's own rules.
        lab.group_of(b, vec![allow_all_in(None)]);
        let group = lab.group_of(a, vec![allow_out(TCP, 1)]);
        lab.refuses(a, to(b.mac, b.ip(family)), NoEgressRule);
        lab.set_rules(group, vec![]);
        lab.passes(a, b, to(b.mac, b.ip(family)));
        // A server hears it: it may answer, and a lease is renewed whatever the rules say.
        let c = lab.nic();
        lab.configure(c, |config| config.allow_dhcp_server = true);
        lab.set_rules(group, vec![allow_out(TCP, 1)]);
        lab.passes(a, c, to(c.mac, c.ip(family)));
    }
}

#[test]
fn requests_of_dhcp_clients_are_no_tunnel_to_other_hosts() {
    for (family, everybody) in EVERYBODY {
        let mut host = Host::new();
        let a = host.lab.nic();
        let group = host.lab.group_of(a, vec![allow_out(TCP, 1)]);
        let (b, c) = (host.far(20, 2), host.far(21, 3));
        host.configure(|overlay| overlay.dhcp_servers = Trust::Only([b.at].into()));
        let (client, server) = dhcp_ports(family);
        let to = |mac, ip: IpAddr| {
            let frame = build::frame(a.mac, mac).ip(a.ip(family), ip);
            frame.udp(client, server).payload(b"smuggled").build()
        };
        // A machine elsewhere, or what is behind it if it is a gateway.
        let beyond = address(match family {
            Family::V4 => "203.0.113.9",
            Family::V6 => "2001:db8:ffff::9",
        });
        for ip in [c.nic.ip(family), beyond] {
            host.lab.refuses(a, to(c.nic.mac, ip), NoEgressRule);
            assert_eq!(host.sent(), [[0u8; 0]; 0]);
        }
        // A lease is renewed where the network has its servers, and all of them are asked for one.
        host.leaves(a, b.at, to(b.nic.mac, b.nic.ip(family)));
        host.learn();
        let all = match family {
            Family::V4 => Mac::BROADCAST,
            Family::V6 => Mac::of_group(address(everybody)),
        };
        host.leaves_to(a, &[b.at, c.at], to(all, address(everybody)));
        // Where a machine is not known every host would get it.
        let unknown = Mac([2, 0xcc, 0, 0, 0, 1]);
        for mac in [unknown, Mac::BROADCAST] {
            host.lab.refuses(a, to(mac, beyond), NoEgressRule);
            assert_eq!(host.sent(), [[0u8; 0]; 0]);
        }
        // What the rules allow is no DHCP server's alone.
        host.lab.set_rules(group, vec![]);
        host.leaves(a, c.at, to(c.nic.mac, beyond));
        // Nothing is declared: any machine may be a server.
        host.lab.set_rules(group, vec![allow_out(TCP, 1)]);
        host.configure(|overlay| overlay.dhcp_servers = Trust::Anybody);
        host.leaves(a, c.at, to(c.nic.mac, c.nic.ip(family)));
        host.leaves_to(a, &[b.at, c.at], to(unknown, c.nic.ip(family)));
    }
}

#[test]
fn who_is_no_dhcp_server_says_nothing_to_clients_from_any_port() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let (client, server) = dhcp_ports(family);
        for port in [server, client, 40_000] {
            lab.refuses(a, udp(a, b, family, port, client), DhcpServer);
        }
        // Nor in pieces, in either order, with options, or behind extension headers.
        let whole = ip(a, b, family)
            .udp(server, client)
            .payload(&[2; 3000])
            .build();
        let parts = build::fragments(&whole, 1400, 1);
        let before = lab.drops();
        for part in [1, 0, 2] {
            lab.send(a, parts[part].clone());
        }
        lab.wait(1);
        let lost = [(DhcpServer, 1), (FragmentOfDropped, 2)];
        assert_eq!(difference(&before, &lab.drops()), lost);
        lab.silent();
        let odd = ip(a, b, family);
        let odd = match family {
            Family::V4 => odd.ip_options(&[1, 1, 1, 0]),
            Family::V6 => odd.extension(0, &[5, 2, 0, 0]).extension(60, &[1, 4]),
        };
        lab.refuses(a, odd.udp(server, client).build(), DhcpServer);
        let tagged = ip(a, b, family).tag(0).udp(server, client);
        lab.refuses(a, tagged.build(), Ethertype);
        // Who may, may by the protocol's own ports; another port is for the rules to judge.
        lab.configure(a, |config| config.allow_dhcp_server = true);
        lab.passes(a, b, udp(a, b, family, 40_000, client));
        let c = lab.nic();
        lab.passes(a, c, udp(a, c, family, server, client));
        lab.refuses(a, udp(a, c, family, 40_000, client), NoIngressRule);
    }
}

#[test]
fn router_advertisements_do_not_hide() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let advertisement = |ttl| {
        let frame = build::frame(a.mac, b.mac).ip(a.mac.link_local(), b.v6);
        let options = [200, 1, 0, 0, 0, 0, 0, 0].repeat(124);
        let body = [vec![0; 8], options].concat();
        frame.ttl(ttl).icmp(134, 0, 0).payload(&body)
    };
    let ready = advertisement(255);
    lab.refuses(
        a,
        ready.clone().extension(0, &[1, 4]).build(),
        RouterAdvertisement,
    );
    lab.refuses(
        a,
        ready.clone().extension(60, &[1, 4]).build(),
        RouterAdvertisement,
    );
    lab.refuses(a, ready.clone().tag(0).build(), Ethertype);
    // Another hop limit is no receiver's, nor are fragments (RFC 6980), whichever comes first.
    lab.refuses(a, advertisement(64).build(), Malformed);
    let parts = build::fragments(&ready.build(), 600, 1);
    let before = lab.drops();
    for part in [1, 0, 1] {
        lab.send(a, parts[part].clone());
    }
    lab.wait(1);
    let lost = [(Malformed, 1), (FragmentWithoutFirst, 2)];
    assert_eq!(difference(&before, &lab.drops()), lost);
    lab.silent();
}

#[test]
fn a_probe_for_an_address_claims_it() {
    let (mut lab, a, b) = Lab::pair(vec![]);
    let probe = |target_ip| {
        let arp = ArpPacket {
            op: 1,
            sender_mac: a.mac,
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: Mac::default(),
            target_ip,
        };
        build::arp(a.mac, Mac::BROADCAST, arp)
    };
    lab.passes(a, b, probe(a.v4));
    lab.refuses(a, probe(b.v4), ArpSpoofed);
    lab.configure(a, |config| config.anti_spoof = false);
    lab.passes(a, b, probe(b.v4));
}

#[test]
fn sources_that_nobody_has_go_nowhere_even_without_anti_spoofing() {
    let sources = [
        (Family::V4, "127.0.0.1"),
        (Family::V4, "0.0.0.0"),
        (Family::V4, "255.255.255.255"),
        (Family::V4, "224.0.0.1"),
        (Family::V6, "::1"),
        (Family::V6, "::"),
        (Family::V6, "ff02::1"),
        (Family::V6, "::ffff:10.0.0.1"),
        (Family::V6, "fe80::1"),
    ];
    for (family, source) in sources {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let frame = build::frame(a.mac, b.mac).ip(address(source), b.ip(family));
        lab.refuses(a, frame.clone().udp(1, 2).build(), IpSpoofed);
        lab.configure(a, |config| config.anti_spoof = false);
        lab.refuses(a, frame.udp(1, 2).build(), ForeignSource);
        // "Land": the victim's own address.
        let land = build::frame(a.mac, b.mac).ip(b.ip(family), b.ip(family));
        lab.refuses(a, land.tcp(80, 80, SYN).build(), ForeignSource);
    }
}

/// Fragmentation needed or packet too big, from `source`, about a frame that `to` has sent.
fn too_big(reporter: Nic, source: IpAddr, to: Nic, family: Family, about: &[u8]) -> Vec<u8> {
    let (kind, code) = if family == Family::V4 { (3, 4) } else { (2, 0) };
    let frame = build::frame(reporter.mac, to.mac).ip(source, to.ip(family));
    frame.icmp(kind, code, 68).payload(&about[14..]).build()
}

#[test]
fn a_guest_reports_no_errors_about_other_peoples_flows() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let thief = lab.nic();
        let sent = udp(a, b, family, 1, 53);
        lab.passes(a, b, sent.clone());
        let forged = too_big(thief, thief.ip(family), a, family, &sent);
        lab.refuses(thief, forged, NoIngressRule);
        // Nor about what was never sent: B has not answered.
        let never = udp(b, a, family, 53, 1);
        lab.refuses(
            a,
            too_big(a, a.ip(family), b, family, &never),
            NoIngressRule,
        );
        lab.passes(b, a, never.clone());
        lab.passes(a, b, too_big(a, a.ip(family), b, family, &never));
        // An error that quotes another family's packet, or itself, is about nothing.
        let inner = too_big(b, b.ip(family), a, family, &sent);
        lab.refuses(
            b,
            too_big(b, b.ip(family), a, family, &inner),
            NoIngressRule,
        );
    }
}

/// Another host cannot tell who may report: the one that it comes from is asked.
#[test]
fn errors_about_other_peoples_flows_do_not_leave_for_another_host() {
    for family in FAMILIES {
        let mut host = Host::new();
        let (a, thief) = (host.far(20, 2), host.lab.nic());
        let b = host.far(30, 3);
        let sent = udp(a.nic, b.nic, family, 1, 53);
        let forged = too_big(thief, thief.ip(family), a.nic, family, &sent);
        host.lab.refuses(thief, forged.clone(), IpSpoofed);
        let own = udp(a.nic, thief, family, 1, 53);
        let honest = too_big(thief, thief.ip(family), a.nic, family, &own);
        host.leaves(thief, a.at, honest.clone());
        // Nor where it needs no flow.
        host.lab
            .group_of(thief, vec![allow_all_in(None), allow_all_out(None)]);
        host.lab.refuses(thief, forged.clone(), IpSpoofed);
        host.leaves(thief, a.at, honest);
        // A router may.
        host.lab
            .configure(thief, |config| config.anti_spoof = false);
        host.leaves(thief, a.at, forged);
    }
}

#[test]
fn errors_punch_no_holes() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        // A quotes a packet that B would have to have sent, so that A's would be an answer.
        let wanted = udp(b, a, family, 53, 7);
        lab.refuses(
            a,
            too_big(a, a.ip(family), b, family, &wanted),
            NoIngressRule,
        );
        lab.refuses(a, udp(a, b, family, 7, 53), NoIngressRule);
        assert_eq!(lab.flows(), 0);
    }
}

/// The flows of errors about packets that nobody has sent are looked for in the whole network, as
/// that of a router's error is.
#[test]
fn who_reports_what_is_not_keeps_no_router_from_being_heard() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let [router, liar, other] = [(); 3].map(|()| {
            let nic = lab.nic();
            lab.configure(nic, |config| config.anti_spoof = false);
            lab.group_of(nic, vec![allow_all_out(None)]);
            nic
        });
        let sent = udp(a, b, family, 1, 53);
        lab.passes(a, b, sent.clone());
        for liar in [liar, other] {
            for port in 0..100 {
                let unsent = udp(a, b, family, 1000 + port, 53);
                let report = too_big(liar, liar.ip(family), a, family, &unsent);
                lab.refuses(liar, report, NoIngressRule);
            }
        }
        lab.passes(
            router,
            a,
            too_big(router, router.ip(family), a, family, &sent),
        );
    }
}

#[test]
fn a_paired_mac_receives_and_is_not_taken_by_who_learns() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b, bridge) = (lab.nic(), lab.nic(), lab.nic());
        let shared = Mac([0, 0, 0x5e, 0, 1, 1]);
        let net = match family {
            Family::V4 => "192.0.2.0/24".parse().unwrap(),
            Family::V6 => "2001:db8:9::/64".parse().unwrap(),
        };
        for nic in [a, b] {
            lab.group_of(nic, vec![allow_all_in(None)]);
            lab.configure(nic, |config| {
                config.pairs = vec![AddressPair {
                    net,
                    mac: Some(shared),
                }];
            });
        }
        lab.configure(bridge, |config| {
            config.learn_macs = true;
            config.anti_spoof = false;
        });
        lab.group_of(bridge, vec![allow_all_in(None), allow_all_out(None)]);
        let announce = |to: Nic| {
            let frame = build::frame(shared, to.mac).ip(net.network(), to.ip(family));
            frame.udp(1, 2).build()
        };
        let ask = |port| {
            let frame = build::frame(bridge.mac, shared).ip(bridge.ip(family), net.network());
            frame.udp(port, 2).build()
        };
        lab.passes(a, b, announce(b));
        lab.passes(bridge, a, ask(1));
        // It fails over to B.
        lab.passes(b, a, announce(a));
        lab.passes(bridge, b, ask(2));
        // The learner may not have it, and nothing changes.
        lab.refuses(bridge, announce(a), MacSpoofed);
        lab.passes(bridge, b, ask(3));
        // Nor does it stay with who may not use it any more.
        lab.configure(b, |config| config.pairs.clear());
        lab.refuses(bridge, ask(4), NoDestination);
    }
}

#[test]
fn guests_with_many_fragments_leave_room_for_others() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let victim = lab.nic();
        lab.group_of(victim, vec![allow_in(UDP, 53)]);
        let part = |lab: &mut Lab, from: Nic, which: usize, id| {
            let whole = ip(from, victim, family)
                .udp(7, 53)
                .payload(&[1; 4000])
                .build();
            lab.send(from, build::fragments(&whole, 1400, id)[which].clone());
        };
        let attackers: Vec<Nic> = (0..16).map(|_| lab.nic()).collect();
        for id in 0..32 {
            for nic in &attackers {
                part(&mut lab, *nic, 0, id);
                part(&mut lab, *nic, 1, 1000 + id);
            }
        }
        lab.received(victim);
        let neighbour = lab.nic();
        let before = lab.drops();
        for id in 0..4 {
            part(&mut lab, neighbour, 0, id);
            // Out of order: it waits for its first one, and finds room to.
            part(&mut lab, neighbour, 1, 100 + id);
            part(&mut lab, neighbour, 0, 100 + id);
        }
        assert_eq!(lab.received(victim).len(), 12);
        let counted = lab.sim.port(neighbour.slot);
        assert_eq!(counted.drops_from.iter().sum::<u64>(), 0);
        // One attacker made room once, for one after the other.
        assert_eq!(
            difference(&before, &lab.drops()),
            [(FragmentWithoutFirst, 1)]
        );
    }
}

#[test]
fn guests_with_many_flows_leave_room_for_others() {
    for family in FAMILIES {
        let mut lab = Lab::on(Simulation::new(WorkerConfig {
            max_flows: 1024,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 7,
            on_broken: Box::new(|_, _| {}),
        }));
        let victim = lab.nic();
        lab.group_of(victim, vec![allow_all_in(Some(UDP)), allow_in(TCP, 80)]);
        for _ in 0..6 {
            let attacker = lab.nic();
            lab.configure(attacker, |config| config.flow_share = 256);
            for port in 0..300 {
                lab.send(attacker, udp(attacker, victim, family, port, 1));
            }
        }
        lab.received(victim);
        let neighbour = lab.nic();
        lab.configure(neighbour, |config| config.flow_share = 256);
        lab.connect(neighbour, victim, family, 1, 80);
        lab.connect(neighbour, victim, family, 2, 80);
    }
}

#[test]
fn nobody_watches_a_watcher_and_nothing_goes_round() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let (first, second) = (lab.nic(), lab.nic());
        lab.configure(a, |config| config.sniffers = vec![first.slot]);
        for (sniffer, of) in [(first, second), (second, first)] {
            lab.configure(sniffer, |config| {
                config.is_sniffer = true;
                config.sniffers = vec![of.slot];
            });
        }
        lab.passes_to(a, &[b, first], udp(a, b, family, 1, 2));
        for frame in [
            udp(first, b, family, 1, 2),
            build::arp_request(first.mac, first.v4, b.v4),
            build::dhcp_request(first.mac, 1, 1),
        ] {
            lab.refuses(first, frame, SnifferSends);
        }
        lab.refuses(b, udp(b, first, family, 1, 2), NoDestination);
    }
}

#[test]
fn a_split_handshake_opens_nothing_the_other_way() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        // Data, a FIN, a SYN-ACK and a reset before anything else.
        for flags in [ACK, FIN_ACK, SYN_ACK, RST, RST | ACK] {
            lab.refuses(a, ip(a, b, family).tcp(1, 80, flags).build(), TcpNotSyn);
        }
        for flags in [SYN | TcpFlags::FIN, SYN | RST, TcpFlags(0), TcpFlags(0x3f)] {
            lab.refuses(a, ip(a, b, family).tcp(1, 80, flags).build(), TcpBadFlags);
        }
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).seq(9).build());
        // The initiator has no data yet; the responder answers with a SYN of its own.
        let early = ip(a, b, family)
            .tcp(1, 80, ACK)
            .seq(10)
            .ack(1)
            .payload(b"early");
        lab.refuses(a, early.build(), TcpBadState);
        lab.passes(b, a, ip(b, a, family).tcp(80, 1, SYN).seq(5).build());
        let answer = ip(a, b, family).tcp(1, 80, SYN_ACK).seq(9).ack(6);
        lab.passes(a, b, answer.build());
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(6).ack(10).build(),
        );
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, ACK).seq(10).ack(6).build(),
        );
        let flows = lab.sim.flows(None);
        assert_eq!(flows.len(), 1);
        assert_eq!(
            (flows[0].initiator.uid, flows[0].responder.port),
            (a.uid, 80)
        );
        // B still opens nothing to A by itself.
        lab.refuses(b, ip(b, a, family).tcp(80, 2, SYN).build(), NoIngressRule);
        lab.refuses(b, ip(b, a, family).tcp(81, 1, SYN).build(), NoIngressRule);
    }
}

#[test]
fn fragments_smuggle_no_second_header() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let parts = |dport| {
            let whole = ip(a, b, family).udp(7, dport).payload(&[1; 4000]).build();
            build::fragments(&whole, 1400, 9)
        };
        lab.passes(a, b, parts(53)[0].clone());
        lab.refuses(a, parts(22)[0].clone(), FragmentOverlap);
        // Under another MAC, and by another protocol, it is another datagram, judged by itself.
        let mut broadcast = parts(22)[0].clone();
        broadcast[..6].copy_from_slice(&Mac::BROADCAST.0);
        lab.refuses(a, broadcast, NoIngressRule);
        let tcp = ip(a, b, family).tcp(7, 53, SYN).payload(&[1; 4000]).build();
        let tcp = build::fragments(&tcp, 1400, 9);
        match family {
            Family::V4 => lab.refuses(a, tcp[0].clone(), NoIngressRule),
            // One datagram, whatever the header says (RFC 8200): it is lost already.
            Family::V6 => lab.refuses(a, tcp[0].clone(), FragmentOverlap),
        }
    }
}

#[test]
fn a_nic_that_moves_to_another_network_leaves_its_flows_behind() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.connect(a, b, family, 1, 80);
        let move_to = |lab: &mut Lab, network| {
            lab.configure(b, |config| {
                config.network = NetworkIdx(network);
                config.vni = Vni::new(network).unwrap();
            });
        };
        let data = ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001).build();
        move_to(&mut lab, 1);
        lab.refuses(a, data.clone(), NoDestination);
        let answer = ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build();
        lab.refuses(b, answer, NoDestination);
    }
}

#[test]
fn an_import_of_nonsense_lets_nothing_in() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.connect(a, b, family, 1, 80);
        let honest = lab.sim.flows(None).remove(0);
        let other = Family::V4 as u8 == family as u8;
        let foreign = if other {
            b.ip(Family::V6)
        } else {
            b.ip(Family::V4)
        };
        let mut nonsense = Vec::new();
        for state in dataplane::flow::FlowState::ALL {
            for protocol in [0, 1, 6, 17, 58, 132, 255] {
                let mut flow = honest.clone();
                (flow.state, flow.protocol) = (state, protocol);
                flow.initiator.port = 2;
                flow.responder.port = 22;
                (flow.age_secs, flow.frames_out) = (u32::MAX, u64::MAX);
                nonsense.push(flow.clone());
                flow.idle_secs = u32::MAX;
                flow.initiator.port = 3;
                nonsense.push(flow.clone());
                flow.responder.uid = a.uid;
                nonsense.push(flow.clone());
                flow.responder = honest.responder;
                flow.responder.address = foreign;
                nonsense.push(flow);
            }
        }
        lab.sim.import_flows(nonsense);
        let syn_ack = ip(b, a, family).tcp(22, 2, SYN_ACK).build();
        lab.refuses(b, syn_ack, NoIngressRule);
        lab.refuses(a, ip(a, b, family).tcp(2, 22, ACK).build(), NoIngressRule);
        lab.refuses(a, udp(a, b, family, 2, 22), NoIngressRule);
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001).build(),
        );
    }
}

/// The clock of the tables has 32 bits of milliseconds: they wrap after 49.7 days.
#[test]
fn the_clock_of_the_tables_may_wrap() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        // The simulation begins ten days after the machine's start.
        lab.wait((1 << 32) / 1000 - 864_000 - 5);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, udp(a, b, family, 2, 53));
        let whole = ip(a, b, family).udp(7, 53).payload(&[1; 4000]).build();
        let parts = build::fragments(&whole, 1400, 9);
        lab.passes(a, b, parts[0].clone());
        lab.wait(5);
        lab.send(a, build::fragments(&whole, 1400, 10)[1].clone());
        lab.wait(5);
        assert_eq!(lab.sim.load().held_fragments, 0);
        lab.passes(a, b, parts[1].clone());
        assert_eq!(lab.flows(), 3);
        lab.wait(30);
        assert_eq!((lab.flows(), lab.sim.load().datagrams), (1, 0));
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build(),
        );
        lab.wait(432_000);
        let late = ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001);
        let reset = ip(b, a, family).dont_fragment().tcp(80, 1, RST).seq(1001);
        lab.resets(a, late.build(), reset.window(0).build());
    }
}

#[test]
fn a_rule_for_a_group_does_not_match_who_borrows_a_members_address() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (member, thief, b) = (lab.nic(), lab.nic(), lab.nic());
        let friends = lab.group(vec![]);
        lab.change_group(friends, |group| {
            group.members = [member.ip(family)].into_iter().collect();
        });
        let peer = Peer::Group(friends);
        lab.group_of(b, vec![rule(Direction::Ingress, None, 0..=u16::MAX, peer)]);
        lab.passes(member, b, udp(member, b, family, 1, 2));
        lab.refuses(thief, udp(thief, b, family, 1, 2), NoIngressRule);
        let borrowed = build::frame(thief.mac, b.mac).ip(member.ip(family), b.ip(family));
        lab.refuses(thief, borrowed.clone().udp(1, 2).build(), IpSpoofed);
        lab.configure(thief, |config| config.anti_spoof = false);
        lab.refuses(thief, borrowed.udp(1, 2).build(), ForeignSource);
    }
}

#[test]
fn a_flood_of_broadcasts_takes_no_more_than_its_turn() {
    for family in FAMILIES {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let flooder = lab.nic();
        let crowd: Vec<Nic> = (0..60).map(|_| lab.nic()).collect();
        let shout = build::frame(flooder.mac, Mac::BROADCAST).ip(flooder.ip(family), d.ip(family));
        let shout = shout.udp(1, 2).build();
        let many = 5 * BATCH as u64;
        for _ in 0..many {
            lab.queue(flooder, shout.clone(), Offload::default());
            lab.queue(c, udp(c, d, family, 1, 2), Offload::default());
        }
        for _ in 0..5 {
            lab.sim.turn();
        }
        assert_eq!(lab.sim.port(c.slot).rx_frames, many);
        assert_eq!(lab.sim.port(flooder.slot).rx_frames, BATCH as u64);
        // It is heard out when its time comes.
        lab.sim.run();
        assert_eq!(lab.sim.port(flooder.slot).rx_frames, many);
        assert_eq!(
            lab.sim.port(crowd[0].slot).drops_to.iter().sum::<u64>(),
            many
        );
        assert_eq!(lab.received(d).len() as u64, 2 * many);
    }
}

/// A guest may have as many queues as it likes: they are one sender, and each has its turn.
#[test]
fn many_queues_of_a_nic_are_one_sender() {
    const PAIRS: u16 = 16;
    for family in FAMILIES {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let greedy = lab.nic();
        let pairs: Vec<MemoryPeer> = (1..PAIRS)
            .map(|pair| {
                let slot = greedy.slot;
                lab.sim.attach(QueueId { slot, pair })
            })
            .collect();
        let from = |port| udp(greedy, d, family, port, 2);
        for port in 1..=PAIRS {
            lab.passes(greedy, d, from(port));
        }
        lab.passes(c, d, udp(c, d, family, 1, 2));
        let turns = 3 * u64::from(PAIRS);
        let heard = |lab: &Lab| [c, greedy].map(|nic| lab.sim.port(nic.slot).rx_frames);
        let mut each = [0; PAIRS as usize];
        for _ in 0..turns {
            for _ in 0..BATCH {
                // Rings are full, and stay so.
                lab.peer(c)
                    .send(udp(c, d, family, 1, 2), Offload::default());
                lab.peer(greedy).send(from(1), Offload::default());
                for (pair, port) in pairs.iter().zip(2..) {
                    pair.send(from(port), Offload::default());
                }
            }
            // Who was parked is looked at.
            lab.sim.let_pass(Duration::from_micros(50));
            lab.sim.turn();
            for frame in lab.received(d) {
                let port = udp_source(&frame);
                let is_greedy = frame[6..12] == greedy.mac.0;
                each[usize::from(port) - 1] += u64::from(is_greedy);
            }
        }
        let [of_c, of_greedy] = heard(&lab).map(|frames| frames / BATCH as u64);
        // In the first turn who was parked is seen.
        assert!((turns - 1..=turns).contains(&of_c), "{of_c}");
        assert!((turns - 2..=turns + 4).contains(&of_greedy), "{of_greedy}");
        let most = each.iter().max().unwrap();
        assert!(
            each.iter().all(|one| *one > 0 && 2 * one >= *most),
            "{each:?}"
        );
    }
}

/// The source port of a datagram without options.
fn udp_source(frame: &[u8]) -> u16 {
    let at = if frame[12] == 0x08 { 34 } else { 54 };
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// What a VMM may do with its rings as often as it likes.
fn replug(lab: &mut Lab, nic: Nic) {
    let port = lab.sim.take(nic.slot).unwrap();
    assert!(!lab.sim.attach_port(nic.slot, port), "it was away");
}

#[test]
fn a_ring_that_goes_and_comes_again_owes_what_it_owed() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
    let flooder = lab.nic();
    let _crowd: Vec<Nic> = (0..60).map(|_| lab.nic()).collect();
    let shout = build::frame(flooder.mac, Mac::BROADCAST);
    let shout = shout.ip(flooder.v4, d.v4).udp(1, 2).build();
    let many = 9 * BATCH as u64;
    for _ in 0..many {
        lab.queue(flooder, shout.clone(), Offload::default());
        lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
    }
    for turn in 0..9 {
        lab.sim.turn();
        assert_eq!(lab.sim.port(flooder.slot).rx_frames, BATCH as u64, "{turn}");
        replug(&mut lab, flooder);
    }
    assert_eq!(lab.sim.port(c.slot).rx_frames, many);
}

/// The next one in its slot is another tenant's.
#[test]
fn a_nic_does_not_owe_what_the_one_before_it_in_its_slot_did() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
    let flooder = lab.nic();
    let _crowd: Vec<Nic> = (0..60).map(|_| lab.nic()).collect();
    let shout = build::frame(flooder.mac, Mac::BROADCAST);
    let shout = shout.ip(flooder.v4, d.v4).udp(1, 2).build();
    let many = 12 * BATCH as u64;
    for _ in 0..BATCH {
        lab.queue(flooder, shout.clone(), Offload::default());
    }
    for _ in 0..many {
        lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
    }
    let heard = |lab: &Lab, nic: Nic| lab.sim.port(nic.slot).rx_frames;
    lab.sim.turn();
    assert_eq!(heard(&lab, flooder), BATCH as u64);
    // It waits, also with its rings given back.
    let one = udp(flooder, d, Family::V4, 1, 2);
    lab.queue(flooder, one, Offload::default());
    for _ in 0..3 {
        replug(&mut lab, flooder);
        lab.sim.turn();
        assert_eq!(heard(&lab, flooder), BATCH as u64);
    }
    let next = lab.replace(flooder);
    lab.sim.turn();
    assert_eq!(heard(&lab, next), BATCH as u64 + 1);
    assert!(heard(&lab, c) < many, "it is not alone");
}

/// A frame of `nic` that stands for 320 packets of a byte each.
fn of_tiny_segments(nic: Nic, to: (Mac, IpAddr), family: Family) -> (Vec<u8>, Offload) {
    let frame = build::frame(nic.mac, to.0).ip(nic.ip(family), to.1);
    let frame = frame.udp(1, 2).payload(&[7; 320]);
    frame.gso(1).build_with_offload()
}

/// Whose receiver has it cut into its segments, whichever worker does so.
#[test]
fn a_flood_of_tiny_segments_takes_no_more_than_its_part() {
    for (family, workers) in [(Family::V4, 1), (Family::V6, 1), (Family::V4, 2)] {
        for (is_cut, most) in [(true, 2), (false, 12)] {
            let mut lab = Lab::on(Simulation::several(workers));
            let [c, elsewhere, flooder, own, d] = [(); 5].map(|()| lab.nic());
            let group = lab.group(vec![allow_all_in(None), allow_all_out(None)]);
            for nic in [c, d, flooder, own, elsewhere] {
                lab.configure(nic, |config| config.groups = vec![group]);
            }
            // At the other worker, where there is one.
            let own = if workers == 2 { elsewhere } else { own };
            if !is_cut {
                lab.peer(own).accept(Accepts::ALL);
            }
            let (frame, offload) = of_tiny_segments(flooder, (own.mac, own.ip(family)), family);
            for _ in 0..12 * BATCH {
                lab.queue(flooder, frame.clone(), offload);
                lab.queue(c, udp(c, d, family, 1, 2), Offload::default());
            }
            for _ in 0..12 {
                lab.sim.turn();
                lab.sim.turn_of(1);
            }
            let batches = |nic: Nic| lab.sim.port(nic.slot).rx_frames / BATCH as u64;
            assert_eq!(batches(c), 12);
            let heard = batches(flooder);
            assert!(
                (1..=most).contains(&heard) && (is_cut || heard > 4),
                "{heard}"
            );
        }
    }
}

#[test]
fn frames_that_another_worker_cuts_small_are_received_a_few_at_a_time() {
    let mut lab = Lab::on(Simulation::several(2));
    let (flooder, d) = (lab.nic(), lab.nic());
    lab.group_of(d, vec![allow_all_in(None)]);
    lab.peer(d).set_capacity(320 * BATCH);
    let (frame, offload) = of_tiny_segments(flooder, (d.mac, d.ip(Family::V4)), Family::V4);
    for _ in 0..2 * BATCH {
        lab.queue(flooder, frame.clone(), offload);
    }
    assert_eq!(lab.sim.turn_of(0).frames, BATCH, "nothing is known of them");
    lab.sim.turn_of(1);
    assert_eq!(lab.received(d).len(), 320 * BATCH);
    assert_eq!(lab.sim.turn_of(0).frames, 1);
}

/// As many packets as a wire's are cost what their bytes do.
#[test]
fn large_frames_are_received_as_fast_where_they_are_cut() {
    let heard = |accepts| {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let c = lab.nic();
        lab.peer(b).accept(accepts);
        let large = ip(a, b, Family::V4).udp(1, 2).payload(&[7; 60_000]);
        let (frame, offload) = large.gso(1400).build_with_offload();
        for _ in 0..2 * BATCH {
            lab.queue(a, frame.clone(), offload);
            lab.queue(c, udp(c, a, Family::V4, 1, 2), Offload::default());
        }
        let each = (0..20).map(|_| {
            lab.sim.turn();
            lab.sim.port(a.slot).rx_frames
        });
        each.collect::<Vec<_>>()
    };
    assert_eq!(heard(Accepts::default()), heard(Accepts::ALL));
}

#[test]
fn beside_who_asks_and_who_answers_copies_that_are_cut_small_are_made_one_by_one() {
    for family in FAMILIES {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let flooder = lab.nic();
        let crowd = crowd(&mut lab);
        lab.passes(c, d, udp(c, d, family, 1, 2));
        lab.sim.advance(Duration::from_millis(2));
        hurried(&mut lab, c, d, family);
        let all = (Mac::BROADCAST, d.ip(family));
        let (frame, offload) = of_tiny_segments(flooder, all, family);
        lab.queue(flooder, frame, offload);
        let mut most = vec![];
        while copies(&lab, &crowd) < 20 && most.len() < 100 {
            let before = copies(&lab, &crowd);
            hurried(&mut lab, c, d, family);
            most.push(copies(&lab, &crowd) - before);
        }
        assert_eq!(most.iter().max(), Some(&1), "{most:?}");
    }
}

#[test]
fn a_flood_of_what_nobody_knows_takes_no_more_than_its_part() {
    for family in FAMILIES {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(Some(UDP)), allow_in(TCP, 80)]);
        let flooder = lab.nic();
        lab.passes(c, d, udp(c, d, family, 1, 2));
        // SYNs that begin flows, datagrams that nobody takes, and what takes the whole path.
        let begins = |port| ip(flooder, d, family).tcp(port, 80, SYN).build();
        let refused = |port| ip(flooder, c, family).udp(port, 1).build();
        let odd = |port| ip(flooder, d, family).sctp(port, 9, 0, 1).build();
        let floods: [&dyn Fn(u16) -> Vec<u8>; 3] = [&begins, &refused, &odd];
        for (flood, before) in floods.into_iter().zip([0, 15, 30]) {
            let many = 15 * BATCH as u16;
            // Nobody is in a hurry.
            lab.sim.advance(Duration::from_millis(2));
            for port in 0..many {
                lab.queue(flooder, flood(1000 + port), Offload::default());
                lab.queue(c, udp(c, d, family, 1, 2), Offload::default());
            }
            let frames = |lab: &Lab, nic: Nic| lab.sim.port(nic.slot).rx_frames;
            let started = frames(&lab, c);
            // They were parked.
            lab.sim.sleep_of(0);
            for _ in 0..15 {
                lab.sim.turn();
            }
            assert_eq!(frames(&lab, c) - started, u64::from(many));
            let heard = frames(&lab, flooder) / BATCH as u64 - before;
            assert!((1..=5).contains(&heard), "{heard} batches of the flood");
            // It is heard out when its time comes.
            lab.sim.run();
            assert_eq!(frames(&lab, flooder) / BATCH as u64, before + 15);
            lab.received(d);
        }
    }
}

/// Rules that all have to be looked at, and allow nobody here.
#[test]
fn a_flood_that_many_rules_are_asked_of_takes_no_more_than_its_part() {
    let nets = ["192.0.2.1/32", "2001:db8:9::1/128"].map(|net| net.parse().unwrap());
    let ranges = |n| {
        let net = Peer::Net(nets[usize::from(n % 2)]);
        rule(Direction::Ingress, Some(UDP), n..=60_000, net)
    };
    let groups = |n: u16| {
        let group = Peer::Group(GroupIdx(1000 + u32::from(n)));
        rule(Direction::Ingress, Some(UDP), 7000..=7000, group)
    };
    let all: [&dyn Fn(u16) -> dataplane::ruleset::RuleSpec; 2] = [&ranges, &groups];
    for family in FAMILIES {
        for (rule, count, is_dear) in [
            (all[0], 4000, true),
            (all[1], 2000, true),
            (all[0], 8, false),
        ] {
            let (mut lab, c, d) = Lab::pair(vec![allow_all_in(Some(UDP))]);
            let (flooder, own) = (lab.nic(), lab.nic());
            lab.group_of(own, (1..=count).map(rule).collect());
            let many = 15 * BATCH as u16;
            for port in 0..many {
                let refused = udp(flooder, own, family, 1000 + port, 7000);
                lab.queue(flooder, refused, Offload::default());
                lab.queue(c, udp(c, d, family, 1, 2), Offload::default());
            }
            for _ in 0..15 {
                lab.sim.turn();
            }
            let heard = |nic: Nic| lab.sim.port(nic.slot).rx_frames;
            assert_eq!(heard(c), u64::from(many));
            let batches = heard(flooder) / BATCH as u64;
            assert_eq!(batches == 1, is_dear, "{batches} of {count} rules");
            lab.sim.run();
            let lost = lab.sim.port(own.slot).drops_to;
            assert_eq!(lost[NoIngressRule as usize], u64::from(many));
        }
    }
}

#[test]
fn beside_who_asks_and_who_answers_a_flood_has_shorter_turns() {
    for (family, workers) in [(Family::V4, 1), (Family::V6, 1), (Family::V4, 2)] {
        // With two workers who answers is at the other one.
        let mut lab = Lab::on(Simulation::several(workers));
        let [c, d, flooder] = [(); 3].map(|()| lab.nic());
        lab.group_of(d, vec![allow_all_in(None)]);
        lab.group_of(c, vec![allow_all_in(None)]);
        lab.passes(c, d, udp(c, d, family, 1, 2));
        let heard = |lab: &Lab| lab.sim.port(flooder.slot).rx_frames;
        // Turns in which it was received from, and how many frames then at the most.
        let mut turns_beside = |first: u16, few: &[Nic]| {
            lab.sim.advance(Duration::from_millis(2));
            for port in 0..10 * BATCH as u16 {
                let begins = ip(flooder, d, family).tcp(first + port, 80, SYN).build();
                lab.queue(flooder, begins, Offload::default());
            }
            let mut turns = vec![];
            for _ in 0..100 {
                for &nic in few {
                    let (other, ports) = if nic == c { (d, (1, 2)) } else { (c, (2, 1)) };
                    let frame = udp(nic, other, family, ports.0, ports.1);
                    lab.queue(nic, frame, Offload::default());
                }
                // They were parked.
                (0..workers).for_each(|worker| lab.sim.sleep_of(worker));
                lab.sim.turn_of(1);
                let before = heard(&lab);
                lab.sim.turn();
                turns.extend(Some(heard(&lab) - before).filter(|frames| *frames > 0));
                if turns.len() == 4 {
                    break;
                }
            }
            turns
        };
        assert_eq!(turns_beside(1000, &[]), [BATCH as u64; 4]);
        assert_eq!(turns_beside(2000, &[c]), [BATCH as u64; 4]);
        assert_eq!(turns_beside(4000, &[d]), [BATCH as u64; 4]);
        let beside = turns_beside(3000, &[c, d]);
        assert!(
            beside.len() == 4 && beside[1..].iter().all(|frames| *frames <= 6),
            "{beside:?}"
        );
    }
}

/// A stream's large frames come three at a time, as an answer would.
#[test]
fn beside_who_asks_a_stream_from_another_worker_is_no_answer() {
    let mut lab = Lab::on(Simulation::several(2));
    let [c, streamer, flooder] = [(); 3].map(|()| lab.nic());
    lab.group_of(c, vec![allow_all_in(None)]);
    lab.group_of(streamer, vec![allow_all_in(None)]);
    let family = Family::V4;
    let large = build::frame(streamer.mac, c.mac).ip(streamer.ip(family), c.ip(family));
    let (large, offload) = large
        .udp(1, 2)
        .payload(&[7; 60_000])
        .gso(1400)
        .build_with_offload();
    // It is known what one of them costs.
    lab.queue(streamer, large.clone(), offload);
    lab.sim.run();
    lab.sim.advance(Duration::from_millis(2));
    for port in 0..8 * BATCH as u16 {
        let begins = ip(flooder, c, family).tcp(1000 + port, 80, SYN).build();
        lab.queue(flooder, begins, Offload::default());
    }
    (0..300).for_each(|_| lab.queue(streamer, large.clone(), offload));
    let heard = |lab: &Lab, nic: Nic| lab.sim.port(nic.slot).rx_frames;
    let mut turns = vec![];
    for _ in 0..100 {
        lab.queue(c, udp(c, streamer, family, 2, 1), Offload::default());
        // Who was parked is looked at.
        lab.sim.let_pass(Duration::from_micros(50));
        let begun = heard(&lab, streamer);
        lab.sim.turn_of(1);
        assert_eq!(heard(&lab, streamer) - begun, 3);
        let before = heard(&lab, flooder);
        lab.sim.turn();
        turns.extend(Some(heard(&lab, flooder) - before).filter(|frames| *frames > 0));
        if turns.len() == 4 {
            break;
        }
    }
    assert_eq!(turns, [BATCH as u64; 4]);
}

/// Twenty NICs in the first group.
fn crowd(lab: &mut Lab) -> Vec<Nic> {
    let crowd: Vec<Nic> = (0..20).map(|_| lab.nic()).collect();
    for &nic in &crowd {
        lab.configure(nic, |config| config.groups = vec![GroupIdx(0)]);
    }
    crowd
}

/// Copies that these NICs have been given.
fn copies(lab: &Lab, crowd: &[Nic]) -> u64 {
    let each = crowd.iter().map(|nic| lab.sim.port(nic.slot).tx_frames);
    each.sum()
}

/// A turn in which one NIC asks and another answers.
fn hurried(lab: &mut Lab, c: Nic, d: Nic, family: Family) {
    lab.queue(c, udp(c, d, family, 1, 2), Offload::default());
    lab.queue(d, udp(d, c, family, 2, 1), Offload::default());
    // Who was parked is looked at.
    lab.sim.let_pass(Duration::from_micros(50));
    lab.sim.turn();
}

#[test]
fn beside_who_asks_and_who_answers_copies_for_many_are_made_one_by_one() {
    for (family, is_traced) in [(Family::V4, false), (Family::V6, false), (Family::V4, true)] {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let flooder = lab.nic();
        let crowd = crowd(&mut lab);
        lab.passes(c, d, udp(c, d, family, 1, 2));
        let _trace = is_traced.then(|| trace_live(&mut lab.sim, flooder));
        let shout = |number| {
            let frame = build::frame(flooder.mac, Mac::BROADCAST);
            let frame = frame.ip(flooder.ip(family), d.ip(family)).udp(1, 2);
            let payload = vec![number; 60_000];
            frame.payload(&payload).gso(1400).build_with_offload()
        };
        let shouts: Vec<_> = (1..=4).map(shout).collect();
        lab.sim.advance(Duration::from_millis(2));
        hurried(&mut lab, c, d, family);
        lab.received(c);
        for (frame, offload) in shouts[..3].iter().cloned() {
            lab.queue(flooder, frame, offload);
        }
        let mut most = vec![];
        while copies(&lab, &crowd) < 60 && most.len() < 300 {
            let before = copies(&lab, &crowd);
            hurried(&mut lab, c, d, family);
            most.push(copies(&lab, &crowd) - before);
            assert_eq!(lab.received(c).len(), 1, "an answer in each turn");
        }
        assert!(most.iter().all(|copies| *copies <= 1), "{most:?}");
        // They come as segments.
        let numbers = |frames: Vec<Vec<u8>>| {
            let shouts = frames.iter().filter(|frame| frame[..6] == Mac::BROADCAST.0);
            let mut numbers: Vec<u8> = shouts.map(|frame| frame[100]).collect();
            numbers.dedup();
            numbers
        };
        for &nic in crowd.iter().chain([&d]) {
            assert_eq!(numbers(lab.received(nic)), [1, 2, 3]);
        }

        // Another configuration is in force when all of them are made.
        let (frame, offload) = shouts[3].clone();
        lab.queue(flooder, frame, offload);
        let before = copies(&lab, &crowd);
        let begun = (0..100).any(|_| {
            hurried(&mut lab, c, d, family);
            copies(&lab, &crowd) - before == 1
        });
        assert!(begun, "the others are put off");
        lab.delete(flooder);
        assert_eq!(copies(&lab, &crowd) - before, 20);
        assert_eq!(numbers(lab.received(crowd[19])), [4]);
    }
}

/// Nobody has copies made by taking a ring away and giving it back: neither who has sent the frame,
/// nor one of those that get it, nor somebody else.
#[test]
fn rings_that_go_and_come_again_do_not_hurry_what_is_put_off() {
    for who in ["sender", "target", "other"] {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let flooder = lab.nic();
        let crowd = crowd(&mut lab);
        let restless = match who {
            "sender" => flooder,
            "target" => crowd[7],
            _ => lab.nic_in(7),
        };
        lab.passes(c, d, udp(c, d, Family::V4, 1, 2));
        let shout = build::frame(flooder.mac, Mac::BROADCAST);
        let shout = shout.ip(flooder.v4, d.v4).udp(1, 2);
        let shout = shout.payload(&[3; 60_000]).gso(1400).build_with_offload();
        lab.sim.advance(Duration::from_millis(2));
        hurried(&mut lab, c, d, Family::V4);
        for _ in 0..3 {
            lab.queue(flooder, shout.0.clone(), shout.1);
        }
        let mut most = vec![];
        while copies(&lab, &crowd) < 60 && most.len() < 300 {
            let before = copies(&lab, &crowd);
            hurried(&mut lab, c, d, Family::V4);
            replug(&mut lab, restless);
            most.push(copies(&lab, &crowd) - before);
        }
        assert!(most.iter().all(|copies| *copies <= 1), "{who}: {most:?}");
        assert_eq!(copies(&lab, &crowd), 60, "{who}: none is lost");
    }
}

#[test]
fn beside_who_asks_and_who_answers_copies_from_the_wire_are_made_a_few_at_a_time() {
    for family in FAMILIES {
        let mut host = Host::new();
        host.learn();
        let far = machine(200, host_ip(2));
        let group = host.lab.group(vec![allow_all_in(None)]);
        let crowd = crowd(&mut host.lab);
        let (c, d) = (crowd[0], crowd[1]);
        assert_eq!(group, GroupIdx(0));
        let shout = |number| {
            let frame = build::frame(far.nic.mac, Mac::BROADCAST);
            let frame = frame.ip(far.nic.ip(family), d.ip(family)).udp(1, 2);
            frame.payload(&[number; 1300]).build()
        };
        host.lab.passes(c, d, udp(c, d, family, 1, 2));
        host.lab.sim.advance(Duration::from_millis(2));
        hurried(&mut host.lab, c, d, family);
        host.lab.received(c);
        host.lab.received(d);
        // What goes to one behind those that go to many stays behind them.
        let behind = ip(far.nic, d, family).udp(3, 4).payload(&[4; 1300]);
        let frames = [shout(1), shout(2), shout(3), behind.build()];
        let before = copies(&host.lab, &crowd);
        for frame in &frames {
            assert!(host.wire.send(inbound(far.at, frame), Offload::default()));
        }
        let mut most = vec![];
        while copies(&host.lab, &crowd) - before < 61 + 2 * most.len() as u64 && most.len() < 100 {
            let before = copies(&host.lab, &crowd);
            hurried(&mut host.lab, c, d, family);
            most.push(copies(&host.lab, &crowd) - before - 2);
            assert!(!host.lab.received(c).is_empty(), "an answer in each turn");
        }
        assert!(most.iter().all(|copies| *copies <= 7), "{most:?}");
        let numbers = |frames: Vec<Vec<u8>>| {
            let of_far = frames.iter().filter(|frame| frame[6..12] == far.nic.mac.0);
            of_far.map(|frame| frame[100]).collect::<Vec<u8>>()
        };
        assert_eq!(numbers(host.lab.received(d)), [1, 2, 3, 4]);
        for &nic in &crowd[2..] {
            assert_eq!(numbers(host.lab.received(nic)), [1, 2, 3]);
        }

        // Another configuration is in force when all of them are made.
        let before = copies(&host.lab, &crowd);
        assert!(
            host.wire
                .send(inbound(far.at, &frames[0]), Offload::default())
        );
        let begun = (0..100).any(|turns| {
            hurried(&mut host.lab, c, d, family);
            copies(&host.lab, &crowd) - before > 2 * (turns + 1)
        });
        assert!(begun, "some are made");
        let others = &crowd[2..];
        let late = others
            .iter()
            .filter(|nic| host.lab.received(**nic).is_empty());
        let late: Vec<Nic> = late.copied().collect();
        assert!(!late.is_empty(), "the others are put off");
        host.lab.publish();
        for nic in late {
            assert_eq!(numbers(host.lab.received(nic)), [1]);
        }
    }
}

/// Who owes nothing any more, as nobody else has sent a frame since, is not received from before
/// its copies are made: a frame of a known flow would go before them.
#[test]
fn frames_of_known_flows_wait_behind_what_is_put_off_too() {
    for family in FAMILIES {
        for is_far in [false, true] {
            let mut host = Host::new();
            host.learn();
            host.lab.group(vec![allow_all_in(None)]);
            let crowd = crowd(&mut host.lab);
            let (near, c, d) = (host.lab.nic(), crowd[0], crowd[1]);
            let far = machine(200, host_ip(2));
            let flooder = if is_far { far.nic } else { near };
            let send = |host: &mut Host, frame: &[u8]| {
                let none = Offload::default();
                match is_far {
                    true => assert!(host.wire.send(inbound(far.at, frame), none)),
                    false => host.lab.queue(near, frame.to_vec(), none),
                }
            };
            host.lab.passes(c, d, udp(c, d, family, 1, 2));
            let known = ip(flooder, d, family).udp(3, 4).payload(&[7; 1300]).build();
            for _ in 0..2 {
                send(&mut host, &known);
                host.lab.sim.run();
            }
            host.lab.sim.advance(Duration::from_millis(2));
            hurried(&mut host.lab, c, d, family);
            host.lab.received(d);
            let shout = build::frame(flooder.mac, Mac::BROADCAST);
            let shout = shout.ip(flooder.ip(family), d.ip(family)).udp(1, 2);
            let shout = shout.payload(&[1; 1300]).build();
            (0..3).for_each(|_| send(&mut host, &shout));
            let before = copies(&host.lab, &crowd);
            let begun = (0..10).any(|turns| {
                hurried(&mut host.lab, c, d, family);
                copies(&host.lab, &crowd) - before > 2 * (turns + 1)
            });
            assert!(begun);
            send(&mut host, &known);
            let mut heard = vec![];
            for _ in 0..20 {
                host.lab.sim.turn();
                heard.extend(host.lab.received(d));
            }
            let made = heard.iter().filter(|frame| frame[6..12] == flooder.mac.0);
            let numbers: Vec<u8> = made.map(|frame| frame[100]).collect();
            assert_eq!(numbers, [1, 1, 1, 7], "from the wire: {is_far}");
        }
    }
}

/// One frame of each of three networks comes in one batch, each for no more than may be copied at
/// once.
#[test]
fn beside_who_asks_and_who_answers_copies_of_several_networks_have_one_turn() {
    let mut host = Host::new();
    host.learn();
    let overlay = host.lab.overlays[0].clone();
    host.lab.overlays = [overlay.clone(), overlay.clone(), overlay];
    host.lab.group(vec![allow_all_in(None)]);
    let family = Family::V4;
    let crowds: Vec<Vec<Nic>> = (0..3)
        .map(|network| (0..12).map(|_| host.lab.nic_in(network)).collect())
        .collect();
    for &nic in crowds.iter().flatten() {
        host.lab
            .configure(nic, |config| config.groups = vec![GroupIdx(0)]);
    }
    let (c, d) = (crowds[0][0], crowds[0][1]);
    host.lab.passes(c, d, udp(c, d, family, 1, 2));
    host.lab.sim.advance(Duration::from_millis(2));
    hurried(&mut host.lab, c, d, family);
    let all = crowds.concat();
    let begun = copies(&host.lab, &all);
    let ends = Ends::new(host_ip(2), HERE).unwrap();
    for (vni, crowd) in crowds.iter().enumerate() {
        let far = machine(200, host_ip(2));
        let shout = build::frame(far.nic.mac, Mac::BROADCAST);
        let shout = shout
            .ip(far.nic.ip(family), crowd[0].ip(family))
            .udp(1, 2)
            .payload(&[7; 1300])
            .build();
        let outer = arriving(ends, vni as u32, &shout, 0);
        assert!(host.wire.send(outer, Offload::default()));
    }
    let mut each = vec![];
    while copies(&host.lab, &all) - begun < 36 + 2 * each.len() as u64 && each.len() < 100 {
        let before = copies(&host.lab, &all);
        hurried(&mut host.lab, c, d, family);
        each.push(copies(&host.lab, &all) - before - 2);
    }
    assert!(each[0] <= 12, "{each:?}");
    assert!(each[1..].iter().all(|copies| *copies <= 7), "{each:?}");
}

#[test]
fn beside_who_asks_and_who_answers_other_workers_frames_come_a_few_at_a_time() {
    let mut lab = Lab::on(Simulation::several(2));
    let [c, flooder, d] = [(); 3].map(|()| lab.nic());
    lab.group(vec![allow_all_in(None)]);
    for nic in [c, d] {
        lab.configure(nic, |config| config.groups = vec![GroupIdx(0)]);
    }
    let mut crowd = crowd(&mut lab);
    crowd.retain(|nic| lab.sim.worker_of(nic.slot) == Some(0));
    assert_eq!(crowd.len(), 10);
    let family = Family::V4;
    lab.passes(c, d, udp(c, d, family, 1, 2));
    let shout = build::frame(flooder.mac, Mac::BROADCAST);
    let shout = shout.ip(flooder.ip(family), d.ip(family)).udp(1, 2);
    let payload = vec![7; 60_000];
    let (frame, offload) = shout.payload(&payload).gso(1400).build_with_offload();
    // Copies in a turn, beside who asks and who answers and beside nobody.
    for (is_hurried, most) in [(false, 10), (true, 4)] {
        lab.sim.advance(Duration::from_millis(2));
        if is_hurried {
            hurried(&mut lab, c, d, family);
        }
        lab.queue(flooder, frame.clone(), offload);
        let begun = copies(&lab, &crowd);
        lab.sim.sleep_of(1);
        lab.sim.turn_of(1);
        let mut each = vec![];
        while copies(&lab, &crowd) - begun < 10 && each.len() < 100 {
            let before = copies(&lab, &crowd);
            match is_hurried {
                true => hurried(&mut lab, c, d, family),
                false => drop(lab.sim.turn()),
            }
            each.push(copies(&lab, &crowd) - before);
        }
        assert_eq!(each.iter().max(), Some(&most), "{each:?}");
        lab.sim.run();
        assert_eq!(copies(&lab, &crowd) - begun, 10);
        for &nic in &crowd {
            assert!(!lab.received(nic).is_empty());
        }
    }
}

#[test]
fn fragments_go_behind_a_first_one_that_is_put_off() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
    let flooder = lab.nic();
    crowd(&mut lab);
    lab.passes(c, d, udp(c, d, Family::V4, 1, 2));
    lab.sim.advance(Duration::from_millis(2));
    hurried(&mut lab, c, d, Family::V4);
    let shout = build::frame(flooder.mac, Mac::BROADCAST);
    let shout = shout.ip(flooder.ip(Family::V4), d.ip(Family::V4));
    let whole = ip(flooder, d, Family::V4).udp(1, 2).payload(&[7; 2000]);
    let [first, second] = <[_; 2]>::try_from(build::fragments(&whole.build(), 1400, 1)).unwrap();
    lab.received(d);
    for frame in [second.clone(), shout.udp(1, 2).build(), first.clone()] {
        lab.queue(flooder, frame, Offload::default());
    }
    hurried(&mut lab, c, d, Family::V4);
    let of_flooder = |frame: &Vec<u8>| frame[6..12] == flooder.mac.0;
    let mut heard: Vec<_> = lab.received(d).into_iter().filter(of_flooder).collect();
    assert!(heard.is_empty(), "all is put off");
    for _ in 0..20 {
        hurried(&mut lab, c, d, Family::V4);
        heard.extend(lab.received(d).into_iter().filter(of_flooder));
    }
    assert_eq!(heard[1..], [first, second]);
}

#[test]
fn copies_are_put_off_of_no_more_frames_than_there_is_room_for() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
    let flooders = [lab.nic(), lab.nic(), lab.nic()];
    let crowd = crowd(&mut lab);
    lab.passes(c, d, udp(c, d, Family::V4, 1, 2));
    lab.sim.advance(Duration::from_millis(2));
    hurried(&mut lab, c, d, Family::V4);
    for nic in flooders {
        let shout = build::frame(nic.mac, Mac::BROADCAST).ip(nic.ip(Family::V4), d.ip(Family::V4));
        let shout = shout.udp(1, 2).build();
        for _ in 0..BATCH {
            lab.queue(nic, shout.clone(), Offload::default());
        }
    }
    hurried(&mut lab, c, d, Family::V4);
    assert_eq!(
        copies(&lab, &crowd),
        20 * BATCH as u64,
        "all of the third one's"
    );
    lab.sim.run();
    let lost: u64 = crowd
        .iter()
        .map(|nic| lab.sim.port(nic.slot).drops_to.iter().sum::<u64>())
        .sum();
    assert_eq!(copies(&lab, &crowd) + lost, 3 * 20 * BATCH as u64);
}

#[test]
fn redirects_and_advertisements_of_ipv4_need_permission_too() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(ICMP))]);
    for kind in [5, 9] {
        let told = ip(a, b, Family::V4).icmp(kind, 0, 0x0a00_0009);
        let told = told.payload(&udp(b, a, Family::V4, 1, 2)[14..]).build();
        lab.configure(a, |config| config.allow_router_advertisements = false);
        lab.refuses(a, told.clone(), RouterAdvertisement);
        lab.configure(a, |config| config.allow_router_advertisements = true);
        lab.passes(a, b, told.clone());
        // They are no part of security-groups.md 13: the rules hold.
        let c = lab.nic();
        let mut to_c = told;
        to_c[..6].copy_from_slice(&c.mac.0);
        lab.refuses(a, to_c, NoIngressRule);
    }
}
