//! `bpf/again.bpf.c`: runs a program over a stream of frames that are each as they were, of one
//! flow after the other.

use std::os::fd::AsRawFd;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags};
use xdp::{PerCpuTable, Program, Run, Table, objects};

const BYTES: usize = 96;

/// `struct again` of `bpf/again.h`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Told {
    frame: [u8; BYTES],
    length: u32,
    flow_mask: u32,
    address: u32,
    port: u32,
}

const _: () = assert!(size_of::<Told>() == 112);

/// The loaded program.
pub struct Again {
    pub program: Program,
    told: Table<u32, Told>,
    count: PerCpuTable<u32, u64>,
}

impl Again {
    pub fn new() -> Self {
        let program =
            Program::load("again", objects::AGAIN, |_| Ok(())).expect("the program loads");
        Again {
            told: program.table("again_frame").expect("it has the map"),
            count: program
                .per_cpu_table("again_count")
                .expect("it has the map"),
            program,
        }
    }

    /// What to send: a frame that has no tags, of so many flows, a power of two.
    pub fn set_frame(&self, frame: &[u8], flows: u32) {
        let v6 = frame[12] == 0x86;
        let mut told = Told {
            frame: [0; BYTES],
            length: frame.len() as u32,
            flow_mask: flows.wrapping_sub(1),
            address: if v6 { 14 + 8 + 12 } else { 14 + 12 },
            port: if v6 { 14 + 40 } else { 14 + 20 },
        };
        told.frame.copy_from_slice(&frame[..BYTES]);
        self.told.set(&0, &told).expect("maps can be written");
        self.count.set(&0, &0).expect("maps can be written");
    }

    /// Puts a program behind it.
    pub fn hand_to(&self, program: &Program) {
        let chain = self.program.map("chain").expect("it has the map");
        let fd = program.fd().expect("it loads").as_raw_fd().to_ne_bytes();
        chain
            .update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .expect("a program of the same kind");
    }

    pub fn run(&self, frame: &[u8], times: u32) -> Run {
        xdp::run(&self.program, frame, 0, times).expect("the kernel tries it")
    }
}
