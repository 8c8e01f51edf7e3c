//! Which packets are DHCP (RFC 2131) and DHCPv6 (RFC 8415), told by their ports and addresses.
//!
//! docs/security-groups.md (13) passes a client's requests and their answers whatever the rules
//! say, and refuses a guest that acts as a server unless it is allowed to. The ports decide, as
//! they do in the firewalls of other clouds; addresses narrow it where the protocol does.

use std::net::{IpAddr, Ipv6Addr};

use crate::parse::{IpPacket, L4};

/// DHCP clients listen here.
pub const CLIENT_PORT: u16 = 68;
/// DHCP servers and relays listen here.
pub const SERVER_PORT: u16 = 67;
/// DHCPv6 clients listen here.
pub const CLIENT_PORT_V6: u16 = 546;
/// DHCPv6 servers and relays listen here.
pub const SERVER_PORT_V6: u16 = 547;
/// True for the ports of clients and servers, of either family.
#[inline]
pub fn is_port(port: u16) -> bool {
    matches!(
        port,
        CLIENT_PORT | SERVER_PORT | CLIENT_PORT_V6 | SERVER_PORT_V6
    )
}

/// All_DHCP_Relay_Agents_and_Servers.
pub const ALL_RELAYS_AND_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// A client's request: to a server's address (renewal), to everybody, or to the servers' group in
/// IPv6.
#[inline]
pub fn is_client_request(ip: &IpPacket) -> bool {
    let L4::Udp { sport, dport } = ip.l4_info else {
        return false;
    };
    if ip.v6 {
        (sport, dport) == (CLIENT_PORT_V6, SERVER_PORT_V6)
            && (ip.dst() == IpAddr::V6(ALL_RELAYS_AND_SERVERS) || !ip.dst().is_multicast())
    } else {
        (sport, dport) == (CLIENT_PORT, SERVER_PORT) && !ip.dst().is_multicast()
    }
}

/// What only a server or a relay sends to a client: to its address, or to everybody in IPv4.
#[inline]
pub fn is_server_answer(ip: &IpPacket) -> bool {
    let L4::Udp { sport, dport } = ip.l4_info else {
        return false;
    };
    let ports = if ip.v6 {
        (SERVER_PORT_V6, CLIENT_PORT_V6)
    } else {
        (SERVER_PORT, CLIENT_PORT)
    };
    (sport, dport) == ports
}

/// What a client hears: answers, and whatever else is sent to its port. Clients that read frames as
/// they come (to hear answers before they have an address) look at the destination port alone, so a
/// false server can use any other.
#[inline]
pub fn is_to_client(ip: &IpPacket) -> bool {
    let client = if ip.v6 { CLIENT_PORT_V6 } else { CLIENT_PORT };
    matches!(ip.l4_info, L4::Udp { dport, .. } if dport == client)
}

/// A [client's request](is_client_request) to all servers that there may be, not to one of them.
#[inline]
pub fn is_to_all_servers(ip: &IpPacket) -> bool {
    match ip.dst() {
        IpAddr::V4(dst) => dst.is_broadcast(),
        IpAddr::V6(dst) => dst == ALL_RELAYS_AND_SERVERS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::{Mac, parse::parse};

    const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const SERVER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn classes(frame: &[u8]) -> (bool, bool) {
        let packet = parse(frame, frame.len()).unwrap();
        let ip = packet.ip().unwrap();
        (is_client_request(ip), is_server_answer(ip))
    }

    #[test]
    fn requests_and_answers_of_both_families() {
        assert_eq!(classes(&build::dhcp_request(CLIENT, 1, 7)), (true, false));
        let answer = build::dhcp_answer(
            SERVER,
            [10, 0, 0, 1].into(),
            CLIENT,
            [10, 0, 0, 9].into(),
            2,
            7,
        );
        assert_eq!(classes(&answer), (false, true));
        assert_eq!(classes(&build::dhcpv6_request(CLIENT, 1, 7)), (true, false));
        assert_eq!(
            classes(&build::dhcpv6_answer(
                SERVER,
                CLIENT,
                CLIENT.link_local(),
                2,
                7
            )),
            (false, true)
        );
    }

    #[test]
    fn what_a_client_hears_and_what_all_servers_do() {
        let heard = |frame: &[u8]| is_to_client(parse(frame, frame.len()).unwrap().ip().unwrap());
        let v4 = build::frame(SERVER, CLIENT).ip([10, 0, 0, 2], [10, 0, 0, 1]);
        let v6 = build::frame(SERVER, CLIENT).ip(SERVER.link_local(), CLIENT.link_local());
        assert!(heard(&v4.clone().udp(9, 68).build()) && heard(&v6.clone().udp(9, 546).build()));
        assert!(
            !heard(&v4.clone().udp(68, 67).build()) && !heard(&v6.clone().udp(546, 547).build())
        );
        let all =
            |frame: &[u8]| is_to_all_servers(parse(frame, frame.len()).unwrap().ip().unwrap());
        assert!(
            all(&build::dhcp_request(CLIENT, 1, 7)) && all(&build::dhcpv6_request(CLIENT, 1, 7))
        );
        assert!(!all(&v4.udp(68, 67).build()) && !all(&v6.udp(546, 547).build()));
    }

    #[test]
    fn what_only_looks_like_it() {
        let v4 = build::frame(CLIENT, SERVER).ip([10, 0, 0, 1], [10, 0, 0, 2]);
        let v6 = build::frame(CLIENT, SERVER).ip(CLIENT.link_local(), SERVER.link_local());
        let renewal = (true, false);
        let neither = (false, false);
        assert_eq!(classes(&v4.clone().udp(68, 67).build()), renewal);
        assert_eq!(classes(&v6.clone().udp(546, 547).build()), renewal);
        // The other family's ports, one port alone, TCP, a multicast group of one's own.
        assert_eq!(classes(&v4.clone().udp(546, 547).build()), neither);
        assert_eq!(classes(&v6.clone().udp(67, 68).build()), neither);
        assert_eq!(classes(&v4.clone().udp(40000, 67).build()), neither);
        assert_eq!(
            classes(&v4.clone().tcp(68, 67, crate::parse::TcpFlags::SYN).build()),
            neither
        );
        assert_eq!(
            classes(&v4.ip([10, 0, 0, 1], [239, 1, 1, 1]).udp(68, 67).build()),
            neither
        );
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(
            classes(&v6.ip(CLIENT.link_local(), group).udp(546, 547).build()),
            neither
        );
    }
}
