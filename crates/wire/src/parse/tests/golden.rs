//! Whole packets, written out.

use super::*;
use std::net::IpAddr;

#[test]
fn golden_tcp_over_ipv4() {
    #[rustfmt::skip]
    let frame = [
        0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00,
        0x45, 0x10, 0x00, 0x2e, 0x12, 0x34, 0x40, 0x00, 0x40, 0x06, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        0x9c, 0x40, 0x00, 0x50, 1, 2, 3, 4, 5, 6, 7, 8, 0x60, 0x18, 0x20, 0x00, 0, 0, 0, 0,
        1, 1, 1, 0, 0xd1, 0xd2,
        0xee, 0xee, // Ethernet padding
    ];
    let l4_info = L4::Tcp {
        sport: 40000,
        dport: 80,
        flags: TcpFlags::PSH | TcpFlags::ACK,
        seq: 0x0102_0304,
        ack: 0x0506_0708,
        window: 0x2000,
        header_len: 24,
        payload_len: 2,
    };
    let ip = IpPacket {
        src: 0xffff_0a00_0001,
        dst: 0xffff_0a00_0002,
        end: 60,
        l3: 14,
        l4: 34,
        protocol: 6,
        ttl: 64,
        tos: 0x10,
        v6: false,
        fragment: None,
        l4_info,
    };
    let packet = Packet {
        dst: B,
        src: A,
        ethertype: 0x0800,
        net: Net::Ip(ip),
    };
    assert_eq!(parse_all(&frame), Ok(packet));
    assert_eq!(
        (ip.src(), ip.dst()),
        (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]))
    );
}

#[test]
fn golden_udp_over_ipv6_behind_a_fragment_header() {
    #[rustfmt::skip]
    let mut frame = vec![
        0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x86, 0xdd,
        0x6b, 0x80, 0, 0, 0, 24, 44, 63,
        0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 2,
        17, 0, 0, 1, 0xca, 0xfe, 0xba, 0xbe,
        0x13, 0x88, 0, 53, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    let ip = IpPacket {
        src: A6.to_bits(),
        dst: B6.to_bits(),
        end: 78,
        l3: 14,
        l4: 62,
        protocol: 17,
        ttl: 63,
        tos: 0xb8,
        v6: true,
        fragment: Some(Fragment {
            id: 0xcafe_babe,
            offset: 0,
            more: true,
        }),
        l4_info: L4::Udp {
            sport: 5000,
            dport: 53,
        },
    };
    assert_eq!(ip_of(&frame), ip);

    frame[57] = 0x11; // offset 16, more follow
    let fragment = Some(Fragment {
        id: 0xcafe_babe,
        offset: 16,
        more: true,
    });
    assert_eq!(
        ip_of(&frame),
        IpPacket {
            fragment,
            l4_info: L4::LaterFragment,
            ..ip
        }
    );

    frame[57] = 0; // atomic: a whole packet
    frame[67] = 16;
    frame[66] = 0;
    assert_eq!(
        ip_of(&frame),
        IpPacket {
            fragment: None,
            ..ip
        }
    );
}

#[test]
fn golden_arp() {
    #[rustfmt::skip]
    let frame = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x06,
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];
    assert_eq!(
        build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        frame
    );
    let arp = ArpPacket {
        op: 1,
        sender_mac: A,
        sender_ip: [10, 0, 0, 1].into(),
        target_mac: Mac::default(),
        target_ip: [10, 0, 0, 2].into(),
    };
    let packet = Packet {
        dst: Mac::BROADCAST,
        src: A,
        ethertype: 0x0806,
        net: Net::Arp(arp),
    };
    assert_eq!(parse_all(&frame), Ok(packet));
}

#[test]
fn what_layer_4_says() {
    let l4 = |builder: Builder| ip_of(&builder.build()).l4_info;
    let sctp = L4::Sctp {
        sport: 1,
        dport: 2,
        verification_tag: 3,
        first_chunk: 14,
    };
    assert_eq!(l4(v4().sctp(1, 2, 3, 14)), sctp);
    assert_eq!(l4(v6().sctp(1, 2, 3, 14)), sctp);
    assert_eq!(
        l4(v4().echo_request(7, 1)),
        L4::Icmp {
            kind: 8,
            code: 0,
            id: 7
        }
    );
    assert_eq!(
        l4(v6().echo_reply(7, 1)),
        L4::Icmp {
            kind: 129,
            code: 0,
            id: 7
        }
    );
    assert_eq!(
        l4(v4().icmp(3, 4, 0x0007_05dc)),
        L4::Icmp {
            kind: 3,
            code: 4,
            id: 0
        }
    );
    for kind in [0, 8, 13, 18, 42, 43] {
        assert_eq!(
            l4(v4().icmp(kind, 0, 0x0007_0001)),
            L4::Icmp {
                kind,
                code: 0,
                id: 7
            }
        );
    }
    for kind in [128, 129, 160, 161] {
        assert_eq!(
            l4(v6().icmp(kind, 0, 0x0007_0001)),
            L4::Icmp {
                kind,
                code: 0,
                id: 7
            }
        );
    }
    // Multicast listener report, whose body has no identifier; ICMP of the other family.
    assert_eq!(
        l4(v6().icmp(143, 0, 0x0007_0001)),
        L4::Icmp {
            kind: 143,
            code: 0,
            id: 0
        }
    );
    assert_eq!(l4(v6().protocol(1).payload(&[8, 0, 0, 0])), L4::Other);
    assert_eq!(l4(v4().protocol(58).payload(&[128, 0, 0, 0])), L4::Other);
    // Nothing, ESP, IPv4 in IPv4: not looked into.
    for number in [protocol::NO_NEXT_HEADER, 50, 4] {
        assert_eq!(l4(v6().protocol(number).payload(&[0])), L4::Other);
        assert_eq!(l4(v4().protocol(number).payload(&[0])), L4::Other);
    }
    assert_eq!(l4(v6().protocol(protocol::NO_NEXT_HEADER)), L4::Other);
}

#[test]
fn icmp_errors_are_told_from_queries() {
    let is_error = |builder: Builder| ip_of(&builder.build()).is_icmp_error();
    for kind in [3, 4, 5, 11, 12] {
        assert!(is_error(v4().icmp(kind, 0, 0)), "type {kind}");
    }
    for kind in [1, 2, 3, 4, 127] {
        assert!(is_error(v6().icmp(kind, 0, 0)), "type {kind}");
    }
    assert!(!is_error(v4().echo_request(1, 1)) && !is_error(v6().echo_request(1, 1)));
    assert!(!is_error(v4().icmp(1, 0, 0)) && !is_error(v4().udp(1, 2)));
}

#[test]
fn frames_that_are_not_looked_into() {
    let inner = v4().udp(1, 2);
    for (frame, ethertype) in [
        (inner.clone().tag(5).build(), 0x8100),
        (build::frame(A, B).ethertype(0x88a8).build(), 0x88a8),
        (
            build::frame(A, B)
                .ethertype(60)
                .payload(&[0x42; 60])
                .build(),
            60,
        ),
        (build::frame(A, B).ethertype(0x88cc).build(), 0x88cc),
    ] {
        assert_eq!(
            parse_all(&frame),
            Ok(Packet {
                dst: B,
                src: A,
                ethertype,
                net: Net::Other
            })
        );
    }
}
