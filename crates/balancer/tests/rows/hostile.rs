//! What is not ours is left alone to the last byte, and what is broken is never misread.

use butterfly_balancer::{Protocol, Reason};
use wire::parse::TcpFlags;
use wire::{Mac, build};
use xdp::Verdict;

use super::stage::*;

trials! {
    what_is_not_ours_is_the_kernels,
    frames_cut_anywhere,
    frames_with_one_bit_wrong,
    headers_that_contradict_themselves_are_the_kernels,
    headers_that_are_far_behind_are_the_kernels,
}

const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn what_is_not_ours_is_the_kernels() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 2)),
    );
    let broadcast = Mac([0xff; 6]);
    for v6 in [false, true] {
        let other = if v6 {
            ip("2001:db8::81")
        } else {
            ip("192.0.2.81")
        };
        let rows = [
            (
                "another address",
                build::frame(ROUTER, OURS)
                    .ip(client(v6, 1), other)
                    .tcp(1, PORT, TcpFlags::SYN)
                    .build(),
            ),
            (
                "somebody else's MAC",
                build::frame(ROUTER, STRANGER)
                    .ip(client(v6, 1), vip(v6))
                    .tcp(1, PORT, TcpFlags::SYN)
                    .build(),
            ),
            (
                "to all",
                build::frame(ROUTER, broadcast)
                    .ip(client(v6, 1), vip(v6))
                    .tcp(1, PORT, TcpFlags::SYN)
                    .build(),
            ),
            (
                "another port",
                arrives(v6, 1).tcp(1, 80, TcpFlags::SYN).build(),
            ),
            ("another protocol", arrives(v6, 1).udp(1, PORT).build()),
            (
                "a protocol without ports",
                arrives(v6, 1).protocol(89).payload(&[0; 40]).build(),
            ),
            (
                "an encrypted packet",
                arrives(v6, 1).protocol(50).payload(&[0; 40]).build(),
            ),
            (
                "three tags",
                build::frame(ROUTER, OURS)
                    .tag(1)
                    .tag(2)
                    .tag(3)
                    .ip(client(v6, 1), vip(v6))
                    .tcp(1, PORT, TcpFlags::SYN)
                    .build(),
            ),
            ("an echo reply", arrives(v6, 1).echo_reply(1, 1).build()),
            (
                "a redirect",
                arrives(v6, 1)
                    .icmp(if v6 { 137 } else { 5 }, 0, 0)
                    .payload(&[0x45; 64])
                    .build(),
            ),
            (
                "not IP",
                build::frame(ROUTER, OURS)
                    .ethertype(0x88cc)
                    .payload(&[0; 64])
                    .build(),
            ),
        ];
        for (what, frame) in rows {
            passes(&balancer, &frame, &format!("{what}, IPv6 {v6}"));
        }
    }
    let arp = build::arp_request(ROUTER, [192, 0, 2, 1].into(), [192, 0, 2, 80].into());
    passes(&balancer, &arp, "ARP for a VIP: the kernel's to answer");
    let mut elsewhere = stage();
    elsewhere.forget_interface(IN).expect("it is known");
    apply(
        &mut elsewhere,
        [service(key(false, Protocol::Tcp, PORT), 2)],
    );
    passes(
        &elsewhere,
        &tcp(false, 1, 1, TcpFlags::SYN),
        "an interface that is not ours",
    );
}

/// Any number of bytes of a good frame: either all headers are there and it goes on, or it is left
/// alone. Never anything between.
fn frames_cut_anywhere() {
    let mut balancer = stage();
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let all = [false, true]
        .into_iter()
        .flat_map(|v6| protocols.map(|protocol| service(key(v6, protocol, PORT), 2)));
    apply(&mut balancer, all);
    let mut rows = 0;
    for v6 in [false, true] {
        let tagged = build::frame(ROUTER, OURS)
            .tag(5)
            .tag(6)
            .ip(client(v6, 1), vip(v6));
        let frames = [
            arrives(v6, 1).tcp(1, PORT, TcpFlags::SYN).build(),
            arrives(v6, 1).sctp(1, PORT, 0, 1).build(),
            tagged.clone().udp(1, PORT).build(),
            tagged
                .ip_options(&[1; 40])
                .extension(0, &[1, 4])
                .extension(60, &[1, 4])
                .udp(1, PORT)
                .build(),
            arrives(v6, 1).echo_request(1, 1).build(),
        ];
        for frame in frames {
            for length in shortest(&frame)..frame.len() {
                passes(
                    &balancer,
                    &frame[..length],
                    &format!("{length} bytes of {}", hex(&frame)),
                );
                rows += 1;
            }
            // Padding and lies: behind what IP says nothing counts.
            let out = run(&balancer, &[&frame[..], &[0xee; 30]].concat());
            assert_eq!(out.verdict, Verdict::Transmit);
            assert_eq!(out.frame[out.frame.len() - 30..], [0xee; 30]);
        }
    }
    assert!(rows > 300, "{rows}");
}

/// Every bit of the headers wrong, one at a time: nothing is sent that is not the frame itself with
/// its new front, nothing stumbles.
fn frames_with_one_bit_wrong() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 2)),
    );
    for v6 in [false, true] {
        let good = arrives(v6, 1)
            .tcp(1, PORT, TcpFlags::ACK)
            .payload(&[9; 64])
            .build();
        for bit in 0..(good.len() - 64) * 8 {
            let mut frame = good.clone();
            frame[bit / 8] ^= 0x80 >> (bit % 8);
            let out = run(&balancer, &frame);
            let ttl = frame[if v6 { 21 } else { 22 }];
            match out.verdict {
                Verdict::Transmit if ttl <= 1 => {
                    assert_eq!(out.frame[..6], ROUTER.0, "bit {bit}: its sender is told")
                }
                Verdict::Pass => assert_eq!(hex(&out.frame), hex(&frame), "bit {bit}"),
                Verdict::Drop => {}
                // Forwarded: all but Ethernet, TTL and checksum is as it came.
                Verdict::Transmit if out.frame.len() == frame.len() => {
                    let (kept, sent) = (&frame[14..], &out.frame[14..]);
                    let changed = (0..kept.len()).filter(|at| kept[*at] != sent[*at]);
                    let may = |at: &usize| {
                        if v6 {
                            *at == 7
                        } else {
                            matches!(*at, 8 | 10 | 11)
                        }
                    };
                    assert_eq!(changed.filter(|at| !may(at)).count(), 0, "bit {bit}");
                }
                verdict => panic!("bit {bit}: {verdict:?}\n{}", hex(&out.frame)),
            }
        }
    }
}

fn headers_that_contradict_themselves_are_the_kernels() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Udp, PORT), 2)),
    );
    let v4 = udp(false, 1, 1);
    let v6 = udp(true, 1, 1);
    let changed = |frame: &[u8], at: usize, to: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + to.len()].copy_from_slice(to);
        frame
    };
    let long = build::frame(ROUTER, OURS).ip(client(true, 1), vip(true));
    let rows = [
        ("version 5", changed(&v4, 14, &[0x55])),
        ("a header of 16 bytes", changed(&v4, 14, &[0x44])),
        ("a header longer than the packet", changed(&v4, 14, &[0x4f])),
        ("a total length of 19", changed(&v4, 16, &[0, 19])),
        ("a total length without ports", changed(&v4, 16, &[0, 24])),
        (
            "a total length beyond the frame",
            changed(&v4, 16, &[0xff, 0xff]),
        ),
        ("IPv4 that says version 6", changed(&v4, 14, &[0x65])),
        ("IPv6 that says version 4", changed(&v6, 14, &[0x45])),
        (
            "a payload length beyond the frame",
            changed(&v6, 18, &[0xff, 0xff]),
        ),
        ("a payload length without ports", changed(&v6, 18, &[0, 4])),
        ("a jumbogram", changed(&v6, 18, &[0, 0])),
        (
            "an extension header beyond the packet",
            long.clone().extension(0, &[1; 6]).udp(1, PORT).build(),
        ),
        (
            "more extension headers than anybody sends",
            (0..7)
                .fold(long.clone(), |b, _| b.extension(60, &[1, 4]))
                .udp(1, PORT)
                .build(),
        ),
        (
            "headers of a kilobyte",
            long.extension(60, &[0; 1200]).udp(1, PORT).build(),
        ),
    ];
    for (at, (what, frame)) in rows.into_iter().enumerate() {
        let frame = if what.contains("extension header beyond") {
            changed(&frame, 55, &[40])
        } else {
            frame
        };
        passes(&balancer, &frame, what);
        let counted = balancer
            .counters()
            .expect("maps can be read")
            .reason(Reason::NotUnderstood);
        assert_eq!(counted, at as u64 + 1, "{what}");
    }
}

/// Behind 960 bytes of headers nothing is read, not even in part.
fn headers_that_are_far_behind_are_the_kernels() {
    let mut balancer = stage();
    let protocols = [Protocol::Tcp, Protocol::Sctp];
    apply(
        &mut balancer,
        protocols.map(|protocol| service(key(true, protocol, PORT), 2)),
    );
    let quoted = build::frame(OURS, ROUTER)
        .ip(vip(true), client(true, 1))
        .tcp(PORT, 1, TcpFlags::ACK)
        .build();
    for options in (800..1100).step_by(8) {
        // Its body is behind its first two bytes.
        let start = arrives(true, 1).extension(60, &vec![0; options - 2]);
        let frames = [
            start.clone().tcp(1, PORT, TcpFlags::SYN).build(),
            start.clone().sctp(1, PORT, 0, 1).build(),
            start.icmp(1, 4, 0).payload(&quoted[14..]).build(),
        ];
        let l4 = 14 + 40 + options;
        for frame in frames {
            match l4 {
                ..=960 => assert!(goes_to(&balancer, &frame).is_some(), "{l4}"),
                _ => passes(&balancer, &frame, &format!("{l4}")),
            }
        }
    }
}
