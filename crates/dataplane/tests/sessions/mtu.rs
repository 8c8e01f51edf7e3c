//! A NIC's MTU binds frames of this host too: what is larger is dropped, and its sender told.

use dataplane::DropReason::*;
use wire::build;
use wire::offload::{Gso, Offload, PartialChecksum};

use crate::lab::*;

fn packet(a: Nic, b: Nic, family: Family, len: usize) -> Vec<u8> {
    let headers = ip(a, b, family).udp(1, 2).build().len() - 14;
    let builder = ip(a, b, family).udp(1, 2);
    builder.payload(&vec![7; len - headers]).build()
}

/// Of a flow that is known, of one that is not and between NICs that allow everything.
#[test]
fn a_packet_larger_than_its_receivers_mtu_goes_back_as_an_error() {
    for family in FAMILIES {
        for open in [false, true] {
            let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 2)]);
            if open {
                let all = lab.group(vec![allow_all_in(None)]);
                for nic in [a, b] {
                    lab.configure(nic, |config| config.groups.push(all));
                }
            }
            lab.configure(b, |config| config.mtu = 1400);
            for _ in 0..2 {
                let large = packet(a, b, family, 1401);
                let before = lab.drops();
                lab.send(a, large.clone());
                assert_eq!(difference(&before, &lab.drops()), [(MtuExceeded, 1)]);
                let error = build::frame(b.mac, a.mac).ip(b.ip(family), a.ip(family));
                let error = match family {
                    Family::V4 => error.icmp(3, 4, 1400),
                    Family::V6 => error.icmp(2, 0, 1400),
                };
                let error = error.payload(&large[14..256]).build();
                assert_eq!(lab.received(a), [error]);
                lab.silent();
                lab.passes(a, b, packet(a, b, family, 1400));
            }
            let drops = lab.sim.port(b.slot).drops(MtuExceeded);
            assert_eq!(drops, (0, 2), "it is the receiver's MTU");
            // The other way 1,500 bytes pass.
            lab.passes(b, a, {
                let headers = ip(b, a, family).udp(2, 1).build().len() - 14;
                let builder = ip(b, a, family).udp(2, 1);
                builder.payload(&vec![7; 1500 - headers]).build()
            });
        }
    }
}

/// A ping of a flow that is known takes the fast path, one that is too large does not.
#[test]
fn an_echo_larger_than_its_receivers_mtu_is_dropped_too() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let ping = |len: usize| {
            let headers = ip(a, b, family).echo_request(7, 1).build().len() - 14;
            let builder = ip(a, b, family).echo_request(7, 1);
            builder.payload(&vec![7; len - headers]).build()
        };
        lab.configure(b, |config| config.mtu = 1400);
        for _ in 0..2 {
            lab.passes(a, b, ping(1400));
            let before = lab.drops();
            lab.send(a, ping(1401));
            assert_eq!(difference(&before, &lab.drops()), [(MtuExceeded, 1)]);
            assert_eq!(lab.received(b).len(), 0);
            assert_eq!(lab.received(a).len(), 1, "the error");
        }
        assert_eq!(lab.flows(), 1);
    }
}

#[test]
fn what_is_to_be_cut_fits_by_its_segments() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    lab.peer(b).accept(io::port::Accepts::ALL);
    let frame = ip(a, b, Family::V4).udp(1, 2).payload(&[7; 9000]).build();
    let cut = |gso_size| Offload {
        gso: Gso::Udp,
        gso_size,
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 6,
        }),
        ..Offload::default()
    };
    for _ in 0..2 {
        lab.send_with(a, frame.clone(), cut(1472));
        assert_eq!(lab.received(b).len(), 1);
        let before = lab.drops();
        lab.send_with(a, frame.clone(), cut(1473));
        assert_eq!(difference(&before, &lab.drops()), [(MtuExceeded, 1)]);
        assert_eq!(lab.received(b).len(), 0);
        lab.received(a);
    }
}

/// ARP passes all rules: padded to 64 KiB it would be a way to keep a worker busy. Nobody is told
/// of what many would get.
#[test]
fn a_frame_that_is_no_ip_packet_is_measured_too() {
    let (mut lab, a, b) = Lab::pair(vec![]);
    let mut arp = build::arp_request(a.mac, a.v4, b.v4);
    lab.passes(a, b, arp.clone());
    arp.resize(60_000, 0);
    lab.refuses(a, arp, MtuExceeded);
}
