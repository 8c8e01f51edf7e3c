//! What a sender leaves undone is passed on to a receiver that takes it, and done on the way to one
//! that does not: checksums completed over the very bytes that arrive, large frames cut into
//! packets.

mod common;

use std::net::Ipv6Addr;

use butterfly_io::port::TransmitError;
use butterfly_io::vhost::features::*;
use common::*;
use testkit::ring_driver::{GuestOptions, Received, Shape};
use wire::build::{self, Builder};
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::parse::{self, L4, Net, TcpFlags};

fn v4() -> Builder {
    build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> Builder {
    build::frame(A, B).ip(
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    )
}

fn tcp(base: Builder) -> Builder {
    base.tcp(40000, 80, TcpFlags::ACK | TcpFlags::PSH)
        .seq(0xffff_f000)
        .ack(7)
}

/// Guests with room for large frames in small buffers.
fn pair(from: u64, to: u64) -> Pair {
    let options = |features| GuestOptions {
        features,
        memory_len: 8 << 20,
        ..GuestOptions::default()
    };
    Pair::new(options(from), options(to))
}

/// Sends what the builder says and gives what arrives.
fn cross(pair: &mut Pair, builder: &Builder, shape: &Shape) -> Vec<Received> {
    let (frame, offload) = builder.build_with_offload();
    assert!(pair.from.send(&frame, offload, shape));
    assert_eq!(pair.turn(), Turn::ok(1));
    assert_eq!(pair.from.reclaim(), 1);
    pair.to.receive()
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape::whole(),
        Shape::cut(&[12]),
        Shape::cut(&[12, 54, 101, 1001, 3]),
        Shape::cut(&[12, 66, 4095, 4095, 4095]).indirect(0),
    ]
}

every_ring! {
    fn nothing_is_computed_between_guests_that_negotiated_it() {
        let mut pair = pair(LINUX, LINUX);
        for base in [v4(), v6()] {
            for payload in [0, 1, 1448, 65_400] {
                let large = tcp(base.clone()).payload(&pattern(payload)).gso(1448);
                let small = base
                    .clone()
                    .udp(7, 9)
                    .payload(&pattern(payload.min(1400)))
                    .partial_checksum();
                let datagrams = base.clone().udp(7, 9).payload(&pattern(payload)).gso(1000);
                for builder in [large, small, datagrams] {
                    let (frame, offload) = builder.build_with_offload();
                    let got = cross(&mut pair, &builder, &Shape::cut(&[12, 100]));
                    assert_eq!(got.len(), 1);
                    assert!(
                        got[0].frame == frame && got[0].offload == offload,
                        "{offload:?} became {:?}",
                        got[0].offload
                    );
                }
            }
        }
    }
}

every_ring! {
    fn a_checksum_is_completed_for_a_guest_that_did_not_negotiate_it() {
        for to in [PLAIN, PLAIN & !MRG_RXBUF] {
            let mut pair = pair(LINUX, to);
            for shape in shapes() {
                for payload in [0, 1, 2, 17, 200, 201, 202, 203, 900, 1001, 1400] {
                    for base in [v4(), v6()] {
                        for whole in [tcp(base.clone()), base.udp(53, 53)] {
                            let whole = whole.payload(&pattern(payload));
                            // The builder computes the checksum itself when it is not told to leave
                            // it.
                            let expected = Received {
                                frame: whole.build(),
                                offload: Offload::default(),
                                chains: 1,
                            };
                            let got = cross(&mut pair, &whole.partial_checksum(), &shape);
                            assert_eq!(got, [expected], "{payload} bytes, {shape:?}");
                        }
                    }
                }
            }
        }
    }
}

every_ring! {
    fn a_completed_checksum_is_never_zero() {
        // The payload's last word makes the sum 0xffff, so that the checksum is 0 and has to be
        // written as 0xffff.
        let mut pair = pair(LINUX, PLAIN);
        let mut payload = pattern(600);
        payload[598..].fill(0);
        let frame = v4().udp(1, 2).payload(&payload).build();
        payload[598..].copy_from_slice(&frame[40..42]);
        let got = cross(
            &mut pair,
            &v4().udp(1, 2).payload(&payload).partial_checksum(),
            &Shape::whole(),
        );
        assert_eq!(got[0].frame[40..42], [0xff, 0xff]);
        assert_eq!(
            plain_sum(&[&pseudo(&got[0].frame)[..], &got[0].frame[34..]].concat()),
            0xffff
        );
    }
}

/// The pseudo-header of a frame without VLAN tag, options or extension headers.
fn pseudo(frame: &[u8]) -> Vec<u8> {
    if frame[12..14] == [0x08, 0x00] {
        let len = u16::from_be_bytes([frame[16], frame[17]]) - 20;
        [&frame[26..34], &[0, frame[23]], &len.to_be_bytes()].concat()
    } else {
        [
            &frame[22..54],
            &[0, 0],
            &frame[18..20],
            &[0, 0, 0, frame[20]],
        ]
        .concat()
    }
}

/// Checks a packet's own arithmetic, and gives its payload and TCP sequence number.
fn check(frame: &[u8], partial: bool) -> (Vec<u8>, Option<u32>) {
    let packet =
        parse::parse(&frame[..frame.len().min(256)], frame.len()).expect("a well-formed packet");
    let Net::Ip(ip) = packet.net else {
        panic!("not IP: {packet:?}")
    };
    let (l3, l4) = (usize::from(ip.l3), usize::from(ip.l4));
    assert_eq!(ip.end as usize, frame.len(), "the IP length is the frame's");
    if !ip.v6 {
        assert_eq!(plain_sum(&frame[l3..l4]), 0xffff, "IPv4 header checksum");
    }
    let pseudo = pseudo(frame);
    let (header_len, field, seq) = match ip.l4_info {
        L4::Tcp {
            header_len, seq, ..
        } => (usize::from(header_len), 16, Some(seq)),
        L4::Udp { .. } => (8, 6, None),
        other => panic!("not TCP or UDP: {other:?}"),
    };
    if partial {
        let at = l4 + field;
        assert_eq!(
            u16::from_be_bytes([frame[at], frame[at + 1]]),
            plain_sum(&pseudo),
            "pseudo-header's sum"
        );
    } else {
        assert_eq!(
            plain_sum(&[&pseudo[..], &frame[l4..]].concat()),
            0xffff,
            "checksum"
        );
    }
    (frame[l4 + header_len..].to_vec(), seq)
}

every_ring! {
    fn a_large_frame_is_cut_for_a_guest_that_did_not_negotiate_it() {
        let csum_only = PLAIN | GUEST_CSUM;
        for (to, partial) in [(PLAIN, false), (PLAIN & !MRG_RXBUF, false), (csum_only, true)] {
            let mut pair = pair(LINUX, to);
            for shape in shapes() {
                for (payload, size) in [
                    (1, 1448),
                    (1448, 1448),
                    (1449, 1448),
                    (20_000, 1000),
                    (65_400, 1448),
                    (9_001, 99),
                ] {
                    for builder in [tcp(v4()), tcp(v6()), v4().udp(7, 9), v6().udp(7, 9)] {
                        let builder = builder.payload(&pattern(payload)).gso(size);
                        let got = cross(&mut pair, &builder, &shape);
                        let context = format!("{payload} bytes in {size}, {shape:?}");
                        assert_eq!(got.len(), payload.div_ceil(usize::from(size)), "{context}");
                        let mut whole = Vec::new();
                        for segment in &got {
                            assert_eq!(segment.offload.gso, Gso::None);
                            assert_eq!(segment.offload.checksum.is_some(), partial);
                            let (bytes, seq) = check(&segment.frame, partial);
                            if let Some(seq) = seq {
                                assert_eq!(seq, 0xffff_f000u32.wrapping_add(whole.len() as u32),
                                    "{context}");
                            }
                            whole.extend(bytes);
                        }
                        assert!(whole == pattern(payload), "{context}");
                    }
                }
            }
        }
    }
}

every_ring! {
    fn segments_that_do_not_fit_are_lost_and_those_that_do_arrive() {
        let to = GuestOptions {
            features: PLAIN,
            receive_chains: 3,
            ..GuestOptions::default()
        };
        let mut pair = Pair::new(
            GuestOptions {
                features: LINUX,
                ..GuestOptions::default()
            },
            to,
        );
        let (frame, offload) = tcp(v4()).payload(&pattern(10_000)).gso(1000).build_with_offload();
        pair.from.send(&frame, offload, &Shape::whole());
        assert_eq!(pair.turn().sent, [Err(TransmitError::Full)]);
        let got = pair.to.receive();
        assert_eq!(got.len(), 3);
        assert!(
            got.iter()
                .enumerate()
                .all(|(i, s)| check(&s.frame, false).0 == pattern(10_000)[1000 * i..][..1000])
        );
        // And the ring goes on.
        pair.from.send(&pattern(60), Offload::default(), &Shape::whole());
        assert_eq!(pair.turn(), Turn::ok(1));
        assert_eq!(pair.one().frame, pattern(60));
    }
}

every_ring! {
    /// The kernel would cut what is behind the packet, too.
    fn what_is_to_be_cut_is_all_of_its_frame() {
        let builder = tcp(v4()).payload(&pattern(700)).gso(500);
        for (builder, sent) in [
            (builder.clone(), Ok(())),
            (builder.pad_to(1000), Err(TransmitError::BadOffload)),
        ] {
            let mut pair = pair(LINUX, PLAIN);
            let (frame, offload) = builder.build_with_offload();
            assert!(pair.from.send(&frame, offload, &Shape::cut(&[12, 800])));
            assert_eq!(pair.turn().sent, [sent]);
        }
    }
}

every_ring! {
    fn what_was_not_negotiated_or_lies_outside_the_frame_is_a_fault() {
        let checksum = |start, offset| Offload {
            checksum: Some(PartialChecksum { start, offset }),
            ..Offload::default()
        };
        let gso = |gso, gso_size| Offload {
            gso,
            gso_size,
            ..checksum(34, 16)
        };
        let ecn = Offload {
            ecn: true,
            ..gso(Gso::Tcp4, 100)
        };
        let no_checksum = Offload {
            checksum: None,
            ..gso(Gso::Tcp4, 100)
        };
        let bad = [
            (PLAIN, checksum(34, 16)),
            (PLAIN | CSUM, gso(Gso::Tcp4, 100)),
            (PLAIN | CSUM | HOST_TSO4, gso(Gso::Tcp6, 100)),
            (PLAIN | CSUM | HOST_TSO4, gso(Gso::Udp, 100)),
            (LINUX, ecn),
            (LINUX, no_checksum),
            (LINUX, checksum(13, 16)),
            (LINUX, checksum(99, 0)),
            (LINUX, checksum(34, 65)),
            (LINUX, checksum(65_535, 65_535)),
        ];
        for (features, offload) in bad {
            let mut pair = pair(features, LINUX);
            let frame = pattern(100);
            pair.from.send(&frame, offload, &Shape::whole());
            pair.from.send(&frame, Offload::default(), &Shape::whole());
            assert_eq!(
                pair.turn().sent,
                [Err(TransmitError::BadOffload), Ok(())],
                "{offload:?}"
            );
            assert_eq!(pair.one().frame, frame, "{offload:?}");
        }
        // Types that do not exist, and one that needs a size.
        for (kind, size) in [(2u8, 100u16), (3, 100), (0x7f, 100), (1, 0)] {
            let mut pair = pair(LINUX, LINUX);
            let mut bytes = wire::virtio_net::encode(&gso(Gso::Tcp4, size.max(1)), 54, 0).to_vec();
            bytes[1] = kind;
            bytes[4..6].copy_from_slice(&size.to_le_bytes());
            bytes.extend(pattern(100));
            pair.from.send_bytes(&bytes, &Shape::whole());
            assert_eq!(
                pair.turn().sent,
                [Err(TransmitError::BadOffload)],
                "type {kind}, size {size}"
            );
        }
        // The checksum of something behind the head can be passed on by nobody who judged it.
        let mut pair = pair(LINUX, LINUX);
        pair.from.send(&pattern(400), checksum(34, 222), &Shape::whole());
        pair.from.send(&pattern(400), checksum(34, 220), &Shape::whole());
        assert_eq!(pair.turn().sent, [Err(TransmitError::BadOffload), Ok(())]);
    }
}

every_ring! {
    fn a_guest_cannot_vouch_for_a_checksum() {
        let mut pair = pair(LINUX, LINUX);
        let valid = Offload {
            data_valid: true,
            ..Offload::default()
        };
        pair.from.send(&pattern(100), valid, &Shape::whole());
        assert_eq!(pair.turn(), Turn::ok(1));
        assert_eq!(pair.one().offload, Offload::default());
    }
}
