//! The table of tracked flows: a slab of fixed-size entries, an index over it, and what each NIC has in it.
//!
//! Bounded by `max`, allocated at once and committed by the kernel page by page. A flow is charged to the
//! NIC that started it, whose flows are in two lists: the transient ones (half-open, unanswered, closing) and
//! the settled ones. A NIC whose share is full loses its oldest transient flow for a new one, or else a
//! settled one that has been idle for long; never a flow of another NIC. In a table that is nearly full shares
//! shrink with what is left. Flows that are over by time are gone
//! for a lookup at that moment, and their entries are swept up bit by bit.

use bytemuck::Zeroable;
use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use super::entry::{Entry, FlowId, INITIATOR_IS_1, NONE};
use super::index::Index;
use super::info::FlowState;
use super::key::{Key, Side};
use crate::drop_reason::DropReason;
use crate::snapshot::PortSlot;

/// A settled flow can be given up for a new one of the same NIC when it was idle for this long.
pub(crate) const IDLE_ENOUGH_MS: u32 = 60_000;

/// How many settled flows are looked at for one that was idle for long.
const LOOKS: usize = 16;

/// Flows tracked by one worker.
pub(crate) struct FlowTable {
    entries: Box<[Entry]>,
    links: Box<[Links]>,
    index: Index,
    seed: SeedableRandomState,
    /// First of the free entries below `high`, chained by `next`.
    free: u32,
    /// Entries from here on were never used.
    high: u32,
    count: u32,
    shares: Vec<Share>,
    /// Where the sweep goes on.
    sweep_at: u32,
    evicted: u64,
}

/// What of a flow is touched only when it comes, changes its list, or goes.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
struct Links {
    prev: u32,
    next: u32,
    /// Slot of the initiator's NIC, to which the flow is charged.
    owner: u32,
    /// Slot of the responder's NIC.
    peer: u32,
    created_secs: u32,
}

#[derive(Clone, Copy)]
struct Share {
    count: u32,
    /// Transient flows, settled flows; oldest first.
    lists: [List; 2],
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
};

/// What is known of a flow when its first packet passes.
pub(crate) struct NewFlow {
    pub key: Key,
    pub hash: u32,
    pub initiator: Side,
    pub owner: PortSlot,
    pub peer: PortSlot,
    /// How many flows the owner may have.
    pub share: u32,
    pub state: FlowState,
    pub now_ms: u32,
    pub now_secs: u32,
}

impl FlowTable {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let max = max.clamp(1, NONE - 1);
        FlowTable {
            entries: bytemuck::allocation::zeroed_slice_box(max as usize),
            links: bytemuck::allocation::zeroed_slice_box(max as usize),
            index: Index::new(max),
            seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            free: NONE,
            high: 0,
            count: 0,
            shares: Vec::new(),
            sweep_at: 0,
            evicted: 0,
        }
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Flows given up for new ones since the beginning.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// One past the highest entry that was ever used: the end for walks by id.
    pub(crate) fn high(&self) -> u32 {
        self.high
    }

    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u32 {
        key.hash(&self.seed)
    }

    /// Begins to bring what a lookup reads first into the cache.
    #[inline]
    pub(crate) fn fetch_index(&self, hash: u32) {
        self.index.fetch(hash);
    }

    /// Begins to bring the entry, both lines of it, that a lookup will find.
    #[inline]
    pub(crate) fn fetch_entry(&self, hash: u32) {
        if let Some(entry) = self
            .index
            .likely(hash)
            .and_then(|id| self.entries.get(id as usize))
        {
            io::fetch::soon(entry);
            io::fetch::soon(&entry.bytes);
        }
    }

    /// The flow with this key, over or not.
    #[inline]
    pub(crate) fn find(&self, key: &Key, hash: u32) -> Option<FlowId> {
        self.index.find(hash, |id| self.entries[id as usize].is(key))
    }

    #[inline]
    pub(crate) fn entry(&self, id: FlowId) -> &Entry {
        &self.entries[id as usize]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, id: FlowId) -> &mut Entry {
        &mut self.entries[id as usize]
    }

    /// The slots of the initiator's and the responder's NIC.
    pub(crate) fn slots(&self, id: FlowId) -> (PortSlot, PortSlot) {
        let links = &self.links[id as usize];
        (PortSlot(links.owner), PortSlot(links.peer))
    }

    pub(crate) fn created_secs(&self, id: FlowId) -> u32 {
        self.links[id as usize].created_secs
    }

    /// Adds a flow that is not in the table. When the owner's share or the table is full, a flow of the
    /// owner goes for it, or the new one is refused.
    pub(crate) fn insert(&mut self, new: &NewFlow) -> Result<FlowId, DropReason> {
        let owner = new.owner.0 as usize;
        if owner >= self.shares.len() {
            let empty = Share {
                count: 0,
                lists: [EMPTY; 2],
            };
            self.shares.resize(owner + 1, empty);
        }
        let share_full = self.shares[owner].count >= new.share;
        let crowded = self.shares[owner].count >= self.part(new.share);
        let table_full = self.free == NONE && self.high as usize == self.entries.len();
        if (crowded || table_full) && !self.give_up_one(owner, new.now_ms) {
            return Err(if share_full {
                DropReason::FlowShareFull
            } else {
                DropReason::FlowTableFull
            });
        }
        let id = self.take_free();
        if !self.index.insert(new.hash, id) {
            self.put_free(id);
            return Err(DropReason::FlowTableFull);
        }
        self.entries[id as usize] = Entry {
            ip: new.key.ip,
            uid: new.key.uid,
            port: new.key.port,
            protocol: new.key.protocol,
            kind: new.key.kind,
            state: new.state as u8,
            flags: if new.initiator == 1 { INITIATOR_IS_1 } else { 0 },
            last_ms: new.now_ms,
            egress_rule: NONE,
            ingress_rule: NONE,
            ..Entry::zeroed()
        };
        self.links[id as usize] = Links {
            prev: NONE,
            next: NONE,
            owner: new.owner.0,
            peer: new.peer.0,
            created_secs: new.now_secs,
        };
        self.count += 1;
        self.shares[owner].count += 1;
        self.append(id, new.state);
        Ok(id)
    }

    /// Takes a flow out.
    pub(crate) fn remove(&mut self, id: FlowId) {
        let entry = &self.entries[id as usize];
        let hash = self.hash(&entry.key());
        let state = entry.state();
        self.index.remove(hash, id);
        self.unlink(id, state);
        self.shares[self.links[id as usize].owner as usize].count -= 1;
        self.entries[id as usize].state = 0;
        self.put_free(id);
        self.count -= 1;
    }

    /// Puts a flow into another state, and into the list that belongs to it.
    #[inline]
    pub(crate) fn set_state(&mut self, id: FlowId, state: FlowState, timeout_secs: u32) {
        let entry = &mut self.entries[id as usize];
        let before = entry.state();
        entry.timeout_secs = timeout_secs;
        if before != state {
            entry.state = state as u8;
            if before.is_transient() != state.is_transient() {
                self.unlink(id, before);
                self.append(id, state);
            }
        }
    }

    /// Takes out all flows that the NIC in this slot has started: it is gone.
    pub(crate) fn remove_owned(&mut self, slot: PortSlot) {
        for list in 0..2 {
            while let Some(share) = self.shares.get(slot.0 as usize)
                && share.lists[list].head != NONE
            {
                self.remove(share.lists[list].head);
            }
        }
    }

    /// Looks at the next `count` entries and takes out those that are over, by time or because `gone` says
    /// so of the flow's entry and its two NICs' slots.
    pub(crate) fn sweep(
        &mut self,
        count: u32,
        now_ms: u32,
        gone: impl Fn(&Entry, PortSlot, PortSlot) -> bool,
    ) {
        for _ in 0..count.min(self.high) {
            if self.sweep_at >= self.high {
                self.sweep_at = 0;
            }
            let id = self.sweep_at;
            self.sweep_at += 1;
            let (owner, peer) = self.slots(id);
            let entry = self.entry(id);
            if entry.state != 0 && (entry.expired(now_ms) || gone(entry, owner, peer)) {
                self.remove(id);
            }
        }
    }

    /// How many flows a NIC with this share may have now. The last eighth of the table is for those that have
    /// few, so that no number of NICs that fill their shares keeps the others from any flow at all; unless one
    /// NIC was given the whole table.
    fn part(&self, share: u32) -> u32 {
        let max = self.entries.len() as u32;
        let free = max - self.count;
        if share >= max || free > max / 8 {
            return share;
        }
        share.min((free / 16).max(1))
    }

    /// Makes room at the cost of the NIC that asks for it.
    #[cold]
    fn give_up_one(&mut self, owner: usize, now_ms: u32) -> bool {
        let oldest = self.shares[owner].lists[0].head;
        if oldest != NONE {
            self.evicted += u64::from(!self.entry(oldest).expired(now_ms));
            self.remove(oldest);
            return true;
        }
        for _ in 0..LOOKS {
            let id = self.shares[owner].lists[1].head;
            if id == NONE {
                return false;
            }
            let entry = self.entry(id);
            if entry.expired(now_ms) || entry.idle_ms(now_ms) >= IDLE_ENOUGH_MS {
                self.evicted += u64::from(!entry.expired(now_ms));
                self.remove(id);
                return true;
            }
            // In use: to the end of the list, so that the next call looks at others.
            let state = entry.state();
            self.unlink(id, state);
            self.append(id, state);
        }
        false
    }

    /// Only to be called when there is a free entry.
    fn take_free(&mut self) -> FlowId {
        if self.free != NONE {
            let id = self.free;
            self.free = self.links[id as usize].next;
            id
        } else {
            self.high += 1;
            self.high - 1
        }
    }

    fn put_free(&mut self, id: FlowId) {
        self.links[id as usize].next = self.free;
        self.free = id;
    }

    fn list(&mut self, id: FlowId, state: FlowState) -> &mut List {
        let owner = self.links[id as usize].owner as usize;
        &mut self.shares[owner].lists[usize::from(!state.is_transient())]
    }

    fn append(&mut self, id: FlowId, state: FlowState) {
        let list = self.list(id, state);
        let before = std::mem::replace(&mut list.tail, id);
        if before == NONE {
            list.head = id;
        } else {
            self.links[before as usize].next = id;
        }
        let links = &mut self.links[id as usize];
        (links.prev, links.next) = (before, NONE);
    }

    fn unlink(&mut self, id: FlowId, state: FlowState) {
        let Links { prev, next, .. } = self.links[id as usize];
        if prev == NONE {
            self.list(id, state).head = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next == NONE {
            self.list(id, state).tail = prev;
        } else {
            self.links[next as usize].prev = prev;
        }
    }
}
