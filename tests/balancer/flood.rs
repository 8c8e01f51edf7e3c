//! SYNs from senders that do not exist: written as they are, past TCP.

use std::net::Ipv4Addr;

use socket2::{Domain, Protocol, Socket, Type};
use testkit::Result;
use testkit::netns::Namespace;
use wire::Mac;
use wire::build;
use wire::parse::TcpFlags;

/// Sends `count` SYNs to an address, each from another sender of 198.18.0.0/15 (RFC 2544), which
/// nobody has a route to.
pub fn syns(from: &Namespace, to: Ipv4Addr, port: u16, count: u32) -> Result<()> {
    from.inside(|| {
        // IPPROTO_RAW: the headers are ours.
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))
            .map_err(|e| format!("a raw socket: {e}"))?;
        let destination = std::net::SocketAddr::from((to, 0)).into();
        for n in 0..count {
            let source = Ipv4Addr::from(0xc612_0000 + n % 0x1_ffff);
            let sender = 1024 + (n / 7 % 60_000) as u16;
            let frame = build::frame(Mac([0; 6]), Mac([0; 6]))
                .ip(source, to)
                .tcp(sender, port, TcpFlags::SYN)
                .build();
            socket
                .send_to(&frame[14..], &destination)
                .map_err(|e| format!("SYN {n} of {count}: {e}"))?;
        }
        Ok(())
    })?
}
