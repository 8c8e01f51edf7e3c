//! The program between a container's interface, or a VMM's TAP device, and the TAP device that the
//! switch reads (`bpf/cable.bpf.c`), its table of ends, and its maps of flows that it forwards
//! itself, which are the switch's to fill; and the program beside it for what comes from other
//! hosts by an uplink (`bpf/arrival.bpf.c`).

use std::os::fd::AsFd;

use bytemuck::{Pod, Zeroable};
use netlink::change::PairKind;
use sys::bpf_array::BpfArray;
use wire::Mac;
use xdp::{Program, Table, objects};

/// `struct cable_end` of bpf/cable.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct CableEnd {
    to: u32,
    mac: [u8; 6],
    from_tap: u8,
    machine: u8,
    at_sender: u8,
    reserved: [u8; 3],
}

/// `struct kernel_key` of bpf/cable.h: what the packets of one direction of a flow look like.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct FlowKey {
    /// The index of the host's end of the sender's pair, of a VMM's TAP device, or of an uplink.
    pub device: u32,
    /// Ethernet's destination and source.
    pub macs: [[u8; 6]; 2],
    /// IP's source; of IPv4 the first four bytes, and zeros.
    pub from: [u8; 16],
    /// Its destination, likewise.
    pub to: [u8; 16],
    /// Source and destination port, in network order.
    pub ports: [[u8; 2]; 2],
    /// TCP or UDP.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// Zero.
    pub reserved: u16,
    /// The network of what comes by an uplink; else zero.
    pub vni: u32,
}

/// `struct kernel_flow` of bpf/cable.h.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct FlowValue {
    /// Its index among the states.
    pub state: u32,
    /// Which use of that.
    pub tag: u32,
    /// The index of the host's end of the receiver's pair, of a VMM's TAP device, or of an uplink.
    pub to: u32,
    /// Bytes of outer headers that are put on or, of what comes by an uplink, taken off.
    pub outer_len: u8,
    /// The outer DSCP, or [`DSCP_INNER`].
    pub dscp: u8,
    /// Zero.
    pub reserved: u16,
    /// Two zeros and the outer headers; of what comes by an uplink those that it is to have.
    pub outer: [u8; OUTER_BYTES],
}

/// The inner packet's DSCP is the outer one.
pub const DSCP_INNER: u8 = 0xff;
/// Bytes of [`FlowValue::outer`].
pub const OUTER_BYTES: usize = 72;

/// The maps of flows.
#[derive(Debug)]
pub struct FlowMaps {
    /// Directions of flows, two for each.
    pub flows: Table<FlowKey, FlowValue>,
    /// Their states, 64 bytes each (`struct kernel_state`).
    pub states: BpfArray,
    /// What is in force, 16 bytes (`struct kernel_force`).
    pub force: BpfArray,
    /// What takes flows from other hosts, at tc ingress of uplinks. The error is a sentence.
    pub arrival: Result<Program, String>,
}

/// Bytes of `struct kernel_state` and of `struct kernel_force`.
const STATE: usize = 64;
const FORCE: usize = 16;

/// The loaded program. Interfaces keep it when this is dropped, and drop then what it has no entry
/// for.
#[derive(Debug)]
pub struct Cables {
    program: Program,
    ends: Table<u32, CableEnd>,
    /// The kernel's buffers cannot be looked into.
    blind: bool,
    /// Flows that there is room for.
    flows: u32,
}

impl Cables {
    /// Loads it, with room for so many flows, 0 or more. Needs CAP_BPF, CAP_PERFMON and
    /// CAP_NET_ADMIN; and a kernel with BTF, or few packets are forwarded by it itself.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn load(flows: u32) -> Result<Cables, xdp::Error> {
        let mut blind = false;
        let program = load(objects::tc::CABLE, flows).or_else(|error| {
            blind = true;
            if flows > 0 {
                tracing::warn!(
                    "the kernel's buffers cannot be looked into, so packets whose checksum is \
                     only begun are the workers': {error}"
                );
            }
            load(objects::tc::CABLE_BLIND, flows)
        })?;
        let ends = program.table("cable_ends")?;
        Ok(Cables {
            program,
            ends,
            blind,
            flows,
        })
    }

    /// The maps of flows that it forwards itself; none that there is no room for. The error is a
    /// sentence.
    pub fn flow_maps(&self) -> Option<Result<FlowMaps, String>> {
        (self.flows > 0).then(|| self.open_flow_maps())
    }

    fn open_flow_maps(&self) -> Result<FlowMaps, String> {
        let mapped = |name: &str, bytes: usize| {
            let map = self.program.map(name).map_err(|e| e.to_string())?;
            BpfArray::new(map.as_fd(), bytes / size_of::<u32>())
                .map_err(|e| format!("BPF map {name} cannot be mapped: {e}"))
        };
        let flows = self.program.table("kernel_flows");
        Ok(FlowMaps {
            flows: flows.map_err(|e| e.to_string())?,
            states: mapped("kernel_states", 2 * self.flows as usize * STATE)?,
            force: mapped("kernel_force", FORCE)?,
            arrival: self.load_arrival().map_err(|e| e.to_string()),
        })
    }

    fn load_arrival(&self) -> Result<Program, xdp::Error> {
        let object = match self.blind {
            false => objects::tc::ARRIVAL,
            true => objects::tc::ARRIVAL_BLIND,
        };
        self.program.load_beside("arrival", object)
    }

    /// Joins the host's end of a container's pair, which is of that kind, or the TAP device that a
    /// VMM has open, which is no pair, and the switch's TAP device, all by their index, and takes
    /// what comes in by either.
    ///
    /// # Errors
    /// The kernel takes no program on one of them, or the table is full.
    pub fn join(
        &self,
        near: u32,
        tap: u32,
        mac: Mac,
        pair: Option<PairKind>,
    ) -> Result<(), xdp::Error> {
        let machine = pair.is_none();
        let at_sender = pair == Some(PairKind::Netkit);
        let out = CableEnd {
            to: tap,
            machine: machine.into(),
            at_sender: at_sender.into(),
            ..CableEnd::zeroed()
        };
        let into = CableEnd {
            to: near,
            mac: mac.0,
            from_tap: 1,
            machine: machine.into(),
            ..CableEnd::zeroed()
        };
        self.ends.set(&near, &out)?;
        self.ends.set(&tap, &into)?;
        xdp::attach_to_stay(&self.program, tap)?;
        match at_sender {
            true => xdp::attach_at_sender_to_stay(&self.program, near),
            false => xdp::attach_to_stay(&self.program, near),
        }
    }

    /// Has what comes in by a TAP device of the switch dropped, until it is joined.
    ///
    /// # Errors
    /// The kernel takes no program on it.
    pub fn close(&self, tap: u32) -> Result<(), xdp::Error> {
        self.forget(tap);
        xdp::attach_to_stay(&self.program, tap)
    }

    /// Forgets an end: what comes in by it is dropped.
    pub fn forget(&self, end: u32) {
        // One that is not there is forgotten already.
        let _ = self.ends.remove(&end);
    }
}

fn load(object: &[u8], flows: u32) -> Result<Program, xdp::Error> {
    Program::load("cable", object, |open| {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if matches!(name.as_str(), "kernel_flows" | "kernel_states") {
                map.set_max_entries(2 * flows.max(1))?;
            }
        }
        Ok(())
    })
}
