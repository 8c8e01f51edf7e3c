//! IPv4 fragments made by hand, the ones that no kernel sends: a later fragment alone, overlaps,
//! tiny first ones. The datagram carries `hello, fragments` as often as fits. `tiny` says that it
//! is TCP: the first fragment's eight bytes then hold the ports and not the flags.

use crate::icmp::checksum;
use crate::{Outcome, number};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};

const PAYLOAD: &[u8; 16] = b"hello, fragments";
const UDP: u8 = 17;
const TCP: u8 = 6;
const MORE: u16 = 0x2000;

/// Sends a datagram from `src` to `dst`:`port` in fragments of the given kind.
pub fn send(src: &str, dst: &str, port: &str, kind: &str) -> Outcome {
    let address = |text: &str| {
        text.parse::<Ipv4Addr>()
            .map_err(|_| format!("{text:?} is not an IPv4 address"))
    };
    let (src, dst, port) = (address(src)?, address(dst)?, number::<u16>(port, "port")?);
    let datagram = datagram(src, dst, port);
    // (offset in bytes, end in bytes)
    let pieces: &[(usize, usize)] = match kind {
        "whole" => &[(0, 64), (64, 136)],
        "later-only" => &[(64, 136)],
        "overlap" => &[(0, 64), (56, 136)],
        "tiny" => &[(0, 8), (8, 136)],
        _ => {
            return Err(format!(
                "{kind:?} is none of whole, later-only, overlap, tiny"
            ));
        }
    };
    // IPPROTO_RAW: we write the header
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))
        .map_err(|e| format!("cannot open a raw socket: {e}"))?;
    let id = std::process::id() as u16;
    let protocol = if kind == "tiny" { TCP } else { UDP };
    for &(from, to) in pieces {
        let last = to == datagram.len();
        let packet = fragment([src, dst], protocol, id, from, last, &datagram[from..to]);
        socket
            .send_to(&packet, &SockAddr::from(SocketAddr::from((dst, 0))))
            .map_err(|e| format!("cannot send the fragment at {from}: {e}"))?;
    }
    Ok(format!("fragments={}", pieces.len()))
}

/// 136 bytes of UDP: the header and eight times the payload.
fn datagram(src: Ipv4Addr, dst: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut udp = Vec::new();
    udp.extend(40_000u16.to_be_bytes());
    udp.extend(port.to_be_bytes());
    udp.extend(136u16.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(PAYLOAD.repeat(8));
    let mut pseudo = [src.octets(), dst.octets()].concat();
    pseudo.extend([0, UDP, 0, 136]);
    pseudo.extend(&udp);
    let sum = checksum(&pseudo);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    udp
}

fn fragment(
    [src, dst]: [Ipv4Addr; 2],
    protocol: u8,
    id: u16,
    offset: usize,
    last: bool,
    body: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + body.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(((offset as u16 / 8) | if last { 0 } else { MORE }).to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    packet.extend(body);
    packet
}
