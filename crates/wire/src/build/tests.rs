//! Golden frames, and checksums that verify.

use super::*;
use crate::checksum::{self, Sum, pseudo_v4};

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

#[test]
fn golden_udp_over_ipv4() {
    let frame = frame(A, B)
        .ip([192, 168, 0, 1], [192, 168, 0, 199])
        .dont_fragment()
        .udp(1, 2)
        .payload(&[0xab])
        .build();
    #[rustfmt::skip]
    assert_eq!(frame, [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
        0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0xb8, 0xb7, 192, 168, 0, 1, 192, 168, 0, 199,
        0, 1, 0, 2, 0, 9, 0xd2, 0xbf, 0xab,
    ]);
}

#[test]
fn golden_echo_over_ipv6() {
    let (a, b) = (A.link_local(), B.link_local());
    let frame = frame(A, B)
        .ip(a, b)
        .ttl(255)
        .tos(0x28)
        .echo_request(0x1234, 1)
        .payload(&[1, 2])
        .build();
    #[rustfmt::skip]
    assert_eq!(frame, [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd,
        0x62, 0x80, 0, 0, 0, 10, 58, 255,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2,
        128, 0, 0x71, 0x7f, 0x12, 0x34, 0, 1, 1, 2,
    ]);
}

#[test]
fn a_partial_checksum_is_completed_by_a_sum_from_its_start() {
    let ip = frame(A, B)
        .ip([10, 0, 0, 1], [10, 0, 0, 2])
        .payload(&[1, 2, 3, 4, 5]);
    for builder in [ip.clone().tcp(1, 2, TcpFlags::ACK), ip.udp(1, 2)] {
        let whole = builder.build();
        let (mut frame, offload) = builder.partial_checksum().build_with_offload();
        let partial = offload.checksum.unwrap();
        let (start, at) = (
            usize::from(partial.start),
            usize::from(partial.start + partial.offset),
        );
        let checksum = checksum::finish(checksum::sum(&frame[start..]));
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(frame, whole);
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    // The payload that brings the sum to 0xffff.
    let ip = frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
    let mut sum = Sum::from_partial(pseudo_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        17,
        10,
    ));
    sum.add(&[0, 1, 0, 2, 0, 10]);
    let frame = ip.payload(&(!sum.folded()).to_be_bytes()).build();
    assert_eq!(frame[40..42], [0xff, 0xff]);
}

#[test]
fn sctp_has_a_crc32c() {
    // The check value of the CRC catalogues, and a frame whose CRC is the one of its bytes with the
    // field cleared.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut frame = frame(A, B)
        .ip([10, 0, 0, 1], [10, 0, 0, 2])
        .sctp(5, 6, 7, 1)
        .payload(&[0; 16])
        .build();
    let crc: Vec<u8> = frame.splice(42..46, [0; 4]).collect();
    assert_eq!(crc, crc32c(&frame[34..]).to_le_bytes());
    assert_eq!(
        frame[34..50],
        [0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 20]
    );
}

#[test]
fn tags_padding_and_foreign_ethertypes() {
    let tagged = frame(A, B)
        .tag(0x2005)
        .ip([10, 0, 0, 1], [10, 0, 0, 2])
        .udp(1, 2)
        .pad_to(60)
        .build();
    assert_eq!(
        (tagged.len(), &tagged[12..18]),
        (60, &[0x81, 0, 0x20, 5, 8, 0][..])
    );
    let foreign = frame(A, B).ethertype(0x88cc).payload(&[7]).build();
    assert_eq!(foreign, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xcc, 7]);
}

#[test]
fn rarp_announcement_golden_bytes() {
    #[rustfmt::skip]
    let mut expected = vec![
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x80, 0x35,
        0, 1, 8, 0, 6, 4, 0, 3,
        2, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        2, 0, 0, 0, 0, 1, 0, 0, 0, 0,
    ];
    expected.resize(60, 0);
    assert_eq!(rarp_announcement(A), expected);
}

#[test]
fn neighbour_solicitation_golden_bytes() {
    let frame = neighbour_solicitation(A, A.link_local(), B.link_local());
    #[rustfmt::skip]
    assert_eq!(frame, [
        0x33, 0x33, 0xff, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd,
        0x60, 0, 0, 0, 0, 32, 58, 255,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1,
        0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2,
        135, 0, 0x7c, 0x97, 0, 0, 0, 0,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2,
        1, 1, 2, 0, 0, 0, 0, 1,
    ]);
}

#[test]
fn fragments_put_together_are_the_packet() {
    let payload: Vec<u8> = (0..500u16).map(|i| i as u8).collect();
    let v4 = frame(A, B)
        .ip([10, 0, 0, 1], [10, 0, 0, 2])
        .udp(1, 2)
        .payload(&payload)
        .build();
    let v6 = frame(A, B)
        .ip(A.link_local(), B.link_local())
        .udp(1, 2)
        .payload(&payload)
        .build();
    for (whole, headers, fragment_headers) in [(v4, 34, 34), (v6, 54, 62)] {
        let pieces = fragments(&whole, 100, 7);
        assert_eq!(pieces.len(), 6);
        let carried: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| piece[fragment_headers..].to_vec())
            .collect();
        assert_eq!(carried, whole[headers..]);
        for piece in &pieces[..5] {
            assert_eq!(piece.len(), fragment_headers + 96);
        }
    }
}
