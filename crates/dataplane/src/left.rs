//! Connections that a process has left in memory, read by the next one: see
//! [`FlowMemory`](crate::flow::FlowMemory), which says what may be in it.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sys::shared_memory;
use wire::Vni;

use crate::dump;
use crate::flow::hash::HashKey;
use crate::flow::memory::{
    ENTRIES, ENTRY, HEAD, LAYOUT, MAGIC, MAX_NETWORKS, MOST, NETWORKS, NICS, WORDS, parts,
};
use crate::flow::{Entry, FlowId, FlowInfo, FlowState, Key, SHORTEST_SECS, memory};
use crate::ids::{MAX_PORTS, PortUid};
use crate::snapshot::Timeouts;
use crate::time::Now;

/// Entries that are read at once.
const AT_ONCE: usize = 4096;

/// One end of a flow that was left: who it was to the process before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeftEnd {
    /// A NIC, by its name, and the VNI that it was in.
    Nic(Arc<str>, Vni),
    /// All that is on other hosts, of the network with this VNI.
    Elsewhere(Vni),
}

/// Who ends of flows that were left are in this process, by who they were.
#[derive(Default)]
pub struct Successors(HashMap<PortUid, Successor>);

/// Who an end of a flow that was left is in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Successor {
    /// By this it is known here.
    pub uid: PortUid,
    /// The network that it is in, as before.
    pub vni: Vni,
    /// All that is on other hosts.
    pub is_elsewhere: bool,
}

impl FromIterator<(PortUid, Successor)> for Successors {
    fn from_iter<T: IntoIterator<Item = (PortUid, Successor)>>(all: T) -> Self {
        Successors(all.into_iter().collect())
    }
}

impl Successors {
    /// Who was who is this now. Of two who were the same one, any.
    pub(crate) fn before(&self) -> HashMap<PortUid, PortUid> {
        let each = self.0.iter();
        each.map(|(was, is)| (is.uid, *was)).collect()
    }

    /// A flow that was left, between those who its ends are now; `None` where one is here no more,
    /// or both are in no network together.
    pub fn between(&self, mut flow: FlowInfo) -> Option<FlowInfo> {
        let one = self.0.get(&flow.initiator.uid)?;
        let other = self.0.get(&flow.responder.uid)?;
        let apart = one.vni != other.vni || one.is_elsewhere && other.is_elsewhere;
        (flow.initiator.uid, flow.responder.uid) = (one.uid, other.uid);
        (!apart).then_some(flow)
    }
}

/// What a process that has ended has left.
pub struct Left<'a> {
    memory: BorrowedFd<'a>,
    max: u64,
    /// How many entries are looked at.
    used: u64,
    /// What its index was made with, where it has one of a kind that is known.
    index: Option<(HashKey, u64)>,
    ends: HashMap<PortUid, LeftEnd>,
}

impl<'a> Left<'a> {
    /// Looks at memory that was left. An error: it is none of ours, or of another layout.
    pub fn open(memory: BorrowedFd<'a>) -> io::Result<Left<'a>> {
        let mut head = [0; HEAD];
        let bytes = 8 * HEAD;
        shared_memory::read(memory, (0, bytes as u64), bytes, |_, bytes| {
            for (word, bytes) in head.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = word_of(bytes);
            }
        })?;
        let [magic, layout, max, index, seed, shared, check] = head;
        if magic != MAGIC {
            return Err(io::Error::other("it holds no connections"));
        }
        if layout != LAYOUT || !(1..=MOST).contains(&max) {
            let why = format!("its layout is number {layout}, known is {LAYOUT}");
            return Err(io::Error::other(why));
        }
        let mut ends = HashMap::new();
        let nics = NICS + (MAX_PORTS * 8 * WORDS) as u64;
        shared_memory::read(memory, (NICS, nics), 8 * WORDS * 64, |_, bytes| {
            ends.extend(bytes.chunks_exact(8 * WORDS).filter_map(nic_of));
        })?;
        let networks = NETWORKS + (MAX_NETWORKS * 8) as u64;
        shared_memory::read(memory, (NETWORKS, networks), 4096, |_, bytes| {
            let words = bytes.chunks_exact(8).map(word_of);
            let elsewhere = |(uid, vni)| (uid, LeftEnd::Elsewhere(vni));
            ends.extend(words.filter_map(parts).map(elsewhere));
        })?;
        let index = (index == memory::INDEX).then_some((HashKey { seed, shared }, check));
        Ok(Left {
            memory,
            max,
            used: max,
            index,
            ends,
        })
    }

    /// The memory, how many entries it has, and how many are looked at.
    pub(crate) fn memory(&self) -> (BorrowedFd<'a>, u64, u64) {
        (self.memory, self.max, self.used)
    }

    /// What its index was made with and the check of that, where it is of a kind that is known.
    pub(crate) fn index(&self) -> Option<(HashKey, u64)> {
        self.index
    }

    /// Of how many connections there is memory at the most, by the system's word: what another
    /// process has left, or is about to. They are used from the first on.
    pub fn room(memory: BorrowedFd<'_>) -> io::Result<usize> {
        let end = shared_memory::end_of_data(memory, ENTRIES)?;
        Ok((end - ENTRIES) as usize / ENTRY)
    }

    /// Those alone in the first so many places.
    pub fn first(mut self, places: u64) -> Self {
        self.used = self.max.min(places);
        self
    }

    /// Who the ends of its flows were, by what they were called there. A NIC that was taken away is
    /// gone from it at once, and its flows a moment later.
    pub fn ends(&self) -> impl Iterator<Item = (PortUid, &LeftEnd)> {
        self.ends.iter().map(|(uid, end)| (*uid, end))
    }

    /// All connections that have not ended by `now`, of the same clock, with the names of their
    /// [ends](Left::ends). How many entries could not be true.
    pub fn connections(&self, now: Now, mut each: impl FnMut(FlowInfo)) -> io::Result<u64> {
        connections((self.memory, self.used), now, |_, flow| each(flow))
    }
}

/// The connections in the first so many entries of memory that was left, each with its place. How
/// many could not be true.
pub(crate) fn connections(
    (memory, used): (BorrowedFd<'_>, u64),
    now: Now,
    mut each: impl FnMut(FlowId, FlowInfo),
) -> io::Result<u64> {
    let end = ENTRIES + used * ENTRY as u64;
    let mut untrue = 0;
    shared_memory::read(memory, (ENTRIES, end), AT_ONCE * ENTRY, |at, bytes| {
        let first = (at - ENTRIES) / ENTRY as u64;
        for (place, entry) in (first as FlowId..).zip(bytes.chunks_exact(ENTRY)) {
            match connection(&Entry::of_bytes(entry), now) {
                Ok(Some(flow)) => each(place, flow),
                Ok(None) => (),
                Err(Untrue) => untrue += 1,
            }
        }
    })?;
    Ok(untrue)
}

/// An entry that no table of ours has.
pub(crate) struct Untrue;

/// The flow of an entry; `None`: there is none, or it has ended since.
pub(crate) fn connection(entry: &Entry, now: Now) -> Result<Option<FlowInfo>, Untrue> {
    let code = entry.state.get();
    if code == 0 {
        return Ok(None);
    }
    let known = FlowState::ALL
        .into_iter()
        .find(|state| *state as u8 == code);
    let state = known.ok_or(Untrue)?;
    let key = entry.key();
    let flow = dump::info(entry, &key, 0, now);
    let (v6, ends) = (key.is_v6(), (flow.initiator, flow.responder));
    let timeouts = SHORTEST_SECS..=Timeouts::LONGEST.tcp_established_secs;
    let is_true = state.is_of(flow.protocol)
        && timeouts.contains(&flow.timeout_secs)
        && ends.0.uid != ends.1.uid
        && Key::between(flow.protocol, v6, ends) == (key, entry.initiator());
    if !is_true {
        return Err(Untrue);
    }
    if entry.expired(now.millis()) {
        return Ok(None);
    }
    Ok(Some(FlowInfo {
        // Rules are the next process's own: they judge with the next packet.
        is_current: false,
        egress_rule: None,
        ingress_rule: None,
        ..flow
    }))
}

fn nic_of(bytes: &[u8]) -> Option<(PortUid, LeftEnd)> {
    let (uid, vni) = parts(word_of(bytes))?;
    let len = usize::try_from(word_of(&bytes[8..])).ok()?;
    let name = bytes[16..].get(..len).filter(|name| !name.is_empty())?;
    let name = std::str::from_utf8(name).ok()?;
    Some((uid, LeftEnd::Nic(name.into(), vni)))
}

/// The first eight bytes, of as many at least.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use sys::huge::Zeroed;
    use sys::shared_memory::SharedMemory;
    use wire::parse::protocol::{SCTP, TCP};

    use super::*;
    use crate::flow::{FlowEnd, FlowMemory, FlowTable, Flows, NewFlow, Party};
    use crate::ids::{Epoch, NetworkIdx, PortSlot};
    use crate::overlay::Overlay;
    use crate::snapshot::{Network, PortConfig, Snapshot};

    const NOW: Now = Now {
        mono_ns: 5_000_000_000_000,
        unix_ns: 0,
    };
    const REMOTE: u32 = 900;

    fn vni() -> Vni {
        Vni::new(42).unwrap()
    }

    fn snapshot() -> Snapshot {
        let network = Network {
            vni: vni(),
            macs: Default::default(),
            shared: Default::default(),
            ports: Vec::new(),
            learners: Vec::new(),
            overlay: Some(Arc::new(Overlay::new(PortUid(REMOTE)))),
        };
        let nic = |slot: u32, name: &str| {
            Some(Arc::new(PortConfig {
                slot: PortSlot(slot),
                uid: PortUid(slot + 1),
                name: name.into(),
                ..network.remote(NetworkIdx(0)).unwrap()
            }))
        };
        let ports = [nic(0, "a"), nic(1, &"long".repeat(32))];
        Snapshot {
            epoch: Epoch(1),
            ports: ports.into_iter().collect(),
            networks: [Some(Arc::new(network.clone()))].into_iter().collect(),
            ..Snapshot::default()
        }
    }

    /// A flow of two NICs; TCP's with windows.
    fn add(flows: &mut Flows, protocol: u8, uids: [u32; 2], v6: bool, state: FlowState) -> u32 {
        let party = |uid: u32, port| Party {
            uid: PortUid(uid),
            address: match v6 {
                true => format!("fd00::{uid}").parse().unwrap(),
                false => format!("10.0.0.{}", uid % 256).parse().unwrap(),
            },
            port,
        };
        let ends = (party(uids[0], 40_000), party(uids[1], 80));
        let (key, initiator) = Key::between(protocol, v6, ends);
        let new = NewFlow {
            key,
            hash: flows.hash(&key),
            initiator,
            owner: PortSlot(0),
            peer: PortSlot(1),
            share: 99,
            state,
            timeout_secs: 60,
            epoch: 1,
            now_ms: NOW.millis() - 3_000,
            now_secs: NOW.secs() - 9,
        };
        let id = flows.insert(&new).unwrap().unwrap();
        let entry = flows.entry(id);
        for (number, side) in (1..).zip(&entry.sides) {
            side.count(number, 100 * u64::from(protocol));
            if protocol == TCP {
                side.end.set(1000 * number as u32);
                side.ack.set(u32::MAX - number as u32);
                side.edge.set(7 * number as u32);
                side.scale.set(number as u8);
            }
        }
        id
    }

    fn found(memory: &FlowMemory, now: Now) -> (Vec<(FlowInfo, [LeftEnd; 2])>, u64) {
        let left = Left::open(memory.descriptor()).unwrap();
        let mut found = Vec::new();
        let ends: HashMap<PortUid, &LeftEnd> = left.ends().collect();
        let mut add = |flow: FlowInfo| {
            let of = [flow.initiator.uid, flow.responder.uid].map(|uid| ends.get(&uid));
            if let [Some(one), Some(other)] = of {
                found.push((flow, [one, other].map(|end| LeftEnd::clone(end))));
            }
        };
        let untrue = left.connections(now, &mut add).unwrap();
        (found, untrue)
    }

    /// A process with these NICs, and its flows.
    fn process(max: u32, snapshot: &Snapshot) -> (FlowMemory, Arc<FlowTable>, Flows) {
        let memory = FlowMemory::new(max).unwrap();
        memory.note(snapshot, Epoch(0));
        let table = FlowTable::in_memory(&memory, 7, 1).unwrap();
        let flows = Flows::new(table.clone(), 0);
        (memory, table, flows)
    }

    #[test]
    fn what_is_left_is_what_was_there() {
        let (memory, table, mut flows) = process(9_000, &snapshot());
        let ids = [
            add(&mut flows, TCP, [1, 2], false, FlowState::Established),
            add(&mut flows, 17, [2, 1], true, FlowState::Stream),
            add(&mut flows, 17, [REMOTE, 2], false, FlowState::OneWay),
            add(&mut flows, 1, [2, 1], false, FlowState::Stream),
            add(&mut flows, SCTP, [1, 2], true, FlowState::Opening),
        ];
        let gone = add(&mut flows, TCP, [2, 1], true, FlowState::SynSent);
        flows.remove(gone, FlowEnd::Killed);
        // Of a NIC that is not on record.
        add(&mut flows, TCP, [1, 3], false, FlowState::Established);
        let nics = [
            LeftEnd::Nic("a".into(), vni()),
            LeftEnd::Nic("long".repeat(32).into(), vni()),
        ];
        let end = |uid: PortUid| match uid.0 {
            REMOTE => LeftEnd::Elsewhere(vni()),
            uid => nics[uid as usize - 1].clone(),
        };
        let expected: Vec<_> = ids
            .iter()
            .map(|id| {
                let entry = flows.entry(*id);
                let flow = dump::info(entry, &entry.key(), 0, NOW);
                let ends = [flow.initiator.uid, flow.responder.uid].map(end);
                (flow, ends)
            })
            .collect();
        assert_eq!(found(&memory, NOW), (expected, 0));
        // The process is gone, its memory is not; and later all has ended.
        drop((flows, table));
        let later = Now {
            mono_ns: NOW.mono_ns + 57_000_000_000,
            ..NOW
        };
        assert_eq!(found(&memory, later), (vec![], 0));
    }

    #[test]
    fn what_is_left_stays_when_nics_and_flows_go() {
        let (memory, table, mut flows) = process(9, &snapshot());
        let stays = add(&mut flows, TCP, [1, 2], false, FlowState::Established);
        let before = found(&memory, NOW);
        assert_eq!(before.0.len(), 1);
        table.leave(&memory).unwrap();
        memory.note(&Snapshot::default(), Epoch(1));
        flows.remove(stays, FlowEnd::NicGone);
        add(&mut flows, 17, [2, 1], true, FlowState::Stream);
        assert_eq!(flows.len(), 1);
        assert_eq!(found(&memory, NOW), before);
    }

    #[test]
    fn a_nic_that_goes_is_off_the_record() {
        let mut snapshot = snapshot();
        let (memory, _table, mut flows) = process(9, &snapshot);
        add(&mut flows, TCP, [1, 2], false, FlowState::Established);
        assert_eq!(found(&memory, NOW).0.len(), 1);
        snapshot.ports.set(0, None);
        memory.note(&snapshot, Epoch(1));
        assert_eq!(found(&memory, NOW), (vec![], 0));
    }

    #[test]
    fn what_is_no_memory_of_ours_is_refused() {
        let memory = SharedMemory::new("test", 1 << 30).unwrap();
        let refused = |memory: &SharedMemory| Left::open(memory.as_fd()).err().unwrap().to_string();
        assert_eq!(refused(&memory), "it holds no connections");
        let head: Zeroed<std::sync::atomic::AtomicU64> = Zeroed::shared(&memory, 0, 3).unwrap();
        head[0].store(MAGIC, std::sync::atomic::Ordering::Relaxed);
        head[1].store(LAYOUT + 1, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused(&memory), "its layout is number 2, known is 1");
        head[1].store(LAYOUT, std::sync::atomic::Ordering::Relaxed);
        head[2].store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        assert!(Left::open(memory.as_fd()).is_err());
        // Fewer bytes than it says.
        head[2].store(MOST, std::sync::atomic::Ordering::Relaxed);
        let left = Left::open(memory.as_fd()).unwrap();
        assert!(left.connections(NOW, |_| ()).is_err());
        assert!(Left::open(SharedMemory::new("test", 8).unwrap().as_fd()).is_err());
    }

    /// An entry as bytes, and the memory's number of the layout with it: whoever changes one
    /// changes the other.
    #[test]
    fn the_layout_is_the_one_that_its_number_says() {
        let flow = connection(&Entry::of_bytes(&golden()), NOW)
            .ok()
            .flatten()
            .unwrap();
        assert_eq!(LAYOUT, 1);
        assert_eq!(flow.state, FlowState::Established);
        assert_eq!(
            (flow.initiator.uid, flow.responder.uid),
            (PortUid(2), PortUid(1))
        );
        assert_eq!(flow.initiator.address.to_string(), "10.0.0.2");
        assert_eq!((flow.initiator.port, flow.responder.port), (40_000, 80));
        assert_eq!((flow.frames_out, flow.bytes_out), (12, 1200));
        assert_eq!((flow.frames_in, flow.bytes_in), (11, 1100));
        assert_eq!(
            (flow.age_secs, flow.idle_secs, flow.timeout_secs),
            (9, 3, 60)
        );
        let tcp = flow.tcp.unwrap();
        assert_eq!((tcp.end, tcp.ack), ([102, 101], [202, 201]));
        assert_eq!((tcp.edge, tcp.scale), ([302, 301], [8, 7]));
        let states = FlowState::ALL.map(|state| state as u8);
        assert_eq!(states, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(FlowState::ALL[3].name(), "established");
        assert_eq!(FlowState::ALL[11].name(), "stream");
    }

    fn golden() -> [u8; ENTRY] {
        let mut bytes = [0xa5; ENTRY];
        let mut put = |at: usize, part: &[u8]| bytes[at..][..part.len()].copy_from_slice(part);
        put(0, &0x0a00_0001_0a00_0002u64.to_ne_bytes());
        put(8, &[0; 24]);
        put(32, &0x0000_0001_0000_0002u64.to_ne_bytes());
        put(40, &(80u64 << 48 | 40_000 << 32 | 6 << 8).to_ne_bytes());
        put(52, &60u32.to_ne_bytes());
        put(56, &[FlowState::Established as u8, 1]);
        for side in 0..2u32 {
            let at = 64 + 64 * side as usize;
            put(at, &u64::from(11 + side).to_ne_bytes());
            put(at + 8, &u64::from(1100 + 100 * side).to_ne_bytes());
            for (number, base) in [101, 201, 301].into_iter().enumerate() {
                put(at + 16 + 4 * number, &(base + side).to_ne_bytes());
            }
            put(at + 48, &(NOW.secs() - 9).to_ne_bytes());
            put(at + 52, &(NOW.millis() - 3_000).to_ne_bytes());
            put(at + 60, &[3, 7 + side as u8]);
        }
        bytes
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let lies: [(&str, usize, &[u8]); 8] = [
            ("a state that there is not", 56, &[13]),
            ("a state that TCP has not", 56, &[FlowState::Stream as u8]),
            ("no time-out", 52, &[0; 4]),
            ("a time-out of years", 52, &[0xff; 4]),
            ("IPv4 with more", 8, &[1]),
            ("a NIC with itself", 32, &[1, 0, 0, 0, 1, 0, 0, 0]),
            ("NICs the wrong way round", 32, &[1, 0, 0, 0, 2, 0, 0, 0]),
            ("a kind of its own", 40, &[0x80]),
        ];
        assert!(connection(&Entry::of_bytes(&golden()), NOW).is_ok());
        for (what, at, lie) in lies {
            let mut bytes = golden();
            bytes[at..][..lie.len()].copy_from_slice(lie);
            assert!(connection(&Entry::of_bytes(&bytes), NOW).is_err(), "{what}");
        }
    }

    proptest! {
        /// What is taken of any bytes is what a table could have.
        #[test]
        fn any_bytes_are_no_flow_or_one_that_can_be(
            changes in proptest::collection::vec((0..ENTRY, any::<u8>()), 0..40),
        ) {
            let mut bytes = golden();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(Some(flow)) = connection(&Entry::of_bytes(&bytes), NOW) {
                let ends = (flow.initiator, flow.responder);
                let v6 = flow.initiator.address.is_ipv6();
                prop_assert_eq!(v6, flow.responder.address.is_ipv6());
                let (key, _) = Key::between(flow.protocol, v6, ends);
                prop_assert_eq!(key, Entry::of_bytes(&bytes).key());
                prop_assert!(flow.idle_secs < flow.timeout_secs);
            }
        }

        /// Records of NICs, whatever they hold.
        #[test]
        fn any_record_is_nobody_or_has_a_name(
            words in proptest::collection::vec(any::<u64>(), WORDS),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            if let Some((uid, LeftEnd::Nic(name, _))) = nic_of(&bytes) {
                prop_assert!(uid.0 != 0 && !name.is_empty() && name.len() <= 8 * (WORDS - 2));
            }
        }
    }
}
