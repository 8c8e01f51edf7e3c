//! Virtual reassembly: fragments follow the judgement of their first one (security-groups.md 8).
//!
//! Nothing is put together. What the first fragment says of layer 4 is remembered for 30 s and lent
//! to the later ones, which are then judged like it: same ports, same flow, same rules. Fragments
//! that come before their first one are held back as copies for a second. All of it is bounded, an
//! eighth for one NIC, or one network's other hosts, at most, and less the more of it is taken; a
//! quarter for one other host, in whatever networks; and the last eighth is for who has [few](FEW).
//! Bytes may be sent once: a datagram with overlapping fragments is lost with all that is yet to
//! come of it (RFC 5722; here for IPv4 as well).

mod datagram;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;
use wire::Mac;
use wire::offload::Offload;

use datagram::{Begun, Datagram};
pub(crate) use datagram::{Lent, Piece};

use crate::count::Count;
use crate::drop_reason::DropReason;
use crate::ids::{PortSlot, PortUid};
use crate::overlay::TunnelSource;

/// How long a first fragment is remembered.
const REMEMBER_MS: u32 = 30_000;
/// The last one in so many of the datagrams is for senders that have few.
const RESERVED: usize = 8;
/// So many are few where 4,096 are remembered, which is room for 128 such senders.
const FEW: usize = 4;
const FEW_OF: usize = 1024;
/// How long a fragment is held back for its first one.
const HOLD_MS: u32 = 1_000;
/// Fragments and bytes held back at most by a worker, and for one sender.
const HELD_MAX: usize = 64;
const HELD_BYTES_MAX: usize = 1 << 20;
const HELD_MAX_EACH: usize = HELD_MAX / 2;

/// One datagram of one sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DatagramKey {
    pub sender: PortUid,
    /// A datagram to several NICs has one destination MAC.
    pub to: Mac,
    pub src: u128,
    pub dst: u128,
    /// Not part of an IPv6 datagram's identity (RFC 8200, section 4.5): 0 there.
    pub protocol: u8,
    pub v6: bool,
    pub id: u32,
}

/// What is to be done with a fragment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Disposition {
    /// The first one: judge it.
    First,
    /// A later one: judge it with what the first one said.
    Later(Lent),
    /// The first one has not come yet: hold it back.
    Early,
    Drop(DropReason),
}

/// A fragment that waits for its first one.
#[derive(Clone)]
pub(crate) struct Held {
    pub key: DatagramKey,
    pub source: PortSlot,
    /// Of what has come from the wire: from where.
    pub from: Option<TunnelSource>,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    since_ms: u32,
}

#[derive(Clone)]
pub(crate) struct Fragments {
    max: usize,
    datagrams: HashMap<DatagramKey, Datagram, SeedableRandomState>,
    /// In the order of their beginning, and so of their end.
    queue: VecDeque<(DatagramKey, Begun)>,
    /// How many have begun; wraps.
    begun: u32,
    shares: Count<PortUid>,
    /// How many have come from each other host, in all networks.
    hosts: Count<IpAddr>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// What of that is whose: of those who have some.
    held_of: BTreeMap<PortUid, HeldOf>,
}

/// What is held back of one sender.
#[derive(Clone, Copy, Default)]
struct HeldOf {
    fragments: usize,
    bytes: usize,
}

impl HeldOf {
    /// How much of the room it takes: of that for fragments as of that for bytes.
    fn taken(self) -> usize {
        self.bytes + self.fragments * (HELD_BYTES_MAX / HELD_MAX)
    }
}

impl Fragments {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        Fragments {
            max: max as usize,
            datagrams: HashMap::with_hasher(hasher.clone()),
            queue: VecDeque::new(),
            begun: 0,
            shares: Count::new(hasher.clone()),
            hosts: Count::new(hasher),
            held: VecDeque::new(),
            held_bytes: 0,
            held_of: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Says what a fragment is. `first` is what it says of layer 4, when it is the first one, and
    /// `host` whom it has come from, of what comes from the wire.
    pub(crate) fn place(
        &mut self,
        key: &DatagramKey,
        host: Option<IpAddr>,
        piece: Piece,
        first: Option<Lent>,
        now_ms: u32,
    ) -> Disposition {
        self.forget_old(now_ms);
        let Some(datagram) = self.datagrams.get_mut(key) else {
            return match first {
                None => Disposition::Early,
                Some(_) if !self.has_room(key.sender, host) => {
                    Disposition::Drop(DropReason::FragmentTableFull)
                }
                Some(lent) => self.begin(key, host, piece, lent, now_ms),
            };
        };
        if let Some(reason) = datagram.fate {
            return Disposition::Drop(reason);
        }
        if let Err(reason) = datagram.add(piece) {
            datagram.fate = Some(reason);
            return Disposition::Drop(reason);
        }
        let lent = datagram.first;
        if datagram.is_whole() {
            self.end(key);
        }
        // A second first fragment overlaps the one before, and did not get here.
        Disposition::Later(lent)
    }

    /// Another datagram of this sender can be remembered.
    fn has_room(&self, sender: PortUid, host: Option<IpAddr>) -> bool {
        let share = self.shares.of(&sender);
        let at_host = host.map_or(0, |host| self.hosts.of(&host));
        let free = self.max.saturating_sub(self.datagrams.len());
        let is_few = share < (self.max / FEW_OF).clamp(1, FEW);
        let (has_room, of_host) = if is_few {
            // Other networks' machines may be at the same host.
            (free > 0, self.max.div_ceil(2))
        } else {
            // An eighth, and a quarter of what is free: several NICs together leave room for
            // others.
            let free = free.saturating_sub(self.max / RESERVED);
            let part = self.max.div_ceil(8).min(free.div_ceil(4));
            (share < part, self.max.div_ceil(4))
        };
        has_room && at_host < of_host
    }

    fn begin(
        &mut self,
        key: &DatagramKey,
        host: Option<IpAddr>,
        piece: Piece,
        lent: Lent,
        now_ms: u32,
    ) -> Disposition {
        self.begun = self.begun.wrapping_add(1);
        let begun = Begun {
            at_ms: now_ms,
            number: self.begun,
        };
        self.datagrams
            .insert(*key, Datagram::new(begun, host, lent, piece));
        self.queue.push_back((*key, begun));
        self.shares.add(&key.sender);
        if let Some(host) = host {
            self.hosts.add(&host);
        }
        Disposition::First
    }

    /// The first fragment was dropped for everybody: so are the others.
    pub(crate) fn condemn(&mut self, key: &DatagramKey) {
        if let Some(datagram) = self.datagrams.get_mut(key) {
            datagram.fate = datagram.fate.or(Some(DropReason::FragmentOfDropped));
        }
    }

    /// Holds a copy back, for which there [is room](Self::make_room).
    pub(crate) fn hold(
        &mut self,
        key: DatagramKey,
        (source, from): (PortSlot, Option<TunnelSource>),
        bytes: Vec<u8>,
        offload: Offload,
        now_ms: u32,
    ) {
        self.held_bytes += bytes.len();
        let theirs = self.held_of.entry(key.sender).or_default();
        theirs.fragments += 1;
        theirs.bytes += bytes.len();
        self.held.push_back(Held {
            key,
            source,
            from,
            bytes,
            offload,
            since_ms: now_ms,
        });
    }

    /// True when a fragment of `len` bytes of this sender can be held back. Where all room is taken
    /// the sender that takes most of it gives some up, unless that is the one that asks.
    pub(crate) fn make_room(
        &mut self,
        sender: PortUid,
        len: usize,
        mut given_up: impl FnMut(Held),
    ) -> bool {
        let mine = self.held_by(sender);
        if mine.fragments >= HELD_MAX_EACH || len > HELD_BYTES_MAX {
            return false;
        }
        while self.held.len() >= HELD_MAX || self.held_bytes + len > HELD_BYTES_MAX {
            let greediest = self.held_of.iter().max_by_key(|(_, held)| held.taken());
            let Some((greediest, _)) = greediest.filter(|(_, held)| held.taken() > mine.taken())
            else {
                return false;
            };
            let is_theirs = |held: &Held| held.key.sender == *greediest;
            let oldest = self.held.iter().position(is_theirs);
            match oldest.and_then(|at| self.take_held(at)) {
                Some(held) => given_up(held),
                None => return false,
            }
        }
        true
    }

    fn held_by(&self, sender: PortUid) -> HeldOf {
        self.held_of.get(&sender).copied().unwrap_or_default()
    }

    /// Takes out a fragment that waited for the first one of `key`.
    pub(crate) fn release(&mut self, key: &DatagramKey) -> Option<Held> {
        let at = self.held.iter().position(|held| held.key == *key)?;
        self.take_held(at)
    }

    /// Takes out a fragment that has waited for too long.
    pub(crate) fn overdue(&mut self, now_ms: u32) -> Option<Held> {
        let front = self.held.front()?;
        if now_ms.wrapping_sub(front.since_ms) < HOLD_MS {
            return None;
        }
        self.take_held(0)
    }

    /// In how many milliseconds the next one will have waited for too long.
    pub(crate) fn next_overdue_ms(&self, now_ms: u32) -> Option<u32> {
        let front = self.held.front()?;
        Some(HOLD_MS.saturating_sub(now_ms.wrapping_sub(front.since_ms)))
    }

    fn take_held(&mut self, at: usize) -> Option<Held> {
        let held = self.held.remove(at)?;
        self.held_bytes -= held.bytes.len();
        if let Entry::Occupied(mut theirs) = self.held_of.entry(held.key.sender) {
            let left = theirs.get_mut();
            left.fragments -= 1;
            left.bytes -= held.bytes.len();
            if left.fragments == 0 {
                theirs.remove();
            }
        }
        Some(held)
    }

    /// Forgets datagrams whose time is over.
    pub(crate) fn forget_old(&mut self, now_ms: u32) {
        while let Some(&(key, begun)) = self.queue.front() {
            let ended = self.datagrams.get(&key).is_none_or(|d| d.begun != begun);
            let over = now_ms.wrapping_sub(begun.at_ms) >= REMEMBER_MS;
            if !ended && !over {
                return;
            }
            self.queue.pop_front();
            if !ended {
                self.end(&key);
            }
        }
    }

    fn end(&mut self, key: &DatagramKey) {
        if let Some(datagram) = self.datagrams.remove(key) {
            self.shares.take(&key.sender);
            if let Some(host) = datagram.host {
                self.hosts.take(&host);
            }
        }
        // Those that were whole before their time stay in the queue: they must not make it grow.
        if self.queue.len() > 2 * self.max.max(16) {
            let datagrams = &self.datagrams;
            self.queue
                .retain(|(key, begun)| datagrams.get(key).is_some_and(|d| d.begun == *begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::parse::L4;

    const LENT: Lent = Lent {
        protocol: 17,
        l4: L4::Other,
        quoted: None,
    };

    fn key(sender: u32, id: u32) -> DatagramKey {
        DatagramKey {
            sender: PortUid(sender),
            to: Mac([2; 6]),
            src: 1,
            dst: 2,
            protocol: 17,
            v6: false,
            id,
        }
    }

    /// Sends first fragments until there is no room, and gives how many there was room for.
    fn fill(fragments: &mut Fragments, sender: u32, host: Option<IpAddr>) -> u32 {
        let piece = Piece {
            start: 0,
            end: 8,
            more: true,
        };
        // Each key once, whoever has begun which before.
        let first = fragments.begun;
        let begins = |id: &u32| {
            let said = fragments.place(&key(sender, first + id), host, piece, Some(LENT), 5);
            said == Disposition::First
        };
        (0..).take_while(begins).count() as u32
    }

    #[test]
    fn senders_that_are_full_leave_room_for_those_that_have_few() {
        let mut fragments = Fragments::new(4096, 1);
        for nic in 100..160 {
            fill(&mut fragments, nic, None);
        }
        assert!(fragments.len() > 4096 - 512, "{}", fragments.len());
        for nic in 1..50 {
            assert_eq!(fill(&mut fragments, nic, None), 4, "NIC {nic}");
        }
        fragments.forget_old(5 + REMEMBER_MS);
        assert!(fragments.shares.len() == 0);
    }

    /// A host takes part in many networks, each of which is a sender.
    #[test]
    fn one_host_leaves_room_to_others_in_whatever_networks_it_is() {
        let mut fragments = Fragments::new(4096, 1);
        let host = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        for network in 1..1000 {
            fill(&mut fragments, network, host("192.0.2.7"));
        }
        assert_eq!(fragments.len(), 2048);
        // In a network of its own, and in one of the first one's.
        assert!(fill(&mut fragments, 2000, host("192.0.2.8")) >= 256);
        assert!(fill(&mut fragments, 999, host("192.0.2.8")) >= 128);
        fragments.forget_old(5 + REMEMBER_MS);
        assert!(fragments.shares.len() == 0 && fragments.hosts.len() == 0);
    }

    /// However much comes early: whose it is is known without a look at all that is held.
    #[test]
    fn what_is_held_of_each_is_what_there_is_of_it() {
        let mut fragments = Fragments::new(64, 1);
        let mut given_up = 0;
        for id in 0..2_000u32 {
            let (sender, len) = (1 + id % 5, 60 + 700 * (id as usize % 90));
            if fragments.make_room(PortUid(sender), len, |_| given_up += 1) {
                let from = (PortSlot(sender), None);
                fragments.hold(key(sender, id), from, vec![0; len], Offload::default(), id);
            }
            if id % 7 == 0 {
                fragments.release(&key(1 + (id / 2) % 5, id / 2));
            }
            fragments.overdue(id);
            for (sender, theirs) in &fragments.held_of {
                let of = fragments.held.iter();
                let of = of.filter(|held| held.key.sender == *sender);
                let lengths: Vec<_> = of.map(|held| held.bytes.len()).collect();
                let there_is = (lengths.len(), lengths.iter().sum());
                assert_eq!((theirs.fragments, theirs.bytes), there_is);
            }
            let all = fragments.held_of.values();
            assert_eq!(
                all.map(|all| all.bytes).sum::<usize>(),
                fragments.held_bytes
            );
        }
        assert!(given_up > 100, "{given_up}");
        while fragments.overdue(2_000 + HOLD_MS).is_some() {}
        assert_eq!((fragments.held_bytes, fragments.held_of.len()), (0, 0));
    }

    /// A guest ends datagrams and begins them anew in the same millisecond, and leaves them
    /// unfinished: what is kept to forget them by is bounded all the same.
    #[test]
    fn datagrams_begun_over_and_over_leave_nothing_behind() {
        let mut fragments = Fragments::new(64, 1);
        let piece = |start, end, more| Piece { start, end, more };
        for id in 0..8 {
            let key = key(1, id);
            for _ in 0..1000 {
                assert_eq!(
                    fragments.place(&key, None, piece(0, 8, true), Some(LENT), 5),
                    Disposition::First
                );
                let last = fragments.place(&key, None, piece(8, 16, false), None, 5);
                assert_eq!(last, Disposition::Later(LENT));
            }
            fragments.place(&key, None, piece(0, 8, true), Some(LENT), 5);
        }
        assert!(fragments.queue.len() <= 2 * 64 + 1);
        assert_eq!(fragments.len(), 8);
        fragments.forget_old(5 + REMEMBER_MS);
        assert_eq!((fragments.len(), fragments.queue.len()), (0, 0));
        assert!(fragments.shares.len() == 0);
    }
}
