//! Virtual reassembly: fragments follow the judgement of their first one (contract, item 8).
//!
//! Nothing is put together. What the first fragment says of layer 4 is remembered for 30 s and lent to the
//! later ones, which are then judged like it: same ports, same flow, same rules. Fragments that come before
//! their first one are held back as copies for a second. All of it is bounded, an eighth for one NIC at most.
//! Bytes may be sent once: a datagram with overlapping fragments is lost with all that is yet to come of it
//! (RFC 5722; here for IPv4 as well).

use std::collections::VecDeque;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;
use wire::Mac;
use wire::offload::Offload;
use wire::parse::L4;

use crate::drop_reason::DropReason;
use crate::snapshot::{PortSlot, PortUid};

/// How long a first fragment is remembered.
const REMEMBER_MS: u32 = 30_000;
/// How long a fragment is held back for its first one.
const HOLD_MS: u32 = 1_000;
/// Fragments and bytes held back at most by a worker, and for one NIC.
const HELD_MAX: usize = 64;
const HELD_BYTES_MAX: usize = 1 << 20;
const HELD_MAX_PER_NIC: usize = HELD_MAX / 2;
/// Separate pieces of one datagram at most.
const PIECES: usize = 8;

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

/// One fragment's place in its datagram, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub start: u32,
    pub end: u32,
    pub more: bool,
}

/// What of layer 4 the later fragments borrow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lent {
    pub protocol: u8,
    pub l4: L4,
}

/// What is to be done with a fragment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Place {
    /// The first one: judge it.
    First,
    /// A later one: judge it with what the first one said.
    Later(Lent),
    /// The first one has not come yet: hold it back.
    Early,
    Drop(DropReason),
}

#[derive(Clone, Copy)]
struct Datagram {
    started_ms: u32,
    /// What the first fragment said: a datagram is remembered from then on.
    first: Lent,
    fate: Option<DropReason>,
    /// What was seen, sorted, touching pieces joined.
    pieces: [(u32, u32); PIECES],
    count: u8,
    /// Where the datagram ends, once the last fragment was seen.
    total: Option<u32>,
}

/// A fragment that waits for its first one.
pub(crate) struct Held {
    pub key: DatagramKey,
    pub source: PortSlot,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    since_ms: u32,
}

pub(crate) struct Fragments {
    max: usize,
    datagrams: HashMap<DatagramKey, Datagram, SeedableRandomState>,
    /// In the order of their beginning, and so of their end.
    queue: VecDeque<(DatagramKey, u32)>,
    shares: HashMap<PortUid, usize, SeedableRandomState>,
    held: VecDeque<Held>,
    held_bytes: usize,
}

impl Fragments {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        Fragments {
            max: max as usize,
            datagrams: HashMap::with_hasher(hasher.clone()),
            queue: VecDeque::new(),
            shares: HashMap::with_hasher(hasher),
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Says what a fragment is. `first` is what it says of layer 4, when it is the first one.
    pub(crate) fn place(
        &mut self,
        key: &DatagramKey,
        piece: Piece,
        first: Option<Lent>,
        now_ms: u32,
    ) -> Place {
        self.forget_old(now_ms);
        let Some(datagram) = self.datagrams.get_mut(key) else {
            return match first {
                None => Place::Early,
                Some(lent) => self.begin(key, piece, lent, now_ms),
            };
        };
        if let Some(reason) = datagram.fate {
            return Place::Drop(reason);
        }
        if let Err(reason) = datagram.add(piece) {
            datagram.fate = Some(reason);
            return Place::Drop(reason);
        }
        let lent = datagram.first;
        if datagram.is_whole() {
            self.end(key);
        }
        // A second first fragment overlaps the one before, and did not get here.
        Place::Later(lent)
    }

    fn begin(&mut self, key: &DatagramKey, piece: Piece, lent: Lent, now_ms: u32) -> Place {
        let share = self.shares.get(&key.sender).copied().unwrap_or(0);
        if self.datagrams.len() >= self.max || share >= self.max.div_ceil(8) {
            return Place::Drop(DropReason::FragmentTableFull);
        }
        let mut datagram = Datagram {
            started_ms: now_ms,
            first: lent,
            fate: None,
            pieces: [(0, 0); PIECES],
            count: 0,
            total: None,
        };
        // The first piece of an empty list always fits.
        let _ = datagram.add(piece);
        self.datagrams.insert(*key, datagram);
        self.queue.push_back((*key, now_ms));
        *self.shares.entry(key.sender).or_default() += 1;
        Place::First
    }

    /// The first fragment was dropped for everybody: so are the others.
    pub(crate) fn condemn(&mut self, key: &DatagramKey) {
        if let Some(datagram) = self.datagrams.get_mut(key) {
            datagram.fate = datagram.fate.or(Some(DropReason::FragmentOfDropped));
        }
    }

    /// Holds a copy back, for which there [is room](Self::has_room).
    pub(crate) fn hold(
        &mut self,
        key: DatagramKey,
        source: PortSlot,
        bytes: Vec<u8>,
        offload: Offload,
        now_ms: u32,
    ) {
        self.held_bytes += bytes.len();
        self.held.push_back(Held {
            key,
            source,
            bytes,
            offload,
            since_ms: now_ms,
        });
    }

    /// True when a fragment of `len` bytes of this NIC can be held back.
    pub(crate) fn has_room(&self, source: PortSlot, len: usize) -> bool {
        self.held.len() < HELD_MAX
            && self.held_bytes + len <= HELD_BYTES_MAX
            && self.held.iter().filter(|held| held.source == source).count() < HELD_MAX_PER_NIC
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
        Some(held)
    }

    /// Forgets datagrams whose time is over.
    pub(crate) fn forget_old(&mut self, now_ms: u32) {
        while let Some(&(key, started_ms)) = self.queue.front() {
            let ended = self
                .datagrams
                .get(&key)
                .is_none_or(|d| d.started_ms != started_ms);
            let over = now_ms.wrapping_sub(started_ms) >= REMEMBER_MS;
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
        if self.datagrams.remove(key).is_some()
            && let Some(share) = self.shares.get_mut(&key.sender)
        {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&key.sender);
            }
        }
        // Those that were whole before their time stay in the queue: they must not make it grow.
        if self.queue.len() > 2 * self.max.max(16) {
            let datagrams = &self.datagrams;
            self.queue
                .retain(|(key, started_ms)| datagrams.get(key).is_some_and(|d| d.started_ms == *started_ms));
        }
    }
}

impl Datagram {
    /// Adds a piece; fails when it overlaps another one or lies behind the end, or makes too many.
    fn add(&mut self, piece: Piece) -> Result<(), DropReason> {
        let count = usize::from(self.count);
        let highest = self.pieces[..count].last().map_or(0, |&(_, end)| end);
        if self.total.is_some_and(|total| piece.end > total || !piece.more) {
            return Err(DropReason::FragmentOverlap);
        }
        if !piece.more {
            if highest > piece.end {
                return Err(DropReason::FragmentOverlap);
            }
            self.total = Some(piece.end);
        }
        let at = self.pieces[..count].partition_point(|&(start, _)| start < piece.start);
        let overlaps_before = at > 0 && self.pieces[at - 1].1 > piece.start;
        let overlaps_after = at < count && self.pieces[at].0 < piece.end;
        if overlaps_before || overlaps_after {
            return Err(DropReason::FragmentOverlap);
        }
        let joins_before = at > 0 && self.pieces[at - 1].1 == piece.start;
        let joins_after = at < count && self.pieces[at].0 == piece.end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[at - 1].1 = self.pieces[at].1;
                self.pieces.copy_within(at + 1..count, at);
                self.count -= 1;
            }
            (true, false) => self.pieces[at - 1].1 = piece.end,
            (false, true) => self.pieces[at].0 = piece.start,
            (false, false) if count == PIECES => return Err(DropReason::FragmentTableFull),
            (false, false) => {
                self.pieces.copy_within(at..count, at + 1);
                self.pieces[at] = (piece.start, piece.end);
                self.count += 1;
            }
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.count == 1 && self.total == Some(self.pieces[0].1) && self.pieces[0].0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagram() -> Datagram {
        Datagram {
            started_ms: 0,
            first: Lent {
                protocol: 17,
                l4: L4::Other,
            },
            fate: None,
            pieces: [(0, 0); PIECES],
            count: 0,
            total: None,
        }
    }

    proptest! {
        /// Against a list of bytes that were seen.
        #[test]
        fn pieces_overlap_when_their_bytes_do(pieces in proptest::collection::vec((0u32..24, 1u32..6), 1..12)) {
            let mut datagram = datagram();
            let mut seen = [false; 40];
            for (start, len) in pieces {
                let end = start + len;
                let overlap = (start..end).any(|byte| seen[byte as usize]);
                match datagram.add(Piece { start, end, more: true }) {
                    Ok(()) => prop_assert!(!overlap),
                    Err(DropReason::FragmentOverlap) => { prop_assert!(overlap); continue; }
                    Err(_) => { prop_assert_eq!(usize::from(datagram.count), PIECES); continue; }
                }
                (start..end).for_each(|byte| seen[byte as usize] = true);
            }
            let runs = (0..39).filter(|&i| seen[i] && (i == 0 || !seen[i - 1])).count();
            prop_assert_eq!(usize::from(datagram.count), runs);
        }
    }

    #[test]
    fn there_is_one_end_and_nothing_behind_it() {
        let piece = |start, end, more| Piece { start, end, more };
        let mut datagram = datagram();
        datagram.add(piece(16, 20, false)).unwrap();
        assert_eq!(
            datagram.add(piece(24, 32, true)),
            Err(DropReason::FragmentOverlap)
        );
        assert_eq!(
            datagram.add(piece(8, 12, false)),
            Err(DropReason::FragmentOverlap)
        );
        let mut other = self::datagram();
        other.add(piece(16, 24, true)).unwrap();
        assert_eq!(other.add(piece(8, 12, false)), Err(DropReason::FragmentOverlap));
    }
}
