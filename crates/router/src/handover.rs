//! A router from one process to the next: what interfaces have counted goes on. What the rules of
//! an access list have is [`Router::keep_rules`]'s.
//!
//! The programs of both processes have one map of counters ([`Router::hand_over`],
//! [`Router::handed`]); all else the next one reads from the kernel. So that both count an
//! interface in one place, the next one takes the place that the one before tells of
//! ([`Router::keep_slots`]).
//!
//! Whoever holds what is handed over holds the timer of [`Router::watch`] as well. Programs that
//! run on when their process was killed forward by what it knew, and leave packets to the kernel
//! when the timer has found out.
//!
//! What is handed over is read as if an enemy had written it.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapInfo, OpenObject};
use sys::handed::Handed;

use crate::error::Error;
use crate::interfaces::Interface;
use crate::layout::INTERFACES;
use crate::router::{Options, Router};

/// Of what is handed over: another one for whatever is changed in it, or in a counter's meaning.
const VERSION: &str = "router 2";
/// The map that both processes count in.
const COUNTERS: &str = "counters";
/// The map with the timer of `bpf/router_watch.bpf.c`.
const WATCH: &str = "watch";

/// Where an interface is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftSlot {
    pub slot: u32,
    pub ifindex: u32,
    pub name: String,
}

/// Who is told where interfaces are counted.
pub(crate) struct KeepSlots(Box<WriteSlots>);
type WriteSlots = dyn FnMut(&[u8]) + Send;

impl fmt::Debug for KeepSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepSlots")
    }
}

/// What the process before counts in.
pub(crate) struct Left {
    counters: OwnedFd,
    pub slots: Vec<LeftSlot>,
}

impl Left {
    fn of(mut handed: Handed, slots: &[u8]) -> Result<Left, Error> {
        let refused = |why| Error::Handed { why };
        if handed.note != VERSION.as_bytes() {
            return Err(refused("its counters are of another version"));
        }
        let slots = read(slots).ok_or(refused("where it counts cannot be"))?;
        // The other one is the timer, which is the process's before.
        handed.fds.truncate(1);
        let [counters] = handed.take().ok_or(refused("it has no counters"))?;
        Ok(Left { counters, slots })
    }

    /// Has a program count there.
    pub fn put_into(&self, object: &mut OpenObject) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            if map.name() != COUNTERS {
                continue;
            }
            let info = MapInfo::new(self.counters.as_fd())?;
            let is = (info.map_type(), info.info.key_size, info.info.value_size);
            let own = (map.map_type(), map.key_size(), map.value_size());
            if is != own || info.info.max_entries != map.max_entries() {
                let why = "the counters of the one before are others";
                return Err(std::io::Error::other(why).into());
            }
            map.reuse_fd(self.counters.as_fd())?;
        }
        Ok(())
    }
}

impl Router {
    /// One that goes on counting where another process's does, which hands that over. `slots` is
    /// what that one has [told of](Self::keep_slots).
    ///
    /// # Errors
    /// Those of [`new`](Self::new); it was handed over by a router of another version.
    pub fn handed(options: &Options, handed: Handed, slots: &[u8]) -> Result<Router, Error> {
        Self::load(options, Some(Left::of(handed, slots)?))
    }

    /// The counters, for another process's router, and the timer of [`watch`](Self::watch) where
    /// there is one.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn hand_over(&self) -> Result<Handed, Error> {
        let mut fds = vec![self.descriptor(&self.program, COUNTERS)?];
        if let Some(watch) = &self.watch {
            fds.push(self.descriptor(watch, WATCH)?);
        }
        Ok(Handed {
            note: VERSION.into(),
            fds,
        })
    }

    fn descriptor(&self, program: &xdp::Program, name: &'static str) -> Result<OwnedFd, Error> {
        let map = program.map(name)?;
        let fd = map.as_fd().try_clone_to_owned();
        fd.map_err(|source| {
            Error::Xdp(xdp::Error::Map {
                map: name.to_owned(),
                source: source.into(),
            })
        })
    }

    /// Has `keep` told where interfaces are counted, now and when one comes or goes: should this
    /// process end, another one may [go on](Self::handed) with it.
    pub fn keep_slots(&mut self, keep: impl FnMut(&[u8]) + Send + 'static) {
        self.keep = Some(KeepSlots(Box::new(keep)));
        self.report_slots();
    }

    /// Interfaces that go from now on go with this process: for the next one they stay counted
    /// where they are.
    pub fn leave_slots(&mut self) {
        self.keep = None;
    }

    pub(crate) fn report_slots(&mut self) {
        let slots = self.slots_left.iter().cloned();
        let own = self.interfaces.values().map(|interface| LeftSlot {
            slot: interface.slot,
            ifindex: interface.ifindex,
            name: interface.name.clone(),
        });
        let written = write(slots.chain(own));
        if let Some(KeepSlots(keep)) = &mut self.keep {
            keep(written.as_bytes());
        }
    }

    /// Where an interface is counted that is to be the router's: where it was by the process
    /// before, or in a slot that is free, from 0. `None`: there is none.
    pub(crate) fn slot_for(&mut self, interface: &Interface) -> Result<Option<u32>, Error> {
        let is_its = |left: &LeftSlot| left.name == interface.name;
        if let Some(at) = self.slots_left.iter().position(is_its) {
            let left = self.slots_left.swap_remove(at);
            // Of another one by this name nothing is to be gone on with.
            if left.ifindex == interface.ifindex {
                return Ok(Some(left.slot));
            }
        }
        let own = self.interfaces.values().map(|other| other.slot);
        let left = self.slots_left.iter().map(|left| left.slot);
        let taken: Vec<u32> = own.chain(left).collect();
        let mut slots = 0..INTERFACES as u32;
        let free = slots.find(|slot| !taken.contains(slot));
        // Rather than none, that of an interface which has not come.
        let slot = free.or_else(|| Some(self.slots_left.pop()?.slot));
        if let Some(slot) = slot {
            self.forget_counters(slot)?;
        }
        Ok(slot)
    }
}

/// A line for each: its slot, its index, and its name.
fn write(slots: impl Iterator<Item = LeftSlot>) -> String {
    slots
        .map(
            |LeftSlot {
                 slot,
                 ifindex,
                 name,
             }| format!("{slot} {ifindex} {name}\n"),
        )
        .collect()
}

/// What was written; `None`: it cannot be.
fn read(slots: &[u8]) -> Option<Vec<LeftSlot>> {
    let mut taken = [false; INTERFACES];
    let lines = std::str::from_utf8(slots).ok()?.lines();
    let slots = lines.map(|line| {
        let mut words = line.splitn(3, ' ');
        let slot: u32 = words.next()?.parse().ok()?;
        let (ifindex, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let taken = taken.get_mut(slot as usize)?;
        let twice = std::mem::replace(taken, true);
        (!twice).then_some(LeftSlot {
            slot,
            ifindex,
            name,
        })
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_as_they_were_written_and_nothing_else_is() {
        let slots = [(0, 7, "eth0"), (1023, 12, "a name")].map(|(slot, ifindex, name)| LeftSlot {
            slot,
            ifindex,
            name: name.to_owned(),
        });
        let written = write(slots.iter().cloned());
        assert_eq!(read(written.as_bytes()).unwrap(), slots);
        assert_eq!(read(b"").unwrap(), []);
        for wrong in [
            "1024 7 eth0\n",
            "0 7 eth0\n0 8 eth1\n",
            "0 7\n",
            "0 -7 eth0\n",
            "zero 7 eth0\n",
            "\n",
        ] {
            assert!(read(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
        assert!(read(&[0xff]).is_none());
    }
}
