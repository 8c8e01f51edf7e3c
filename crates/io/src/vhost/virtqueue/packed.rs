//! The device's side of a packed virtqueue (virtio 1.2, section 2.8).
//!
//! One ring of descriptors serves both directions: the guest writes a chain into the next slots and
//! we write a used descriptor over the first of them. Two flags in a slot, compared with a counter
//! that changes every lap, say whose it is ([`Position`]). The chain's slots follow one another,
//! and its last has the id by which the guest knows it.
//!
//! # Orderings
//!
//! Each slot has one owner at a time, and its flags pass it on.
//! - The guest writes a chain, its first slot's flags last. We load the eight bytes that hold
//!   length, id and flags at once, with Acquire, and only then the address and the slots that
//!   follow. The first slot's flags alone are trusted to say that the chain is there.
//! - A used descriptor is one store of eight bytes. Those of a batch are written from the second
//!   on, and then the first with Release: the guest looks at the first before any other, so it sees
//!   all of them or none, and does not touch their cache lines while they are written.
//! - Whether to notify is Dekker's problem as in a split ring (`split`), with the event structures
//!   in the place of the indices: the first used descriptor is exchanged and the guest's structure
//!   loaded, both SeqCst; in [`PackedQueue::arm`] a fence stands between our structure and the next
//!   slot. Each structure is one load or store of four bytes.
//!
//! Chains are given back in the order in which they were taken, whatever was negotiated, so a
//! chain's used descriptor goes where the chain began. With IN_ORDER (section 2.8.9) one used
//! descriptor says for all chains of a batch that they were used: where the first began, with the
//! last one's id. As in a split ring that is done for chains that nothing is written into.
//!
//! What the next process needs to go on where this one was is left in the addresses of used
//! descriptors: [`resume`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::copy;
use crate::guest_memory::GuestMemory;
use crate::port_info::QueueInfo;
use crate::segment::Segment;
use crate::vhost::dirty_log::RingLog;
use crate::vhost::features;
use crate::vhost::limits::CHAIN_MAX;
use crate::vhost::virtqueue::chain::{
    Buffers, Descriptor, INDIRECT, NEXT, RawDescriptor, WRITE, Walk, Walked, read, read_aligned,
};
use crate::vhost::virtqueue::chains::Chains;
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::index::{Position, passed_packed};
use crate::vhost::virtqueue::resume::{self, GivenBack, Note};
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

/// How often a ring is copied until two copies are the same: a driver that goes on has filled its
/// ring before. One whose driver writes on and on is taken as it is then.
const COPIES: usize = 64;
/// Slots of a ring that are copied again, in all: a large ring is copied four times, so that no
/// driver has the thread that all VMMs share copy for milliseconds.
const COPIED: usize = 4 * 32768;

/// What an event structure asks for (virtio 1.2, section 2.8.14), in its upper half; a place is in
/// the lower.
const EVENT_ENABLE: u32 = 0;
const EVENT_DISABLE: u32 = 1;
const EVENT_AT: u32 = 2;

/// Bytes of a slot.
const SLOT: u64 = size_of::<RawDescriptor>() as u64;

/// Slots of a cache line.
const LINE: usize = 4;

/// A chain that was taken and not given back.
#[derive(Clone, Copy, Default)]
struct Pending {
    id: u16,
    /// How many slots it takes.
    slots: u16,
    /// How many bytes were written into it.
    len: u32,
}

/// A chain that was walked.
struct Found {
    id: u16,
    slots: u16,
    walked: Walked,
}

/// One packed ring.
pub struct PackedQueue {
    /// Valid for reads and writes of `size` descriptors, aligned to 16.
    ring: *mut RawDescriptor,
    /// Valid for reads of the driver's event structure, aligned to 4.
    driver: *mut u32,
    /// Valid for writes of the device's.
    device: *mut u32,
    size: u16,
    /// The next slot to take.
    next: Position,
    /// Where the next used descriptor goes.
    used: Position,
    /// Slots from `used` up to `next`; never more than `size`.
    slots: u16,
    /// Chains from `pending_start` up to `pending_end`, whose positions here are these modulo the
    /// length.
    pending: Box<[Pending]>,
    pending_start: u16,
    pending_end: u16,
    /// One used descriptor will be written for all pending chains.
    together: bool,
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
unsafe impl Send for PackedQueue {}

impl PackedQueue {
    /// What the ring consists of (virtio 1.2, section 2.8).
    pub(in crate::vhost) fn parts(setup: &QueueSetup) -> [RingPart; 3] {
        [
            RingPart {
                name: "descriptor ring",
                addr: setup.desc,
                len: SLOT * u64::from(setup.size),
                align: 16,
            },
            RingPart {
                name: "driver event structure",
                addr: setup.avail,
                len: 4,
                align: 4,
            },
            RingPart {
                name: "device event structure",
                addr: setup.used,
                len: 4,
                align: 4,
            },
        ]
    }

    /// See [`Queue::new`](crate::vhost::virtqueue::queue::Queue::new), which adds the bell.
    pub(in crate::vhost) fn new(setup: &QueueSetup) -> Result<Self, QueueError> {
        let QueueSetup { size, features, .. } = *setup;
        let memory = Arc::clone(&setup.memory);
        if size == 0 || size > 32768 {
            return Err(QueueError::PackedSize(size));
        }
        let [ring_part, driver, device] = PackedQueue::parts(setup);
        let ring = ring_part.place(&memory)?;
        let driver = driver.place(&memory)?;
        let device = device.place(&memory)?;
        let ring_len = ring_part.len;
        let log = setup.log.clone().map(|log| {
            let descriptors = (ring.cast_const(), ring_len);
            RingLog::new(log, &memory, (device, 4), Some(descriptors))
        });
        let log = log.transpose()?;
        let ring = ring.cast::<RawDescriptor>();
        let (next, unfinished) = match setup.begin {
            Begin::At(bits) => (Position::from_bits(bits), Vec::new()),
            Begin::AsItWas { told } => {
                // SAFETY: `place` found `size` descriptors there, aligned to 16, in memory that is
                // kept mapped.
                let copy = unsafe { copy_of(ring, size) };
                match resume::find(&copy) {
                    Some(place) => (place.next, place.unfinished),
                    None => (Position::from_bits(told), Vec::new()),
                }
            }
        };
        if next.slot >= size {
            return Err(QueueError::Base {
                slot: next.slot,
                size,
            });
        }
        let mut queue = PackedQueue {
            ring,
            driver: driver.cast(),
            device: device.cast(),
            size,
            next,
            used: next,
            slots: 0,
            pending: vec![Pending::default(); usize::from(size).next_power_of_two()].into(),
            pending_start: 0,
            pending_end: 0,
            together: false,
            in_order: features & features::IN_ORDER != 0,
            event_idx: features & features::EVENT_IDX != 0,
            buffers: Buffers::new(memory, features & features::INDIRECT_DESC != 0),
            scratch: Vec::with_capacity(64),
            is_logged: log.is_some(),
            seldom: Box::new(Seldom { features, log }),
            bell: Bell::new(None, None),
        };
        queue.finish(&unfinished);
        queue.disarm();
        Ok(queue)
    }

    /// Gives back, with nothing in it, what another process had begun to give back; the first of it
    /// comes last, as in [`publish`](Self::publish).
    fn finish(&mut self, unfinished: &[GivenBack]) {
        for (number, &GivenBack { at, slots, id }) in unfinished.iter().enumerate().rev() {
            let back = if number == 1 { unfinished[0].slots } else { 0 };
            self.leave(at, slots, back);
            let empty = Pending { id, slots, len: 0 };
            self.tail(at).store(used(at, empty), Ordering::Release);
            self.note_slots(at, slots);
        }
    }

    pub(in crate::vhost) fn last_avail(&self) -> u16 {
        self.next.bits()
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
        let event = if self.event_idx {
            EVENT_AT << 16 | u32::from(self.next.bits())
        } else {
            EVENT_ENABLE << 16
        };
        self.device_event().store(event, Ordering::Relaxed);
        if self.is_logged {
            self.note_armed();
        }
        // Our event structure first, then the slot: see the orderings above.
        fence(Ordering::SeqCst);
        self.offered().is_some()
    }

    /// See [`Queue::disarm`](crate::vhost::virtqueue::queue::Queue::disarm).
    pub(in crate::vhost) fn disarm(&mut self) {
        self.device_event()
            .store(EVENT_DISABLE << 16, Ordering::Relaxed);
        if self.is_logged {
            self.note_armed();
        }
    }

    /// See [`Queue::publish`](crate::vhost::virtqueue::queue::Queue::publish).
    #[inline]
    pub(in crate::vhost) fn publish(&mut self, count: usize) {
        let count = count.min(usize::from(
            self.pending_end.wrapping_sub(self.pending_start),
        )) as u16;
        if count == 0 {
            return;
        }
        let old = self.used;
        let mut first = self.pending_at(0);
        let mut slots = first.slots;
        for number in 1..count {
            let chain = self.pending_at(number);
            if self.together {
                first.id = chain.id;
            } else {
                let at = old.after(slots, self.size);
                let back = if number == 1 { first.slots } else { 0 };
                self.leave(at, chain.slots, back);
                self.tail(at).store(used(at, chain), Ordering::Release);
            }
            slots += chain.slots;
        }
        self.leave(old, if self.together { slots } else { first.slots }, 0);
        self.pending_start = self.pending_start.wrapping_add(count);
        self.slots -= slots;
        self.used = old.after(slots, self.size);
        match self.is_logged {
            false => self.show(old, first),
            true => self.show_and_note(old, first, slots),
        }
    }

    /// Shows the guest the used descriptors from `old` up to ours, of which `first` is the first
    /// and comes last, and notifies it if it wants that.
    #[inline(always)]
    fn show(&mut self, old: Position, first: Pending) {
        if self.bell.call.is_none() {
            self.tail(old).store(used(old, first), Ordering::Release);
            return;
        }
        // The descriptor first, then the guest's event structure: see the orderings above.
        self.tail(old).swap(used(old, first), Ordering::SeqCst);
        let wanted = self.wants(self.driver_event().load(Ordering::SeqCst), old, self.used);
        self.bell.call(wanted);
    }

    /// [Shows](Self::show) them, and notes the descriptors of so many slots in the log of written
    /// pages.
    #[cold]
    #[inline(never)]
    fn show_and_note(&mut self, old: Position, first: Pending, slots: u16) {
        self.show(old, first);
        self.note_slots(old, slots);
    }

    /// Notes that descriptors of so many slots from `at` on were written, some of them or all.
    #[cold]
    #[inline(never)]
    fn note_slots(&self, at: Position, slots: u16) {
        let Some(log) = &self.seldom.log else { return };
        let here = slots.min(self.size - at.slot);
        log.descriptors(SLOT * u64::from(at.slot), SLOT * u64::from(here));
        log.descriptors(0, SLOT * u64::from(slots - here));
        log.notify();
    }

    /// Our event structure was written.
    #[cold]
    #[inline(never)]
    fn note_armed(&self) {
        let Some(log) = &self.seldom.log else { return };
        log.used(0, 4);
        log.notify();
    }

    /// True when the guest, whose event structure says `event`, wants to be told of the slots from
    /// `old` up to `new`.
    #[inline]
    fn wants(&self, event: u32, old: Position, new: Position) -> bool {
        match event >> 16 & 3 {
            EVENT_DISABLE => false,
            EVENT_AT if self.event_idx => {
                passed_packed(Position::from_bits(event as u16), new, old, self.size)
            }
            _ => true,
        }
    }

    /// See [`Queue::state`](crate::vhost::virtqueue::queue::Queue::state).
    pub(in crate::vhost) fn info(&self) -> QueueInfo {
        let event = self.driver_event().load(Ordering::Relaxed);
        QueueInfo {
            size: self.size,
            avail_index: self.next.slot,
            next_avail: self.next.slot,
            used_index: self.used.slot,
            packed: true,
            avail_wrap: self.next.wrap,
            used_wrap: self.used.wrap,
            in_flight: self.pending_end.wrapping_sub(self.pending_start),
            interrupts_off: !self.wants(event, self.used, self.used.after(1, self.size)),
            calls: self.bell.calls,
            features: self.seldom.features,
        }
    }

    /// The first descriptor of the next chain, if the guest has offered one; not judged yet.
    #[inline(always)]
    fn offered(&self) -> Option<Descriptor> {
        let rest = self.tail(self.next).load(Ordering::Acquire);
        if !self.next.is_available((rest >> 48) as u16) || self.slots >= self.size {
            return None;
        }
        // SAFETY: as in `tail`, of the eight bytes before.
        let addr = unsafe {
            self.ring
                .add(usize::from(self.next.slot))
                .cast::<u64>()
                .read_volatile()
        };
        Some(RawDescriptor([addr, rest]).packed())
    }

    /// The buffers of the chain that begins with `first` at the next slot: adds to `out` what the
    /// walk wants.
    fn walk(
        &mut self,
        first: &Descriptor,
        walk: Walk,
        out: &mut Vec<Segment>,
    ) -> Result<Found, RingFault> {
        let head = self.next.slot;
        let mut bytes = 0;
        if first.flags & INDIRECT != 0 {
            let mut descriptors = 0;
            let (table, count) = self.buffers.indirect(head, first)?;
            for index in 0..count as usize {
                // SAFETY: `table` is valid for reads of `count` descriptors (`Buffers::indirect`).
                let descriptor = unsafe { read(table.add(index)) }.packed();
                if descriptor.flags & INDIRECT != 0 {
                    return Err(RingFault::IndirectNested { head });
                }
                descriptors += 1;
                if self.buffers.add(head, &descriptor, walk, &mut bytes, out)? {
                    break;
                }
            }
            return Ok(Found {
                id: first.tail,
                slots: 1,
                walked: Walked { bytes, descriptors },
            });
        }
        // Slots that are pending cannot be the guest's at the same time.
        let limit = CHAIN_MAX.min(u32::from(self.size - self.slots));
        let (mut descriptor, mut slots, mut enough) = (*first, 1, false);
        loop {
            if descriptor.flags & INDIRECT != 0 {
                return Err(RingFault::IndirectBehind { head });
            }
            // The walk goes on to the end, where the id is.
            if !enough {
                enough = self.buffers.add(head, &descriptor, walk, &mut bytes, out)?;
            }
            if descriptor.flags & NEXT == 0 {
                let descriptors = u32::from(slots);
                return Ok(Found {
                    id: descriptor.tail,
                    slots,
                    walked: Walked { bytes, descriptors },
                });
            }
            if u32::from(slots) >= limit {
                return Err(RingFault::TooMany { head, limit });
            }
            let at = self.next.after(slots, self.size);
            // SAFETY: `at.slot < size`, as of every position of this ring (`Position::after`).
            descriptor = unsafe { read_aligned(self.ring.add(usize::from(at.slot))) }.packed();
            slots += 1;
        }
    }

    /// The `number`th pending chain.
    #[inline(always)]
    fn pending_at(&self, number: u16) -> Pending {
        let at = self.pending_start.wrapping_add(number);
        self.pending[usize::from(at) & (self.pending.len() - 1)]
    }

    /// The next chain, of so many slots, is taken.
    #[inline(always)]
    fn stage(&mut self, id: u16, slots: u16, len: u32) {
        // There are no more pending chains than slots, and `pending` has as many entries as those,
        // or more.
        let at = usize::from(self.pending_end) & (self.pending.len() - 1);
        self.pending[at] = Pending { id, slots, len };
        self.pending_end = self.pending_end.wrapping_add(1);
        self.slots += slots;
        self.next = self.next.after(slots, self.size);
    }

    /// Leaves notes of a used descriptor for the next process, if there is something to say: before
    /// the descriptor itself, which is to be written with Release. `back` as in [`Note::First`].
    #[inline(always)]
    fn leave(&self, at: Position, slots: u16, back: u16) {
        if slots > 1 || back > 0 {
            self.note(at, Note::First { slots, back });
        }
        if slots > 1 {
            self.note(at.after(slots - 1, self.size), Note::Last);
        }
    }

    #[inline(always)]
    fn note(&self, at: Position, note: Note) {
        // SAFETY: as in `tail`, of the eight bytes before.
        unsafe {
            let addr = self.ring.add(usize::from(at.slot)).cast::<u64>();
            addr.write_volatile(note.bits());
        }
    }

    /// Length, id and flags of a slot, which both sides use as one atomic.
    #[inline(always)]
    fn tail(&self, at: Position) -> &AtomicU64 {
        debug_assert!(at.slot < self.size);
        // SAFETY: `at.slot < size`, as of every position of this ring (`new`, `Position::after`);
        // `new` found `16 * size` bytes, aligned to 16, in memory that `self.buffers`
        // keeps mapped.
        unsafe { AtomicU64::from_ptr(self.ring.add(usize::from(at.slot)).cast::<u64>().add(1)) }
    }

    #[inline]
    fn driver_event(&self) -> &AtomicU32 {
        // SAFETY: `new` found four bytes, aligned to 4, in memory that `self.buffers`
        // keeps mapped.
        unsafe { AtomicU32::from_ptr(self.driver) }
    }

    #[inline]
    fn device_event(&self) -> &AtomicU32 {
        // SAFETY: as in `driver_event`.
        unsafe { AtomicU32::from_ptr(self.device) }
    }

    /// Brings the slots that will be looked at soon.
    #[inline(always)]
    fn prefetch(&self, slots: usize) {
        for line in (0..slots).step_by(LINE) {
            copy::prefetch(
                self.ring
                    .wrapping_add(usize::from(self.next.slot) + line)
                    .cast(),
            );
        }
    }
}

/// A ring as it is. The guest may be writing: what it offers meanwhile may be in it or not.
///
/// # Safety
/// `ring` is valid for reads of `size` descriptors and aligned to 8.
unsafe fn copy_of(ring: *const RawDescriptor, size: u16) -> Vec<RawDescriptor> {
    settled(usize::from(size), || {
        let slots = 0..usize::from(size);
        // SAFETY: the caller's promise.
        let copy = slots.map(|slot| unsafe { read_aligned(ring.add(slot)) });
        copy.collect()
    })
}

/// One of two copies that are the same, or the last one: what is made of it is the guest's own
/// affair.
fn settled(size: usize, copy: impl Fn() -> Vec<RawDescriptor>) -> Vec<RawDescriptor> {
    let mut last = copy();
    for _ in 0..COPIES.min(COPIED / size.max(1)) {
        let next = copy();
        if next == last {
            break;
        }
        last = next;
    }
    last
}

/// The last eight bytes of the used descriptor of a chain that began at `at` (virtio 1.2, section
/// 2.8.4).
#[inline(always)]
fn used(at: Position, chain: Pending) -> u64 {
    let written = if chain.len > 0 { WRITE } else { 0 };
    let flags = at.used_flags() | written;
    u64::from(chain.len) | u64::from(chain.id) << 32 | u64::from(flags) << 48
}

impl Ring for PackedQueue {
    #[inline(always)]
    fn look(&mut self) -> Result<bool, RingFault> {
        Ok(self.offered().is_some())
    }

    #[inline(always)]
    fn take(&mut self, chains: &mut Chains<'_>) -> Result<usize, RingFault> {
        let mark = self.mark();
        let mut near = self.buffers.near();
        self.prefetch(chains.room());
        let mut count = 0;
        while chains.room() > 0
            && let Some(first) = self.offered()
        {
            if chains.add_only(near.only(&first)) {
                self.stage(first.tail, 1, 0);
            } else {
                let (walk, start) = chains.walk();
                let head = self.next.slot;
                let found = self.walk(&first, walk, chains.segments());
                let added = found.and_then(|found| {
                    chains.add(head, found.walked, start)?;
                    Ok(found)
                });
                match added {
                    Ok(found) => self.stage(found.id, found.slots, 0),
                    Err(RingFault::NotThere { .. }) => {
                        chains.give_up(start);
                        break;
                    }
                    Err(fault) => {
                        self.back(mark);
                        return Err(fault);
                    }
                }
                near = self.buffers.near();
            }
            count += 1;
        }
        self.together = self.in_order;
        Ok(count)
    }

    #[inline(always)]
    fn rooms(&mut self, rooms: &mut [Room]) -> usize {
        let near = self.buffers.near();
        let mark = self.mark();
        self.prefetch(rooms.len());
        let mut count = 0;
        for room in rooms {
            let Some(first) = self.offered() else { break };
            let Some(buffer) = near.only_writable(&first) else {
                break;
            };
            *room = Room::new(buffer, first.tail);
            copy::prefetch_to_write(buffer.ptr);
            self.next = self.next.after(1, self.size);
            self.slots += 1;
            count += 1;
        }
        self.back(mark);
        count
    }

    #[inline(always)]
    fn fill(&mut self, rooms: &[Room]) {
        for room in rooms {
            self.stage(room.id, 1, room.len);
        }
    }

    fn take_writable(
        &mut self,
        want: u64,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Taken>, RingFault> {
        let Some(first) = self.offered() else {
            return Ok(None);
        };
        let head = self.next.slot;
        let Found { id, slots, walked } = self.walk(&first, Walk::Writable { want }, out)?;
        self.stage(id, slots, walked.bytes.min(want) as u32);
        Ok(Some(Taken { head, walked }))
    }

    fn mark(&self) -> Mark {
        Mark {
            next: self.next.bits(),
            pending_end: self.pending_end,
            slots: self.slots,
        }
    }

    fn back(&mut self, mark: Mark) {
        self.next = Position::from_bits(mark.next);
        self.pending_end = mark.pending_end;
        self.slots = mark.slots;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_ring_that_never_rests_is_copied_so_often_and_no_more() {
        let copies = |size: usize, changes: u64| {
            let count = Cell::new(0);
            settled(size, || {
                count.set(count.get() + 1);
                vec![RawDescriptor([count.get() * changes, 0])]
            });
            count.get()
        };
        assert_eq!(copies(256, 1), 65);
        assert_eq!(copies(32_768, 1), 5);
        assert_eq!(copies(32_768, 0), 2, "one that rests");
    }
}
