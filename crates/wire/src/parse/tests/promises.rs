//! What everybody behind the parser relies on, for frames cut and spoilt in any way.

use super::*;
use crate::offload::{Gso, Offload, PartialChecksum};
use crate::segment::{Checksum, Segments};
use proptest::prelude::*;
use std::net::IpAddr;

/// What everybody relies on after parsing.
fn check_promises(head: &[u8], frame_len: usize) {
    check_plain(head, frame_len);
    check_echo(head, frame_len);
    let Ok(packet) = parse(head, frame_len) else {
        return;
    };
    let Some(ip) = packet.ip() else { return };
    let (l3, l4, end) = (usize::from(ip.l3), usize::from(ip.l4), ip.end as usize);
    let header_len = match ip.l4_info {
        L4::Tcp {
            header_len,
            payload_len,
            ..
        } => {
            assert_eq!(l4 + usize::from(header_len) + payload_len as usize, end);
            usize::from(header_len)
        }
        L4::Udp { .. } => 8,
        L4::Sctp { .. } => 16,
        L4::Icmp { .. } => 4,
        L4::Other | L4::LaterFragment => 0,
    };
    assert!(l3 == ETHERNET_LEN && l3 + 20 <= l4 && l4 + header_len <= end && end <= frame_len);
    assert!(l4 + header_len <= head.len());
    assert_eq!(
        matches!(ip.l4_info, L4::LaterFragment),
        ip.fragment.is_some_and(|fragment| fragment.offset != 0)
    );
    let _ = crate::nd::parse(head, ip);
    let _ = quoted(ip.message(head), ip.v6);
    let offload = Offload {
        gso: Gso::Udp,
        gso_size: 7,
        ..Default::default()
    };
    if let Ok(segments) = Segments::new(head, frame_len, &offload) {
        segments.write(
            usize::MAX,
            Checksum::Partial,
            &mut vec![0; segments.header_len()],
        );
    }
}

/// The plain packet in a frame, of either family.
fn any_plain(head: &[u8], frame_len: usize) -> Option<Plain> {
    match ethertype_of(head) {
        ethertype::IPV4 => plain::<false>(head, frame_len),
        ethertype::IPV6 => plain::<true>(head, frame_len),
        _ => None,
    }
}

/// A plain packet is what the parser says it is.
fn check_plain(head: &[u8], frame_len: usize) {
    let Some(plain) = any_plain(head, frame_len) else {
        return;
    };
    let packet = parse(head, frame_len).expect("plain, so sound");
    let ip = packet.ip().expect("plain, so IP");
    assert_eq!(
        (mac_of(plain.dst), mac_of(plain.src)),
        (packet.dst, packet.src)
    );
    assert_eq!(
        (plain.dst, plain.src),
        (mac_bits(packet.dst), mac_bits(packet.src))
    );
    let ports = ip
        .l4_info
        .ports()
        .map(|(sport, dport)| u32::from(sport) << 16 | u32::from(dport));
    assert_eq!(
        (plain.ip, Some(plain.ports), ip.fragment),
        (words_of(ip), ports, None)
    );
    let tcp = plain
        .transport
        .tcp(head)
        .map(|tcp| (tcp.flags, tcp.seq, tcp.ack, tcp.window, tcp.payload_len));
    match ip.l4_info {
        L4::Tcp {
            flags,
            seq,
            ack,
            window,
            payload_len,
            ..
        } => assert_eq!(tcp, Some((flags, seq, ack, window, payload_len))),
        _ => assert_eq!((tcp, plain.transport.tcp), (None, false)),
    }
    for (start, offset, gso, gso_size) in [
        (34, 16, Gso::None, 0),
        (34, 6, Gso::None, 0),
        (54, 16, Gso::Tcp6, 1),
        (54, 6, Gso::Udp, 0),
        (34, 16, Gso::Tcp4, 1460),
        (35, 16, Gso::None, 0),
    ] {
        for checksum in [None, Some(PartialChecksum { start, offset })] {
            let offload = Offload {
                checksum,
                gso,
                gso_size,
                ..Offload::default()
            };
            if plain.suits(frame_len, &offload) {
                assert_eq!(
                    check_offload(&packet, frame_len, &offload),
                    Ok(()),
                    "{offload:?}"
                );
            }
        }
    }
}

/// An echo is what the parser says it is.
fn check_echo(head: &[u8], frame_len: usize) {
    let found = match ethertype_of(head) {
        ethertype::IPV4 => echo::<false>(head, frame_len),
        ethertype::IPV6 => echo::<true>(head, frame_len),
        _ => None,
    };
    let Some(found) = found else {
        return;
    };
    let packet = parse(head, frame_len).expect("an echo, so sound");
    let ip = packet.ip().expect("an echo, so IP");
    assert_eq!(
        (mac_of(found.dst), mac_of(found.src)),
        (packet.dst, packet.src)
    );
    let L4::Icmp { kind, code, id } = ip.l4_info else {
        panic!("{ip:?}");
    };
    assert!(matches!((ip.v6, kind), (false, 0 | 8) | (true, 128 | 129)));
    let [i0, i1, k, c] = found.ports.to_be_bytes();
    assert_eq!((u16::from_be_bytes([i0, i1]), k, c), (id, kind, code));
    assert_eq!((found.ip, ip.fragment), (words_of(ip), None));
    assert!(!found.transport.tcp);
}

/// The addresses as a plain packet has them.
fn words_of(ip: &IpPacket) -> [u64; 4] {
    match (ip.src(), ip.dst()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => [
            u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()),
            0,
            0,
            0,
        ],
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (src, dst) = (src.to_bits(), dst.to_bits());
            [
                (src >> 64) as u64,
                src as u64,
                (dst >> 64) as u64,
                dst as u64,
            ]
        }
        mixed => panic!("{mixed:?}"),
    }
}

#[test]
fn every_truncation_is_refused_and_every_shorter_view_is_refused_or_the_same() {
    for frame in valid_frames() {
        let whole = parse_all(&frame).unwrap();
        for len in 0..frame.len() {
            assert!(
                parse_all(&frame[..len]).is_err(),
                "{len} bytes of {frame:02x?}"
            );
            check_promises(&frame[..len], len);
            check_promises(&frame[..len], frame.len());
            match parse(&frame[..len], frame.len()) {
                Ok(packet) => assert_eq!(packet, whole),
                Err(error) => assert_eq!(error, ParseError::HeadersTooLong),
            }
        }
        let padded = [&frame[..], &[0xee; 20]].concat();
        assert_eq!(parse_all(&padded), Ok(whole));
        assert_eq!(parse(&padded, frame.len()), Ok(whole));
    }
}

proptest! {
    #[test]
    fn no_bytes_break_it(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), more in 0usize..100,
            kind in 0usize..4,
    ) {
        let mut bytes = bytes;
        // Mostly frames that get past the EtherType.
        let kinds: [&[u8]; 4] =
            [&[0x08, 0x00, 0x45], &[0x86, 0xdd, 0x60], &[0x08, 0x06, 0x00], &[]];
        if bytes.len() > 16 {
            bytes[12..12 + kinds[kind].len()].copy_from_slice(kinds[kind]);
        }
        check_promises(&bytes, bytes.len() + more);
        let _ = quoted(&bytes, kind % 2 == 1);
    }

    #[test]
    fn no_spoilt_frame_breaks_it(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = valid_frames();
        let mut frame = which.get(&frames).clone();
        for (at, value) in changes {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        check_promises(&frame, frame.len());
        check_promises(&frame[..cut.index(frame.len())], frame.len());
    }

    #[test]
    fn what_is_built_is_parsed(
        src in any::<[u8; 4]>(), dst in any::<[u8; 16]>(), v6 in any::<bool>(),
            sport in any::<u16>(), dport in any::<u16>(),
        (seq, ack, window, flags) in any::<(u32, u32, u16, u8)>(), len in 0usize..2000,
            (ttl, tos) in any::<(u8, u8)>(),
    ) {
        let (src, dst): (IpAddr, IpAddr) =
            if v6 { (A6.into(), dst.into()) } else { (src.into(), [dst[0], 1, 2, 3].into()) };
        let ip = build::frame(A, B).ip(src, dst).ttl(ttl).tos(tos).payload(&vec![0x5a; len]);
        let tcp = ip.clone().tcp(sport, dport, TcpFlags(flags)).seq(seq).ack(ack).window(window)
            .build();
        let parsed = ip_of(&tcp);
        let flags = TcpFlags(flags);
        let expected = L4::Tcp { sport, dport, flags, seq, ack, window, header_len: 20,
            payload_len: len as u32 };
        prop_assert_eq!((parsed.src(), parsed.dst(), parsed.ttl, parsed.tos, parsed.l4_info),
            (src, dst, ttl, tos, expected));
        prop_assert!(any_plain(&tcp, tcp.len()).is_some());
        let udp = ip.udp(sport, dport).build();
        prop_assert_eq!(ip_of(&udp).l4_info, L4::Udp { sport, dport });
        prop_assert!(any_plain(&udp, udp.len()).is_some());
    }
}
