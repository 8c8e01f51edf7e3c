//! security-groups.md 6: TCP amid a connection that nobody knows is answered by a reset, where the
//! rules of both sides would let it pass and no group says otherwise.

use dataplane::DropReason::*;
use dataplane::*;
use wire::build;
use wire::offload::{Offload, PartialChecksum};
use wire::parse::TcpFlags;

use crate::lab::*;
use crate::wire_lab::*;

/// No NIC.
const NOBODY: PortSlot = PortSlot(4000);

/// A segment from port 1 to port 80 that acknowledges all before 7000.
fn amid(from: Nic, to: Nic, family: Family, flags: TcpFlags) -> build::Builder {
    let segment = ip(from, to, family).tcp(1, 80, flags);
    segment.seq(5000).ack(7000)
}

/// What answers it.
fn reset(from: Nic, to: Nic, family: Family) -> Vec<u8> {
    let segment = ip(from, to, family).dont_fragment().tcp(80, 1, RST);
    segment.seq(7000).window(0).build()
}

/// A pair whose second NIC takes TCP to port 80, on the fast path or on the whole one.
fn pair(whole: bool) -> (Lab, Nic, Nic) {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
    if whole {
        lab.configure(a, |config| config.sniffers = vec![NOBODY]);
    }
    lab.settle();
    (lab, a, b)
}

/// security-groups.md 6.
#[test]
fn tcp_amid_an_unknown_connection_is_answered_by_a_reset() {
    for (family, whole) in FAMILIES.into_iter().zip([false, true]) {
        let (mut lab, a, b) = pair(whole);
        for flags in [ACK, FIN_ACK, ACK | TcpFlags::PSH, ACK | TcpFlags::URG] {
            let empty = amid(a, b, family, flags);
            lab.resets(a, empty.clone().build(), reset(b, a, family));
            lab.resets(a, empty.payload(b"data").build(), reset(b, a, family));
        }
        // With options, and longer than the head that is looked at.
        let long = amid(a, b, family, ACK)
            .tcp_options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
            .payload(&[7; 1301]);
        lab.resets(a, long.build(), reset(b, a, family));
        assert_eq!(lab.flows(), 0);
        // One that is forgotten.
        lab.connect(a, b, family, 1, 80);
        let flows = lab.sim.flows(None);
        assert_eq!(lab.sim.remove_flows(&flows), 1);
        lab.resets(a, amid(a, b, family, ACK).build(), reset(b, a, family));
    }
}

#[test]
fn what_the_rules_refuse_is_not_answered() {
    for (family, whole) in FAMILIES.into_iter().zip([false, true]) {
        let (mut lab, a, b) = pair(whole);
        let other_port = ip(a, b, family).tcp(1, 81, ACK).ack(7000).build();
        lab.refuses(a, other_port, NoIngressRule);
        lab.refuses(b, amid(b, a, family, ACK).build(), NoIngressRule);
        lab.group_of(a, vec![allow_out(UDP, 53)]);
        lab.refuses(a, amid(a, b, family, ACK).build(), NoEgressRule);
        lab.configure(a, |config| config.groups.clear());
        let spoofed = build::frame(a.mac, b.mac)
            .ip(lab.nic().ip(family), b.ip(family))
            .tcp(1, 80, ACK);
        lab.settle();
        lab.refuses(a, spoofed.build(), IpSpoofed);
    }
}

#[test]
fn a_syn_a_reset_or_a_broken_segment_is_not_answered() {
    for (family, whole) in FAMILIES.into_iter().zip([false, true]) {
        let (mut lab, a, b) = pair(whole);
        for flags in [SYN_ACK, RST, RST | ACK] {
            lab.refuses(a, amid(a, b, family, flags).build(), TcpNotSyn);
        }
        for flags in [TcpFlags(0), TcpFlags::FIN, SYN | TcpFlags::FIN] {
            lab.refuses(a, amid(a, b, family, flags).build(), TcpBadFlags);
        }
        let sent = amid(a, b, family, ACK).payload(b"some data").build();
        let mut spoilt = sent.clone();
        *spoilt.last_mut().unwrap() ^= 1;
        lab.refuses(a, spoilt, TcpNotSyn);
        // What is behind the packet is no part of it.
        let padded = [&sent[..], &[9; 5]].concat();
        lab.resets(a, padded, reset(b, a, family));
    }
}

#[test]
fn a_checksum_that_is_left_to_be_completed_is_not_asked_about() {
    for family in FAMILIES {
        let (mut lab, a, b) = pair(false);
        let start = if family == Family::V4 { 34 } else { 54 };
        let offload = Offload {
            checksum: Some(PartialChecksum { start, offset: 16 }),
            ..Offload::default()
        };
        let sent = amid(a, b, family, ACK).payload(b"data").partial_checksum();
        lab.send_with(a, sent.build(), offload);
        assert_eq!(lab.received(a), [reset(b, a, family)]);
        lab.silent();
    }
}

#[test]
fn fragments_are_not_answered() {
    let (mut lab, a, b) = pair(false);
    let whole = amid(a, b, Family::V4, ACK).payload(&[1; 200]).build();
    for part in build::fragments(&whole, 100, 7) {
        lab.send(a, part);
    }
    lab.silent();
    let dropped = lab.sim.port(a.slot).drops_from;
    assert_eq!(dropped[TcpNotSyn as usize], 1);
}

#[test]
fn what_is_for_many_is_not_answered() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        for nic in [b, c] {
            lab.configure(nic, |config| config.learn_macs = true);
            lab.group_of(nic, vec![allow_in(TCP, 80)]);
        }
        lab.settle();
        // To a machine that is not known yet, and so to both.
        let unknown = build::frame(a.mac, wire::Mac([2, 9, 9, 9, 9, 9]))
            .ip(a.ip(family), b.ip(family))
            .tcp(1, 80, ACK)
            .ack(7000);
        let all = build::frame(a.mac, wire::Mac::BROADCAST)
            .ip(a.ip(family), b.ip(family))
            .tcp(1, 80, ACK)
            .ack(7000);
        for frame in [unknown, all] {
            lab.send(a, frame.build());
            lab.silent();
        }
        let dropped = lab.sim.port(a.slot).drops_from;
        assert_eq!(dropped[TcpNotSyn as usize], 2);
    }
}

/// security-groups.md 6.
#[test]
fn a_group_says_whether_it_is_adopted_reset_or_dropped() {
    use UnknownTcp::{Adopt, Drop, Reset};
    // Those of the sender, by its egress rule or without one, and of two groups of the receiver.
    for (sender, receiver, expected) in [
        (Reset, [Reset, Reset], Reset),
        (Reset, [Reset, Drop], Drop),
        (Reset, [Drop, Reset], Drop),
        (Drop, [Reset, Reset], Drop),
        (Drop, [Drop, Adopt], Adopt),
        (Reset, [Adopt, Drop], Adopt),
        (Adopt, [Drop, Drop], Adopt),
    ] {
        for (family, whole, out) in [
            (Family::V4, true, allow_all_out(None)),
            (Family::V4, false, allow_in(UDP, 81)),
            (Family::V6, false, allow_all_out(None)),
            (Family::V6, true, allow_in(UDP, 81)),
        ] {
            let mut lab = Lab::new();
            let (a, b) = (lab.nic(), lab.nic());
            let says = |lab: &mut Lab, nic, rule, what| {
                let group = lab.group_of(nic, vec![rule]);
                lab.change_group(group, |group| group.unknown_tcp = what);
            };
            says(&mut lab, a, out, sender);
            for what in receiver {
                says(&mut lab, b, allow_in(TCP, 80), what);
            }
            // It allows nothing of this, and has no say.
            says(&mut lab, b, allow_in(UDP, 80), Adopt);
            if whole {
                lab.configure(a, |config| config.sniffers = vec![NOBODY]);
            }
            lab.settle();
            let sent = amid(a, b, family, ACK).build();
            match expected {
                Reset => lab.resets(a, sent, reset(b, a, family)),
                Drop => lab.refuses(a, sent, TcpNotSyn),
                Adopt => lab.passes(a, b, sent),
            }
        }
    }
}

#[test]
fn resets_are_limited_for_a_nic_and_for_a_worker() {
    let mut lab = Lab::new();
    let b = lab.nic();
    lab.group_of(b, vec![allow_in(TCP, 80)]);
    let senders: Vec<Nic> = (0..5).map(|_| lab.nic()).collect();
    lab.settle();
    let limit = usize::from(RESETS_OF_A_NIC);
    let mut told = Vec::new();
    for sender in &senders {
        let sent = amid(*sender, b, Family::V4, ACK).build();
        let mut count = 0;
        for _ in 0..limit + 10 {
            lab.send(*sender, sent.clone());
            count += lab.received(*sender).len();
        }
        told.push(count);
    }
    assert_eq!(told, [limit, limit, limit, limit, 0]);
    assert_eq!(told.iter().sum::<usize>(), usize::from(RESETS_A_SECOND));
    lab.wait(1);
    let last = senders[4];
    let sent = amid(last, b, Family::V4, ACK).build();
    lab.resets(last, sent, reset(b, last, Family::V4));
}

#[test]
fn nobody_is_reset_whose_connections_may_be_on_their_way() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        lab.group_of(b, vec![allow_in(TCP, 80)]);
        let sent = amid(a, b, family, ACK).build();
        lab.wait(u64::from(MOVE_SECS) - 1);
        lab.send(a, sent.clone());
        lab.silent();
        lab.wait(1);
        lab.resets(a, sent.clone(), reset(b, a, family));
        // Another change is none for them; another NIC with its address is.
        lab.nic();
        lab.resets(a, sent.clone(), reset(b, a, family));
        lab.replace(b);
        lab.send(a, sent.clone());
        lab.silent();
        lab.settle();
        lab.resets(a, sent, reset(b, a, family));
    }
}

#[test]
fn who_speaks_to_a_machine_that_has_just_left_is_not_reset() {
    for family in FAMILIES {
        let mut host = Host::new();
        let (a, b) = (host.lab.nic(), host.lab.nic());
        host.lab.group_of(a, vec![allow_all_out(None)]);
        host.lab.settle();
        host.lab.delete(b);
        host.configure(|overlay| {
            overlay.bindings.insert(b.mac, overlay::HostIdx(0));
        });
        let sent = amid(a, b, family, ACK).build();
        host.lab.refuses(a, sent.clone(), TcpNotSyn);
        assert_eq!(host.sent(), [[0u8; 0]; 0]);
        host.lab.settle();
        host.lab.resets(a, sent, reset(b, a, family));
        assert_eq!(host.sent(), [[0u8; 0]; 0]);
    }
}

/// security-groups.md 6.
#[test]
fn a_machine_on_another_host_gets_its_reset_from_there_where_it_speaks_to() {
    for (family, whole) in FAMILIES.into_iter().zip([false, true]) {
        let mut host = Host::new();
        let a = host.lab.nic();
        host.lab.group_of(a, vec![allow_in(TCP, 80)]);
        if whole {
            host.lab
                .configure(a, |config| config.sniffers = vec![NOBODY]);
        }
        let b = host.far(20, 3);
        host.lab.settle();
        let before = host.lab.sim.port(PortSlot::uplink(0));
        let sent = amid(b.nic, a, family, ACK).payload(b"data").build();
        let answer = outbound(b.at, &reset(a, b.nic, family));
        for _ in 0..2 {
            host.arrive(inbound(b.at, &sent));
            assert_eq!(host.sent(), std::slice::from_ref(&answer));
            host.lab.silent();
        }
        let after = host.lab.sim.port(PortSlot::uplink(0));
        let bytes = 2 * answer.len() as u64;
        assert_eq!(
            (
                after.tx_frames - before.tx_frames,
                after.tx_bytes - before.tx_bytes
            ),
            (2, bytes)
        );
        let not_syn = TcpNotSyn as usize;
        assert_eq!(after.drops_from[not_syn] - before.drops_from[not_syn], 2);
        // Nobody knows the way back, and nobody is asked for it.
        host.set_paths(Vec::new());
        host.arrive(inbound(b.at, &sent));
        assert_eq!(host.sent(), [[0u8; 0]; 0]);
    }
}

#[test]
fn what_is_for_all_other_hosts_is_not_answered() {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_all_out(None)]);
    host.learn();
    host.lab.settle();
    let nobody = machine(77, HERE).nic;
    let sent = amid(a, nobody, Family::V4, ACK).build();
    host.lab.refuses(a, sent, TcpNotSyn);
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
}

#[test]
fn resets_come_in_the_order_of_what_they_answer() {
    let (mut lab, a, b) = pair(false);
    let segment = |port: u16| {
        let segment = ip(a, b, Family::V4).tcp(port, 80, ACK).ack(port.into());
        // The second is one for the whole path.
        match port {
            2 => segment.ip_options(&[1, 1, 1, 0]).build(),
            _ => segment.build(),
        }
    };
    for port in 1..=4 {
        lab.queue(a, segment(port), Offload::default());
    }
    lab.sim.run();
    let expected = (1..=4u16).map(|port| {
        let segment = ip(b, a, Family::V4).dont_fragment().tcp(80, port, RST);
        segment.seq(port.into()).window(0).build()
    });
    assert_eq!(lab.received(a), expected.collect::<Vec<_>>());
}
