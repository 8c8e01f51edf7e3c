//! `bpf/scatter.bpf.c`: for measurements, frames to many destinations, one after the other.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags};

use crate::error::Error;
use crate::objects;
use crate::program::{CHAIN, Program};
use crate::table::{PerCpuTable, Table, failed};

/// Bytes of the frame that each run makes anew (`SCATTER_WORDS`): a frame has at least these.
const BYTES: usize = 56;

/// `struct scatter` of `bpf/scatter.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Told {
    frame: [u8; BYTES],
    v6: u32,
    mask: u32,
    ifindex: u32,
    pad: u32,
}

/// The loaded program.
#[derive(Debug)]
pub struct Scatter {
    program: Program,
    told: Table<u32, Told>,
    to: Table<u32, [u8; 16]>,
    runs: PerCpuTable<u32, u64>,
}

impl Scatter {
    /// Loads it, with room for so many destinations.
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn new(destinations: u32) -> Result<Self, Error> {
        let program = Program::load("scatter", objects::SCATTER, |open| {
            let mut maps = open.maps_mut();
            match maps.find(|map| map.name() == "scatter_to") {
                Some(mut map) => map.set_max_entries(destinations),
                None => Ok(()),
            }
        })?;
        Ok(Scatter {
            told: program.table("scatter_frame")?,
            to: program.table("scatter_to")?,
            runs: program.per_cpu_table("scatter_count")?,
            program,
        })
    }

    /// For [`send`](crate::send).
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What to send: a frame of at least 56 bytes to address zero, to these destinations, a power
    /// of two of them; by an interface, or (0) to the program behind.
    ///
    /// # Errors
    /// There are more destinations than there is room for.
    pub fn set_frame(&self, frame: &[u8], to: &[IpAddr], ifindex: u32) -> Result<(), Error> {
        assert!(to.len().is_power_of_two(), "{} destinations", to.len());
        let mut told = Told {
            frame: [0; BYTES],
            v6: to[0].is_ipv6().into(),
            mask: to.len() as u32 - 1,
            ifindex,
            pad: 0,
        };
        told.frame.copy_from_slice(&frame[..BYTES]);
        let keys: Vec<u32> = (0..to.len() as u32).collect();
        let values: Vec<[u8; 16]> = to.iter().map(|ip| bytes(*ip)).collect();
        self.to.set_all(&keys, &values)?;
        self.told.set(&0, &told)
    }

    /// Puts a program behind it.
    ///
    /// # Errors
    /// The program is of another kind.
    pub fn hand_on_to(&self, program: &Program) -> Result<(), Error> {
        let chain = self.program.map(CHAIN)?;
        let fd = program.fd()?.as_raw_fd().to_ne_bytes();
        let done = chain.update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY);
        done.map_err(|source| failed(&chain, source))
    }

    /// Frames that it has made so far.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn made(&self) -> Result<u64, Error> {
        let runs = self.runs.get(&0)?;
        Ok(runs.into_iter().flatten().sum())
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
