//! DHCP (RFC 2131) and DHCPv6 (RFC 8415) frames: as much of them as classifying and answering
//! needs.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::frame;
use crate::{Mac, dhcp};

/// The cookie before the options (RFC 2131, section 3).
const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// A broadcast from a client without an address: message type `kind` is 1 (discover) or 3
/// (request).
pub fn dhcp_request(client: Mac, kind: u8, transaction: u32) -> Vec<u8> {
    let body = message(
        1,
        client,
        transaction,
        Ipv4Addr::UNSPECIFIED,
        &[53, 1, kind, 255],
    );
    frame(client, Mac::BROADCAST)
        .ip(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
        .udp(dhcp::CLIENT_PORT, dhcp::SERVER_PORT)
        .payload(&body)
        .build()
}

/// The server's answer: message type `kind` is 2 (offer) or 5 (ack), `address` what the client is
/// given.
pub fn dhcp_answer(
    server: Mac,
    server_ip: Ipv4Addr,
    client: Mac,
    address: Ipv4Addr,
    kind: u8,
    transaction: u32,
) -> Vec<u8> {
    let [a, b, c, d] = server_ip.octets();
    let body = message(
        2,
        client,
        transaction,
        address,
        &[53, 1, kind, 54, 4, a, b, c, d, 255],
    );
    frame(server, client)
        .ip(server_ip, address)
        .udp(dhcp::SERVER_PORT, dhcp::CLIENT_PORT)
        .payload(&body)
        .build()
}

fn message(op: u8, client: Mac, transaction: u32, address: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 236];
    out[..4].copy_from_slice(&[op, 1, 6, 0]);
    out[4..8].copy_from_slice(&transaction.to_be_bytes());
    out[16..20].copy_from_slice(&address.octets());
    out[28..34].copy_from_slice(&client.0);
    out.extend_from_slice(&COOKIE);
    out.extend_from_slice(options);
    out
}

/// A client's multicast: message type `kind` is 1 (solicit), 3 (request) or 11 (information
/// request).
pub fn dhcpv6_request(client: Mac, kind: u8, transaction: u32) -> Vec<u8> {
    frame(client, Mac([0x33, 0x33, 0, 1, 0, 2]))
        .ip(client.link_local(), dhcp::ALL_RELAYS_AND_SERVERS)
        .udp(dhcp::CLIENT_PORT_V6, dhcp::SERVER_PORT_V6)
        .payload(&message_v6(client, kind, transaction))
        .build()
}

/// The server's answer to a client at `client_ip`: message type `kind` is 2 (advertise) or 7
/// (reply).
pub fn dhcpv6_answer(
    server: Mac,
    client: Mac,
    client_ip: Ipv6Addr,
    kind: u8,
    transaction: u32,
) -> Vec<u8> {
    frame(server, client)
        .ip(server.link_local(), client_ip)
        .udp(dhcp::SERVER_PORT_V6, dhcp::CLIENT_PORT_V6)
        .payload(&message_v6(client, kind, transaction))
        .build()
}

fn message_v6(client: Mac, kind: u8, transaction: u32) -> Vec<u8> {
    let [_, t0, t1, t2] = transaction.to_be_bytes();
    // Client identifier option with a DUID-LL (RFC 8415, section 11.4).
    let mut out = vec![kind, t0, t1, t2, 0, 1, 0, 10, 0, 3, 0, 1];
    out.extend_from_slice(&client.0);
    out
}
