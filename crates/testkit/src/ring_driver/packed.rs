//! The driver's side of a packed ring: slots, wrap counters, event structures (virtio 1.2, section
//! 2.8).

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::queue::{Chain, NEXT, RingMemory, packed_descriptor};

/// Flag of a slot: equal to the driver's wrap counter in what it offers, and in what comes back.
pub(super) const AVAIL: u16 = 1 << 7;
/// Flag of a slot: unequal in what is offered, equal in what comes back.
pub(super) const USED: u16 = 1 << 15;

const EVENT_ENABLE: u16 = 0;
const EVENT_DISABLE: u16 = 1;
const EVENT_AT: u16 = 2;

/// Places are counted from the beginning on: slot and wrap counter are made of that, which is also
/// a check of those who keep the two apart.
pub(super) struct Packed {
    /// The next slot to write.
    avail: u64,
    published: u64,
    last_used: u64,
    /// Ids that no chain has.
    free: VecDeque<u16>,
    /// Where the first slot that was written and not published is, and its flags: without them the
    /// device sees neither it nor what follows.
    withheld: Option<(usize, u16)>,
}

fn slot(place: u64, size: u16) -> u16 {
    (place % u64::from(size)) as u16
}

fn wrap(place: u64, size: u16) -> bool {
    (place / u64::from(size)).is_multiple_of(2)
}

/// A position as event structures write it: slot and wrap counter.
fn bits(place: u64, size: u16) -> u16 {
    slot(place, size) | if wrap(place, size) { 1 << 15 } else { 0 }
}

impl Packed {
    pub fn new(size: u16, start: u16) -> Self {
        let start = u64::from(start);
        Packed {
            avail: start,
            published: start,
            last_used: start,
            free: (0..size).rev().collect(),
            withheld: None,
        }
    }

    /// Writes a chain of `(address, length, flags)`; gives its id and the slots it takes.
    pub fn offer(
        &mut self,
        place: &RingMemory,
        chain: &[(u64, u32, u16)],
    ) -> Option<(u16, Vec<u16>)> {
        let left = u64::from(place.size) - (self.avail - self.last_used);
        if left < chain.len() as u64 {
            return None;
        }
        let id = self.free.pop_front().expect("as many ids as slots");
        let mut slots = Vec::new();
        for (position, &(addr, len, flags)) in chain.iter().enumerate() {
            let slot = slot(self.avail, place.size);
            let more = if position + 1 < chain.len() { NEXT } else { 0 };
            let ours = if wrap(self.avail, place.size) {
                AVAIL
            } else {
                USED
            };
            let at = place.desc_at + 16 * usize::from(slot);
            // An id is that of the chain only in the last descriptor.
            let id = if more == 0 { id } else { 0xdead };
            let bytes = packed_descriptor(addr, len, id, 0);
            place.view.write(at, &bytes[..14]);
            if self.withheld.is_none() {
                self.withheld = Some((at + 14, flags | more | ours));
            } else {
                place.store(at + 14, flags | more | ours);
            }
            slots.push(slot);
            self.avail += 1;
        }
        Some((id, slots))
    }

    /// True when the device wants to be notified.
    pub fn publish(&mut self, place: &RingMemory) -> bool {
        let (old, new) = (self.published, self.avail);
        let Some((at, flags)) = self.withheld.take() else {
            return false;
        };
        place.store(at, flags);
        self.published = new;
        fence(Ordering::SeqCst);
        let (event, flags) = (place.load(place.used_at), place.load(place.used_at + 2));
        match flags {
            EVENT_ENABLE => true,
            EVENT_DISABLE => false,
            EVENT_AT => {
                assert!(
                    place.event_idx,
                    "the device asks for a place, which was not negotiated"
                );
                (old..new).any(|at| bits(at, place.size) == event)
            }
            _ => panic!("the device's event structure has flags {flags:#x}"),
        }
    }

    pub fn want_interrupts(&self, place: &RingMemory, wanted: bool) {
        match (wanted, place.event_idx) {
            (true, true) => self.want_interrupt_after(place, 0),
            (true, false) => place.store(place.avail_at + 2, EVENT_ENABLE),
            (false, _) => place.store(place.avail_at + 2, EVENT_DISABLE),
        }
    }

    pub fn want_interrupt_after(&self, place: &RingMemory, ahead: u16) {
        place.store(
            place.avail_at,
            bits(self.last_used + u64::from(ahead), place.size),
        );
        place.store(place.avail_at + 2, EVENT_AT);
    }

    /// Id and length of the next used descriptor.
    pub fn next_used(&self, place: &RingMemory) -> Option<(u16, usize)> {
        self.used_at(place, self.last_used)
    }

    fn used_at(&self, place: &RingMemory, count: u64) -> Option<(u16, usize)> {
        let at = place.desc_at + 16 * usize::from(slot(count, place.size));
        let used = if wrap(count, place.size) {
            AVAIL | USED
        } else {
            0
        };
        // A ring of zeroes has nothing used before the first lap has ended.
        if self.published == self.last_used || place.load(at + 14) & (AVAIL | USED) != used {
            return None;
        }
        let len = place.view.bytes(at + 8, 4);
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
        Some((place.load(at + 12), len as usize))
    }

    pub fn take_back(&mut self, size: u16, chain: &Chain) {
        assert_eq!(
            chain.descriptors[0],
            slot(self.last_used, size),
            "chain {} came back where another began",
            chain.head
        );
        self.last_used += chain.descriptors.len() as u64;
        self.free.push_back(chain.head);
    }

    /// Slots given back, and seen, and one more when there is more.
    pub fn used_count(&self, place: &RingMemory) -> u16 {
        (self.last_used + u64::from(self.next_used(place).is_some())) as u16
    }

    pub fn base(&self, size: u16) -> u32 {
        u32::from(bits(self.last_used, size)) << 16 | u32::from(bits(self.last_used, size))
    }
}
