//! `bpf/sink.bpf.c`: where a measurement's datagrams end, and are counted.

use std::net::SocketAddrV4;

use bytemuck::{Pod, Zeroable};

use crate::error::Error;
use crate::objects;
use crate::program::Program;
use crate::table::{PerCpuTable, Table};

/// `struct sink` of `bpf/sink.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Told {
    source: [u8; 4],
    port: [u8; 2],
    pad: u16,
}

/// The loaded program, which takes nothing else.
#[derive(Debug)]
pub struct Sink {
    program: Program,
    count: PerCpuTable<u32, u64>,
}

impl Sink {
    /// Loads it, for datagrams over IPv4 from this address to this port.
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn new(of: SocketAddrV4) -> Result<Self, Error> {
        let program = Program::load("sink", objects::SINK, |_| Ok(()))?;
        let table: Table<u32, Told> = program.table("sink_of")?;
        let told = Told {
            source: of.ip().octets(),
            port: of.port().to_be_bytes(),
            pad: 0,
        };
        table.set(&0, &told)?;
        Ok(Sink {
            count: program.per_cpu_table("sink_count")?,
            program,
        })
    }

    /// For [`attach`](crate::attach).
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Frames that it has had so far.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn count(&self) -> Result<u64, Error> {
        let counts = self.count.get(&0)?;
        Ok(counts.into_iter().flatten().sum())
    }
}
