//! security-groups.md 16: what is malformed is dropped, and nothing of it guessed.

use dataplane::DropReason::*;
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 16.
pub fn malformed_headers_are_dropped_with_a_reason(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    let good = udp(a, b, family, 1, 2);
    lab.refuses(a, good[..30].to_vec(), Truncated);
    if family == Family::V4 {
        for (at, byte) in [(14, 0x44), (14, 0x65), (16, 0xff), (17, 19)] {
            let mut bad = good.clone();
            bad[at] = byte;
            lab.refuses(a, bad, Malformed);
        }
        return;
    }
    let mut many = ip(a, b, family).udp(1, 2);
    for _ in 0..20 {
        many = many.extension(60, &[1, 4]);
    }
    lab.refuses(a, many.build(), HeadersTooLong);
    let long = ip(a, b, family).extension(60, &[0; 300]).udp(1, 2).build();
    lab.refuses(a, long, HeadersTooLong);
    let hops = build::frame(a.mac, b.mac)
        .ip(a.v6, b.v6)
        .ttl(64)
        .icmp(135, 0, 0)
        .payload(&b.v6.octets());
    lab.refuses(a, hops.build(), Malformed);
}

/// security-groups.md 16: what looks like the frames of a flow that goes on, but for one thing.
pub fn a_known_flow_carries_nothing_malformed(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(UDP, 53), allow_in(TCP, 80)]);
    let datagram = udp(a, b, family, 1, 53);
    lab.connect(a, b, family, 1, 80);
    let segment = ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001);
    let segment = segment.payload(b"hello").build();
    lab.keeps_passing(a, b, datagram.clone());
    lab.keeps_passing(a, b, segment.clone());
    let header = if family == Family::V4 { 20 } else { 40 };
    // The IP packet and the datagram longer than the frame; a TCP header that is too short, and
    // one that is longer than the packet.
    let (length, four) = (14 + if family == Family::V4 { 2 } else { 4 }, 14 + header);
    for (frame, at, byte) in [
        (&datagram, length, 0x7f),
        (&datagram, four + 4, 0x7f),
        (&segment, length, 0x7f),
        (&segment, four + 12, 0x40),
        (&segment, four + 12, 0xf0),
    ] {
        let mut bad = frame.clone();
        bad[at] = byte;
        lab.refuses(a, bad, Malformed);
    }
    for frame in [&datagram, &segment] {
        let mut bad = frame.clone();
        bad.truncate(four + 4);
        let reason = Malformed;
        lab.refuses(a, bad, reason);
        lab.passes(a, b, frame.clone());
    }
}
