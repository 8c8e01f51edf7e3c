//! Whether a frame is VXLAN's at all, at the cost of a look.

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const UDP: u8 = 17;

/// Whether a frame is a whole UDP datagram to this port, over IPv4 or over IPv6 without extension
/// headers, behind two VLAN tags at the most (RFC 7348, section 5). Nothing else of it is looked
/// at.
pub fn is_to_port(frame: &[u8], port: u16) -> bool {
    let mut l3 = 14;
    while let Some(kind) = frame.get(l3 - 2..l3)
        && TAGS.iter().any(|tag| tag == kind)
        && l3 < 22
    {
        l3 += 4;
    }
    let Some(kind) = frame.get(l3 - 2..l3) else {
        return false;
    };
    let packet = &frame[l3..];
    let l4 = if kind == IPV4 {
        match packet {
            // More fragments, or not the first one.
            [first, _, _, _, _, _, high, low, _, UDP, ..] if high & 0x3f == 0 && *low == 0 => {
                usize::from(first & 15) * 4
            }
            _ => return false,
        }
    } else if kind == IPV6 && packet.get(6) == Some(&UDP) {
        40
    } else {
        return false;
    };
    packet.get(l4 + 2..l4 + 4) == Some(&port.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::Mac;
    use crate::build::{self, Builder};
    use crate::parse::TcpFlags;

    fn packet(four: bool) -> Builder {
        let ips = match four {
            true => ["192.0.2.1", "192.0.2.2"],
            false => ["2001:db8::1", "2001:db8::2"],
        };
        let [src, dst] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
        build::frame(Mac([2; 6]), Mac([4; 6])).ip(src, dst)
    }

    #[test]
    fn whole_datagrams_to_the_port_alone() {
        for four in [true, false] {
            let mut frame = packet(four).udp(1, 4789).payload(&[7; 30]).build();
            assert!(is_to_port(&frame, 4789));
            assert!(!is_to_port(&frame, 4790));
            for tag in [[0x81, 0, 0, 7], [0x88, 0xa8, 0, 9]] {
                frame.splice(12..12, tag);
                assert!(is_to_port(&frame, 4789), "{tag:x?}");
            }
            frame.splice(12..12, [0x88, 0xa8, 0, 9]);
            assert!(!is_to_port(&frame, 4789), "three tags");
            let tcp = packet(four).tcp(1, 4789, TcpFlags::SYN).build();
            assert!(!is_to_port(&tcp, 4789));
        }
        let options = packet(true).ip_options(&[1, 1, 1, 0]).udp(1, 4789).build();
        assert!(is_to_port(&options, 4789));
        let mut fragment = packet(true).udp(1, 4789).build();
        for (at, value) in [(20, 0x20), (21, 1)] {
            fragment[at] = value;
            assert!(!is_to_port(&fragment, 4789));
            fragment[at] = 0;
        }
    }

    #[test]
    fn no_length_is_too_short() {
        for four in [true, false] {
            let frame = packet(four).udp(1, 4789).build();
            for length in 0..frame.len() {
                let whole = length >= if four { 38 } else { 58 };
                assert_eq!(is_to_port(&frame[..length], 4789), whole, "{length}");
            }
        }
    }
}
