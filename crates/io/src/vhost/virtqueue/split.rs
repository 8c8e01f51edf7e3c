//! The device's side of a split virtqueue (virtio 1.2, section 2.7).
//!
//! # Orderings
//!
//! Each index has one writer: the guest writes `avail.idx`, we write `used.idx`.
//! - The guest stores ring entries and descriptors, then `avail.idx`. We load `avail.idx` with
//!   Acquire, once a batch, and only then read entries up to it: what they name was written before.
//! - We write buffers and used entries, then store `used.idx` with Release, once a flush: a guest
//!   that sees the index sees what is behind it. Used entries behind the index are ours, so they
//!   are written when a chain is taken.
//! - Whether to notify is Dekker's problem: each side stores its index and then loads whether the
//!   other wants a notification (or stores that it wants one and then loads the other's index). A
//!   store may pass a later load, so that both could miss the other; sequential consistency of the
//!   two forbids that. In [`SplitQueue::publish`] the index is exchanged and the guest's
//!   `used_event` or flags loaded, both SeqCst (an exchange is cheaper than a store and a fence);
//!   in [`SplitQueue::arm`] a fence stands between `avail_event` or flags and the guest's index:
//!   whoever comes second sees the first.
//!
//! With IN_ORDER (section 2.7.9) one used entry says for all chains of a batch that they were used:
//! the first of their entries, with the last one's id. That is done where nothing is written into
//! chains; those that the guest receives in each have a length to tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::copy;
use crate::frame::BATCH;
use crate::guest_memory::GuestMemory;
use crate::port_info::QueueInfo;
use crate::segment::Segment;
use crate::vhost::dirty_log::RingLog;
use crate::vhost::features;
use crate::vhost::limits::CHAIN_MAX;
use crate::vhost::virtqueue::chain::{
    Buffers, Descriptor, INDIRECT, NEXT, RawDescriptor, Walk, Walked, read, read_aligned,
};
use crate::vhost::virtqueue::chains::Chains;
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::index::passed;
use crate::vhost::virtqueue::ring::Begin;
use crate::vhost::virtqueue::ring::Bell;
use crate::vhost::virtqueue::ring::Mark;
use crate::vhost::virtqueue::ring::QueueError;
use crate::vhost::virtqueue::ring::QueueSetup;
use crate::vhost::virtqueue::ring::Ring;
use crate::vhost::virtqueue::ring::RingPart;
use crate::vhost::virtqueue::ring::Room;
use crate::vhost::virtqueue::ring::Seldom;
use crate::vhost::virtqueue::ring::Taken;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// Where a used ring's entries begin, bytes: behind its flags and its index.
const ENTRIES: u64 = 4;

/// One split ring.
pub struct SplitQueue {
    /// Valid for reads of `size` descriptors, aligned to 16.
    table: *const RawDescriptor,
    /// Valid for the available ring's `6 + 2 * size` bytes, aligned to 2.
    avail: *const u16,
    /// Valid for the used ring's `6 + 8 * size` bytes, aligned to 4.
    used: *mut u16,
    size: u16,
    /// The next available entry to take.
    next_avail: u16,
    /// The guest's available index when it was last read.
    avail_seen: u16,
    /// What the guest knows; behind it are `pending` chains.
    used_index: u16,
    pending_end: u16,
    /// The pending chains have no used entries: one will be written for all.
    unwritten: bool,
    in_order: bool,
    event_idx: bool,
    buffers: Buffers,
    scratch: Vec<Segment>,
    /// What is written is noted.
    is_logged: bool,
    seldom: Box<Seldom>,
    bell: Bell,
}

// SAFETY: the pointers lead into mappings that belong to no thread and that `buffers` keeps.
unsafe impl Send for SplitQueue {}

impl SplitQueue {
    /// What the ring consists of (virtio 1.2, section 2.7).
    pub(in crate::vhost) fn parts(setup: &QueueSetup) -> [RingPart; 3] {
        let entries = u64::from(setup.size);
        [
            RingPart {
                name: "descriptor table",
                addr: setup.desc,
                len: 16 * entries,
                align: 16,
            },
            RingPart {
                name: "available ring",
                addr: setup.avail,
                len: 6 + 2 * entries,
                align: 2,
            },
            RingPart {
                name: "used ring",
                addr: setup.used,
                len: 6 + 8 * entries,
                align: 4,
            },
        ]
    }

    /// See [`Queue::new`](crate::vhost::virtqueue::queue::Queue::new), which adds the bell.
    pub(in crate::vhost) fn new(setup: &QueueSetup) -> Result<Self, QueueError> {
        let QueueSetup { size, features, .. } = *setup;
        let memory = Arc::clone(&setup.memory);
        if !size.is_power_of_two() || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let [table, avail, used_part] = SplitQueue::parts(setup);
        let table = table.place(&memory)?;
        let avail = avail.place(&memory)?;
        let used = used_part.place(&memory)?;
        let used_len = used_part.len;
        let log = setup
            .log
            .clone()
            .map(|log| RingLog::new(log, &memory, (used, used_len), None))
            .transpose()?;
        let mut queue = SplitQueue {
            table: table.cast(),
            avail: avail.cast(),
            used: used.cast(),
            size,
            next_avail: 0,
            avail_seen: 0,
            used_index: 0,
            pending_end: 0,
            unwritten: false,
            in_order: features & features::IN_ORDER != 0,
            event_idx: features & features::EVENT_IDX != 0,
            buffers: Buffers::new(memory, features & features::INDIRECT_DESC != 0),
            scratch: Vec::with_capacity(64),
            is_logged: log.is_some(),
            seldom: Box::new(Seldom { features, log }),
            bell: Bell::new(None, None),
        };
        queue.used_index = queue.used_idx().load(Ordering::Relaxed);
        queue.pending_end = queue.used_index;
        queue.next_avail = match setup.begin {
            Begin::At(index) => index,
            Begin::AsItWas { .. } => queue.used_index,
        };
        queue.avail_seen = queue.next_avail;
        queue.disarm();
        Ok(queue)
    }

    pub(in crate::vhost) fn last_avail(&self) -> u16 {
        self.next_avail
    }

    pub(in crate::vhost) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(in crate::vhost) fn bell_mut(&mut self) -> &mut Bell {
        &mut self.bell
    }

    pub(in crate::vhost) fn into_bell(self) -> Bell {
        self.bell
    }

    /// See [`Queue::arm`](crate::vhost::virtqueue::queue::Queue::arm).
    pub(in crate::vhost) fn arm(&mut self) -> bool {
        if self.event_idx {
            self.avail_event().store(self.next_avail, Ordering::Relaxed);
        } else {
            self.used_flags().store(0, Ordering::Relaxed);
        }
        if self.is_logged {
            self.note_armed();
        }
        // `avail_event` or flags first, then the index: see the orderings above.
        fence(Ordering::SeqCst);
        self.avail_idx().load(Ordering::Acquire) != self.next_avail
    }

    /// See [`Queue::disarm`](crate::vhost::virtqueue::queue::Queue::disarm).
    pub(in crate::vhost) fn disarm(&mut self) {
        if self.event_idx {
            // The index that is furthest away: one idle notification in 65,536 chains.
            self.avail_event()
                .store(self.next_avail.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.used_flags().store(USED_NO_NOTIFY, Ordering::Relaxed);
        }
        if self.is_logged {
            self.note_armed();
        }
    }

    /// See [`Queue::publish`](crate::vhost::virtqueue::queue::Queue::publish).
    #[inline]
    pub(in crate::vhost) fn publish(&mut self, count: usize) {
        let pending = self.pending();
        let count = count.min(usize::from(pending)) as u16;
        if count == 0 {
            return;
        }
        let old = self.used_index;
        let new = old.wrapping_add(count);
        if self.unwritten {
            // Which chain was the last is read again, from the guest who wrote it: if it is another
            // by now, then that is the guest's own affair, for nothing here depends on it.
            let last = self
                .next_avail
                .wrapping_sub(pending)
                .wrapping_add(count - 1);
            self.write_used(old, self.head_at(last), 0);
        }
        self.used_index = new;
        match self.is_logged {
            false => self.show(old, new),
            true => self.show_and_note(old, new),
        }
    }

    /// Shows the guest the used entries from `old` up to `new`, and notifies it if it wants that.
    #[inline(always)]
    fn show(&mut self, old: u16, new: u16) {
        if self.bell.call.is_none() {
            self.used_idx().store(new, Ordering::Release);
            return;
        }
        // The index first, then the guest's `used_event` or flags: see the orderings above.
        self.used_idx().swap(new, Ordering::SeqCst);
        let wanted = if self.event_idx {
            passed(self.used_event().load(Ordering::SeqCst), new, old)
        } else {
            self.avail_flags().load(Ordering::SeqCst) & AVAIL_NO_INTERRUPT == 0
        };
        self.bell.call(wanted);
    }

    /// [Shows](Self::show) them, and notes entries and index in the log of written pages.
    #[cold]
    #[inline(never)]
    fn show_and_note(&mut self, old: u16, new: u16) {
        self.show(old, new);
        let Some(log) = &self.seldom.log else { return };
        let (slot, count) = (old & (self.size - 1), new.wrapping_sub(old));
        let here = count.min(self.size - slot);
        let entries = |slot: u16, count: u16| {
            log.used(ENTRIES + 8 * u64::from(slot), 8 * u64::from(count));
        };
        entries(slot, here);
        entries(0, count - here);
        log.used(0, ENTRIES);
        log.notify();
    }

    /// Flags or `avail_event` were written.
    #[cold]
    #[inline(never)]
    fn note_armed(&self) {
        let Some(log) = &self.seldom.log else { return };
        match self.event_idx {
            true => log.used(ENTRIES + 8 * u64::from(self.size), 2),
            false => log.used(0, 2),
        }
        log.notify();
    }

    /// See [`Queue::state`](crate::vhost::virtqueue::queue::Queue::state).
    pub(in crate::vhost) fn info(&self) -> QueueInfo {
        QueueInfo {
            size: self.size,
            avail_index: self.avail_idx().load(Ordering::Relaxed),
            next_avail: self.next_avail,
            used_index: self.used_index,
            packed: false,
            avail_wrap: false,
            used_wrap: false,
            in_flight: self.pending(),
            interrupts_off: if self.event_idx {
                !passed(
                    self.used_event().load(Ordering::Relaxed),
                    self.used_index.wrapping_add(1),
                    self.used_index,
                )
            } else {
                self.avail_flags().load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT != 0
            },
            calls: self.bell.calls,
            features: self.seldom.features,
        }
    }

    /// Reads the guest's index anew.
    #[inline]
    fn refresh(&mut self) -> Result<(), RingFault> {
        let avail = self.avail_idx().load(Ordering::Acquire);
        if avail.wrapping_sub(self.next_avail) > self.size {
            return Err(RingFault::AvailJump {
                avail,
                taken: self.next_avail,
                size: self.size,
            });
        }
        self.avail_seen = avail;
        Ok(())
    }

    /// Chains that were there when the guest's index was last read, and are not taken.
    #[inline]
    fn known(&self) -> usize {
        usize::from(self.avail_seen.wrapping_sub(self.next_avail))
    }

    /// Chains taken and not given back.
    #[inline]
    fn pending(&self) -> u16 {
        self.pending_end.wrapping_sub(self.used_index)
    }

    /// How many chains more may be taken: a guest that offers chains again before it got them back
    /// gets no further than one that does not.
    #[inline]
    fn untaken(&self) -> usize {
        usize::from(self.size).saturating_sub(usize::from(self.pending()))
    }

    /// Asks for the line of the used index, which the guest has read meanwhile, before it is
    /// written at the batch's end.
    #[inline(always)]
    fn fetch_used_index(&self) {
        copy::prefetch_to_write(self.used.cast());
    }

    /// The first descriptors of the next chains, as the guest names them; not judged yet.
    #[inline(always)]
    fn heads<'a>(&self, heads: &'a mut [u16; BATCH], count: usize) -> &'a [u16] {
        let heads = &mut heads[..count];
        for (ahead, head) in heads.iter_mut().enumerate() {
            *head = self.head_at(self.next_avail.wrapping_add(ahead as u16));
            copy::prefetch(self.table.wrapping_add(usize::from(*head)).cast());
        }
        heads
    }

    /// The descriptor that an available entry names; not judged yet.
    #[inline(always)]
    fn head_at(&self, index: u16) -> u16 {
        let slot = usize::from(index & (self.size - 1));
        // SAFETY: `slot < size`, and the ring's entries begin behind two 16-bit words (`new`).
        unsafe { self.avail.add(2 + slot).read_volatile() }
    }

    /// The first descriptor of a chain, if there is such a one.
    #[inline(always)]
    fn descriptor(&self, head: u16) -> Option<Descriptor> {
        if head >= self.size {
            return None;
        }
        // SAFETY: `head < size`, and the table is valid for reads of `size` descriptors (`new`).
        Some(unsafe { read_aligned(self.table.add(usize::from(head))) }.split())
    }

    /// Adds the buffers of the chain at `head` to `out`.
    fn walk(&mut self, head: u16, walk: Walk, out: &mut Vec<Segment>) -> Result<Walked, RingFault> {
        let mut table = self.table;
        let mut count = u32::from(self.size);
        let mut indirect = false;
        let (mut index, mut steps, mut total) = (head, 0, 0u64);
        // Buffers of the ring's own table, when the walk is in an indirect one, which has a limit
        // of its own (virtio 1.2, section 2.7.5.3.2).
        let mut before = 0;
        if head >= self.size {
            return Err(RingFault::Head {
                head,
                size: self.size,
            });
        }
        loop {
            // SAFETY: `index < count`, checked for the head above and for each next below, and
            // `table` is valid for reads of `count` descriptors: see `new` and `Buffers::indirect`.
            let descriptor = unsafe { read(table.add(usize::from(index))) }.split();
            steps += 1;
            if descriptor.flags & INDIRECT != 0 {
                if indirect {
                    return Err(RingFault::IndirectNested { head });
                }
                (table, count) = self.buffers.indirect(head, &descriptor)?;
                before = steps - 1;
                (indirect, index, steps) = (true, 0, 0);
                continue;
            }
            let enough = self.buffers.add(head, &descriptor, walk, &mut total, out)?;
            if enough || descriptor.flags & NEXT == 0 {
                return Ok(Walked {
                    bytes: total,
                    descriptors: before + steps,
                });
            }
            index = descriptor.tail;
            if u32::from(index) >= count {
                return Err(RingFault::Next {
                    head,
                    next: index,
                    count,
                });
            }
            let limit = CHAIN_MAX.min(count);
            if steps >= limit {
                return Err(RingFault::TooMany { head, limit });
            }
        }
    }

    /// Writes the used entry of an index that the guest has not been told yet (virtio 1.2, section
    /// 2.7.8).
    #[inline(always)]
    fn write_used(&mut self, index: u16, id: u16, len: u32) {
        let slot = usize::from(index & (self.size - 1));
        let entry = u64::from(id) | u64::from(len) << 32;
        // SAFETY: `slot < size`, and the entries, of eight bytes, begin behind two 16-bit words
        // (`new`).
        unsafe {
            self.used
                .add(2 + 4 * slot)
                .cast::<u64>()
                .write_unaligned(entry)
        }
    }

    #[inline]
    fn avail_flags(&self) -> &AtomicU16 {
        self.atomic(self.avail.cast_mut())
    }

    #[inline]
    fn avail_idx(&self) -> &AtomicU16 {
        self.atomic(self.avail.wrapping_add(1).cast_mut())
    }

    #[inline]
    fn used_event(&self) -> &AtomicU16 {
        self.atomic(
            self.avail
                .wrapping_add(2 + usize::from(self.size))
                .cast_mut(),
        )
    }

    #[inline]
    fn used_flags(&self) -> &AtomicU16 {
        self.atomic(self.used)
    }

    #[inline]
    fn used_idx(&self) -> &AtomicU16 {
        self.atomic(self.used.wrapping_add(1))
    }

    #[inline]
    fn avail_event(&self) -> &AtomicU16 {
        self.atomic(self.used.wrapping_add(2 + 4 * usize::from(self.size)))
    }

    /// A word of the ring that both sides use as an atomic.
    #[inline]
    fn atomic(&self, word: *mut u16) -> &AtomicU16 {
        // SAFETY: only called above, with words inside the two rings: `new` found all `6
        // + 2 * size` and `6 + 8 * size` bytes, aligned to 2 at least, in memory that
        // `self.buffers` keeps mapped.
        unsafe { AtomicU16::from_ptr(word) }
    }
}

impl Ring for SplitQueue {
    #[inline(always)]
    fn look(&mut self) -> Result<bool, RingFault> {
        self.refresh()?;
        Ok(self.known() > 0)
    }

    #[inline(always)]
    fn take(&mut self, chains: &mut Chains<'_>) -> Result<usize, RingFault> {
        let mut count = self.known().min(chains.room()).min(self.untaken());
        self.fetch_used_index();
        let mut heads = [0; BATCH];
        let heads = self.heads(&mut heads, count);
        let mut near = self.buffers.near();
        for (ahead, &head) in heads.iter().enumerate() {
            let only = self.descriptor(head).and_then(|first| near.only(&first));
            if !chains.add_only(only) {
                let (walk, start) = chains.walk();
                match self.walk(head, walk, chains.segments()) {
                    Ok(walked) => chains.add(head, walked, start)?,
                    Err(RingFault::NotThere { .. }) => {
                        chains.give_up(start);
                        count = ahead;
                        break;
                    }
                    Err(fault) => return Err(fault),
                }
                near = self.buffers.near();
            }
        }
        let heads = &heads[..count];
        self.unwritten = self.in_order;
        if !self.unwritten {
            for (ahead, &head) in heads.iter().enumerate() {
                self.write_used(self.pending_end.wrapping_add(ahead as u16), head, 0);
            }
        }
        self.pending_end = self.pending_end.wrapping_add(count as u16);
        self.next_avail = self.next_avail.wrapping_add(count as u16);
        Ok(count)
    }

    #[inline(always)]
    fn rooms(&mut self, rooms: &mut [Room]) -> usize {
        if self.known() < rooms.len() && self.refresh().is_err() {
            return 0;
        }
        let count = self.known().min(rooms.len()).min(self.untaken());
        self.fetch_used_index();
        let mut heads = [0; BATCH];
        let heads = self.heads(&mut heads, count.min(BATCH));
        let near = self.buffers.near();
        for (done, (room, &head)) in rooms.iter_mut().zip(heads).enumerate() {
            let first = self
                .descriptor(head)
                .and_then(|first| near.first_writable(&first));
            let Some(buffer) = first else { return done };
            *room = Room::new(buffer, head);
            copy::prefetch_to_write(buffer.ptr);
        }
        heads.len()
    }

    #[inline(always)]
    fn fill(&mut self, rooms: &[Room]) {
        let end = self.pending_end;
        for (ahead, room) in rooms.iter().enumerate() {
            self.write_used(end.wrapping_add(ahead as u16), room.id, room.len);
        }
        self.pending_end = end.wrapping_add(rooms.len() as u16);
        self.next_avail = self.next_avail.wrapping_add(rooms.len() as u16);
    }

    fn take_writable(
        &mut self,
        want: u64,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Taken>, RingFault> {
        if self.known() == 0 {
            self.refresh()?;
        }
        if self.known() == 0 || self.untaken() == 0 {
            return Ok(None);
        }
        let head = self.head_at(self.next_avail);
        let walked = self.walk(head, Walk::Writable { want }, out)?;
        self.write_used(self.pending_end, head, walked.bytes.min(want) as u32);
        self.pending_end = self.pending_end.wrapping_add(1);
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(Taken { head, walked }))
    }

    fn mark(&self) -> Mark {
        Mark {
            next: self.next_avail,
            pending_end: self.pending_end,
            slots: 0,
        }
    }

    fn back(&mut self, mark: Mark) {
        self.next_avail = mark.next;
        self.pending_end = mark.pending_end;
    }

    fn memory(&self) -> &Arc<GuestMemory> {
        self.buffers.memory()
    }

    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    #[inline(always)]
    fn log(&self) -> Option<&RingLog> {
        match self.is_logged {
            true => self.seldom.log.as_ref(),
            false => None,
        }
    }

    fn scratch(&mut self) -> &mut Vec<Segment> {
        &mut self.scratch
    }
}
