//! A worker's part in the table of flows: what it has made, and making room.
//!
//! A flow is charged to the NIC that started it, or, if somebody on another host has, to the NIC
//! that it was started with: whatever comes from outside, it is at no other NIC's cost. A NIC's
//! flows are in two lists: the transient ones (half-open, unanswered, closing) and the settled
//! ones. A NIC whose share is full loses its oldest transient flow for a new one, or else a settled
//! one that has been idle for long; never a flow of another NIC. In a table that is nearly full
//! shares shrink with what is left, and the last of it is for NICs that have [few](FEW): however
//! many others have filled their shares, a NIC can begin so many. Flows that are over by time are
//! gone for a lookup at that moment, and their entries are swept up bit by bit.
//!
//! Shares count the flows of all workers, and a NIC's oldest flow goes whichever worker has made
//! it: a worker sees where the others' lists begin, and changes only its own. Who changes the state
//! of another worker's flow or takes it out leaves the lists alone: they are put right when their
//! worker comes by, or when somebody asks it to who had to pass over others (`next_asked`).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io::frame::BATCH;

use super::entry::{Entry, FlowId, INITIATOR_IS_1, NONE, charged};
use super::info::FlowState;
use super::kernel::{Entered, KernelPart};
use super::key::{Key, Side};
use super::log::{FlowEnd, Log};
use super::memory::before_what_follows;
use super::table::{FlowTable, LISTS};
use crate::drop_reason::DropReason;
use crate::ids::{PortSlot, PortUid};
use crate::queue::{MAX_WORKERS, Routes};
use crate::time::Now;

/// A settled flow can be given up for a new one of the same NIC when it was idle for this long.
pub(crate) const IDLE_ENOUGH_MS: u32 = 60_000;

/// How many flows of a list are looked at for one to give up, and how many that are out already are
/// passed over.
const LOOKS: usize = 16;
const PASSED_OVER: usize = 256;

/// Another worker's list in which so many have to be passed over, as many as a batch takes out, is
/// not looked at again in the same turn.
const LONG: usize = BATCH;

/// Free entries that a worker keeps at most, of a large table.
const KEEP: usize = 1024;

/// The one in so many of the table that all workers together keep at most: a quarter of what is
/// reserved, so that what one keeps is not what another one's NIC is to find there.
const KEPT_BY_ALL: usize = 4 * RESERVED as usize;

/// In the last one in so many of the table shares shrink.
const NEARLY_FULL: u32 = 8;

/// The last one in so many of it is for NICs that have few flows.
const RESERVED: u32 = 16;

/// How many flows a NIC finds room for there, in a table of 16,384 or more. In a smaller one there
/// is room for 32 such NICs, in one of 1,048,576 for 2,048.
const FEW: u32 = 32;
const FEW_OF: u32 = 512;

/// `Entry::listed`: in no list, or in the first or second of a share's.
const UNLISTED: u8 = 0;
const TRANSIENT: u8 = 1;
const SETTLED: u8 = 2;

/// The flows that one worker has made, and its way to those of all.
pub(crate) struct Flows {
    table: Arc<FlowTable>,
    me: u8,
    free: Vec<FlowId>,
    keep: usize,
    /// Entries that others may still be reading, those that were taken out since, and when the
    /// former were counted.
    leaving: Vec<FlowId>,
    left: Vec<FlowId>,
    since: Vec<u64>,
    /// By the slot of the NIC that began them.
    nics: Vec<OfNic>,
    /// NICs for which something is noted until the turn ends.
    asking: Vec<PortSlot>,
    /// How many places of lists were looked at for one to give up, since who charges that has taken
    /// it.
    pub looked: u64,
    /// Where the sweep goes on.
    sweep_at: u32,
    evicted: u64,
    turns: u64,
    /// Which NICs something is attached to; `None`: to all.
    routes: Option<Arc<Routes>>,
    /// Who is told of what begins and ends.
    pub log: Option<Box<Log>>,
    /// What the kernel is told of, where it forwards flows itself.
    pub kernel: Option<Box<KernelPart>>,
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

/// What a worker has of the flows that a NIC has begun.
#[derive(Clone, Copy)]
struct OfNic {
    /// Transient flows, settled flows; oldest first.
    lists: [List; LISTS],
    /// Workers that are to put their lists right, a bit each.
    asked: u32,
    /// By list: workers, a bit each, in whose list nothing was found in this turn, or behind so
    /// many others that it is not looked at again.
    passed: [u32; LISTS],
}

const NOTHING: OfNic = OfNic {
    lists: [EMPTY; LISTS],
    asked: 0,
    passed: [0; LISTS],
};

const _: () = assert!(MAX_WORKERS <= u32::BITS as usize);

/// What is known of a flow when its first packet passes.
pub(crate) struct NewFlow {
    pub key: Key,
    pub hash: u64,
    pub initiator: Side,
    pub owner: PortSlot,
    pub peer: PortSlot,
    /// How many flows the NIC may have that it is charged to.
    pub share: u32,
    pub state: FlowState,
    pub timeout_secs: u32,
    pub epoch: u32,
    pub now_ms: u32,
    pub now_secs: u32,
}

/// The flows of all workers can be looked at through any of them.
impl std::ops::Deref for Flows {
    type Target = FlowTable;

    #[inline(always)]
    fn deref(&self) -> &FlowTable {
        &self.table
    }
}

impl Flows {
    /// The part of worker `me`.
    pub(crate) fn new(table: Arc<FlowTable>, me: usize) -> Flows {
        let keep = KEEP.min(table.max() as usize / (KEPT_BY_ALL * table.turns.workers()));
        Flows {
            table,
            me: me as u8,
            free: Vec::new(),
            keep,
            leaving: Vec::new(),
            left: Vec::new(),
            since: Vec::new(),
            nics: Vec::new(),
            asking: Vec::new(),
            looked: 0,
            sweep_at: 0,
            evicted: 0,
            turns: 0,
            routes: None,
            log: None,
            kernel: None,
        }
    }

    /// Looks there whether something is attached to a NIC.
    pub(crate) fn look_at(&mut self, routes: Arc<Routes>) {
        self.routes = Some(routes);
    }

    /// Frames can be delivered to a NIC of this host: something is attached to it, and ready.
    #[inline]
    pub(crate) fn is_attached(&self, nic: PortSlot) -> bool {
        self.routes
            .as_ref()
            .is_none_or(|routes| routes.on(nic) != 0)
    }

    /// Flows given up for new ones since the beginning.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// True for a flow that this worker has made.
    #[inline]
    pub(crate) fn is_mine(&self, entry: &Entry) -> bool {
        entry.worker.get() == self.me
    }

    /// A turn begins: nothing that was found before is used any more.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        if self.table.turns.workers() > 1 {
            self.table.turns.begin(self.me.into());
            if !self.left.is_empty() || !self.leaving.is_empty() {
                self.let_go();
            }
        }
    }

    /// What is logged in this turn has this time.
    #[inline]
    pub(crate) fn log_turn(&mut self, now: Now) {
        if let Some(log) = &mut self.log {
            log.begin_turn(now);
        }
    }

    /// A flow has begun, and its first packet is noted.
    #[inline]
    pub(crate) fn log_begun(&self, id: FlowId) {
        if let Some(log) = &self.log {
            log.began(self.table.entry(id));
        }
    }

    /// A flow is closed, and kept for a while.
    pub(super) fn log_closed(&self, id: FlowId, state: FlowState) {
        if let Some(log) = &self.log {
            log.ended(self.table.entry(id), state, FlowEnd::Closed);
        }
    }

    /// The worker is going to sleep; nothing is looked at until [`wake`](Self::wake).
    pub(crate) fn sleep(&mut self) {
        self.turns = self.table.turns.sleep(self.me.into());
    }

    pub(crate) fn wake(&mut self) {
        self.table.turns.wake(self.me.into(), self.turns);
    }

    /// Adds a flow that is not in the table. When the owner's share or the table is full, a flow of
    /// the owner goes for it, or the new one is refused. `None`: another worker has begun it at
    /// this moment.
    pub(crate) fn insert(&mut self, new: &NewFlow) -> Result<Option<FlowId>, DropReason> {
        self.insert_as(new, |_| ())
    }

    /// [`insert`](Self::insert), with what `fill` knows of it besides: before anybody finds it.
    pub(crate) fn insert_as(
        &mut self,
        new: &NewFlow,
        fill: impl FnOnce(&Entry),
    ) -> Result<Option<FlowId>, DropReason> {
        let charged = charged(new.owner, new.peer);
        let owner = charged.0 as usize;
        if owner >= self.nics.len() {
            self.nics.resize(owner + 1, NOTHING);
        }
        let (over, full) = self.is_over(charged, new.share);
        if over && !self.give_up_one(owner, new.now_ms) {
            return Err(full);
        }
        let mut free = self.take_free();
        // Where others may still read what has just gone, a second one would not be free sooner.
        if free.is_none() && !over && self.give_up_one(owner, new.now_ms) {
            free = self.take_free();
        }
        let id = free.ok_or(full)?;
        self.write(id, new, fill);
        if !self.table.add(new.hash, id) {
            self.table.entry(id).state.set(0);
            self.free.push(id);
            return Err(DropReason::FlowTableFull);
        }
        self.append(id, class(new.state));
        if self.table.turns.workers() == 1 {
            return Ok(Some(id));
        }
        match self.table.find(&new.key, new.hash) {
            // Its other end, by another worker: one of the two entries goes.
            Some(first) if first != id => {
                self.take_out_again(id);
                Ok(None)
            }
            _ => Ok(Some(id)),
        }
    }

    /// Whether the NIC has its part of the table, and why a new flow is refused if none of its own
    /// can go for it.
    fn is_over(&self, charged: PortSlot, share: u32) -> (bool, DropReason) {
        let begun = self.table.begun(charged.0).load(Ordering::Relaxed);
        let full = match begun >= share {
            true => DropReason::FlowShareFull,
            false => DropReason::FlowTableFull,
        };
        (begun >= self.part(share), full)
    }

    /// Whether [`insert`](Self::insert) would take a flow of these two NICs now, or why not.
    /// Changes nothing.
    pub(crate) fn would_take(
        &self,
        owner: PortSlot,
        peer: PortSlot,
        share: u32,
        now_ms: u32,
    ) -> Result<(), DropReason> {
        let charged = charged(owner, peer);
        let (over, full) = self.is_over(charged, share);
        let needs_one = over || self.table.len() >= self.table.max();
        match needs_one && !self.could_give_up_one(charged, now_ms) {
            true => Err(full),
            false => Ok(()),
        }
    }

    /// One of the flows that [`give_up_one`](Self::give_up_one) would look at could go.
    fn could_give_up_one(&self, owner: PortSlot, now_ms: u32) -> bool {
        let lists = |worker| (0..LISTS).map(move |list| (worker, list));
        let mut all = (0..self.table.turns.workers()).flat_map(lists);
        all.any(|(worker, list)| {
            let (found, _) = self.expendable_of(worker, owner.0 as usize, list, now_ms);
            found.is_some()
        })
    }

    /// Adds what another table has of a flow, for a [trial](crate::trial). None when it cannot.
    pub(crate) fn copy_in(&mut self, of: &Entry) -> Option<FlowId> {
        let (key, (owner, peer)) = (of.key(), of.slots());
        let new = NewFlow {
            key,
            hash: self.table.hash(&key),
            initiator: of.initiator(),
            owner,
            peer,
            share: u32::MAX,
            state: of.state(),
            timeout_secs: of.timeout_secs.get(),
            epoch: of.epoch.get(),
            now_ms: 0,
            now_secs: 0,
        };
        let id = self.insert(&new).ok()??;
        self.table.entry(id).copy_from(of);
        Some(id)
    }

    #[inline]
    fn write(&self, id: FlowId, new: &NewFlow, fill: impl FnOnce(&Entry)) {
        let entry = self.table.entry(id);
        if entry.kernel.get() != 0 {
            self.leave_kernel(entry);
        }
        before_what_follows();
        entry.name(&new.key);
        entry.epoch.set(new.epoch);
        entry.timeout_secs.set(new.timeout_secs);
        entry.flags.set(if new.initiator == 1 {
            INITIATOR_IS_1
        } else {
            0
        });
        entry.worker.set(self.me);
        entry.listed.set(UNLISTED);
        for (side, half) in entry.sides.iter().enumerate() {
            half.frames.set(0);
            half.bytes.set(0);
            for number in [&half.end, &half.ack, &half.edge] {
                number.set(0);
            }
            half.fast_path.set(new.epoch.wrapping_sub(1));
            half.rules[0].set(NONE);
            half.rules[1].set(NONE);
            let nic = if side == new.initiator {
                new.owner
            } else {
                new.peer
            };
            half.slot.set(nic.0);
            half.link.set(NONE);
            half.born_secs.set(new.now_secs);
            half.touch(new.now_ms);
            half.seen.set(0);
            half.scale.set(0);
            half.tcp_flags.set(0);
            half.asked.set(0);
        }
        entry.begin_pairs();
        fill(entry);
        // What the next process finds with a state is whole.
        before_what_follows();
        entry.state.set(new.state as u8);
    }

    /// Takes a flow out.
    pub(crate) fn remove(&mut self, id: FlowId, why: FlowEnd) {
        if self.take_out(id, why) && self.is_mine(self.table.entry(id)) {
            self.take_back(id);
        }
    }

    /// Takes out a flow that this worker has just made, and that has not begun for anybody.
    pub(crate) fn take_out_again(&mut self, id: FlowId) {
        if self.table.take_out(id).is_some() {
            self.take_back(id);
        }
    }

    /// Takes a flow out of the table, and says so. True for one of those who try.
    fn take_out(&self, id: FlowId, why: FlowEnd) -> bool {
        let entry = self.table.entry(id);
        if entry.kernel.get() != 0 {
            self.leave_kernel(entry);
        }
        let state = self.table.take_out(id);
        if let (Some(state), Some(log)) = (state, &self.log) {
            log.ended(self.table.entry(id), state, why);
        }
        state.is_some()
    }

    /// Puts a flow into another state, if it is still in the one that was read. True when it was.
    #[inline]
    pub(crate) fn set_state(
        &mut self,
        id: FlowId,
        from: FlowState,
        to: FlowState,
        timeout_secs: u32,
    ) -> bool {
        let entry = self.table.entry(id);
        if entry.kernel.get() != 0
            && let Some(kernel) = &self.kernel
        {
            kernel.withdraw(entry);
        }
        // Where there is one worker nobody changes it meanwhile.
        if self.table.turns.workers() == 1 {
            entry.state.set(to as u8);
        } else if !entry.state.change(from as u8, to as u8) {
            return false;
        }
        if entry.kernel.get() != 0
            && let Some(kernel) = &self.kernel
        {
            fence(Ordering::SeqCst);
            kernel.withdraw(entry);
        }
        entry.timeout_secs.set(timeout_secs);
        if self.is_mine(entry) && entry.listed.get() != class(to) {
            self.unlink(id);
            self.append(id, class(to));
        }
        true
    }

    #[cold]
    fn leave_kernel(&self, entry: &Entry) {
        match &self.kernel {
            Some(kernel) => kernel.leave(entry),
            // It has none in a table of its own.
            None => entry.kernel.set(0),
        }
    }

    /// Takes over what the kernel has seen of a flow.
    #[inline]
    pub(crate) fn fold(&self, entry: &Entry) {
        if entry.kernel.get() != 0
            && let Some(kernel) = &self.kernel
        {
            kernel.fold(entry);
        }
    }

    /// Takes over what the kernel has seen of all flows that this worker has told it of.
    pub(crate) fn fold_all(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.fold_some(&self.table, true);
        }
    }

    /// Takes over some of it, what is due; `begin`: all is, from now on.
    pub(crate) fn fold_some(&mut self, begin: bool) {
        if let Some(kernel) = &mut self.kernel {
            if begin {
                kernel.begin_fold();
            }
            kernel.fold_some(&self.table, false);
        }
    }

    /// More of it is due at once.
    #[inline]
    pub(crate) fn has_to_fold(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.has_work())
    }

    /// Directions that the kernel is told of. Gives the places that no flow took.
    pub(crate) fn take_entered(&mut self, all: &[Entered]) -> Vec<u32> {
        match &mut self.kernel {
            Some(kernel) => kernel.take_entered(&self.table, all),
            None => all.iter().map(Entered::place).collect(),
        }
    }

    /// A flow is over by time, with all that has come of it.
    #[inline]
    pub(crate) fn is_expired(&self, entry: &Entry, now_ms: u32) -> bool {
        if !entry.expired(now_ms) {
            return false;
        }
        self.fold(entry);
        entry.kernel.get() == 0 || entry.expired(now_ms)
    }

    /// Takes out one of the flows of this worker that a NIC has started which had this slot and is
    /// gone; those of the one that is `there` now stay. False when there is none.
    pub(crate) fn remove_owned(&mut self, slot: PortSlot, there: Option<PortUid>) -> bool {
        let nic = self.nics.get(slot.0 as usize);
        let mut heads = nic
            .into_iter()
            .flat_map(|nic| nic.lists)
            .map(|list| list.head);
        // What came later is behind it: only a packet moves a flow, and the first one under another
        // snapshot finds that the NIC is gone.
        let is_of_another = |head: &FlowId| {
            *head != NONE && {
                let key = self.table.entry(*head).key();
                there.is_none_or(|uid| uid != key.uid(0) && uid != key.uid(1))
            }
        };
        let Some(head) = heads.find(is_of_another) else {
            return false;
        };
        self.discard(head, FlowEnd::NicGone);
        true
    }

    /// Looks at the next `count` entries and takes out those of this worker that are over, by time
    /// or because `gone` says so.
    pub(crate) fn sweep(&mut self, count: u32, now_ms: u32, gone: impl Fn(&Entry) -> bool) {
        let high = self.table.high();
        for _ in 0..count.min(high) {
            if self.sweep_at >= high {
                self.sweep_at = 0;
            }
            let id = self.sweep_at;
            self.sweep_at += 1;
            let entry = self.table.entry(id);
            if !self.is_mine(entry) || entry.listed.get() == UNLISTED {
                continue;
            }
            // What another worker has taken out it has told.
            let is_over = entry.state.get() == 0 || self.is_expired(entry, now_ms);
            if is_over || gone(entry) {
                let why = match is_over {
                    true => FlowEnd::Idle,
                    false => FlowEnd::NicGone,
                };
                self.discard(id, why);
                continue;
            }
            for side in &entry.sides {
                side.keep_idle(now_ms);
            }
        }
    }

    /// How many flows a NIC with this share may have now. Of the last eighth of the table who has
    /// many gets less and less, and the last half of that is for who has [few](FEW), so that no
    /// number of NICs that fill their shares keeps the others from any flow at all; unless one NIC
    /// was given the whole table.
    #[inline]
    fn part(&self, share: u32) -> u32 {
        let max = self.table.max();
        let free = max.saturating_sub(self.table.len());
        if share >= max || free > max / NEARLY_FULL {
            return share;
        }
        let few = (max / FEW_OF).clamp(1, FEW);
        share.min((free.saturating_sub(max / RESERVED) / 16).max(few))
    }

    /// Makes room at the cost of the NIC that asks for it: where its share is full, for each flow.
    #[inline(never)]
    fn give_up_one(&mut self, owner: usize, now_ms: u32) -> bool {
        // One that another worker takes at this moment makes room for a flow of that worker's.
        for _ in 0..LOOKS {
            let Some((id, mine)) = self.expendable(owner, now_ms) else {
                return false;
            };
            let expired = self.table.entry(id).expired(now_ms);
            let why = match expired {
                true => FlowEnd::Idle,
                false => FlowEnd::Evicted,
            };
            let is_done = self.take_out(id, why);
            if let Some(list) = mine {
                self.take_back(id);
                self.fetch(self.nics[owner].lists[list].head);
            } else {
                self.begin_note(owner).asked |= 1 << self.table.entry(id).worker.get();
            }
            if is_done {
                self.evicted += u64::from(!expired);
                return true;
            }
        }
        false
    }

    /// A flow that can go, and in which list it is the first if it is one of this worker's.
    #[inline(always)]
    fn expendable(&mut self, owner: usize, now_ms: u32) -> Option<(FlowId, Option<usize>)> {
        for list in 0..LISTS {
            let (mine, before) = self.expendable_here(owner, list, now_ms);
            self.looked += before;
            // Of those that are idle for long any one may go, of the transient ones the oldest.
            let is_enough = mine.is_some() && list == list_of(SETTLED);
            let found = match is_enough || self.table.turns.workers() == 1 {
                true => mine,
                false => self.oldest_of_all(mine, owner, list, now_ms),
            };
            if let Some(id) = found {
                return Some((id, (found == mine).then_some(list)));
            }
        }
        None
    }

    /// The first flow of this worker that can go, of the oldest ones in a list, and how many were
    /// before it. Puts these right.
    #[inline(always)]
    fn expendable_here(&mut self, owner: usize, list: usize, now_ms: u32) -> (Option<FlowId>, u64) {
        let (mut looks, mut out) = (0, 0);
        while looks < LOOKS && out < PASSED_OVER {
            let id = self.nics[owner].lists[list].head;
            if id == NONE {
                break;
            }
            let entry = self.table.entry(id);
            if entry.is_out() {
                out += 1;
            } else {
                self.fold(entry);
                if is_expendable(entry, now_ms) {
                    return (Some(id), (looks + out) as u64);
                }
                looks += 1;
            }
            self.put_aside(id);
        }
        (None, (looks + out) as u64)
    }

    /// Has a flow that cannot go no longer be the first of its list.
    #[cold]
    fn put_aside(&mut self, id: FlowId) {
        let entry = self.table.entry(id);
        if entry.is_out() {
            // Another worker has taken it out.
            self.take_back(id);
            return;
        }
        // In use: to the end of the settled ones, so that the next call looks at others.
        let class = class(entry.state());
        self.unlink(id);
        self.append(id, class);
    }

    /// The one that was idle longest of `mine` and of what other workers find first.
    fn oldest_of_all(
        &mut self,
        mine: Option<FlowId>,
        owner: usize,
        list: usize,
        now_ms: u32,
    ) -> Option<FlowId> {
        let idle_ms = |id| self.table.entry(id).idle_ms(now_ms);
        let mut oldest = mine.map(|id| (idle_ms(id), id));
        let (mut looked, mut asked, mut passed) = (0, 0, 0);
        let not_again = 1 << self.me | self.nics[owner].passed[list];
        for worker in (0..self.table.turns.workers()).filter(|it| not_again >> it & 1 == 0) {
            let (found, before) = self.expendable_of(worker, owner, list, now_ms);
            looked += 1 + before as u64;
            asked |= u32::from(before > 0) << worker;
            passed |= u32::from(found.is_none() || before >= LONG) << worker;
            if let Some(id) = found
                && oldest.is_none_or(|(longest, _)| idle_ms(id) > longest)
            {
                oldest = Some((idle_ms(id), id));
            }
        }
        let oldest = oldest.map(|(_, id)| id);
        self.looked += looked;
        if asked | passed != 0 {
            let nic = self.begin_note(owner);
            nic.asked |= asked;
            nic.passed[list] |= passed;
        }
        oldest
    }

    /// The first flow that can go of the oldest ones in a worker's list, and how many others are
    /// before it. Leaves the lists alone.
    fn expendable_of(
        &self,
        worker: usize,
        owner: usize,
        list: usize,
        now_ms: u32,
    ) -> (Option<FlowId>, usize) {
        let (mut looks, mut out) = (0, 0);
        let mut id = match self.nics.get(owner) {
            nic if worker == usize::from(self.me) => nic.map_or(NONE, |nic| nic.lists[list].head),
            _ => self.table.oldest(worker, owner, list),
        };
        while id != NONE && looks < LOOKS && out < PASSED_OVER {
            let entry = self.table.entry(id);
            if entry.state.get() == 0 {
                out += 1;
            } else {
                self.fold(entry);
                if is_expendable(entry, now_ms) {
                    return (Some(id), looks + out);
                }
                looks += 1;
            }
            id = self.table.behind(id);
        }
        (None, looks + out)
    }

    /// Where something is noted of a NIC's flows until the end of the turn.
    fn begin_note(&mut self, owner: usize) -> &mut OfNic {
        let nic = &mut self.nics[owner];
        if nic.asked == 0 && nic.passed == [0; LISTS] {
            self.asking.push(PortSlot(owner as u32));
        }
        nic
    }

    #[inline]
    pub(crate) fn has_to_ask(&self) -> bool {
        !self.asking.is_empty()
    }

    /// At the end of a turn: a NIC, and the workers, a bit each, that are to be asked to
    /// [put right](Self::put_right) its flows. Those that somebody has asked already are not.
    pub(crate) fn next_asked(&mut self) -> Option<(PortSlot, u32)> {
        let slot = self.asking.pop()?;
        let nic = &mut self.nics[slot.0 as usize];
        nic.passed = [0; LISTS];
        let workers = std::mem::take(&mut nic.asked);
        Some((slot, self.table.ask(slot, workers)))
    }

    /// A worker could not be told what [`next_asked`](Self::next_asked) has said.
    pub(crate) fn was_not_asked(&self, slot: PortSlot, worker: usize) {
        self.table.may_be_asked(slot, worker);
    }

    /// Another worker has looked for a flow of a NIC to give up, or has taken one out: the oldest
    /// ones here are to be such as can go. Gives how many were looked at.
    pub(crate) fn put_right(&mut self, slot: PortSlot, now_ms: u32) -> u64 {
        self.table.may_be_asked(slot, self.me.into());
        let owner = slot.0 as usize;
        if owner >= self.nics.len() {
            return 0;
        }
        let looks = (0..LISTS).map(|list| self.expendable_here(owner, list, now_ms).1);
        looks.sum()
    }

    /// Begins to bring what giving up an entry will touch, which is there to be read, and the one
    /// behind it.
    #[inline]
    fn fetch(&self, id: FlowId) {
        if id == NONE {
            return;
        }
        let entry = self.table.entry(id);
        self.table.fetch_index(self.table.hash(&entry.key()));
        let next = entry.sides[1].link.get();
        if next != NONE {
            let entry = self.table.entry(next);
            io::fetch::soon(entry);
            entry.sides.iter().for_each(io::fetch::soon);
        }
    }

    /// Takes out a flow of this worker, if that was not done, and its entry back.
    #[inline]
    fn discard(&mut self, id: FlowId, why: FlowEnd) {
        self.take_out(id, why);
        self.take_back(id);
    }

    /// The entry of a flow of this worker that was taken out.
    #[inline]
    fn take_back(&mut self, id: FlowId) {
        self.unlink(id);
        if self.table.turns.workers() == 1 {
            self.free_entry(id);
        } else {
            self.left.push(id);
        }
    }

    /// Frees what all others have let go of, and begins to wait for what was taken out since.
    #[cold]
    fn let_go(&mut self) {
        if !self.leaving.is_empty() && !self.table.turns.passed(self.me.into(), &self.since) {
            return;
        }
        while let Some(id) = self.leaving.pop() {
            self.free_entry(id);
        }
        if !self.left.is_empty() {
            std::mem::swap(&mut self.leaving, &mut self.left);
            self.since = self.table.turns.now();
        }
    }

    fn free_entry(&mut self, id: FlowId) {
        if self.free.len() < self.keep.max(1) {
            self.free.push(id);
        } else {
            self.table.push_spare(id);
        }
    }

    #[inline]
    fn take_free(&mut self) -> Option<FlowId> {
        if self.free.is_empty() {
            let free = &mut self.free;
            self.table.supply(self.keep.max(1), |id| free.push(id));
            // The first of them first.
            free.reverse();
        }
        self.free.pop()
    }

    #[inline]
    fn list(&mut self, id: FlowId, class: u8) -> &mut List {
        let charged = self.table.entry(id).charged();
        &mut self.nics[charged.0 as usize].lists[list_of(class)]
    }

    /// Another flow is the first in a list, in which `id` is or was.
    #[inline]
    fn set_head(&mut self, id: FlowId, class: u8, head: FlowId) {
        let slot = self.table.entry(id).charged().0 as usize;
        self.nics[slot].lists[list_of(class)].head = head;
        if self.table.turns.workers() > 1 {
            let me = usize::from(self.me);
            self.table.set_oldest(me, slot, list_of(class), head);
        }
    }

    #[inline]
    fn append(&mut self, id: FlowId, class: u8) {
        let before = std::mem::replace(&mut self.list(id, class).tail, id);
        let entry = self.table.entry(id);
        entry.sides[0].link.set(before);
        entry.sides[1].link.set(NONE);
        entry.listed.set(class);
        if before == NONE {
            self.set_head(id, class, id);
        } else {
            self.table.put_behind(before, id);
        }
    }

    #[inline]
    fn unlink(&mut self, id: FlowId) {
        let entry = self.table.entry(id);
        let [before, after] = [0, 1].map(|side: usize| entry.sides[side].link.get());
        let class = entry.listed.get();
        entry.listed.set(UNLISTED);
        if before == NONE {
            self.set_head(id, class, after);
        } else {
            self.table.put_behind(before, after);
        }
        if after == NONE {
            self.list(id, class).tail = before;
        } else {
            self.table.entry(after).sides[0].link.set(before);
        }
    }
}

/// Can be given up for a new flow of the same NIC.
#[inline]
fn is_expendable(entry: &Entry, now_ms: u32) -> bool {
    class(entry.state()) == TRANSIENT
        || entry.expired(now_ms)
        || entry.idle_ms(now_ms) >= IDLE_ENOUGH_MS
}

#[inline]
fn class(state: FlowState) -> u8 {
    if state.is_transient() {
        TRANSIENT
    } else {
        SETTLED
    }
}

/// Which of a NIC's lists is that of a class.
#[inline]
fn list_of(class: u8) -> usize {
    usize::from(class == SETTLED)
}
