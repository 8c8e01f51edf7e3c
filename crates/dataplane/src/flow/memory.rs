//! Flows in memory that outlives the process: what a daemon that is killed leaves to the next one.
//!
//! # How it works
//!
//! The entries of the table of flows lie in a file in memory ([`SharedMemory`]), from the first
//! flow on: workers write there what they would write anyway, so that it costs the path nothing,
//! and what is there at any instant is what is known. A keeper holds a descriptor of it. So does
//! the index over them, with what is hashed with. The lists and the numbers of the table are this
//! process's own: the next one makes its own.
//!
//! An entry names its two NICs by their [`PortUid`]s, which the next process gives anew. So who
//! they are is in the memory as well ([`FlowMemory::note`]): a record a slot, written by the thread
//! that publishes before any worker sees the NIC, and wiped before a worker sees that it is gone.
//!
//! The next process reads the memory ([`Left`](crate::Left)) and does not map it: it makes a
//! [`FlowInfo`](super::FlowInfo) of each entry, as a dump does, and takes those up into a table of
//! its own in a new memory. Frames need not wait for that, however many there are: a packet whose
//! flow is not in the table yet has it looked for in the index that was left, and taken up at once
//! ([`LeftFlows`](crate::LeftFlows)). Only when all are in the table does the keeper let the old
//! memory go, so that who is killed amid this has taken nothing away. What was taken up has the
//! mark of no snapshot: rules judge it with its next packet.
//!
//! # What may be in it
//!
//! A process is killed between two instructions, and all that it wrote before is there. An entry is
//! named while its state is 0, which is set last and taken away first, so that one with a state is
//! whole. Packets that were being followed at that instant have told a part of what they say:
//! counts and windows are behind by one packet at the most, or by what the kernel has forwarded
//! itself ([`kernel`](super::kernel)) since that was last folded in.
//!
//! Apart from that it is read as if an enemy had written it. An entry that no table makes (a state
//! that its protocol has not, a key that is not what its parts make, a time-out that nobody has
//! set) is left out and counted. One that is well-formed and a lie is as good as the truth to who
//! can write there, who is this daemon's user; it still passes nothing that the rules do not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bytemuck::Zeroable;
use sys::huge::{PAGE, Zeroed};
use sys::shared_memory::SharedMemory;
use wire::Vni;

use super::cell::U64;
use super::entry::Entry;
use super::hash::{self, HashKey};
use super::index::{self, BUCKET, Index, Shape};
use crate::ids::{Epoch, MAX_PORTS, PortUid};
use crate::snapshot::Snapshot;

/// What the memory begins with: "bflyflow".
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"bflyflow");
/// The layout of all that is in it. Another number for whatever is changed: the daemon before may
/// be of another version.
pub(crate) const LAYOUT: u64 = 1;

/// The number of the index, behind the layout's and how many entries there are at the most. Of
/// another one, or 0 of versions that had it for themselves, a reader knows nothing: entries are
/// read without.
pub(crate) const INDEX: u64 = 1;
/// Words at the beginning: magic, layout, entries, index, the two of its [key](HashKey) and its
/// check.
pub(crate) const HEAD: usize = 7;

/// The most entries that it can be of.
pub(crate) const MOST: u64 = index::MAX as u64;

/// Words of a record of a NIC: its uid and its network's VNI, then the length of its name, then the
/// name, up to [`NAME_MAX`] bytes.
pub(crate) const WORDS: usize = 32;
/// Bytes of a name at the most.
const NAME_MAX: usize = 8 * (WORDS - 2);
/// Networks that have NICs, at the most: as many as there are NICs, and again as many that go.
pub(crate) const MAX_NETWORKS: usize = 2 * MAX_PORTS;

/// Where records of NICs are, those of networks, and the entries: bytes.
pub(crate) const NICS: u64 = PAGE as u64;
pub(crate) const NETWORKS: u64 = 2 * PAGE as u64 + NICS;
pub(crate) const ENTRIES: u64 = PAGE as u64 + NETWORKS;
pub(crate) const ENTRY: usize = size_of::<Entry>();

/// Where the index is behind so many entries: its buckets, what is counted of them, and its end.
pub(crate) fn index_at(max: u32) -> [u64; 3] {
    let page = |bytes: u64| bytes.next_multiple_of(PAGE as u64);
    let buckets = Shape::of(max).buckets() as u64;
    let at = page(ENTRIES + u64::from(max) * ENTRY as u64);
    let counts = at + page(buckets * BUCKET as u64);
    [at, counts, counts + page(buckets)]
}

const _: () = assert!(NICS + (MAX_PORTS * 8 * WORDS) as u64 <= NETWORKS);
const _: () = assert!(NETWORKS + (MAX_NETWORKS * 8) as u64 <= ENTRIES);

/// Who a NIC is.
#[derive(Zeroable)]
#[repr(C)]
struct Record([U64; WORDS]);

/// The memory of the flows of one process.
pub struct FlowMemory {
    memory: SharedMemory,
    max: u32,
    head: Zeroed<U64>,
    nics: Zeroed<Record>,
    networks: Zeroed<U64>,
}

impl FlowMemory {
    /// For `max` flows. Takes memory as they come.
    pub fn new(max: u32) -> io::Result<FlowMemory> {
        let max = max.clamp(1, index::MAX);
        let [.., len] = index_at(max);
        let memory = SharedMemory::new("butterfly-flows", len)?;
        let head: Zeroed<U64> = Zeroed::shared(&memory, 0, HEAD)?;
        for (word, value) in head.iter().zip([MAGIC, LAYOUT, u64::from(max)]) {
            word.set(value);
        }
        Ok(FlowMemory {
            max,
            head,
            nics: Zeroed::shared(&memory, NICS, MAX_PORTS)?,
            networks: Zeroed::shared(&memory, NETWORKS, MAX_NETWORKS)?,
            memory,
        })
    }

    /// What is to be held for the next process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub(super) fn entries(&self) -> io::Result<Zeroed<Entry>> {
        Zeroed::shared(&self.memory, ENTRIES, self.max as usize)
    }

    /// The index over them, which flows are hashed for with this key.
    pub(super) fn index(&self, key: HashKey, alone: bool) -> io::Result<Index> {
        let [buckets, counts, _] = index_at(self.max);
        let index = Index::shared(self.max, alone, &self.memory, [buckets, counts])?;
        let words = [INDEX, key.seed, key.shared, hash::check(&key.hasher())];
        for (word, value) in self.head[HEAD - words.len()..].iter().zip(words) {
            word.set(value);
        }
        Ok(index)
    }

    /// What is there now is what the next process finds, whatever becomes of NICs and flows of this
    /// one. To be called when no frame is on its way any more. An error: it is not so, and what is
    /// written from now on may be in it in part.
    pub(super) fn leave(&self, entries: &Zeroed<Entry>, index: &Index) -> io::Result<()> {
        let [buckets, counts, _] = index_at(self.max);
        self.nics.leave(&self.memory, NICS)?;
        self.networks.leave(&self.memory, NETWORKS)?;
        index.leave(&self.memory, [buckets, counts])?;
        entries.leave(&self.memory, ENTRIES)
    }

    /// Notes who the NICs and networks of a snapshot are, which follows the one of epoch `before`.
    /// To be called before any worker uses it.
    pub(crate) fn note(&self, snapshot: &Snapshot, before: Epoch) {
        match &snapshot.changed {
            Some(changed) if changed.since == before => {
                let ports = changed.ports.iter().map(|slot| slot.0 as usize);
                ports.for_each(|slot| self.note_nic(snapshot, slot));
                let networks = changed.networks.iter().map(|network| network.0 as usize);
                networks.for_each(|index| self.note_network(snapshot, index));
            }
            _ => {
                (0..MAX_PORTS).for_each(|slot| self.note_nic(snapshot, slot));
                (0..MAX_NETWORKS).for_each(|index| self.note_network(snapshot, index));
            }
        }
    }

    fn note_nic(&self, snapshot: &Snapshot, slot: usize) {
        let Some(Record([who, len, name @ ..])) = self.nics.get(slot) else {
            return;
        };
        let port = snapshot.ports.get(slot).and_then(Option::as_ref);
        let port = port.filter(|port| (1..=NAME_MAX).contains(&port.name.len()));
        let (is, bytes) = match port {
            Some(port) => (word(port.uid, port.vni), port.name.as_bytes()),
            None => (0, &b""[..]),
        };
        // A page that nobody has written to takes no memory.
        if who.get() == is {
            return;
        }
        // A record that is being written is nobody's.
        who.set(0);
        before_what_follows();
        len.set(bytes.len() as u64);
        for (word, part) in name.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            word.set(u64::from_ne_bytes(whole));
        }
        before_what_follows();
        who.set(is);
    }

    fn note_network(&self, snapshot: &Snapshot, index: usize) {
        let network = snapshot.networks.get(index).and_then(Option::as_ref);
        let remote = network.and_then(|network| Some((network.overlay.as_ref()?.uid, network.vni)));
        let is = remote.map_or(0, |(uid, vni)| word(uid, vni));
        if let Some(who) = self.networks.get(index)
            && who.get() != is
        {
            who.set(is);
        }
    }
}

/// What was written before is written before what follows, as far as the compiler goes: a process
/// that is killed has done all that comes before the instruction at which it was.
#[inline(always)]
pub(crate) fn before_what_follows() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Who is meant in a record: not 0.
fn word(uid: PortUid, vni: Vni) -> u64 {
    u64::from(uid.0) << 32 | u64::from(vni.id())
}

/// The inverse of [`word`]; `None`: it made none like this.
pub(crate) fn parts(word: u64) -> Option<(PortUid, Vni)> {
    let uid = (word >> 32) as u32;
    let vni = Vni::new(word as u32).ok()?;
    (uid != 0).then_some((PortUid(uid), vni))
}
