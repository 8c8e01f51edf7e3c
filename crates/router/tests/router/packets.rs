//! Packets of all kinds, the same for the same seed: valid, odd and hostile.

use crate::lab::{EAST, host};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::IpAddr;
use wire::Mac;
use wire::build::{self, Builder};
use wire::parse::TcpFlags;

/// What a packet from the east to an address beyond the west begins as.
pub fn to(dst: &str) -> Builder {
    let dst: IpAddr = dst.parse().expect("an address");
    let src = if dst.is_ipv4() {
        "10.1.0.2"
    } else {
        "2001:db8:1::2"
    };
    from(src, dst)
}

/// A packet from `src` to `dst`.
pub fn from(src: &str, dst: IpAddr) -> Builder {
    build::frame(host(1, 2), EAST).ip(src.parse::<IpAddr>().expect("an address"), dst)
}

const FOUR: [&str; 16] = [
    "203.0.113.7",
    "203.0.113.200",
    "198.51.100.9",
    "198.51.100.200",
    "10.2.0.2",
    "10.2.0.4",
    "10.2.0.1",
    "10.1.0.1",
    "10.1.0.3",
    "10.2.0.255",
    "224.0.0.5",
    "255.255.255.255",
    "127.0.0.1",
    "0.0.0.0",
    "172.16.0.1",
    "240.0.0.1",
];
const SIX: [&str; 12] = [
    "2001:db8:f::7",
    "2001:db8:f:1::1",
    "2001:db8:e::9",
    "2001:db8:2::2",
    "2001:db8:2::1",
    "2001:db8:1::3",
    "ff02::1",
    "fe80::1",
    "::1",
    "::ffff:10.2.0.2",
    "2001:db8:dead::1",
    "2001:db8:2::4",
];
const SOURCE4: [&str; 9] = [
    "10.1.0.2",
    "10.1.0.3",
    "10.1.0.1",
    "10.2.0.1",
    "127.0.0.1",
    "0.0.0.0",
    "224.1.1.1",
    "255.255.255.255",
    "203.0.113.9",
];
const SOURCE6: [&str; 7] = [
    "2001:db8:1::2",
    "2001:db8:1::3",
    "2001:db8:1::1",
    "fe80::2",
    "::",
    "ff02::5",
    "::1",
];

/// `count` frames for the east's wire.
pub fn generate(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count)
        .map(|number| frame(&mut rng, number as u16))
        .collect()
}

fn pick<'a>(rng: &mut StdRng, from: &[&'a str], plain: usize) -> &'a str {
    // Mostly what is forwarded: odd things hide behind each other.
    let range = if rng.random_bool(0.7) {
        plain
    } else {
        from.len()
    };
    from[rng.random_range(0..range)]
}

fn frame(rng: &mut StdRng, number: u16) -> Vec<u8> {
    let six = rng.random_bool(0.5);
    let (src, dst) = if six {
        (pick(rng, &SOURCE6, 2), pick(rng, &SIX, 4))
    } else {
        (pick(rng, &SOURCE4, 2), pick(rng, &FOUR, 6))
    };
    let mut packet = from(src, dst.parse().expect("an address"))
        .id(number)
        .tos(rng.random());
    packet = packet.ttl(if rng.random_bool(0.8) {
        64
    } else {
        rng.random_range(0..4)
    });
    if rng.random_bool(0.3) {
        packet = packet.dont_fragment();
    }
    if rng.random_bool(0.05) {
        packet = if six {
            packet.extension(0, &[1, 4, 0, 0, 0, 0])
        } else {
            packet.ip_options(&[1, 1, 1, 0])
        };
    } else if six && rng.random_bool(0.1) {
        let kind = [60, 43, 44][rng.random_range(0..3)];
        packet = packet.extension(kind, &[0, 0, 0, 0, 0, 0]);
    }
    let (sport, dport) = (rng.random_range(1024..60000), rng.random_range(1..1024));
    packet = match rng.random_range(0..5) {
        0 => packet.tcp(sport, dport, TcpFlags::SYN),
        1 if !six => packet.echo_request(number, number),
        2 => packet.protocol(rng.random_range(100..140)),
        _ => packet.udp(sport, dport),
    };
    let sizes = [0, 1, 17, 64, 400, 1240, 1280, 1330, 1372, 1380, 1440];
    let len = sizes[rng.random_range(0..sizes.len())];
    packet = packet.payload(&vec![number as u8; len]);
    if rng.random_bool(0.3) {
        packet = packet.pad_to(60);
    }
    let mut bytes = packet.build();
    spoil(rng, &mut bytes);
    bytes.resize(bytes.len().max(14), 0);
    bytes
}

/// What no honest sender does to a frame.
fn spoil(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    match rng.random_range(0..24) {
        0 => bytes[..6].copy_from_slice(&Mac::BROADCAST.0),
        1 => bytes[..6].copy_from_slice(&host(9, 9).0),
        2 => bytes[0] |= 1,
        3 => bytes.truncate(rng.random_range(14..bytes.len() + 1)),
        4 => {
            let at = rng.random_range(14..bytes.len().min(54));
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        5 => {
            // A VLAN that is not configured here.
            bytes.splice(12..12, [0x81, 0, 0, 7]);
        }
        6 => bytes.extend(std::iter::repeat_n(0xee, rng.random_range(1..40))),
        7 => {
            let (at, byte) = (rng.random_range(14..34), rng.random());
            bytes[at] = byte;
        }
        _ => {}
    }
}
