//! `bpf/scatter.bpf.c`: frames to many destinations, one after the other.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags};
use xdp::{Program, Table, objects};

const BYTES: usize = 56;

/// `struct scatter` of `bpf/scatter.h`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Told {
    frame: [u8; BYTES],
    v6: u32,
    mask: u32,
    ifindex: u32,
    pad: u32,
}

/// The loaded program.
pub struct Scatter {
    pub program: Program,
    told: Table<u32, Told>,
    to: Table<u32, [u8; 16]>,
}

impl Scatter {
    pub fn new() -> Self {
        let program =
            Program::load("scatter", objects::SCATTER, |_| Ok(())).expect("the program loads");
        let told = program.table("scatter_frame").expect("it has the map");
        Scatter {
            told,
            to: program.table("scatter_to").expect("it has the map"),
            program,
        }
    }

    /// What to send: a frame to address zero, to these destinations, a power of two of them; by an
    /// interface, or (0) to the program behind.
    pub fn tell(&self, frame: &[u8], to: &[IpAddr], ifindex: u32) {
        let v6 = to[0].is_ipv6();
        let mut told = Told {
            frame: [0; BYTES],
            v6: v6.into(),
            mask: to.len() as u32 - 1,
            ifindex,
            pad: 0,
        };
        told.frame.copy_from_slice(&frame[..BYTES]);
        self.told.set(&0, &told).expect("maps can be written");
        let keys: Vec<u32> = (0..to.len() as u32).collect();
        let values: Vec<[u8; 16]> = to.iter().map(|ip| bytes(*ip)).collect();
        self.to
            .set_all(&keys, &values)
            .expect("maps can be written");
    }

    /// Puts a program behind it.
    pub fn hand_on_to(&self, program: &Program) {
        let chain = self.program.map("chain").expect("it has the map");
        let fd = program.fd().expect("it loads").as_raw_fd().to_ne_bytes();
        chain
            .update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .expect("a program of the same kind");
    }
}

fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}
