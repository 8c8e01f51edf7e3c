//! `bpf/classic.bpf.c`: the peer of the usual design, with the same services and servers as ours.

use std::net::IpAddr;

use bytemuck::{Pod, Zeroable};
use wire::Mac;
use xdp::{Program, Table, objects};

use crate::stage::{self, MAX_FLOWS, OURS};

/// `CLASSIC_SLOTS`.
const SLOTS: u32 = 16_384;

/// `struct classic_key` of `bpf/classic.h`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Key {
    vip: [u8; 16],
    port: [u8; 2],
    protocol: u8,
    reserved: u8,
}

/// `struct classic_server`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Server {
    link: [u8; 14],
    tunnel: u16,
    header: [u8; 20],
    ifindex: u32,
}

const _: () = assert!(size_of::<Key>() == 20 && size_of::<Server>() == 40);

/// The loaded program.
pub struct Classic {
    pub program: Program,
}

impl Classic {
    /// With a server for each of these MACs behind an interface, 0 for the one that packets come
    /// by; in a tunnel (IPIP) or without. Its table has room for twice the flows, as ours has.
    pub fn new(ifindex: u32, macs: &[Mac], tunnel: bool) -> Self {
        let program = Program::load("classic", objects::CLASSIC, |object| {
            let mut maps = object.maps_mut();
            let mut flows = maps
                .find(|map| map.name() == "classic_flows")
                .expect("it has the map");
            flows.set_max_entries(2 * MAX_FLOWS)
        })
        .expect("the program loads");
        let services: Table<Key, u32> = program.table("classic_services").expect("it has the map");
        for v6 in [false, true] {
            services
                .set(&key(stage::vip(v6)), &0)
                .expect("maps can be written");
        }
        let servers: Table<u32, Server> = program.table("classic_servers").expect("it has the map");
        for (number, mac) in (0u32..).zip(macs) {
            let server = server(ifindex, *mac, tunnel, number as u8);
            servers.set(&number, &server).expect("maps can be written");
        }
        let slots: Table<u32, u32> = program.table("classic_slots").expect("it has the map");
        let count = macs.len() as u32;
        let (keys, values): (Vec<u32>, Vec<u32>) =
            (0..SLOTS).map(|slot| (slot, slot % count)).unzip();
        slots.set_all(&keys, &values).expect("maps can be written");
        Classic { program }
    }
}

fn key(vip: IpAddr) -> Key {
    let mut bytes = [0; 16];
    match vip {
        IpAddr::V4(vip) => bytes[..4].copy_from_slice(&vip.octets()),
        IpAddr::V6(vip) => bytes = vip.octets(),
    }
    Key {
        vip: bytes,
        port: 80u16.to_be_bytes(),
        protocol: 6,
        reserved: 0,
    }
}

fn server(ifindex: u32, mac: Mac, tunnel: bool, number: u8) -> Server {
    let ethertype = [0x08, 0x00];
    let mut link = [0; 14];
    link[..6].copy_from_slice(&mac.0);
    link[6..12].copy_from_slice(&OURS.0);
    link[12..].copy_from_slice(&ethertype);
    // Version and length, TTL 64, protocol 4, from 10.1.2.100 to 10.1.2.number.
    let header = [
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 4, 0, 0, 10, 1, 2, 100, 10, 1, 2, number,
    ];
    Server {
        link,
        tunnel: tunnel.into(),
        header,
        ifindex,
    }
}
