//! Another host that lies: VXLAN forged by one that is known, into networks it has no part in and
//! in the names of others.
//!
//! Hosts 2 and 3 are of network 0, host 4 is known and of other networks. Each forgery is
//! also sent as a packet of a flow that is there, which must not carry it past the checks.

use dataplane::DropReason::*;
use dataplane::overlay::{Holder, HostIdx, Overlay, Trust};
use dataplane::{AddressPair, GroupIdx, PortUid};
use wire::nd::ALL_NODES;
use wire::vxlan::Ends;
use wire::{Mac, build};

use crate::contract::errors::error;
use crate::lab::*;
use crate::wire_lab::*;

/// A NIC that anybody may send to, and a machine on each of the network's other hosts.
fn three_hosts() -> (Host, Nic, Far, Far) {
    let mut host = Host::new();
    host.lab.hosts.push(host_ip(4));
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_all_in(None)]);
    let (b, c) = (host.far(20, 2), host.far(30, 3));
    (host, a, b, c)
}

/// A frame from `far`'s MAC with another source address.
fn from_address(far: Far, source: Nic, to: Nic, family: Family) -> Vec<u8> {
    build::frame(far.nic.mac, to.mac)
        .ip(source.ip(family), to.ip(family))
        .udp(2, 1)
        .payload(b"hello")
        .build()
}

#[test]
fn a_host_of_another_network_does_not_speak_in_this_one() {
    for family in FAMILIES {
        let (mut host, a, b, _) = three_hosts();
        let frame = udp(b.nic, a, family, 2, 1);
        host.enters(b.at, a, frame.clone());
        // The very packet of that flow, and a machine of its own.
        host.refuses(inbound(host_ip(4), &frame), HostNotInVni);
        let own = udp(machine(40, host_ip(4)).nic, a, family, 2, 1);
        host.refuses(inbound(host_ip(4), &own), HostNotInVni);
        host.refuses(inbound(host_ip(9), &own), UnknownHost);
        // Among good ones in a batch, too.
        let before = host.lab.drops();
        for at in [b.at, host_ip(4), b.at] {
            assert!(host.wire.send(inbound(at, &frame), Default::default()));
        }
        host.lab.sim.run();
        assert_eq!(difference(&before, &host.lab.drops()), [(HostNotInVni, 1)]);
        assert_eq!(host.lab.received(a), [frame.clone(), frame.clone()]);
        // It takes part from now on, and then no more: what was learnt of it is not relied on
        // either.
        let all = [HostIdx(0), HostIdx(1), HostIdx(2)];
        host.configure(|overlay| (overlay.members, overlay.learn) = (all.into(), true));
        host.enters(host_ip(4), a, own.clone());
        let there = udp(a, machine(40, host_ip(4)).nic, family, 1, 2);
        host.leaves(a, host_ip(4), there.clone());
        host.configure(|overlay| overlay.members = all[..2].into());
        host.refuses(inbound(host_ip(4), &own), HostNotInVni);
        host.lab.refuses(a, there, NoDestination);
        // Anybody may, where that was asked for.
        host.configure(|overlay| overlay.any_host = true);
        host.enters(host_ip(4), a, own);
    }
}

#[test]
fn a_source_address_of_another_host_s_machine_is_not_taken() {
    for family in FAMILIES {
        // Tracked, and between NICs that allow everything.
        for open in [false, true] {
            let (mut host, a, b, c) = three_hosts();
            if !open {
                host.lab
                    .set_rules(GroupIdx(0), vec![allow_all_in(Some(UDP))]);
            }
            let honest = udp(b.nic, a, family, 2, 1);
            for _ in 0..2 {
                host.enters(b.at, a, honest.clone());
                host.enters(c.at, a, udp(c.nic, a, family, 2, 1));
                // In `b`'s flow, but from `c`'s MAC and host.
                let forged = from_address(c, b.nic, a, family);
                host.refuses(inbound(c.at, &forged), RemoteIpSpoofed);
                host.refuses(inbound(c.at, &honest), RemoteSpoofed);
            }
            assert_eq!(host.lab.flows(), if open { 0 } else { 2 });
            // An address that is bound to nobody is its host's matter.
            let other = machine(99, c.at).nic;
            host.enters(c.at, a, from_address(c, other, a, family));
            // One that is `b`'s from now on.
            host.configure(|overlay| {
                overlay
                    .neighbours
                    .insert(other.ip(family), b.nic.mac.into());
            });
            let forged = from_address(c, other, a, family);
            host.refuses(inbound(c.at, &forged), RemoteIpSpoofed);
            // One that machines on both hosts pass on to each other.
            let both = Holder::Several([b.nic.mac, c.nic.mac].into());
            host.configure(|overlay| drop(overlay.neighbours.insert(other.ip(family), both)));
            host.enters(c.at, a, forged);
            host.enters(b.at, a, from_address(b, other, a, family));
        }
    }
}

#[test]
fn an_address_of_another_host_s_machine_is_not_claimed() {
    for learning in [false, true] {
        let (mut host, a, b, c) = three_hosts();
        host.configure(|overlay| overlay.learn = learning);
        let stranger = machine(40, c.at).nic;
        let mac = if learning { stranger.mac } else { c.nic.mac };
        let nowhere = std::net::Ipv6Addr::UNSPECIFIED;
        for claim in [
            build::arp_reply(mac, b.nic.v4, a.mac, a.v4),
            build::arp_reply(mac, b.nic.v4, Mac::BROADCAST, b.nic.v4),
            build::arp_request(mac, b.nic.v4, a.v4),
            build::arp_request(mac, [0, 0, 0, 0].into(), b.nic.v4),
            build::neighbour_advertisement(mac, b.nic.v6, a.mac, a.v6),
            build::neighbour_advertisement(mac, b.nic.v6, wire::nd::ALL_NODES_MAC, ALL_NODES),
            build::neighbour_solicitation(mac, b.nic.v6, a.v6),
            build::neighbour_solicitation(mac, nowhere, b.nic.v6),
            build::neighbour_advertisement(mac, b.nic.mac.link_local(), a.mac, a.v6),
            build::neighbour_solicitation(mac, b.nic.mac.link_local(), a.v6),
        ] {
            host.refuses(inbound(c.at, &claim), RemoteIpSpoofed);
        }
        // Those of a machine of this host.
        for claim in [
            build::arp_request(mac, [0, 0, 0, 0].into(), a.v4),
            build::neighbour_solicitation(mac, nowhere, a.v6),
            build::neighbour_advertisement(mac, a.mac.link_local(), a.mac, a.v6),
            build::neighbour_solicitation(mac, nowhere, a.mac.link_local()),
        ] {
            host.refuses(inbound(c.at, &claim), RemoteSpoofed);
        }
        // Its own, and questions for anybody's.
        for honest in [
            build::arp_reply(c.nic.mac, c.nic.v4, a.mac, a.v4),
            build::arp_request(c.nic.mac, c.nic.v4, b.nic.v4),
            build::arp_request(c.nic.mac, [0, 0, 0, 0].into(), c.nic.v4),
            build::neighbour_advertisement(c.nic.mac, c.nic.v6, a.mac, a.v6),
            build::neighbour_advertisement(c.nic.mac, c.nic.mac.link_local(), a.mac, a.v6),
            build::neighbour_solicitation(c.nic.mac, c.nic.v6, b.nic.v6),
            build::neighbour_solicitation(c.nic.mac, nowhere, c.nic.v6),
        ] {
            host.enters(c.at, a, honest);
        }
        // One that is declared is its holder's, whatever MAC would give it.
        let declared = b.nic.mac.link_local();
        host.configure(|overlay| {
            overlay.neighbours.insert(declared.into(), c.nic.mac.into());
        });
        let moved = build::neighbour_advertisement(c.nic.mac, declared, a.mac, a.v6);
        host.enters(c.at, a, moved);
    }
}

#[test]
fn fragments_and_errors_do_not_carry_a_forged_source() {
    let (mut host, a, b, c) = three_hosts();
    let whole = build::frame(c.nic.mac, a.mac)
        .ip(b.nic.v4, a.v4)
        .udp(2, 1)
        .payload(&[7; 2000])
        .build();
    for piece in build::fragments(&whole, 1000, 5) {
        host.refuses(inbound(c.at, &piece), RemoteIpSpoofed);
    }
    host.enters(b.at, a, udp(b.nic, a, Family::V4, 2, 1));
    let quoted = udp(a, b.nic, Family::V4, 1, 2);
    let error = build::frame(c.nic.mac, a.mac)
        .ip(b.nic.v4, a.v4)
        .icmp(3, 1, 0)
        .payload(&quoted[14..42]);
    host.refuses(inbound(c.at, &error.build()), RemoteIpSpoofed);
}

#[test]
fn a_fragment_that_has_waited_is_still_of_the_host_that_sent_it() {
    for family in FAMILIES {
        let (mut host, a, b, c) = three_hosts();
        let whole = ip(b.nic, a, family).udp(2, 1).payload(&[7; 2000]).build();
        let [first, second] = <[_; 2]>::try_from(build::fragments(&whole, 1400, 5)).unwrap();
        host.arrive(inbound(b.at, &second));
        host.lab.silent();
        // A frame of another host is before the first one in its batch.
        let before = host.lab.drops();
        let other = build::arp_reply(c.nic.mac, c.nic.v4, a.mac, a.v4);
        for (at, frame) in [(c.at, &other), (b.at, &first)] {
            let frame = inbound(at, frame);
            assert!(host.wire.send(frame, Default::default()));
        }
        host.lab.sim.run();
        assert_eq!(difference(&before, &host.lab.drops()), []);
        let mut arrived = host.lab.received(a);
        let mut expected = vec![other, first, second];
        arrived.sort();
        expected.sort();
        assert_eq!(arrived, expected);
    }
}

#[test]
fn fragments_of_another_network_do_not_take_the_room_to_wait() {
    for family in FAMILIES {
        let (mut host, a, b, c) = three_hosts();
        host.lab.overlays[1] = host.lab.overlays[0].clone().map(|overlay| Overlay {
            uid: PortUid(51),
            ..overlay
        });
        let other = host.lab.nic_in(1);
        let part = |from: Far, to: Nic, id, which: usize| {
            let whole = ip(from.nic, to, family).udp(2, 1).payload(&[7; 4000]);
            build::fragments(&whole.build(), 1400, id)[which].clone()
        };
        let ends = Ends::new(c.at, HERE).unwrap();
        for id in 0..40 {
            host.arrive(arriving(ends, 1, &part(c, other, id, 1), 0));
        }
        let before = host.lab.drops();
        for id in 0..20 {
            host.arrive(inbound(b.at, &part(b, a, id, 1)));
            host.arrive(inbound(b.at, &part(b, a, id, 0)));
        }
        assert_eq!(difference(&before, &host.lab.drops()), []);
        assert_eq!(host.lab.received(a).len(), 40);
    }
}

#[test]
fn a_third_machine_elsewhere_reports_no_errors_about_the_flows_of_others() {
    for family in FAMILIES {
        let (mut host, a, b, c) = three_hosts();
        let here = host.lab.nic();
        host.lab.set_rules(GroupIdx(0), vec![allow_in(UDP, 53)]);
        host.lab
            .configure(here, |config| config.groups = vec![GroupIdx(0)]);
        let report = |from: Far, sent: &[u8]| {
            let about = error(from.nic, from.nic.ip(family), a, family, sent, 60);
            inbound(from.at, &about)
        };
        let sent = udp(a, b.nic, family, 1, 53);
        host.leaves(a, b.at, sent.clone());
        let inside = udp(a, here, family, 1, 53);
        host.lab.passes(a, here, inside.clone());
        host.refuses(report(c, &sent), NoIngressRule);
        host.refuses(report(c, &inside), NoIngressRule);
        // The machine itself may, and a router: on a host that is trusted with that, or towards an
        // address that is bound to nobody.
        host.enters(b.at, a, report(b, &sent)[50..].to_vec());
        host.configure(|overlay| overlay.routers = Trust::Only([c.at].into()));
        host.enters(c.at, a, report(c, &sent)[50..].to_vec());
        host.configure(|overlay| overlay.routers = Trust::Nobody);
        let beyond = Nic {
            mac: c.nic.mac,
            ..machine(99, c.at).nic
        };
        let routed = udp(a, beyond, family, 1, 53);
        host.leaves(a, c.at, routed.clone());
        host.enters(c.at, a, report(c, &routed)[50..].to_vec());
        // By a rule it may say what it likes, as ever.
        host.lab
            .set_rules(GroupIdx(0), vec![allow_all_in(Some(ICMP))]);
        host.enters(c.at, a, report(c, &sent)[50..].to_vec());
    }
}

/// An address that a NIC answers for as an allowed pair's is nobody's in particular: who has it now
/// is whom its packets go to.
#[test]
fn a_machine_elsewhere_reports_no_errors_about_a_pairs_address_that_is_here() {
    for family in FAMILIES {
        let (mut host, a, b, c) = three_hosts();
        let here = host.lab.nic();
        host.lab.set_rules(GroupIdx(0), vec![allow_in(UDP, 53)]);
        let shared = machine(99, b.at).nic;
        host.lab.configure(here, |config| {
            config.groups = vec![GroupIdx(0)];
            config.pairs = vec![AddressPair {
                net: shared.ip(family).into(),
                mac: None,
            }];
        });
        let report = |from: Far, sent: &[u8]| {
            let about = error(from.nic, from.nic.ip(family), a, family, sent, 60);
            inbound(from.at, &about)
        };
        let inside = udp(
            a,
            Nic {
                mac: here.mac,
                ..shared
            },
            family,
            1,
            53,
        );
        host.lab.passes(a, here, inside.clone());
        for far in [b, c] {
            host.refuses(report(far, &inside), NoIngressRule);
        }
        host.lab.passes(
            here,
            a,
            error(here, here.ip(family), a, family, &inside, 60),
        );
        // Now another host's machine has it, and says what becomes of what it is sent.
        let outside = udp(
            a,
            Nic {
                mac: b.nic.mac,
                ..shared
            },
            family,
            2,
            53,
        );
        host.leaves(a, b.at, outside.clone());
        host.enters(b.at, a, report(b, &outside)[50..].to_vec());
        host.refuses(report(b, &inside), NoIngressRule);
        // A router's pair is whole networks: what is behind it may be on any host.
        let all = match family {
            Family::V4 => "0.0.0.0/0",
            Family::V6 => "::/0",
        };
        host.lab.configure(here, |config| {
            config.pairs.push(AddressPair {
                net: all.parse().unwrap(),
                mac: None,
            });
        });
        let beyond = Nic {
            mac: here.mac,
            ..machine(98, b.at).nic
        };
        let routed = udp(a, beyond, family, 3, 53);
        host.lab.passes(a, here, routed.clone());
        host.enters(c.at, a, report(c, &routed)[50..].to_vec());
        host.refuses(report(c, &inside), NoIngressRule);
    }
}

#[test]
fn dhcp_servers_and_routers_are_those_of_trusted_hosts() {
    let (mut host, a, b, c) = three_hosts();
    // Not everything: what passes is tracked.
    let rules = vec![allow_all_in(Some(UDP)), allow_all_in(Some(ICMP))];
    host.lab.set_rules(GroupIdx(0), rules);
    let dhcp = |far: Far| {
        [
            build::dhcp_answer(far.nic.mac, far.nic.v4, a.mac, a.v4, 2, 77),
            build::dhcpv6_answer(far.nic.mac, a.mac, a.mac.link_local(), 2, 77),
            // Not from a server's port, but to a client's.
            ip(far.nic, a, Family::V4).udp(9, 68).build(),
            ip(far.nic, a, Family::V6).udp(9, 546).build(),
        ]
    };
    let routes = |far: Far| {
        [
            build::router_advertisement(far.nic.mac),
            ip(far.nic, a, Family::V4)
                .icmp(9, 0, 0)
                .payload(&[0; 8])
                .build(),
            ip(far.nic, a, Family::V4)
                .icmp(5, 1, 0)
                .payload(&[0; 28])
                .build(),
        ]
    };
    for far in [b, c] {
        for answer in dhcp(far) {
            host.refuses(inbound(far.at, &answer), RemoteDhcpServer);
        }
        for advertisement in routes(far) {
            host.refuses(inbound(far.at, &advertisement), RemoteRouter);
        }
    }
    host.configure(|overlay| {
        overlay.dhcp_servers = Trust::Only([b.at].into());
        overlay.routers = Trust::Only([c.at].into());
    });
    // Twice: the second is of a flow that is known, where there is one.
    for _ in 0..2 {
        for answer in dhcp(b) {
            host.enters(b.at, a, answer);
        }
        for advertisement in routes(c) {
            host.enters(c.at, a, advertisement);
        }
    }
    for answer in dhcp(c) {
        host.refuses(inbound(c.at, &answer), RemoteDhcpServer);
    }
    for advertisement in routes(b) {
        host.refuses(inbound(b.at, &advertisement), RemoteRouter);
    }
    // A router's address that is bound to nobody: its flow is not the other host's to go on with.
    let gateway = machine(99, b.at).nic;
    host.enters(b.at, a, {
        let frame = build::frame(b.nic.mac, a.mac).ip(gateway.v4, a.v4);
        frame.udp(9, 68).build()
    });
    let forged = build::frame(c.nic.mac, a.mac)
        .ip(gateway.v4, a.v4)
        .udp(9, 68);
    host.refuses(inbound(c.at, &forged.build()), RemoteDhcpServer);
    host.configure(|overlay| {
        (overlay.dhcp_servers, overlay.routers) = (Trust::Anybody, Trust::Anybody);
    });
    for answer in dhcp(c).into_iter().chain(routes(c)) {
        host.enters(c.at, a, answer);
    }
}
