//! The driver's side of one ring, split (virtio 1.2, section 2.7) or packed (section 2.8).
//!
//! Behaves as a driver has to, and has the knobs of one that does not: the raw writes at the end.
//! What the device does wrong (an id that was never offered, a length beyond the buffer, chains
//! that come back out of order where order was promised) is a panic: the test failed.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use io::guest_view::GuestView;
use io::vhost::features;
use rustix::event::{EventfdFlags, eventfd};

use super::packed::Packed;
use super::split::Split;

/// Flag of a descriptor: another follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes it.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: it names a table of descriptors.
pub const INDIRECT: u16 = 4;

/// A part of a chain: where its bytes are (offset in the memory) and how many.
pub type Part = (usize, usize);

/// A chain that the device has, or had.
#[derive(Clone, Debug)]
pub struct Chain {
    /// By what the device names it: its first descriptor, or its id in a packed ring.
    pub head: u16,
    /// Its buffers, in order.
    pub parts: Vec<Part>,
    /// Descriptors of the queue's table, or slots of the packed ring, that it takes.
    pub(super) descriptors: Vec<u16>,
}

/// The memory of a ring, and where it is.
pub(super) struct RingMemory {
    pub view: GuestView,
    /// The address that offset 0 of the view has for the guest.
    pub base: u64,
    pub size: u16,
    pub desc_at: usize,
    pub avail_at: usize,
    pub used_at: usize,
    pub event_idx: bool,
}

impl RingMemory {
    pub fn load(&self, at: usize) -> u16 {
        self.view.word(at).load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, value: u16) {
        self.view.word(at).store(value, Ordering::Release);
    }
}

enum Kind {
    Split(Split),
    Packed(Packed),
}

/// One ring, driven.
pub struct Queue {
    place: RingMemory,
    kind: Kind,
    /// Entries.
    pub size: u16,
    /// Where the descriptor table, or the packed ring, is in the memory.
    pub desc_at: usize,
    /// Where the available ring, or the driver's event structure, is.
    pub avail_at: usize,
    /// Where the used ring, or the device's event structure, is.
    pub used_at: usize,
    in_order: bool,
    /// The chains that the device has, by the id that it gives them back with.
    offered: Vec<Option<Chain>>,
    /// The ids of those chains, oldest first.
    order: VecDeque<u16>,
    /// The last chain of those that the device has given back together, until all of them were
    /// taken.
    together: Option<(u16, usize)>,
    kick: OwnedFd,
    call: OwnedFd,
    kicks: u64,
    calls: u64,
}

impl Queue {
    /// Bytes that a ring of this size takes, with room for alignment.
    pub fn bytes(size: u16) -> usize {
        let size = usize::from(size);
        (16 * size) + (6 + 2 * size).next_multiple_of(64) + (6 + 8 * size).next_multiple_of(64)
    }

    /// Where an offset of the memory is for the VMM that we play.
    pub fn user_addr(&self, at: usize) -> u64 {
        self.place.base - super::GUEST_BASE + super::USER_BASE + at as u64
    }

    /// Where an offset of the memory is for the guest.
    pub fn guest_addr(&self, at: usize) -> u64 {
        self.place.base + at as u64
    }

    /// A ring at offset `at` of the memory, zeroed, whose indices begin at `start`: a packed ring's
    /// at that slot.
    pub(super) fn new(
        view: &GuestView,
        base: u64,
        at: usize,
        size: u16,
        negotiated: u64,
        start: u16,
    ) -> Self {
        view.fill(at, Self::bytes(size), 0);
        let entries = usize::from(size);
        let avail_at = at + 16 * entries;
        let place = RingMemory {
            view: view.clone(),
            base,
            size,
            desc_at: at,
            avail_at,
            used_at: avail_at + (6 + 2 * entries).next_multiple_of(64),
            event_idx: negotiated & features::EVENT_IDX != 0,
        };
        let eventfd =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let kind = if negotiated & features::RING_PACKED != 0 {
            Kind::Packed(Packed::new(size, start))
        } else {
            Kind::Split(Split::new(&place, start))
        };
        let mut queue = Queue {
            kind,
            size,
            desc_at: at,
            avail_at,
            used_at: place.used_at,
            in_order: negotiated & features::IN_ORDER != 0,
            offered: vec![None; entries],
            order: VecDeque::new(),
            together: None,
            place,
            kick: eventfd(),
            call: eventfd(),
            kicks: 0,
            calls: 0,
        };
        queue.want_interrupts(false);
        queue
    }

    /// A duplicate of the eventfd that wakes the device.
    pub fn kick_fd(&self) -> OwnedFd {
        self.kick.try_clone().expect("a duplicate of an eventfd")
    }

    /// A duplicate of the eventfd that interrupts the driver.
    pub fn call_fd(&self) -> OwnedFd {
        self.call.try_clone().expect("a duplicate of an eventfd")
    }

    /// Times that the driver had to notify the device.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Times that the device interrupted the driver.
    pub fn calls(&mut self) -> u64 {
        let mut count = [0; 8];
        if rustix::io::read(&self.call, &mut count).is_ok() {
            self.calls += u64::from_ne_bytes(count);
        }
        self.calls
    }

    /// Chains that the device has.
    pub fn outstanding(&self) -> usize {
        self.order.len()
    }

    /// Makes a chain of buffers available; `direct` of its parts are descriptors of the queue's
    /// table, the rest are in the indirect table at `table` (an offset). A packed ring has no
    /// chains of both kinds: there a chain that is indirect at all is so from its beginning. False
    /// when the queue has not enough descriptors left.
    pub fn offer(&mut self, parts: &[Part], flags: u16, direct: usize, table: usize) -> bool {
        let direct = match self.kind {
            Kind::Packed(_) if direct < parts.len() => 0,
            _ => direct.min(parts.len()),
        };
        let count = direct + usize::from(direct < parts.len());
        if count == 0 {
            return false;
        }
        let mut descriptors: Vec<(u64, u32, u16)> = parts[..direct]
            .iter()
            .map(|&(at, len)| (self.place.base + at as u64, len as u32, flags))
            .collect();
        if direct < parts.len() {
            let indirect = &parts[direct..];
            descriptors.push((
                self.place.base + table as u64,
                indirect.len() as u32 * 16,
                INDIRECT,
            ));
            for (position, &(at, len)) in indirect.iter().enumerate() {
                let addr = self.place.base + at as u64;
                let bytes = match self.kind {
                    // The order says what follows what (virtio 1.2, section 2.8.7); the id is not
                    // looked at.
                    Kind::Packed(_) => packed_descriptor(addr, len as u32, 0xbeef, flags),
                    Kind::Split(_) => {
                        let last = position + 1 == indirect.len();
                        let (chain, next) = if last {
                            (0, 0)
                        } else {
                            (NEXT, position as u16 + 1)
                        };
                        descriptor(addr, len as u32, flags | chain, next)
                    }
                };
                self.place.view.write(table + 16 * position, &bytes);
            }
        }
        let offered = match &mut self.kind {
            Kind::Split(ring) => ring.offer(&self.place, &descriptors),
            Kind::Packed(ring) => ring.offer(&self.place, &descriptors),
        };
        let Some((head, descriptors)) = offered else {
            return false;
        };
        self.order.push_back(head);
        self.offered[usize::from(head)] = Some(Chain {
            head,
            parts: parts.to_vec(),
            descriptors,
        });
        true
    }

    /// Publishes what was made available, and notifies the device if it asks for that. True if it
    /// did.
    pub fn publish(&mut self) -> bool {
        let wanted = match &mut self.kind {
            Kind::Split(ring) => ring.publish(&self.place),
            Kind::Packed(ring) => ring.publish(&self.place),
        };
        if wanted {
            self.notify();
        }
        wanted
    }

    /// Notifies the device whatever it asks for.
    pub fn notify(&mut self) {
        self.kicks += 1;
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("room in an eventfd");
    }

    /// Asks for an interrupt at the next used entry, or for none.
    pub fn want_interrupts(&mut self, wanted: bool) {
        match &self.kind {
            Kind::Split(ring) => ring.want_interrupts(&self.place, wanted),
            Kind::Packed(ring) => ring.want_interrupts(&self.place, wanted),
        }
        fence(Ordering::SeqCst);
    }

    /// Asks for an interrupt when the entry `ahead` of the next one is used (EVENT_IDX; chains of
    /// one descriptor).
    pub fn want_interrupt_after(&mut self, ahead: u16) {
        match &self.kind {
            Kind::Split(ring) => ring.want_interrupt_after(&self.place, ahead),
            Kind::Packed(ring) => ring.want_interrupt_after(&self.place, ahead),
        }
        fence(Ordering::SeqCst);
    }

    /// The next chain that the device has given back, and how many bytes it says it wrote.
    pub fn next_used(&mut self) -> Option<(Chain, usize)> {
        if self.together.is_none() {
            self.together = match &self.kind {
                Kind::Split(ring) => ring.next_used(&self.place),
                Kind::Packed(ring) => ring.next_used(&self.place),
            };
        }
        let (last, len) = self.together?;
        // With IN_ORDER the device may name the last of several (sections 2.7.9 and 2.8.9).
        let id = match self.order.front() {
            Some(&oldest) if self.in_order => oldest,
            _ => last,
        };
        if id == last {
            self.together = None;
        }
        let chain = self.offered.get_mut(usize::from(id)).and_then(Option::take);
        let chain =
            chain.unwrap_or_else(|| panic!("the device names chain {id}, which is not offered"));
        self.order.retain(|&other| other != id);
        let room: usize = chain.parts.iter().map(|part| part.1).sum();
        assert!(
            len <= room,
            "the device says {len} bytes of chain {id}, which holds {room}"
        );
        match &mut self.kind {
            Kind::Split(ring) => ring.take_back(&chain),
            Kind::Packed(ring) => ring.take_back(self.size, &chain),
        }
        Some((chain, len))
    }

    /// The used index as the device has published it; of a packed ring, how many slots it has given
    /// back and the driver seen, from the beginning on.
    pub fn used_index(&self) -> u16 {
        match &self.kind {
            Kind::Split(_) => self.place.load(self.used_at + 2),
            Kind::Packed(ring) => ring.used_count(&self.place),
        }
    }

    /// Where the device may write, beside the buffers.
    pub fn written_by_device(&self) -> Vec<Range<usize>> {
        let entries = usize::from(self.size);
        let (used, slots) = match &self.kind {
            Kind::Split(_) => (6 + 8 * entries, 0),
            Kind::Packed(_) => (4, 16 * entries),
        };
        vec![
            self.desc_at..self.desc_at + slots,
            self.used_at..self.used_at + used,
        ]
    }

    /// What kind of ring it is.
    pub fn is_packed(&self) -> bool {
        matches!(self.kind, Kind::Packed(_))
    }

    /// Where a VMM that knows the ring's state says it is (SET_VRING_BASE).
    pub fn base(&self) -> u32 {
        match &self.kind {
            Kind::Split(ring) => ring.base().into(),
            Kind::Packed(ring) => ring.base(self.size),
        }
    }

    /// Writes descriptor `index` of the table, whatever it says; of a packed ring, whose flags say
    /// whether it is available, with `last` as its id.
    pub fn write_descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, last: u16) {
        let bytes = match &self.kind {
            Kind::Split(_) => descriptor(addr, len, flags, last),
            Kind::Packed(_) => packed_descriptor(addr, len, last, flags),
        };
        self.place
            .view
            .write(self.desc_at + 16 * usize::from(index), &bytes);
    }

    /// Writes the next available entry of a split ring, whatever it says; it shows with
    /// [`publish`](Self::publish). In a packed ring makes the first descriptor there available as
    /// it is, in the first lap.
    pub fn push_available(&mut self, head: u16) {
        match &mut self.kind {
            Kind::Split(ring) => ring.push_available(&self.place, head),
            Kind::Packed(_) => {
                let at = self.desc_at + 16 * usize::from(head % self.size) + 14;
                self.place
                    .store(at, self.place.load(at) & 0x7fff | super::packed::AVAIL);
            }
        }
    }

    /// Writes the available index of a split ring, whatever it says.
    pub fn write_available_index(&self, index: u16) {
        if let Kind::Split(_) = self.kind {
            self.place.store(self.avail_at + 2, index);
        }
    }
}

/// The bytes of a descriptor of a split ring.
pub fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// The bytes of a descriptor of a packed ring.
pub fn packed_descriptor(addr: u64, len: u32, id: u16, flags: u16) -> [u8; 16] {
    descriptor(addr, len, id, flags)
}
