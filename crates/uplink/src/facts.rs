//! What is to be said of an uplink, in a status and in the log.

use std::net::IpAddr;

use wire::Mac;

/// An uplink as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// Which one it is: its place in the data plane.
    pub number: u32,
    /// The interface's name.
    pub interface: String,
    /// Its index; 0 while there is none.
    pub ifindex: u32,
    /// Frames can come and go, as far as it is up.
    pub joined: bool,
    /// How: `AF_XDP, native XDP, zero-copy`, `packet socket`, `TAP`, … Empty while it is not
    /// joined.
    pub mode: String,
    /// Why it is not joined, or not in a better mode; empty when there is nothing to say.
    pub why: String,
    /// Queues with a port of their own.
    pub queues: u32,
    /// Bytes of an outer IP packet.
    pub mtu: u32,
    /// It is set up and has a carrier.
    pub up: bool,
    /// It is the TAP device, behind which we are a [`Station`](crate::Station): the kernel has no
    /// way over it.
    pub tap: bool,
    /// What the kernel sends by the interface is on the wire: not by the end of one that another
    /// driver has.
    pub of_kernel: bool,
    /// Our hardware address on it.
    pub mac: Option<Mac>,
    /// Our addresses that are reached by it.
    pub addresses: Vec<IpAddr>,
}
