//! One ICMP question that ping does not ask: any type and code with an identifier (echo, timestamp,
//! …).

use crate::{Outcome, number};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const ID: u16 = 0x7a31;

/// Sends type `kind`, code `code` to `addr` and waits for an answer of the type that answers it.
pub fn ask(addr: &str, kind: &str, code: &str, secs: &str) -> Outcome {
    let addr: IpAddr = addr
        .parse()
        .map_err(|_| format!("{addr:?} is not an IP address"))?;
    let (kind, code): (u8, u8) = (number(kind, "type")?, number(code, "code")?);
    let secs: f64 = number(secs, "seconds")?;
    let (domain, protocol) = match addr {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(ID.to_be_bytes());
    message.extend([0, 1]);
    message.extend([0u8; 12]); // the three time stamps of a timestamp request, or payload
    if addr.is_ipv4() {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    } // for ICMPv6 the kernel fills in the checksum
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol))
        .and_then(|socket| {
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            socket.send_to(&message, &SockAddr::from(SocketAddr::new(addr, 0)))?;
            Ok(socket)
        })
        .map_err(|e| format!("cannot send: {e}"))?;
    let answer = if addr.is_ipv4() && kind == 8 {
        0
    } else {
        kind.wrapping_add(1)
    };
    let deadline = Instant::now() + Duration::from_secs_f64(secs);
    let mut buffer = [0u8; 2048];
    while Instant::now() < deadline {
        let Ok(len) = socket.read(&mut buffer) else {
            continue;
        };
        // A raw IPv4 socket gives the IP header as well.
        let skip = if addr.is_ipv4() {
            usize::from(buffer[0] & 15) * 4
        } else {
            0
        };
        let icmp = buffer.get(skip..len).unwrap_or_default();
        if icmp.len() >= 8 && icmp[0] == answer && icmp[4..6] == ID.to_be_bytes() {
            return Ok(format!("answered with type {answer}"));
        }
    }
    Err(format!("no answer of type {answer} in {secs} s"))
}

/// The Internet checksum (RFC 1071) of a whole message.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksum_of_the_example_in_rfc_1071() {
        assert_eq!(
            checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            !0xddf2
        );
    }
}
