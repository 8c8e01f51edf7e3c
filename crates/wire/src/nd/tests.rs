//! Valid messages, spoilt ones, and ones that are cut.

use super::*;
use crate::build;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn read(frame: &[u8]) -> Result<Option<Nd>, ParseError> {
    let packet = crate::parse::parse(frame, frame.len()).unwrap();
    parse(frame, packet.ip().unwrap())
}

#[test]
fn solicitation_and_advertisement() {
    let solicitation = build::neighbour_solicitation(A, A.link_local(), B.link_local());
    let kind = NdKind::NeighbourSolicitation {
        target: B.link_local(),
    };
    assert_eq!(
        read(&solicitation),
        Ok(Some(Nd {
            kind,
            source_link: Some(A),
            target_link: None
        }))
    );

    let detection = build::neighbour_solicitation(A, Ipv6Addr::UNSPECIFIED, A.link_local());
    let kind = NdKind::NeighbourSolicitation {
        target: A.link_local(),
    };
    assert_eq!(
        read(&detection),
        Ok(Some(Nd {
            kind,
            source_link: None,
            target_link: None
        }))
    );

    let advertisement = build::neighbour_advertisement(B, B.link_local(), A, A.link_local());
    let kind = NdKind::NeighbourAdvertisement {
        target: B.link_local(),
        router: false,
        solicited: true,
        overrides: true,
    };
    assert_eq!(
        read(&advertisement),
        Ok(Some(Nd {
            kind,
            source_link: None,
            target_link: Some(B)
        }))
    );

    let router = build::router_advertisement(A);
    let expected = Nd {
        kind: NdKind::RouterAdvertisement,
        source_link: Some(A),
        target_link: None,
    };
    assert_eq!(read(&router), Ok(Some(expected)));
}

#[test]
fn other_packets_are_none() {
    let echo = build::frame(A, B)
        .ip(A.link_local(), B.link_local())
        .echo_request(1, 1)
        .build();
    assert_eq!(read(&echo), Ok(None));
    let v4 = build::frame(A, B)
        .ip([10, 0, 0, 1], [10, 0, 0, 2])
        .icmp(NEIGHBOUR_SOLICITATION, 0, 0)
        .build();
    assert_eq!(read(&v4), Ok(None));
}

#[test]
fn invalid_messages_are_refused() {
    let good = build::neighbour_solicitation(A, A.link_local(), B.link_local());
    let spoilt = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        read(&frame)
    };
    let (hop_limit, code, option_kind, option_len) = (14 + 7, 54 + 1, 54 + 24, 54 + 25);
    assert!(spoilt(option_kind, 14).is_ok()); // a nonce option: of no interest
    for refused in [
        spoilt(hop_limit, 64),
        spoilt(code, 1),
        spoilt(option_len, 0),
        spoilt(option_len, 2),
    ] {
        assert_eq!(refused, Err(ParseError::NeighbourDiscovery));
    }
    let fragmented = &build::fragments(&good, 24, 1)[0];
    assert_eq!(read(fragmented), Err(ParseError::NeighbourDiscovery));
    let message = |body: &[u8]| {
        let ip = build::frame(A, B)
            .ip(A.link_local(), B.link_local())
            .ttl(255);
        read(&ip.icmp(NEIGHBOUR_ADVERTISEMENT, 0, 0).payload(body).build())
    };
    assert_eq!(message(&[0; 15]), Err(ParseError::NeighbourDiscovery));
    let mut two = vec![0; 16];
    two.extend(build::link_option(TARGET_LINK, A));
    two.extend(build::link_option(TARGET_LINK, B));
    assert_eq!(message(&two), Err(ParseError::NeighbourDiscovery));
    assert_eq!(message(&two[..17]), Err(ParseError::NeighbourDiscovery));
}

#[test]
fn options_out_of_sight_are_refused_where_they_matter() {
    let good = build::neighbour_solicitation(A, A.link_local(), B.link_local());
    let packet = crate::parse::parse(&good[..62], good.len()).unwrap();
    assert_eq!(
        parse(&good[..62], packet.ip().unwrap()),
        Err(ParseError::HeadersTooLong)
    );
    assert_eq!(
        parse(&good[..80], packet.ip().unwrap()),
        Err(ParseError::HeadersTooLong)
    );
    let router = build::router_advertisement(A);
    let packet = crate::parse::parse(&router[..70], router.len()).unwrap();
    let nd = parse(&router[..70], packet.ip().unwrap()).unwrap().unwrap();
    assert_eq!(
        nd,
        Nd {
            kind: NdKind::RouterAdvertisement,
            source_link: None,
            target_link: None
        }
    );
}
