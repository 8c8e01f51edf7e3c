//! The way to one server: who makes the sockets of a check.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, UdpSocket};

use super::NotMade;

/// What a check speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// A connection.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Why there is no socket.
#[derive(Debug)]
pub enum Fault {
    /// The server, or the way to it, will not have it.
    Server(io::Error),
    /// This host could not make it.
    Host(NotMade),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Server(error)
    }
}

impl From<NotMade> for Fault {
    fn from(why: NotMade) -> Fault {
        Fault::Host(why)
    }
}

/// Reaches one server through the service's address.
pub trait Path: Clone + Send + Sync + 'static {
    /// What one socket takes of what this host has few of.
    type Turn: Send + 'static;
    /// What keeps the way open; dropped after the socket.
    type Hold: Send + 'static;

    /// Returns when this host can make one more socket: a server's time begins behind that.
    ///
    /// # Errors
    /// It will not be able to.
    fn turn(
        &self,
        transport: Transport,
    ) -> impl Future<Output = Result<Self::Turn, NotMade>> + Send;

    /// A TCP connection.
    ///
    /// # Errors
    /// There is none.
    fn tcp(
        &self,
        turn: Self::Turn,
    ) -> impl Future<Output = Result<(TcpStream, Self::Hold), Fault>> + Send;

    /// A UDP socket that is connected to the server.
    ///
    /// # Errors
    /// There is none.
    fn udp(
        &self,
        turn: Self::Turn,
    ) -> impl Future<Output = Result<(UdpSocket, Self::Hold), Fault>> + Send;

    /// What on this host was in the way of packets since this path was made, if anything was: a
    /// check that has failed meanwhile says nothing of its server. It may ask the kernel.
    fn hindrance(&self) -> Option<NotMade> {
        None
    }
}

/// Straight to an address, by the host's own routes: for tests, and for checks of what is not
/// balanced.
#[derive(Clone, Copy, Debug)]
pub struct Direct(pub SocketAddr);

impl Path for Direct {
    type Turn = ();
    type Hold = ();

    async fn turn(&self, _transport: Transport) -> Result<(), NotMade> {
        Ok(())
    }

    async fn tcp(&self, _turn: ()) -> Result<(TcpStream, ()), Fault> {
        Ok((TcpStream::connect(self.0).await?, ()))
    }

    async fn udp(&self, _turn: ()) -> Result<(UdpSocket, ()), Fault> {
        let any: SocketAddr = match self.0 {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(self.0).await?;
        Ok((socket, ()))
    }
}
