//! `bpf/balancer.h` in Rust: what the program and this crate both read and write. Addresses and
//! ports in network order.

use bytemuck::{Pod, Zeroable};

/// Slots of a Maglev table.
pub const MAGLEV_SIZE: usize = 16384;
/// Interfaces are found by their index modulo this.
pub const LINKS: u32 = 256;
/// Entries that are looked at for an address or a service.
pub const PROBES: u32 = 8;
/// Flows of a bucket.
pub const BUCKET_SLOTS: usize = 16;
/// A tick is two to the power of this in nanoseconds: 8.6 s.
pub const TICK_SHIFT: u32 = 33;
/// Ticks are counted modulo this and one.
pub const TICK_MASK: u32 = 0x3fff;
/// Bit of [`Port::flags`]: a client's flows all go to one server.
pub const PORT_STICKY: u8 = 1;

/// `enum server_state`.
pub const SERVER_UP: u8 = 1;
/// `enum server_state`.
pub const SERVER_DRAINING: u8 = 2;
/// `enum server_state`.
pub const SERVER_DOWN: u8 = 3;

/// `struct settings`: fixed when the program is loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ProgramSettings {
    /// Of all hashes.
    pub seed: u64,
    /// Of the flow table.
    pub buckets: u32,
    /// Room for addresses in one half; a power of two.
    pub vips: u32,
    /// Room for services in one half; a power of two.
    pub ports: u32,
    /// Maglev tables in one half.
    pub max_services: u32,
    /// Servers in one half.
    pub max_servers: u32,
    /// After so many ticks without a packet a flow may be forgotten.
    pub idle: u32,
    /// Who speaks in ICMP errors.
    pub source4: [u8; 4],
    /// Who speaks in ICMPv6 errors.
    pub source6: [u8; 16],
    /// 1: every flow is remembered, not only where servers have changed.
    pub remember_all: u32,
}

/// `struct link`: an interface on which services are balanced.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Link {
    /// The interface that packets come in by; 0: none.
    pub ifindex: u32,
    /// The index that [`Server`] names: the bond's where `ifindex` is one of its ports.
    pub out: u32,
    /// Our MAC address there.
    pub mac: [u8; 6],
    /// Zero.
    pub reserved: [u8; 2],
}

/// `struct vip`: an address that has services.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Vip {
    /// IPv4 in the first word.
    pub address: [u32; 4],
    /// What its services know it by.
    pub id: u16,
    /// 4, 6; 0: free.
    pub family: u8,
    /// Zero.
    pub reserved: u8,
}

/// `struct port`: a service.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Port {
    /// Its address.
    pub vip: u16,
    /// 0: all; network order.
    pub port: u16,
    /// 0: free.
    pub protocol: u8,
    /// [`PORT_STICKY`].
    pub flags: u8,
    /// Its number.
    pub service: u16,
    /// Tick of the first change that its table still tells of.
    pub since: u16,
    /// Zero.
    pub reserved: u16,
}

/// `struct server`: a server of one service, with all that is put in front of its packets.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Server {
    /// The service's number.
    pub service: u16,
    /// [`SERVER_UP`] and others; 0: nobody.
    pub state: u8,
    /// 0: layer 2; 4 or 6: the outer header's version.
    pub outer: u8,
    /// VLAN tags in `link`.
    pub tags: u8,
    /// 0, 4 (GRE), 8 (FOU) or 12 (GUE).
    pub shim_len: u8,
    /// The longest IP packet that fits the way.
    pub mtu: u16,
    /// Out of here; 0: the way is not known.
    pub ifindex: u32,
    /// Of the outer IPv4 header without TOS, length and checksum.
    pub outer_sum: u32,
    /// Ethernet header with its tags.
    pub link: [u8; 22],
    /// Zero.
    pub reserved: [u8; 2],
    /// Outer IP header.
    pub header: [u8; 40],
    /// GRE, or UDP with or without GUE.
    pub shim: [u8; 12],
    /// To two cache lines.
    pub padding: [u8; 36],
}

/// `struct maglev`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Maglev {
    /// A server's number in the low half, 0: none; in the high half that of the one from before, 0:
    /// the slot is calm.
    pub slot: [u32; MAGLEV_SIZE],
}

/// `struct bucket`: sixteen flows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Bucket {
    /// Fingerprint 32 bits, server 16, state 2, tick 14.
    pub slot: [u64; BUCKET_SLOTS],
}

/// `struct flow_name`: whose flow a slot is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct FlowName {
    /// IPv4 in the first word.
    pub client: [u32; 4],
    /// Network order.
    pub client_port: u16,
    /// Network order.
    pub port: u16,
    /// The service's number.
    pub service: u16,
    /// Of IP.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// CLOCK_MONOTONIC when it was established, ns.
    pub since: u64,
}

/// `struct server_counters`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct ServerCounters {
    /// Sent to it.
    pub packets: u64,
    /// Of IP packets as they came.
    pub bytes: u64,
    /// That began there.
    pub flows: u64,
    /// Packets that ended one.
    pub ended: u64,
}

/// How many reasons there is room for.
pub const REASONS: usize = 16;

/// `struct counters`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Counters {
    /// By `enum reason`.
    pub reason: [u64; REASONS],
}

const _: () = {
    assert!(size_of::<ProgramSettings>() == 56);
    assert!(size_of::<Link>() == 16);
    assert!(size_of::<Vip>() == 20);
    assert!(size_of::<Port>() == 12);
    assert!(size_of::<Server>() == 128);
    assert!(size_of::<Maglev>() == 65536);
    assert!(size_of::<Bucket>() == 128);
    assert!(size_of::<FlowName>() == 32);
    assert!(size_of::<ServerCounters>() == 32);
    assert!(size_of::<Counters>() == 128);
};
