//! Golden headers, and every segment's checksums against an independent sum.

use super::*;
use crate::build::{self, Builder};
use crate::{Mac, parse::Fragment};
use proptest::prelude::*;
use std::net::Ipv6Addr;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn v4() -> Builder {
    build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> Builder {
    let (a, b) = (
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    );
    build::frame(A, B).ip(a, b)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The header of a segment, written into a buffer in which forgotten bytes show.
fn header(segments: &Segments, index: usize, checksum: Checksum) -> Vec<u8> {
    let mut header = vec![0xa5; segments.header_len()];
    segments.write(index, checksum, &mut header);
    header
}

/// Cuts a frame and puts header and payload of each segment together.
fn cut(builder: &Builder, full: bool) -> Vec<Vec<u8>> {
    let (frame, offload) = builder.build_with_offload();
    let segments =
        Segments::new(&frame[..frame.len().min(HEADER_MAX)], frame.len(), &offload).unwrap();
    let mut out = Vec::new();
    for index in 0..segments.count() {
        let payload = &frame[segments.payload(index)];
        let payload_sum = crate::checksum::sum(payload);
        let checksum = if full {
            Checksum::Full { payload_sum }
        } else {
            Checksum::Partial
        };
        out.push([&header(&segments, index, checksum), payload].concat());
    }
    out
}

#[test]
fn tcp_over_ipv4_in_whole_frames() {
    let all = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR | TcpFlags::ECE;
    let timestamps = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    let large = |flags, seq| {
        v4().id(0xffff)
            .tos(2)
            .ttl(7)
            .dont_fragment()
            .tcp(40000, 80, flags)
            .seq(seq)
            .ack(9)
            .tcp_options(&timestamps)
    };
    let payload = bytes(2500);
    // Each segment is what a sender would have made of it: the builder is the independent other
    // half.
    let middle = TcpFlags::ACK | TcpFlags::ECE;
    let expected = [
        large(middle | TcpFlags::CWR, 0xffff_ff00)
            .id(0xffff)
            .payload(&payload[..1000])
            .build(),
        large(middle, 0xffff_ff00u32.wrapping_add(1000))
            .id(0)
            .payload(&payload[1000..2000])
            .build(),
        large(
            middle | TcpFlags::PSH | TcpFlags::FIN,
            0xffff_ff00u32.wrapping_add(2000),
        )
        .id(1)
        .payload(&payload[2000..])
        .build(),
    ];
    assert_eq!(
        cut(&large(all, 0xffff_ff00).payload(&payload).gso(1000), true),
        expected
    );
}

#[test]
fn golden_header_of_a_segment() {
    let large = v4()
        .id(5)
        .tcp(1, 2, TcpFlags::ACK)
        .seq(100)
        .payload(&[0; 30])
        .gso(20);
    let (frame, offload) = large.build_with_offload();
    let segments = Segments::new(&frame, frame.len(), &offload).unwrap();
    #[rustfmt::skip]
    assert_eq!(header(&segments, 1, Checksum::Partial), [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
        0x45, 0, 0, 50, 0, 6, 0, 0, 64, 6, 0x66, 0xbe, 10, 0, 0, 1, 10, 0, 0, 2,
        0, 1, 0, 2, 0, 0, 0, 120, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0x14, 0x27, 0, 0,
    ]);
    assert_eq!(
        segments.partial_checksum(),
        PartialChecksum {
            start: 34,
            offset: 16
        }
    );
    assert_eq!(
        (
            segments.payload(0),
            segments.payload(1),
            segments.payload(2)
        ),
        (54..74, 74..84, 84..84)
    );
}

#[test]
fn tcp_over_ipv6_keeps_extension_headers() {
    let large = v6()
        .extension(60, &[1, 4, 0, 0, 0, 0])
        .tcp(40000, 80, TcpFlags::ACK)
        .seq(7);
    let payload = bytes(300);
    let expected = [
        large.clone().payload(&payload[..200]).build(),
        large.clone().seq(207).payload(&payload[200..]).build(),
    ];
    assert_eq!(cut(&large.payload(&payload).gso(200), true), expected);
}

#[test]
fn udp_of_both_families() {
    let payload = bytes(250);
    for large in [v4().udp(5000, 443), v6().udp(5000, 443)] {
        let piece = |id, range: Range<usize>| large.clone().id(id).payload(&payload[range]).build();
        let expected = [piece(0, 0..100), piece(1, 100..200), piece(2, 200..250)];
        assert_eq!(
            cut(&large.clone().payload(&payload).gso(100), true),
            expected
        );
    }
}

#[test]
fn partial_checksums_are_the_pseudo_headers() {
    let payload = bytes(250);
    for large in [
        v4().tcp(1, 2, TcpFlags::ACK),
        v6().tcp(1, 2, TcpFlags::ACK),
        v4().udp(1, 2),
        v6().udp(1, 2),
    ] {
        let expected = large
            .clone()
            .payload(&payload[..100])
            .partial_checksum()
            .build();
        assert_eq!(cut(&large.payload(&payload).gso(100), false)[0], expected);
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    let (frame, offload) = v4().udp(1, 2).payload(&[0; 4]).gso(2).build_with_offload();
    let segments = Segments::new(&frame, frame.len(), &offload).unwrap();
    let empty = header(&segments, 0, Checksum::Full { payload_sum: 0 });
    // The payload that makes the checksum 0 is the checksum itself.
    let payload_sum = u32::from(u16::from_be_bytes([empty[40], empty[41]]));
    assert_eq!(
        header(&segments, 0, Checksum::Full { payload_sum })[40..42],
        [0xff, 0xff]
    );
}

#[test]
fn padding_is_left_behind_and_no_payload_is_one_segment() {
    let large = v4().tcp(1, 2, TcpFlags::ACK).payload(&[7]);
    assert_eq!(
        cut(&large.clone().gso(10).pad_to(60), true),
        [large.build()]
    );
    let empty = v4().tcp(1, 2, TcpFlags::ACK | TcpFlags::PSH);
    assert_eq!(cut(&empty.clone().gso(10), true), [empty.build()]);
}

#[test]
fn what_is_not_to_be_cut_is_refused() {
    let refused = |builder: Builder, change: fn(&mut Offload)| {
        let (frame, mut offload) = builder.build_with_offload();
        change(&mut offload);
        Segments::new(&frame, frame.len(), &offload).map(|segments| segments.count())
    };
    let large = v4().tcp(1, 2, TcpFlags::ACK).payload(&bytes(5000));
    assert_eq!(refused(large.clone().gso(1000), |_| {}), Ok(5));
    assert_eq!(refused(large.clone(), |_| {}), Err(ParseError::Offload));
    assert_eq!(
        refused(large.clone().gso(1000), |o| o.gso = Gso::Tcp6),
        Err(ParseError::Offload)
    );
    assert_eq!(
        refused(large.clone().gso(1000), |o| o.gso = Gso::Udp),
        Err(ParseError::Offload)
    );
    assert_eq!(
        refused(large.clone().gso(1000), |o| o.gso_size = 0),
        Err(ParseError::Offload)
    );
    // More segments than any path MTU makes of 64 KiB.
    assert_eq!(refused(large.gso(2), |_| {}), Err(ParseError::Offload));
}

#[test]
fn fragments_are_not_cut_again() {
    let (frame, offload) = v4()
        .tcp(1, 2, TcpFlags::ACK)
        .payload(&bytes(500))
        .gso(100)
        .build_with_offload();
    let first = &build::fragments(&frame, 400, 1)[0];
    let packet = parse::parse(first, first.len()).unwrap();
    assert_eq!(
        packet.ip().unwrap().fragment,
        Some(Fragment {
            id: 1,
            offset: 0,
            more: true
        })
    );
    assert_eq!(
        Segments::new(first, first.len(), &offload).map(|_| ()),
        Err(ParseError::Offload)
    );
}

/// The checksum of a whole packet, pseudo-header included, word by word.
fn naive_is_valid(frame: &[u8]) -> bool {
    let packet = parse::parse(frame, frame.len()).unwrap();
    let ip = packet.ip().unwrap();
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)))
            .sum()
    };
    let is_ones = |mut sum: u64| {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum == 0xffff
    };
    let l3 = usize::from(ip.l3);
    let addresses = if ip.v6 {
        l3 + 8..l3 + 40
    } else {
        l3 + 12..l3 + 20
    };
    let l4 = &frame[usize::from(ip.l4)..ip.end as usize];
    let pseudo = words(&frame[addresses]) + u64::from(ip.protocol) + l4.len() as u64;
    let ip_is_valid = ip.v6 || is_ones(words(&frame[l3..usize::from(ip.l4)]));
    ip_is_valid && is_ones(pseudo + words(l4))
}

proptest! {
    #[test]
    fn every_segment_verifies_and_the_payload_is_all_there(
        v6_packet in any::<bool>(), udp in any::<bool>(), len in 0usize..9000,
            size in 8u16..3000, seed in any::<u32>(),
    ) {
        let ip = if v6_packet { v6() } else { v4().id(seed as u16) };
        let l4 = match udp {
            true => ip.udp(seed as u16, 53),
            false => ip.tcp(seed as u16, 80, TcpFlags::ACK).seq(seed),
        };
        let payload = bytes(len);
        let segments = cut(&l4.payload(&payload).gso(size), true);
        let header_len = if v6_packet { 54 } else { 34 } + if udp { 8 } else { 20 };
        let mut carried = Vec::new();
        for segment in &segments {
            prop_assert!(naive_is_valid(segment));
            carried.extend_from_slice(&segment[header_len..]);
        }
        prop_assert_eq!(carried, payload);
    }
}
