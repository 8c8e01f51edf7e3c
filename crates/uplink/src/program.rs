//! The program that sends VXLAN to its sockets: loaded once for all uplinks, and what it is told.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Zeroable;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sys::bpf_array::{self, BpfArray};
use xdp::{PerCpuTable, Table};

use crate::layout::{
    self, Counters, ENDPOINTS, Endpoint, NEAR_ENDPOINTS, NEAR_INTERFACES, NearEndpoint,
    ProgramSettings, QUEUES, UPLINKS,
};

/// Why the program cannot be had or told something.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel refused to load it, or an entry of a map.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// The endpoints' map cannot be shared with it.
    #[error("the endpoints cannot be shared with the program: {0}")]
    Memory(#[from] std::io::Error),
    /// The socket map refused.
    #[error("the socket of queue {queue} cannot be given to the program: {source}")]
    Socket {
        /// Which queue.
        queue: u32,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// More than the map has room for.
    #[error("{count} endpoint addresses are more than {ENDPOINTS}")]
    Endpoints {
        /// How many there are.
        count: usize,
    },
    /// Numbers that the maps have no place for.
    #[error("uplink {number} or its queue {queue} is beyond {UPLINKS} uplinks of {QUEUES} queues")]
    Number {
        /// The uplink.
        number: u32,
        /// Its queue.
        queue: u32,
    },
}

/// The multicast groups that carry flooded frames: those under this prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups {
    /// The prefix.
    pub network: IpAddr,
    /// Its length in bits.
    pub prefix: u8,
}

impl Groups {
    /// What all of them have in common, and the mask of it.
    fn masked(&self) -> ([u8; 16], [u8; 16]) {
        let bits = match self.network {
            IpAddr::V4(_) => 96 + u32::from(self.prefix.min(32)),
            IpAddr::V6(_) => u32::from(self.prefix.min(128)),
        };
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let network = u128::from_be_bytes(layout::mapped(self.network));
        ((network & mask).to_be_bytes(), mask.to_be_bytes())
    }
}

/// The loaded program.
#[derive(Debug)]
pub struct Program {
    program: xdp::Program,
    near_interfaces: Table<u32, u32>,
    interfaces: Table<u32, u32>,
    endpoints: Table<Endpoint, u32>,
    near_endpoints: BpfArray,
    sockets: MapHandle,
    counters: PerCpuTable<u32, Counters>,
    groups: Option<Groups>,
}

impl Program {
    /// Loads it for VXLAN on this UDP port; it takes nothing until it is told of interfaces,
    /// addresses and sockets.
    ///
    /// # Errors
    /// As [`xdp::Program::load`].
    pub fn load(port: u16, groups: Option<Groups>) -> Result<Program, ProgramError> {
        let settings = settings(port, groups);
        let program = xdp::Program::load("uplink", xdp::objects::UPLINK, |object| {
            for mut map in object.maps_mut() {
                if map.name().to_string_lossy().ends_with(".rodata.settings") {
                    map.set_initial_value(bytemuck::bytes_of(&settings))?;
                }
            }
            Ok(())
        })?;
        Ok(Program {
            near_interfaces: program.table("near_interfaces")?,
            interfaces: program.table("interfaces")?,
            endpoints: program.table("endpoints")?,
            near_endpoints: BpfArray::new(
                program.map("near_endpoints")?.as_fd(),
                NEAR_ENDPOINTS * WORDS,
            )?,
            sockets: program.map("sockets")?,
            counters: program.per_cpu_table("counters")?,
            program,
            groups,
        })
    }

    /// For attaching it.
    pub fn xdp(&self) -> &xdp::Program {
        &self.program
    }

    /// The addresses that VXLAN comes to from now on, each with the VLAN it comes in (0: none);
    /// multicast groups come in the VLANs of the addresses of their family. No packet to an address
    /// that stays is lost.
    ///
    /// # Errors
    /// There are too many, and then nothing has changed; the kernel refuses.
    pub fn set_endpoints(&self, addresses: &[(IpAddr, u16)]) -> Result<(), ProgramError> {
        let entry = |address, vlan| Endpoint {
            address,
            vlan,
            reserved: 0,
        };
        let mut wanted: BTreeSet<Endpoint> = BTreeSet::new();
        for &(ip, vlan) in addresses {
            wanted.insert(entry(layout::mapped(ip), vlan));
            if let Some(groups) = self
                .groups
                .filter(|groups| groups.network.is_ipv4() == ip.is_ipv4())
            {
                wanted.insert(entry(groups.masked().0, vlan));
            }
        }
        if wanted.len() > ENDPOINTS {
            return Err(ProgramError::Endpoints {
                count: wanted.len(),
            });
        }
        let gone: Vec<Endpoint> = self
            .endpoints
            .keys()
            .filter(|had| !wanted.contains(had))
            .collect();
        for entry in &gone {
            self.endpoints.remove(entry)?;
        }
        for entry in &wanted {
            self.endpoints.set(entry, &1)?;
        }
        self.set_near(&wanted);
        Ok(())
    }

    /// The first of them to come has a place. It stays empty once after its owner has gone: the
    /// program must not find one half of an endpoint and the other half of another.
    fn set_near(&self, wanted: &BTreeSet<Endpoint>) {
        for (place, words) in self.near_endpoints.words().chunks_exact(WORDS).enumerate() {
            let is = get(words);
            if is.used != 0 {
                if !wanted.contains(&is.endpoint) {
                    put(words, &NearEndpoint::zeroed());
                }
            } else if let Some(&endpoint) = wanted
                .iter()
                .find(|endpoint| endpoint.near_place() == place)
            {
                put(words, &NearEndpoint { endpoint, used: 1 });
            }
        }
    }

    /// From now on VXLAN of this interface goes to the sockets of uplink `number`.
    ///
    /// # Errors
    /// There is no such number, or the kernel refuses.
    pub fn add_interface(&self, ifindex: u32, number: u32) -> Result<(), ProgramError> {
        let first = socket_index(number, 0)?;
        Ok(self.interfaces(ifindex).set(&ifindex, &(first + 1))?)
    }

    /// VXLAN of this interface is the kernel's again. One that is not known is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_interface(&self, ifindex: u32) -> Result<(), ProgramError> {
        if ifindex < NEAR_INTERFACES {
            return Ok(self.near_interfaces.set(&ifindex, &0)?);
        }
        self.interfaces.remove(&ifindex)?;
        Ok(())
    }

    /// The map that an interface is in.
    fn interfaces(&self, ifindex: u32) -> &Table<u32, u32> {
        match ifindex < NEAR_INTERFACES {
            true => &self.near_interfaces,
            false => &self.interfaces,
        }
    }

    /// The socket of an uplink's queue. It leaves the map by itself when it is closed.
    ///
    /// # Errors
    /// There is no such number, or the kernel refuses the socket.
    pub fn set_socket(
        &self,
        number: u32,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), ProgramError> {
        let index = socket_index(number, queue)?.to_ne_bytes();
        let value = socket.as_raw_fd().to_ne_bytes();
        let done = self.sockets.update(&index, &value, MapFlags::ANY);
        done.map_err(|source| ProgramError::Socket { queue, source })
    }

    /// What became of packets to our port since it was loaded.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn counters(&self) -> Result<Counters, ProgramError> {
        let each = self.counters.get(&0)?.unwrap_or_default();
        Ok(each.iter().fold(Counters::default(), |sum, cpu| Counters {
            taken: sum.taken + cpu.taken,
            no_socket: sum.no_socket + cpu.no_socket,
            elsewhere: sum.elsewhere + cpu.elsewhere,
            fragments: sum.fragments + cpu.fragments,
        }))
    }
}

/// Words of a place; the last one says that it is in use.
const WORDS: usize = size_of::<NearEndpoint>() / 4;

fn get(words: &[AtomicU32]) -> NearEndpoint {
    let words: [u32; WORDS] = std::array::from_fn(|at| words[at].load(Ordering::Relaxed));
    bytemuck::cast(words)
}

fn put(words: &[AtomicU32], near: &NearEndpoint) {
    let new: [u32; WORDS] = bytemuck::cast(*near);
    bpf_array::put(words, &new, WORDS - 1);
}

fn socket_index(number: u32, queue: u32) -> Result<u32, ProgramError> {
    if number < UPLINKS && queue < QUEUES {
        Ok(number * QUEUES + queue)
    } else {
        Err(ProgramError::Number { number, queue })
    }
}

fn settings(port: u16, groups: Option<Groups>) -> ProgramSettings {
    let mut settings = ProgramSettings {
        // What no address is under a mask of nothing.
        group: [0xff; 16],
        group_mask: [0; 16],
        port: port.to_be_bytes(),
        reserved: [0; 2],
    };
    if let Some(groups) = groups {
        (settings.group, settings.group_mask) = groups.masked();
    }
    settings
}
