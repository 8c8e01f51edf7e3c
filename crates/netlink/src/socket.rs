//! Netlink sockets on tokio: one that hears groups, one that asks. Used by the mirror and by single
//! requests.

use crate::error::Error;
use crate::uapi;
use netlink_sys::{
    AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket,
    protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE},
};
use rustix::net::sockopt;
use std::{fmt, io};

/// What the kernel may keep for us while we are busy: about 40,000 changes. More than that is a
/// resync.
const RECEIVE_BYTES: usize = 32 << 20;
/// The kernel fills dumps' datagrams up to 32 KiB.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A socket of the calling thread's network namespace.
pub struct Socket {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("socket", self.socket.socket_ref())
            .finish_non_exhaustive()
    }
}

impl Socket {
    /// One that asks and hears nothing else.
    pub fn new() -> Result<Self, Error> {
        Self::open(NETLINK_ROUTE, &[])
    }

    /// One that hears every group of [`uapi::GROUPS`].
    pub fn listening() -> Result<Self, Error> {
        Self::open(NETLINK_ROUTE, &uapi::GROUPS)
    }

    /// One that asks families of generic netlink.
    pub fn generic() -> Result<Self, Error> {
        Self::open(NETLINK_GENERIC, &[])
    }

    /// One that asks about netfilter.
    pub fn to_netfilter() -> Result<Self, Error> {
        Self::open(NETLINK_NETFILTER, &[])
    }

    /// One that hears of changes of nftables.
    pub fn listening_to_nftables() -> Result<Self, Error> {
        Self::open(NETLINK_NETFILTER, &[uapi::NFNLGRP_NFTABLES])
    }

    fn open(protocol: isize, groups: &[u32]) -> Result<Self, Error> {
        let failed = |action| move |source| Error::Socket { action, source };
        let mut socket = TokioSocket::new(protocol).map_err(failed("open"))?;
        let raw = socket.socket_mut();
        // Beyond the system's limit only with CAP_NET_ADMIN; without it a flood means a resync
        // sooner.
        if sockopt::set_socket_recv_buffer_size_force(&*raw, RECEIVE_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&*raw, RECEIVE_BYTES)
                .map_err(|source| failed("size")(source.into()))?;
        }
        raw.bind_auto().map_err(failed("bind"))?;
        raw.connect(&SocketAddr::new(0, 0))
            .map_err(failed("connect"))?;
        for group in groups {
            raw.add_membership(*group).map_err(failed("subscribe"))?;
        }
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(DATAGRAM_BYTES),
        })
    }

    /// Sends one request. The kernel works on it before this returns; a full buffer is its word for
    /// "later".
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        self.socket.socket_ref().send(request, 0).map(drop)
    }

    /// The next datagram, when there is one.
    pub async fn receive(&mut self) -> io::Result<&[u8]> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer).await?;
        Ok(&self.buffer)
    }

    /// The next datagram, if there is one now.
    pub fn try_receive(&mut self) -> io::Result<Option<&[u8]>> {
        self.buffer.clear();
        match self.socket.socket_ref().recv(&mut self.buffer, 0) {
            Ok(_) => Ok(Some(&self.buffer)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
