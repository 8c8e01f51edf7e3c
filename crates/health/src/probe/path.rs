//! The way to one server: who makes the sockets of a check.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, UdpSocket};

/// Reaches one server through the service's address.
pub trait Path: Clone + Send + Sync + 'static {
    /// What keeps the way open; dropped after the socket.
    type Hold: Send + 'static;

    /// A TCP connection.
    fn tcp(&self) -> impl Future<Output = io::Result<(TcpStream, Self::Hold)>> + Send;

    /// A UDP socket that is connected to the server.
    fn udp(&self) -> impl Future<Output = io::Result<(UdpSocket, Self::Hold)>> + Send;
}

/// Straight to an address, by the host's own routes: for tests, and for checks of what is not
/// balanced.
#[derive(Clone, Copy, Debug)]
pub struct Direct(pub SocketAddr);

impl Path for Direct {
    type Hold = ();

    async fn tcp(&self) -> io::Result<(TcpStream, ())> {
        Ok((TcpStream::connect(self.0).await?, ()))
    }

    async fn udp(&self) -> io::Result<(UdpSocket, ())> {
        let any: SocketAddr = match self.0 {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(self.0).await?;
        Ok((socket, ()))
    }
}
