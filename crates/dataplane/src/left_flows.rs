//! Connections that a process has left in memory, taken up while frames move: each when a packet of
//! it comes, or else in its turn.
//!
//! # How it works
//!
//! Who takes up a million connections before the first frame moves keeps all frames waiting for a
//! quarter of a second. So workers are given what was left
//! ([`begin_left`](crate::Switch::begin_left)): the memory, and who was who. A packet whose flow is
//! not in the table has it looked for there, by the index that was left with it, and goes on with
//! it ([`LeftFlows::take_up`]). Another thread has a worker take up all others, some between two
//! batches ([`take_up_left`](crate::Switch::take_up_left)). Until that is done nobody else reads or
//! changes flows as a whole: who asks for that waits.
//!
//! # Once
//!
//! A flow that was taken up may be over, and gone from the table, before its turn comes; it is not
//! to come again. So each place of the memory is *done* once somebody has put what was there into
//! the table. That is two steps, and two workers may be at it at once:
//!
//! - Who finds the place done does not take it up; the flow is in the table, or was.
//! - Who has put it into the table notes that it is done. Of two who put it there at once one is
//!   refused by the table, finds the other's and notes nothing.
//! - Who finds at that moment that it was done before takes its own out again: another worker's was
//!   there, and has gone since.
//!
//! The memory is only read: should this process end amid it, the next one finds all in it, besides
//! what is newer in this one's. So there may be several, the newest first: what is in one is taken
//! up before what is in those behind it. A connection that was over there already, or is over
//! before the turn of those, may come again from one of them, until it is over by time.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use foldhash::fast::SeedableRandomState;
use sys::shared_memory;

use crate::dump;
use crate::flow::index::{BUCKET, Shape};
use crate::flow::memory::{ENTRIES, ENTRY, index_at};
use crate::flow::{Entry, FlowId, FlowInfo, Flows, Key, hash};
use crate::ids::{PortSlot, PortUid};
use crate::left::{self, Left, Successors};
use crate::snapshot::PortConfig;
use crate::time::Now;
use crate::view::View;

/// Flows that a worker takes up between two batches: some tens of microseconds.
const AT_ONCE: usize = 256;

/// Flows of processes before, to be taken up.
pub struct LeftFlows {
    memories: Vec<Memory>,
    taken: AtomicUsize,
    /// Where NICs are in the view of this mark.
    slots: Mutex<(Option<u32>, HashMap<PortUid, PortSlot>)>,
}

/// Where a flow is that was left: in which memory, and in which entry of it.
pub(crate) type Place = (usize, FlowId);

/// What one process has left.
struct Memory {
    memory: OwnedFd,
    max: u64,
    used: u64,
    /// How its index is made, and where it and what it counts are.
    shape: Shape,
    at: [u64; 2],
    hasher: SeedableRandomState,
    successors: Successors,
    /// Who was who is this now.
    before: HashMap<PortUid, PortUid>,
    /// A bit for each entry.
    done: Box<[AtomicU64]>,
}

impl LeftFlows {
    /// Of what was left, the newest first, between those who are here now. `None`: flows cannot be
    /// looked for in it, since an index is another version's.
    pub fn new(left: Vec<(Left<'_>, Successors)>) -> io::Result<Option<LeftFlows>> {
        let memories = left.into_iter().map(|(left, is)| Memory::new(&left, is));
        let memories: Option<Vec<Memory>> = memories.collect::<io::Result<_>>()?;
        Ok(memories.map(|memories| LeftFlows {
            memories,
            taken: AtomicUsize::new(0),
            slots: Mutex::default(),
        }))
    }

    /// The memories that they were left in, the newest first.
    pub fn memories(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.memories.iter().map(|memory| memory.memory.as_fd())
    }

    /// How many were taken up by now.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// The flow with this key, and its place. What cannot be read is not there.
    fn find(&self, key: &Key, now: Now) -> Option<(Place, FlowInfo)> {
        let mut each = self.memories.iter().enumerate();
        each.find_map(|(number, memory)| {
            let (entry, flow) = memory.find(key, now)?;
            Some(((number, entry), flow))
        })
    }

    /// All that is still to be taken up, some at a time, with their places. How many entries could
    /// not be true.
    pub(crate) fn rest(
        &self,
        now: Now,
        mut each_part: impl FnMut(Vec<(Place, FlowInfo)>),
    ) -> io::Result<u64> {
        let each = self.memories.iter().enumerate();
        let each = each.map(|(number, memory)| memory.rest(number, now, &mut each_part));
        // What of one cannot be read keeps nothing of the others.
        let all: Vec<io::Result<u64>> = each.collect();
        all.into_iter().sum()
    }

    /// The flow with this key, which is not in the table: if it was left, it is there now. `ends`:
    /// the two NICs.
    #[cold]
    pub(crate) fn take_up(
        &self,
        view: &View,
        flows: &mut Flows,
        (key, hash): (&Key, u64),
        ends: [&PortConfig; 2],
        now: Now,
    ) -> Option<FlowId> {
        let (place, flow) = self.find(key, now)?;
        let named = dump::named(flows, &flow)?;
        let nic = |uid| ends.into_iter().find(|nic| nic.uid == uid);
        let import = || dump::import_one(view, flows, nic, &flow, named, now);
        match self.take(place, import) {
            Taken::Now(id) => return Some(id),
            Taken::Before | Taken::Not => (),
            Taken::Again(id) => flows.take_out_again(id),
        }
        // Another worker's, if it is not over.
        flows.find(key, hash)
    }

    /// Takes up some of the [rest](Self::rest), between two batches.
    pub(crate) fn take_up_some(
        &self,
        view: &View,
        flows: &mut Flows,
        some: &[(Place, FlowInfo)],
        now: Now,
    ) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.0 != Some(view.epoch_mark()) {
            let all = view.ports().chain(view.remotes());
            let all = all.map(|nic| (nic.uid, nic.slot)).collect();
            *slots = (Some(view.epoch_mark()), all);
        }
        let slots = &slots.1;
        dump::each_named(
            flows,
            some,
            |(_, flow)| flow,
            |flows, (place, flow), named| {
                let nic = |uid| {
                    let nic = view.port(*slots.get(&uid)?);
                    nic.filter(|nic| nic.uid == uid)
                };
                let import = || dump::import_one(view, flows, nic, flow, named, now);
                if let Taken::Again(id) = self.take(*place, import) {
                    flows.take_out_again(id);
                }
            },
        );
    }

    /// Takes up what is in a place.
    fn take(&self, (number, entry): Place, import: impl FnOnce() -> Option<FlowId>) -> Taken {
        let memory = &self.memories[number];
        if memory.is_done(entry) {
            return Taken::Before;
        }
        match import() {
            None => Taken::Not,
            Some(id) if memory.note_done(entry) => {
                self.taken.fetch_add(1, Ordering::Relaxed);
                Taken::Now(id)
            }
            Some(id) => Taken::Again(id),
        }
    }
}

impl Memory {
    fn new(left: &Left<'_>, successors: Successors) -> io::Result<Option<Memory>> {
        let Some((key, check)) = left.index() else {
            return Ok(None);
        };
        let hasher = key.hasher();
        if hash::check(&hasher) != check {
            return Ok(None);
        }
        let (memory, max, used) = left.memory();
        let [buckets, counts, _] = index_at(max as u32);
        let words = max.div_ceil(u64::BITS.into()) as usize;
        Ok(Some(Memory {
            memory: memory.try_clone_to_owned()?,
            max,
            used,
            shape: Shape::of(max as u32),
            at: [buckets, counts],
            hasher,
            before: successors.before(),
            successors,
            done: bytemuck::allocation::zeroed_slice_box(words),
        }))
    }

    /// The flow with this key, and its entry.
    fn find(&self, key: &Key, now: Now) -> Option<(FlowId, FlowInfo)> {
        let uids = [key.uid(0), key.uid(1)].map(|uid| self.before.get(&uid).copied());
        let [Some(one), Some(other)] = uids else {
            return None;
        };
        let was = key.between_others([one, other]);
        let hash = was.hash(&self.hasher);
        let [first, others @ ..] = self.shape.places(hash);
        let found = self.in_bucket(first, hash, &was);
        let (place, entry) = found.or_else(|| {
            let mut spilt = [0];
            self.read(&mut spilt, self.at[1] + first as u64)?;
            let mut others = others.iter().filter(|_| spilt != [0]);
            others.find_map(|bucket| self.in_bucket(*bucket, hash, &was))
        })?;
        let flow = left::connection(&entry, now).ok().flatten()?;
        Some((place, self.successors.between(flow)?))
    }

    fn in_bucket(&self, bucket: usize, hash: u64, key: &Key) -> Option<(FlowId, Entry)> {
        let mut bytes = [0; BUCKET];
        self.read(&mut bytes, self.at[0] + (bucket * BUCKET) as u64)?;
        let entry = |place: FlowId| {
            if u64::from(place) >= self.max {
                return None;
            }
            let mut bytes = [0; ENTRY];
            self.read(&mut bytes, ENTRIES + u64::from(place) * ENTRY as u64)?;
            let entry = Entry::of_bytes(&bytes);
            entry.is(key).then_some((place, entry))
        };
        self.shape.ids_in(&bytes, hash).find_map(entry)
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Option<()> {
        shared_memory::read_at(self.memory.as_fd(), bytes, at).ok()
    }

    fn word(&self, place: FlowId) -> (&AtomicU64, u64) {
        let (word, bit) = (place / u64::BITS, place % u64::BITS);
        (&self.done[word as usize], 1 << bit)
    }

    fn is_done(&self, place: FlowId) -> bool {
        let (word, bit) = self.word(place);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Notes that what is in this place was taken up. False: it was before.
    fn note_done(&self, place: FlowId) -> bool {
        let (word, bit) = self.word(place);
        word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    fn rest(
        &self,
        number: usize,
        now: Now,
        each: &mut impl FnMut(Vec<(Place, FlowInfo)>),
    ) -> io::Result<u64> {
        let mut part = Vec::with_capacity(AT_ONCE);
        let entries = (self.memory.as_fd(), self.used);
        let untrue = left::connections(entries, now, |entry, flow| {
            let flow = self.successors.between(flow);
            let Some(flow) = flow.filter(|_| !self.is_done(entry)) else {
                return;
            };
            part.push(((number, entry), flow));
            if part.len() == AT_ONCE {
                let next = Vec::with_capacity(AT_ONCE);
                each(std::mem::replace(&mut part, next));
            }
        })?;
        if !part.is_empty() {
            each(part);
        }
        Ok(untrue)
    }
}

/// What has become of a flow that was left.
enum Taken {
    Now(FlowId),
    /// It was before.
    Before,
    /// It was before, and is there again as this.
    Again(FlowId),
    /// It is there by somebody else, or cannot be.
    Not,
}

/// Whether flows that were left are being taken up.
#[derive(Default)]
pub(crate) struct TakingUp {
    is_so: Mutex<bool>,
    ended: Condvar,
}

impl TakingUp {
    pub(crate) fn set(&self, is_so: bool) {
        *self.is_so.lock().unwrap_or_else(PoisonError::into_inner) = is_so;
        self.ended.notify_all();
    }

    pub(crate) fn is_so(&self) -> bool {
        *self.is_so.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is not.
    pub(crate) fn wait(&self) {
        let is_so = self.is_so.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_while(is_so, |is_so| *is_so);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{FlowEnd, FlowMemory, FlowState, FlowTable, NewFlow, Party};
    use crate::left::Successor;

    const COUNT: u32 = 2_000;

    fn key(number: u32) -> Key {
        let end = |uid, port| Party {
            uid: PortUid(uid),
            address: std::net::Ipv4Addr::from_bits(0x0a00_0000 | uid).into(),
            port,
        };
        Key::between(17, false, (end(1, number as u16), end(2, 53))).0
    }

    fn insert(flows: &mut Flows, number: u32) -> Option<FlowId> {
        let key = key(number);
        let new = NewFlow {
            key,
            hash: flows.hash(&key),
            initiator: 0,
            owner: PortSlot(0),
            peer: PortSlot(1),
            share: u32::MAX,
            state: FlowState::Stream,
            timeout_secs: 60,
            epoch: 1,
            now_ms: 0,
            now_secs: 0,
        };
        match flows.find(&key, new.hash) {
            Some(_) => None,
            None => flows.insert(&new).unwrap(),
        }
    }

    fn left(memory: &FlowMemory) -> LeftFlows {
        let left = Left::open(memory.descriptor()).unwrap();
        let is = |uid| Successor {
            uid: PortUid(uid),
            vni: wire::Vni::new(7).unwrap(),
            is_elsewhere: false,
        };
        let successors = [1, 2].map(|uid| (PortUid(uid), is(uid)));
        let left = LeftFlows::new(vec![(left, successors.into_iter().collect())]);
        left.unwrap().unwrap()
    }

    /// Two workers have packets of the same flows at the same time, and flows end at any moment.
    #[test]
    fn each_is_taken_up_once_by_several_workers() {
        let memory = FlowMemory::new(2 * COUNT).unwrap();
        let table = FlowTable::in_memory(&memory, 7, 1).unwrap();
        let mut before = Flows::new(table, 0);
        (0..COUNT).for_each(|number| assert!(insert(&mut before, number).is_some()));
        let left = left(&memory);
        let table = FlowTable::shared(2 * COUNT, 8, 2);
        let ended = AtomicUsize::new(0);
        let work = |me: usize| {
            let mut flows = Flows::new(table.clone(), me);
            for number in 0..COUNT {
                flows.begin_turn();
                let now = Now::default();
                let Some((place, flow)) = left.find(&key(number), now) else {
                    panic!("flow {number} is not found");
                };
                assert_eq!(flow.initiator.port, number as u16);
                match left.take(place, || insert(&mut flows, number)) {
                    Taken::Now(id) if number % 3 > 0 => {
                        flows.remove(id, FlowEnd::Closed);
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                    Taken::Again(id) => flows.take_out_again(id),
                    _ => (),
                }
            }
            flows.sleep();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(0));
            work(1);
        });
        let ended = ended.load(Ordering::Relaxed) as u32;
        assert_eq!(left.taken() as u32, COUNT);
        assert_eq!(
            (ended, table.len()),
            (COUNT - COUNT.div_ceil(3), COUNT.div_ceil(3))
        );
        let mut rest = 0;
        left.rest(Now::default(), |some| rest += some.len())
            .unwrap();
        assert_eq!(rest, 0);
    }

    /// Whatever is in the index that was left: what is found is what was asked for.
    #[test]
    fn an_index_that_lies_finds_nothing_else() {
        let memory = FlowMemory::new(COUNT).unwrap();
        let table = FlowTable::in_memory(&memory, 7, 1).unwrap();
        let mut before = Flows::new(table, 0);
        (0..100).for_each(|number| assert!(insert(&mut before, number).is_some()));
        let left = left(&memory);
        let write = |at: u64, byte: u8| {
            let file = std::fs::File::from(memory.descriptor().try_clone_to_owned().unwrap());
            std::os::unix::fs::FileExt::write_all_at(&file, &[byte; 64], at).unwrap();
        };
        let [buckets, counts, _] = index_at(COUNT);
        for byte in [0, 1, 0x7f, 0xff] {
            for at in
                (buckets..buckets + (left.memories[0].shape.buckets() * BUCKET) as u64).step_by(64)
            {
                write(at, byte);
            }
            (counts..counts + left.memories[0].shape.buckets() as u64 - 64)
                .step_by(64)
                .for_each(|at| write(at, byte));
            for number in 0..COUNT {
                if let Some((_, flow)) = left.find(&key(number), Now::default()) {
                    assert_eq!(flow.initiator.port, number as u16);
                }
            }
        }
    }

    /// Another hash than this version's, or none: flows are not looked for.
    #[test]
    fn an_index_of_another_version_is_not_used() {
        for (word, value) in [(3, 0), (3, 2), (6, 1)] {
            let memory = FlowMemory::new(COUNT).unwrap();
            let table = FlowTable::in_memory(&memory, 7, 1).unwrap();
            let file = std::fs::File::from(memory.descriptor().try_clone_to_owned().unwrap());
            let bytes = u64::to_ne_bytes(value);
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 8 * word).unwrap();
            let left = Left::open(memory.descriptor()).unwrap();
            assert!(
                LeftFlows::new(vec![(left, Successors::default())])
                    .unwrap()
                    .is_none()
            );
            drop(table);
        }
    }

    /// Where what is in the memory that is left: another [number](crate::flow::memory::INDEX) for
    /// whatever is changed.
    #[test]
    fn the_index_is_the_one_that_its_number_says() {
        assert_eq!(crate::flow::memory::INDEX, 1);
        let shape = Shape::of(1000);
        assert_eq!(shape.buckets(), 100);
        let hash = 0x0123_4567_89ab_cdef;
        assert_eq!(shape.places(hash), [53, 52, 27, 26, 0, 1, 80, 81]);
        let mut bucket = [0; BUCKET];
        bucket[8..12].copy_from_slice(&0x0123_4408u32.to_ne_bytes());
        bucket[12..16].copy_from_slice(&0x0123_4c08u32.to_ne_bytes());
        let ids: Vec<_> = shape.ids_in(&bucket, hash).collect();
        assert_eq!(ids, [7]);
        assert_eq!(index_at(1000), [10 << 20, 12 << 20, 14 << 20]);
    }

    /// As if it had been made of the other ends at once.
    #[test]
    fn a_key_between_others_is_theirs() {
        let addresses = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2:0:0")];
        for (one, other) in addresses {
            for protocol in [1, 6, 17, 58, 132] {
                for uids in [[1, 2], [2, 1], [7, 3]] {
                    let end = |uid, address: &str, port| Party {
                        uid: PortUid(uid),
                        address: address.parse().unwrap(),
                        port,
                    };
                    let between = |[a, b]: [u32; 2]| {
                        let ends = (end(a, one, 0x1234), end(b, other, 0x800));
                        Key::between(protocol, one.contains(':'), ends).0
                    };
                    let key = between([40, 50]);
                    assert_eq!(key.between_others(uids.map(PortUid)), between(uids));
                    let key = between([50, 40]);
                    let [a, b] = uids;
                    assert_eq!(key.between_others([b, a].map(PortUid)), between(uids));
                }
            }
        }
    }
}
