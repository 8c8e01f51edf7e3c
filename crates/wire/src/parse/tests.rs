//! What the parser says of good frames, of spoilt ones, and of any bytes at all.

mod errors;
mod golden;
mod promises;

use super::*;
use crate::build::{self, Builder};
use std::net::Ipv6Addr;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn v4() -> Builder {
    build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> Builder {
    build::frame(A, B).ip(A6, B6)
}

fn parse_all(frame: &[u8]) -> Result<Packet, ParseError> {
    parse(frame, frame.len())
}

fn ip_of(frame: &[u8]) -> IpPacket {
    *parse_all(frame).unwrap().ip().unwrap()
}

/// Frames of every kind that is told apart.
fn valid_frames() -> Vec<Vec<u8>> {
    let timestamps = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    let mut frames = vec![build::arp_request(
        A,
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
    )];
    for ip in [
        v4(),
        v4().ip_options(&[7, 7, 4, 0, 0, 0, 0, 0]),
        v6(),
        v6().extension(0, &[5, 2, 0, 0]),
    ] {
        frames.extend([
            ip.clone()
                .tcp(40000, 80, TcpFlags::SYN)
                .tcp_options(&[2, 4, 5, 180, 1, 3, 3, 7])
                .build(),
            ip.clone()
                .tcp(40000, 80, TcpFlags::ACK)
                .tcp_options(&timestamps)
                .payload(b"data")
                .build(),
            ip.clone().udp(5000, 53).payload(b"query").build(),
            ip.clone()
                .sctp(5000, 3868, 0xabcd_0123, 1)
                .payload(&[0; 16])
                .build(),
            ip.clone().echo_request(77, 1).payload(&[9; 56]).build(),
            ip.clone().protocol(47).payload(&[0, 0, 8, 0]).build(),
        ]);
    }
    let extensions = v6()
        .extension(43, &[4, 0, 0, 0])
        .extension(51, &[0; 14])
        .extension(60, &[1, 4, 0, 0, 0, 0]);
    frames.push(extensions.udp(1, 2).build());
    frames
}
