//! A frame for each error: a good one, and what spoils it.

use super::*;

/// Where the headers are in the frames below: IP, layer 4 of IPv4, layer 4 or the first extension
/// of IPv6.
const IP: usize = 14;
const L4_V4: usize = 34;
const L4_V6: usize = 54;

/// Writes `bytes` at `at` into the frame; it has to be refused with `error`.
#[track_caller]
fn refused(builder: &Builder, at: usize, bytes: &[u8], error: ParseError) {
    let mut frame = builder.build();
    assert!(parse_all(&frame).is_ok(), "the frame is good before");
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    assert_eq!(parse_all(&frame), Err(error), "{bytes:02x?} at {at}");
}

/// A packet of protocol `number` whose layer 4 is `bytes` has to be refused with `error`.
#[track_caller]
fn refused_body(ip: Builder, number: u8, bytes: &[u8], error: ParseError) {
    assert_eq!(
        parse_all(&ip.protocol(number).payload(bytes).build()),
        Err(error)
    );
}

fn tcp(ip: Builder) -> Builder {
    ip.tcp(1, 2, TcpFlags::ACK).payload(&[0; 8])
}

#[test]
fn ethernet_and_arp() {
    let frame = tcp(v4()).build();
    assert_eq!(parse_all(&frame[..13]), Err(ParseError::TruncatedEthernet));
    let arp = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(parse_all(&arp[..41]), Err(ParseError::Arp));
    for at in 0..6 {
        let mut frame = arp.clone();
        frame[IP + at] ^= 2;
        assert_eq!(parse_all(&frame), Err(ParseError::Arp));
    }
}

#[test]
fn ip_headers() {
    assert_eq!(
        parse_all(&tcp(v4()).build()[..33]),
        Err(ParseError::TruncatedIp)
    );
    assert_eq!(
        parse_all(&tcp(v6()).build()[..53]),
        Err(ParseError::TruncatedIp)
    );
    refused(&tcp(v4()), IP, &[0x65], ParseError::IpVersion);
    refused(&tcp(v6()), IP, &[0x45], ParseError::IpVersion);
    refused(&tcp(v4()), IP, &[0x44], ParseError::Ipv4HeaderLength);
    refused(&tcp(v4()), IP, &[0x4f], ParseError::Ipv4HeaderLength);
    for len in [49, 19, 0] {
        refused(&tcp(v4()), IP + 2, &[0, len], ParseError::IpLength);
    }
    for len in [29, 0] {
        refused(&tcp(v6()), IP + 4, &[0, len], ParseError::IpLength);
    }
}

#[test]
fn ipv4_options() {
    let options = v4().ip_options(&[7, 4, 4, 0]).udp(1, 2);
    for bytes in [[7, 5, 4, 0], [7, 1, 4, 0], [1, 7, 4, 0], [1, 1, 1, 7]] {
        refused(&options, IP + 20, &bytes, ParseError::Ipv4Options);
    }
    // What is behind the end of the list is nobody's.
    assert!(parse_all(&v4().ip_options(&[0, 7, 99, 0]).udp(1, 2).build()).is_ok());
}

#[test]
fn ipv6_extension_headers() {
    let hop_by_hop = v6()
        .extension(0, &[1, 4, 0, 0, 0, 0])
        .udp(1, 2)
        .payload(&[0; 8]);
    refused(&hop_by_hop, L4_V6 + 1, &[3], ParseError::Ipv6Extension); // longer than the packet
    // an option longer than the header
    refused(&hop_by_hop, L4_V6 + 3, &[5], ParseError::Ipv6Extension);
    refused(
        &hop_by_hop,
        L4_V6 + 2,
        &[0, 0, 0, 0, 0, 1],
        ParseError::Ipv6Extension,
    ); // one without a length
    refused(
        &hop_by_hop,
        L4_V6 + 2,
        &[0xc2, 4, 0, 1, 0, 0],
        ParseError::Ipv6Jumbogram,
    );
    refused(&hop_by_hop, IP + 4, &[0, 0], ParseError::Ipv6Jumbogram);
    let ah = v6().extension(51, &[0; 14]).udp(1, 2).payload(&[0; 8]);
    refused(&ah, L4_V6 + 1, &[3], ParseError::Ipv6Extension); // not a multiple of eight
    refused(&ah, L4_V6 + 1, &[0], ParseError::Ipv6Extension); // without its fixed part
    let second = v6()
        .extension(60, &[1, 4])
        .extension(0, &[1, 4])
        .udp(1, 2)
        .build();
    assert_eq!(parse_all(&second), Err(ParseError::Ipv6Extension));

    let chain = |count| {
        (0..count)
            .fold(v6(), |ip, _| ip.extension(60, &[1, 4, 0, 0, 0, 0]))
            .udp(1, 2)
            .build()
    };
    assert!(parse_all(&chain(EXTENSIONS_MAX)).is_ok());
    assert_eq!(
        parse_all(&chain(EXTENSIONS_MAX + 1)),
        Err(ParseError::Ipv6TooManyExtensions)
    );
    let long = v6().extension(60, &[0; 300]).udp(1, 2).build();
    assert!(parse_all(&long).is_ok());
    assert_eq!(
        parse(&long[..256], long.len()),
        Err(ParseError::HeadersTooLong)
    );
}

#[test]
fn layer_4_headers() {
    refused(&tcp(v4()), L4_V4 + 12, &[0x40], ParseError::TcpHeaderLength);
    refused(&tcp(v4()), L4_V4 + 12, &[0x80], ParseError::TcpHeaderLength);
    refused(&tcp(v6()), L4_V6 + 12, &[0xf0], ParseError::TcpHeaderLength);
    let options = v4().tcp(1, 2, TcpFlags::SYN).tcp_options(&[2, 4, 5, 180]);
    for bytes in [[2, 5, 5, 180], [2, 0, 5, 180], [2, 1, 5, 180], [1, 1, 1, 2]] {
        refused(&options, L4_V4 + 20, &bytes, ParseError::TcpOptions);
    }
    let udp = v4().udp(1, 2).payload(&[0; 8]);
    for len in [17, 7, 0] {
        refused(&udp, L4_V4 + 4, &[0, len], ParseError::UdpLength);
    }
    refused_body(v4(), 6, &[0; 19], ParseError::TruncatedL4);
    refused_body(v4(), 17, &[0; 7], ParseError::TruncatedL4);
    refused_body(v6(), 132, &[0; 15], ParseError::TruncatedL4);
    refused_body(v4(), 1, &[0; 7], ParseError::TruncatedL4);
    refused_body(v6(), 58, &[143, 0, 0], ParseError::TruncatedL4);
    refused_body(v6(), 58, &[128, 0, 0, 0, 0, 1, 0], ParseError::TruncatedL4);
    refused_body(v6(), 58, &[2, 0, 0, 0, 0, 0, 5], ParseError::TruncatedL4);
}

#[test]
fn ipv4_fragments() {
    let udp = v4().udp(1, 2).payload(&[0; 8]);
    // Total length, identification, flags and offset.
    refused(
        &tcp(v4()),
        IP + 2,
        &[0, 36, 0, 1, 0x20, 0],
        ParseError::TinyFragment,
    ); // 16 bytes of TCP
    refused(
        &tcp(v4()),
        IP + 2,
        &[0, 44, 0, 1, 0x20, 1],
        ParseError::TinyFragment,
    ); // TCP again from byte 8 on
    refused(
        &udp,
        IP + 2,
        &[0, 33, 0, 1, 0x20, 2],
        ParseError::FragmentLength,
    ); // 13 bytes, and more
    refused(
        &udp,
        IP + 2,
        &[0, 20, 0, 1, 0x00, 2],
        ParseError::FragmentLength,
    ); // nothing
    refused(&udp, IP + 6, &[0x1f, 0xff], ParseError::FragmentBeyondEnd); // the ping of death
    // beyond only because the header counts
    refused(&udp, IP + 6, &[0x1f, 0xfc], ParseError::FragmentBeyondEnd);
    // Only TCP has flags at offset 8.
    let later = &build::fragments(&v4().udp(1, 2).payload(&[0; 8]).build(), 8, 1)[1];
    assert_eq!(ip_of(later).l4_info, L4::LaterFragment);
    // A first fragment whose UDP length is the whole datagram's is as it should be.
    let large = v4().udp(1, 2).payload(&[0; 100]).build();
    assert_eq!(
        ip_of(&build::fragments(&large, 64, 1)[0]).l4_info,
        L4::Udp { sport: 1, dport: 2 }
    );
}

#[test]
fn ipv6_fragments_follow_the_same_rules() {
    let tcp = v6().tcp(1, 2, TcpFlags::SYN).payload(&[0; 40]).build();
    let fragments = build::fragments(&tcp, 24, 9);
    let said: Vec<_> = fragments
        .iter()
        .map(|frame| ip_of(frame).fragment.unwrap())
        .collect();
    let fragment = |offset, more| Fragment {
        id: 9,
        offset,
        more,
    };
    assert_eq!(
        said,
        [fragment(0, true), fragment(24, true), fragment(48, false)]
    );
    assert!(matches!(
        ip_of(&fragments[0]).l4_info,
        L4::Tcp {
            sport: 1,
            dport: 2,
            payload_len: 4,
            ..
        }
    ));
    assert_eq!(
        (ip_of(&fragments[1]).l4_info, ip_of(&fragments[1]).l4_len()),
        (L4::LaterFragment, 24)
    );

    let tiny = build::fragments(&tcp, 16, 9);
    assert_eq!(parse_all(&tiny[0]), Err(ParseError::TinyFragment));
    let overlapping = build::fragments(&tcp, 8, 9);
    assert_eq!(parse_all(&overlapping[1]), Err(ParseError::TinyFragment));
    // The whole chain has to be in the first fragment (RFC 7112).
    let chain = v6()
        .extension(60, &[0; 30])
        .tcp(1, 2, TcpFlags::SYN)
        .build();
    assert_eq!(
        parse_all(&build::fragments(&chain, 24, 9)[0]),
        Err(ParseError::TinyFragment)
    );
    assert_eq!(
        parse_all(&build::fragments(&chain, 40, 9)[0]),
        Err(ParseError::TinyFragment)
    );
    // A fragment header within a fragment.
    let twice = build::fragments(&fragments[0], 24, 9);
    assert_eq!(
        twice,
        [fragments[0].clone()],
        "the builder does not do this either"
    );
    // Up to 65,535 bytes and not one more: offset 65,520 leaves room for 15.
    for (len, expected) in [(15, None), (16, Some(ParseError::FragmentBeyondEnd))] {
        let last = v6()
            .extension(44, &[0xff, 0xf0, 0, 0, 0, 9])
            .protocol(17)
            .payload(&vec![0; len])
            .build();
        assert_eq!(parse_all(&last).err(), expected);
    }
    let nested = v6()
        .extension(44, &[0, 1, 0, 0, 0, 1])
        .extension(44, &[0, 1, 0, 0, 0, 1])
        .udp(1, 2)
        .build();
    assert_eq!(parse_all(&nested), Err(ParseError::Ipv6Extension));
}
