//! The driver's side of a split ring: indices, available and used entries (virtio 1.2, section
//! 2.7).

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::queue::{Chain, NEXT, RingMemory, descriptor};

pub(super) struct Split {
    free: VecDeque<u16>,
    /// The next available index to write, published or not.
    avail: u16,
    published: u16,
    last_used: u16,
}

impl Split {
    pub fn new(place: &RingMemory, start: u16) -> Self {
        place.store(place.avail_at + 2, start);
        place.store(place.used_at + 2, start);
        Split {
            free: (0..place.size).collect(),
            avail: start,
            published: start,
            last_used: start,
        }
    }

    /// Writes a chain of `(address, length, flags)`; gives its head and the descriptors it takes.
    pub fn offer(
        &mut self,
        place: &RingMemory,
        chain: &[(u64, u32, u16)],
    ) -> Option<(u16, Vec<u16>)> {
        if self.free.len() < chain.len() {
            return None;
        }
        // In the order of the table as long as chains come back in order (section 2.7.9).
        let descriptors: Vec<u16> = self.free.drain(..chain.len()).collect();
        for (position, (&index, &(addr, len, flags))) in descriptors.iter().zip(chain).enumerate() {
            let next = descriptors.get(position + 1).copied();
            let more = next.map_or(0, |_| NEXT);
            let bytes = descriptor(addr, len, flags | more, next.unwrap_or(0));
            place
                .view
                .write(place.desc_at + 16 * usize::from(index), &bytes);
        }
        self.push_available(place, descriptors[0]);
        Some((descriptors[0], descriptors))
    }

    pub fn push_available(&mut self, place: &RingMemory, head: u16) {
        let slot = usize::from(self.avail & (place.size - 1));
        place.store(place.avail_at + 4 + 2 * slot, head);
        self.avail = self.avail.wrapping_add(1);
    }

    /// True when the device wants to be notified.
    pub fn publish(&mut self, place: &RingMemory) -> bool {
        let (old, new) = (self.published, self.avail);
        if old == new {
            return false;
        }
        place.store(place.avail_at + 2, new);
        self.published = new;
        fence(Ordering::SeqCst);
        if place.event_idx {
            let event = place.load(place.used_at + 4 + 8 * usize::from(place.size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            place.load(place.used_at) & 1 == 0
        }
    }

    pub fn want_interrupts(&self, place: &RingMemory, wanted: bool) {
        if place.event_idx {
            self.want_interrupt_after(place, if wanted { 0 } else { u16::MAX });
        } else {
            place.store(place.avail_at, u16::from(!wanted));
        }
    }

    pub fn want_interrupt_after(&self, place: &RingMemory, ahead: u16) {
        let at = place.avail_at + 4 + 2 * usize::from(place.size);
        place.store(at, self.last_used.wrapping_add(ahead));
    }

    /// Id and length of the next used entry.
    pub fn next_used(&self, place: &RingMemory) -> Option<(u16, usize)> {
        if place.load(place.used_at + 2) == self.last_used {
            return None;
        }
        let slot = usize::from(self.last_used & (place.size - 1));
        let entry = place.view.bytes(place.used_at + 4 + 8 * slot, 8);
        let word = |at: usize| {
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        let id = u16::try_from(word(0))
            .unwrap_or_else(|_| panic!("used entry {slot} has id {:#x}", word(0)));
        Some((id, word(4) as usize))
    }

    pub fn take_back(&mut self, chain: &Chain) {
        self.last_used = self.last_used.wrapping_add(1);
        self.free.extend(&chain.descriptors);
    }

    pub fn base(&self) -> u16 {
        self.last_used
    }
}
