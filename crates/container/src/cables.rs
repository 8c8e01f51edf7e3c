//! The program between a container's interface and the TAP device that the switch reads
//! (`bpf/cable.bpf.c`), and its table of ends.

use bytemuck::{Pod, Zeroable};
use wire::Mac;
use xdp::{Program, Table, objects};

/// `struct cable_end` of bpf/cable.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct CableEnd {
    to: u32,
    mac: [u8; 6],
    pair: u8,
    reserved: u8,
}

/// The loaded program. Interfaces keep it when this is dropped, and drop then what it has no entry
/// for.
#[derive(Debug)]
pub struct Cables {
    program: Program,
    ends: Table<u32, CableEnd>,
}

impl Cables {
    /// Loads it. Needs CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn load() -> Result<Cables, xdp::Error> {
        let program = Program::load("cable", objects::tc::CABLE, |_| Ok(()))?;
        let ends = program.table("cable_ends")?;
        Ok(Cables { program, ends })
    }

    /// Joins the host's end of a container's pair and a TAP device, both by their index, and takes
    /// all that comes in by either.
    ///
    /// # Errors
    /// The kernel takes no filter on one of them, or the table is full.
    pub fn join(&self, near: u32, tap: u32, mac: Mac) -> Result<(), xdp::Error> {
        let out = CableEnd {
            to: tap,
            ..CableEnd::zeroed()
        };
        let into = CableEnd {
            to: near,
            mac: mac.0,
            pair: 1,
            reserved: 0,
        };
        self.ends.set(&near, &out)?;
        self.ends.set(&tap, &into)?;
        for end in [near, tap] {
            xdp::attach_to_stay(&self.program, end)?;
        }
        Ok(())
    }

    /// Forgets an end: what comes in by it is dropped.
    pub fn forget(&self, end: u32) {
        // One that is not there is forgotten already.
        let _ = self.ends.remove(&end);
    }
}
