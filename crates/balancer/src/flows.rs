//! The flow table as people see it: who speaks with which server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use xdp::{Program, Table};

use crate::compile::{Image, Register};
use crate::error::Error;
use crate::hash::{self, Tuple};
use crate::layout::{self, BUCKET_SLOTS, Bucket, FlowName, TICK_MASK, TICK_SHIFT};
use model::{Protocol, ServiceKey};

/// How far a flow has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowState {
    /// Its first packet was seen.
    New,
    /// It went on.
    Established,
    /// Its client ended it.
    Closed,
}

/// An established or closed flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Who speaks with whom; the client and its port are the parties' when the flow was
    /// established.
    pub tuple: Tuple,
    /// The service.
    pub service: ServiceKey,
    /// The server it has.
    pub server: IpAddr,
    /// How far it has come.
    pub state: FlowState,
    /// Since it was established.
    pub age: Duration,
    /// Since it was last seen, to about four seconds.
    pub idle: Duration,
}

/// The maps of flows.
#[derive(Debug)]
pub(crate) struct Memory {
    buckets: Table<u32, Bucket>,
    names: Table<u32, FlowName>,
    settings: layout::ProgramSettings,
}

/// Entries read with one system call.
const BATCH: u32 = 4096;

impl Memory {
    pub(crate) fn new(program: &Program, settings: layout::ProgramSettings) -> Result<Self, Error> {
        Ok(Memory {
            buckets: program.table("flows")?,
            names: program.table("flow_names")?,
            settings,
        })
    }

    /// How many flows each server has that are not closed and were seen within the idle time.
    pub(crate) fn live(
        &self,
        register: &Register,
    ) -> Result<BTreeMap<(ServiceKey, IpAddr), u64>, Error> {
        let (owners, tick) = (owners(register), self.tick());
        let mut live = BTreeMap::new();
        self.for_each(|_, slot| {
            let open = matches!(slot.state(), Some(FlowState::New | FlowState::Established));
            let counted = open && slot.idle_ticks(tick) < self.settings.idle;
            if let Some(owner) = owners.get(&slot.server()).filter(|_| counted) {
                *live.entry(*owner).or_default() += 1;
            }
        })?;
        Ok(live)
    }

    /// Up to `limit` flows that are established or closed, in no order.
    pub(crate) fn flows(&self, register: &Register, limit: usize) -> Result<Vec<Flow>, Error> {
        let owners = owners(register);
        let mut slots = Vec::new();
        self.for_each(|index, slot| {
            let named = matches!(
                slot.state(),
                Some(FlowState::Established | FlowState::Closed)
            );
            if named && slots.len() < limit && owners.contains_key(&slot.server()) {
                slots.push((index, slot));
            }
        })?;
        let (now, tick) = (now_ns(), self.tick());
        let mut flows = Vec::with_capacity(slots.len());
        for (index, slot) in slots {
            let name = self.names.get(&index)?;
            let Some((service, server)) = owners.get(&slot.server()).copied() else {
                continue;
            };
            let Some((name, tuple)) = name.and_then(|name| Some((name, tuple(&name, service)?)))
            else {
                continue;
            };
            // The slot may have had a new owner in between, or one that closed before it had a
            // name.
            if hash::of_flow(self.settings.seed, &tuple) as u32 != slot.fingerprint() {
                continue;
            }
            flows.push(Flow {
                tuple,
                service,
                server,
                state: slot.state().unwrap_or(FlowState::Closed),
                age: Duration::from_nanos(now.saturating_sub(name.since)),
                idle: Duration::from_nanos(u64::from(slot.idle_ticks(tick)) << TICK_SHIFT),
            });
        }
        Ok(flows)
    }

    /// Which server a flow's word names, if it has one, and how far the flow has come. Of a service
    /// that is not always watched, words from before `since` do not count.
    pub(crate) fn find(
        &self,
        tuple: &Tuple,
        since: Option<u16>,
    ) -> Result<Option<(u16, FlowState)>, Error> {
        let slot = self.slot(hash::of_flow(self.settings.seed, tuple))?;
        let counts = |slot: &Slot| since.is_none_or(|since| !slot.is_before(since));
        Ok(slot
            .filter(counts)
            .and_then(|slot| Some((slot.server(), slot.state()?))))
    }

    /// Services that have open flows elsewhere than where their tables send new ones, seen within
    /// `silent` ticks.
    pub(crate) fn unsettled(&self, image: &Image, silent: u32) -> Result<BTreeSet<u32>, Error> {
        let tick = self.tick();
        let mut services = BTreeSet::new();
        self.for_each(|_, slot| {
            let open = matches!(slot.state(), Some(FlowState::New | FlowState::Established));
            let service = image
                .servers
                .get(&u32::from(slot.server()))
                .map(|server| u32::from(server.service));
            let Some((service, table)) =
                service.and_then(|service| Some((service, image.maglevs.get(&service)?)))
            else {
                return;
            };
            let now = table.slots[hash::slot(slot.fingerprint())] as u16;
            if open
                && now != slot.server()
                && !slot.is_before(table.since)
                && slot.idle_ticks(tick) <= silent
            {
                services.insert(service);
            }
        })?;
        Ok(services)
    }

    /// Which server a client of a sticky service has, if it was seen within the idle time.
    pub(crate) fn find_client(&self, tuple: &Tuple, service: u16) -> Result<Option<u16>, Error> {
        let slot = self.slot(hash::of_sticky(
            self.settings.seed,
            tuple.client,
            tuple.vip,
            service,
        ))?;
        let fresh = slot.filter(|slot| slot.idle_ticks(self.tick()) < self.settings.idle);
        Ok(fresh.map(Slot::server))
    }

    fn slot(&self, hash: u64) -> Result<Option<Slot>, Error> {
        let (bucket, fingerprint) = hash::place(hash, self.settings.buckets);
        let bucket = self
            .buckets
            .get(&bucket)?
            .unwrap_or_else(bytemuck::Zeroable::zeroed);
        let mut slots = bucket.slot.iter().map(|word| Slot(*word));
        Ok(slots.find(|slot| slot.0 != 0 && slot.fingerprint() == fingerprint))
    }

    /// Now, as words tell the time.
    pub(crate) fn tick(&self) -> u32 {
        tick_of(now_ns())
    }

    fn for_each(&self, mut visit: impl FnMut(u32, Slot)) -> Result<(), Error> {
        let failed = |source| Error::Bpf {
            what: "flow table",
            source,
        };
        let batches = self
            .buckets
            .map()
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        for (key, value) in batches.map_err(failed)? {
            let number: u32 = bytemuck::pod_read_unaligned(&key);
            let bucket: Bucket = bytemuck::pod_read_unaligned(&value);
            for (at, word) in bucket
                .slot
                .iter()
                .enumerate()
                .filter(|(_, word)| **word != 0)
            {
                visit(number * BUCKET_SLOTS as u32 + at as u32, Slot(*word));
            }
        }
        Ok(())
    }
}

/// A word of the table.
#[derive(Debug, Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn fingerprint(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn server(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// `enum flow_state`; `None`: no flow but a client of a sticky service.
    fn state(self) -> Option<FlowState> {
        match self.0 >> 14 & 3 {
            0 => Some(FlowState::New),
            1 => Some(FlowState::Established),
            2 => Some(FlowState::Closed),
            _ => None,
        }
    }

    fn is_before(self, since: u16) -> bool {
        (self.0 as u32).wrapping_sub(u32::from(since)) & TICK_MASK > TICK_MASK / 2
    }

    fn idle_ticks(self, now: u32) -> u32 {
        now.wrapping_sub(self.0 as u32) & TICK_MASK
    }
}

fn owners(register: &Register) -> BTreeMap<u16, (ServiceKey, IpAddr)> {
    register
        .servers
        .iter()
        .map(|(owner, number)| (number, *owner))
        .collect()
}

fn tuple(name: &FlowName, service: ServiceKey) -> Option<Tuple> {
    let bytes: [u8; 16] = bytemuck::cast(name.client);
    let client = match name.family {
        4 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
        6 => IpAddr::from(Ipv6Addr::from(bytes)),
        _ => return None,
    };
    Some(Tuple {
        client,
        client_port: u16::from_be(name.client_port),
        vip: service.vip(),
        port: u16::from_be(name.port),
        protocol: Protocol::from_number(name.protocol)?,
    })
}

/// A time of that clock in ticks.
pub(crate) fn tick_of(ns: u64) -> u32 {
    (ns >> TICK_SHIFT) as u32 & TICK_MASK
}

/// The clock that the program reads, CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
