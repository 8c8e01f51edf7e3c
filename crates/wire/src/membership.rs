//! Who wants to hear a multicast group, as a host tells it to routers and to switches that listen:
//! IGMP version 2 (RFC 2236) and version 1 of MLD (RFC 2710), which all later versions understand
//! too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Mac;
use crate::build::frame;
use crate::parse::IpPacket;

/// IGMP's number among the protocols.
const IGMP: u8 = 2;
/// An option and an extension header that ask routers to look (RFC 2113, RFC 2711).
const ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
const ALERT_V6: (u8, [u8; 4]) = (0, [5, 2, 0, 0]);

/// A kind of message: IGMP's number, and MLD's.
#[derive(Clone, Copy)]
struct Kind(u8, u8);

const QUERY: Kind = Kind(0x11, 130);
const REPORT: Kind = Kind(0x16, 131);
const LEAVE: Kind = Kind(0x17, 132);

/// `mac`, which has `ours`, hears `group`. An IPv6 group is reported from `mac`'s link-local
/// address, as it has to be.
pub fn report(mac: Mac, ours: Ipv4Addr, group: IpAddr) -> Vec<u8> {
    message(REPORT, mac, ours, group, group)
}

/// It hears the group no more.
pub fn leave(mac: Mac, ours: Ipv4Addr, group: IpAddr) -> Vec<u8> {
    let routers = match group {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(224, 0, 0, 2)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2)),
    };
    message(LEAVE, mac, ours, group, routers)
}

fn message(kind: Kind, mac: Mac, ours: Ipv4Addr, group: IpAddr, to: IpAddr) -> Vec<u8> {
    let frame = frame(mac, Mac::of_group(to));
    match group {
        IpAddr::V4(group) => {
            let mut body = [kind.0, 0, 0, 0, 0, 0, 0, 0];
            body[4..].copy_from_slice(&group.octets());
            let checksum = crate::checksum::checksum(&body);
            body[2..4].copy_from_slice(&checksum.to_be_bytes());
            let packet = frame.ip(ours, to).ttl(1).ip_options(&ALERT_V4);
            packet.protocol(IGMP).payload(&body).build()
        }
        IpAddr::V6(group) => {
            let (header, alert) = ALERT_V6;
            let packet = frame
                .ip(mac.link_local(), to)
                .ttl(1)
                .extension(header, &alert);
            packet.icmp(kind.1, 0, 0).payload(&group.octets()).build()
        }
    }
}

/// Which group a router or a switch asks for, if `ip`, which [`crate::parse::parse`] made of
/// `head`, is such a question. The unspecified address: all groups of its family.
pub fn query(head: &[u8], ip: &IpPacket) -> Option<IpAddr> {
    if ip.fragment.is_some() {
        return None;
    }
    let message = head.get(usize::from(ip.l4)..)?;
    let message = message.get(..ip.l4_len()).unwrap_or(message);
    match (ip.v6, ip.protocol, message.first()?) {
        (false, IGMP, &kind) if kind == QUERY.0 => {
            let group: [u8; 4] = message.get(4..8)?.try_into().ok()?;
            Some(group.into())
        }
        (true, crate::parse::protocol::ICMPV6, &kind) if kind == QUERY.1 => {
            let group: [u8; 16] = message.get(8..24)?.try_into().ok()?;
            Some(group.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const MAC: Mac = Mac([2, 0xbf, 192, 0, 2, 1]);
    const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn asked(frame: &[u8]) -> Option<IpAddr> {
        let packet = parse::parse(frame, frame.len()).unwrap();
        query(frame, packet.ip().unwrap())
    }

    #[test]
    fn a_report_is_as_the_specification_has_it() {
        let frame = report(MAC, OURS, "230.0.0.42".parse().unwrap());
        let expected = "01005e00002a 02bfc0000201 0800 46000020000000000102 7cac c0000201 e600002a \
                        94040000 1600 03d5 e600002a";
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
    }

    #[test]
    fn messages_parse_and_are_whole() {
        for group in ["230.1.2.3", "ff0e::1:2"] {
            let group: IpAddr = group.parse().unwrap();
            for (frame, to) in [
                (report(MAC, OURS, group), Mac::of_group(group)),
                (
                    leave(MAC, OURS, group),
                    Mac(if group.is_ipv4() {
                        [1, 0, 0x5e, 0, 0, 2]
                    } else {
                        [0x33, 0x33, 0, 0, 0, 2]
                    }),
                ),
            ] {
                let packet = parse::parse(&frame, frame.len()).unwrap();
                let ip = packet.ip().unwrap();
                assert_eq!((packet.dst, ip.ttl), (to, 1));
                assert_eq!(asked(&frame), None, "it is no question");
            }
        }
    }

    #[test]
    fn questions_are_for_one_group_or_for_all() {
        for group in ["230.1.2.3", "0.0.0.0", "ff0e::1:2", "::"] {
            let group: IpAddr = group.parse().unwrap();
            let all = if group.is_ipv4() {
                "224.0.0.1"
            } else {
                "ff02::1"
            };
            let mut frame = message(QUERY, MAC, OURS, group, all.parse().unwrap());
            if group.is_ipv6() {
                // Behind the longest delay come two bytes, and then the group: as the builder has
                // it.
                assert_eq!(frame[frame.len() - 24], QUERY.1);
            }
            assert_eq!(asked(&frame), Some(group));
            // Cut short it asks for nothing.
            frame.truncate(frame.len() - 1);
            let whole = frame.len() + 1;
            let packet = parse::parse(&frame, whole).unwrap();
            assert_eq!(query(&frame, packet.ip().unwrap()), None);
        }
    }
}
