//! `bpf/uplink.h` in Rust: what the program and this crate both read and write. Addresses and ports
//! in network order.

use std::net::IpAddr;

use bytemuck::{Pod, Zeroable};

/// Interfaces at most.
pub const UPLINKS: u32 = 64;
/// Queues of each at most.
pub const QUEUES: u32 = 64;
/// Addresses at most.
pub const ENDPOINTS: usize = 256;

/// Interfaces with smaller indices are found without a search.
pub const NEAR_INTERFACES: u32 = 1024;
/// Places of endpoints that are found without a search.
pub const NEAR_ENDPOINTS: usize = 64;

/// `struct settings`: fixed when the program is loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ProgramSettings {
    /// Multicast groups that carry flooded frames: all that are this under the mask count as this.
    pub group: [u8; 16],
    /// The mask; all zero: none.
    pub group_mask: [u8; 16],
    /// VXLAN's port.
    pub port: [u8; 2],
    /// To a multiple of four.
    pub reserved: [u8; 2],
}

/// `struct endpoint`: an address that VXLAN comes to, and in which VLAN.
#[repr(C, align(4))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
pub struct Endpoint {
    /// See [`mapped`].
    pub address: [u8; 16],
    /// ID of the one tag; 0: none.
    pub vlan: u16,
    /// Zero.
    pub reserved: u16,
}

/// `struct near_endpoint`: a place of an endpoint that is found without a search.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct NearEndpoint {
    /// The endpoint that has this place.
    pub endpoint: Endpoint,
    /// 1: the place is in use.
    pub used: u32,
}

impl Endpoint {
    /// `near_place()`: its place in `near_endpoints`, if it is its own.
    pub fn near_place(&self) -> usize {
        let words: [u32; 4] = bytemuck::cast(self.address);
        let mixed = words.iter().fold(0, |mixed, word| mixed ^ word);
        let mixed = mixed ^ mixed >> 16;
        let place = (mixed ^ mixed >> 8).wrapping_add(u32::from(self.vlan) * 7);
        place as usize % NEAR_ENDPOINTS
    }
}

/// `struct counters`: what became of packets to our port, by CPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Counters {
    /// To a socket.
    pub taken: u64,
    /// Ours, but their queue has no socket: the kernel's.
    pub no_socket: u64,
    /// To an address that is not ours: the kernel's.
    pub elsewhere: u64,
    /// UDP in fragments, to whatever port: the kernel's.
    pub fragments: u64,
}

const _: () = assert!(size_of::<ProgramSettings>() == 36);
const _: () = assert!(size_of::<Endpoint>() == 20);
const _: () = assert!(size_of::<NearEndpoint>() == 24);
const _: () = assert!(size_of::<Counters>() == 32);

/// An address as the program has it: IPv4 as an IPv4-mapped one (RFC 4291, section 2.5.5.2).
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
