//! The driver's side of one split ring (virtio 1.2, section 2.7): descriptors, available entries, used entries.
//!
//! Behaves as a driver has to, and has the knobs of one that does not: the raw writes at the end. What the
//! device does wrong (an id that was never offered, a length beyond the buffer) is a panic: the test failed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use io::guest_view::GuestView;
use rustix::event::{EventfdFlags, eventfd};

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
    /// Its first descriptor.
    pub head: u16,
    /// Its buffers, in order.
    pub parts: Vec<Part>,
    /// Descriptors of the queue's table that it takes.
    descriptors: Vec<u16>,
}

/// One ring, driven.
pub struct Queue {
    view: GuestView,
    base: u64,
    /// Entries.
    pub size: u16,
    /// Where the descriptor table is in the memory.
    pub desc_at: usize,
    /// Where the available ring is.
    pub avail_at: usize,
    /// Where the used ring is.
    pub used_at: usize,
    event_idx: bool,
    free: VecDeque<u16>,
    offered: Vec<Option<Chain>>,
    /// The next available index to write, published or not.
    avail: u16,
    published: u16,
    last_used: u16,
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
        self.base - super::GUEST_BASE + super::USER_BASE + at as u64
    }

    /// A ring at offset `at` of the memory, zeroed, whose indices begin at `start`.
    pub(super) fn new(
        view: &GuestView,
        base: u64,
        at: usize,
        size: u16,
        event_idx: bool,
        start: u16,
    ) -> Self {
        view.fill(at, Self::bytes(size), 0);
        let entries = usize::from(size);
        let avail_at = at + 16 * entries;
        let used_at = avail_at + (6 + 2 * entries).next_multiple_of(64);
        view.word(avail_at + 2).store(start, Ordering::Relaxed);
        view.word(used_at + 2).store(start, Ordering::Relaxed);
        let eventfd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let mut queue = Queue {
            view: view.clone(),
            base,
            size,
            desc_at: at,
            avail_at,
            used_at,
            event_idx,
            free: (0..size).collect(),
            offered: vec![None; entries],
            avail: start,
            published: start,
            last_used: start,
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
        self.offered.iter().flatten().count()
    }

    /// Makes a chain of buffers available; `direct` of its parts are descriptors of the queue's table, the rest are
    /// in the indirect table at `table` (an offset). False when the queue has not enough descriptors left.
    pub fn offer(&mut self, parts: &[Part], flags: u16, direct: usize, table: usize) -> bool {
        let direct = direct.min(parts.len());
        let indirect = &parts[direct..];
        let count = direct + usize::from(!indirect.is_empty());
        if count == 0 || self.free.len() < count {
            return false;
        }
        let descriptors: Vec<u16> = self.free.drain(..count).collect();
        for (position, &index) in descriptors.iter().enumerate() {
            let next = descriptors.get(position + 1).copied();
            let chain = next.map_or(0, |_| NEXT);
            let next = next.unwrap_or(0);
            if position < direct {
                let (at, len) = parts[position];
                self.write_descriptor(index, self.base + at as u64, len as u32, flags | chain, next);
            } else {
                let len = indirect.len() as u32 * 16;
                self.write_descriptor(index, self.base + table as u64, len, INDIRECT | chain, next);
            }
        }
        for (position, &(at, len)) in indirect.iter().enumerate() {
            let last = position + 1 == indirect.len();
            let (chain, next) = if last { (0, 0) } else { (NEXT, position as u16 + 1) };
            let bytes = descriptor(self.base + at as u64, len as u32, flags | chain, next);
            self.view.write(table + 16 * position, &bytes);
        }
        let head = descriptors[0];
        self.offered[usize::from(head)] = Some(Chain {
            head,
            parts: parts.to_vec(),
            descriptors,
        });
        self.push_available(head);
        true
    }

    /// Publishes what was made available, and notifies the device if it asks for that. True if it did.
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.avail);
        if old == new {
            return false;
        }
        self.write_available_index(new);
        self.published = new;
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self
                .view
                .word(self.used_at + 4 + 8 * usize::from(self.size))
                .load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.view.word(self.used_at).load(Ordering::Relaxed) & 1 == 0
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
        if self.event_idx {
            let event = if wanted {
                self.last_used
            } else {
                self.last_used.wrapping_sub(1)
            };
            let at = self.avail_at + 4 + 2 * usize::from(self.size);
            self.view.word(at).store(event, Ordering::Relaxed);
        } else {
            self.view
                .word(self.avail_at)
                .store(u16::from(!wanted), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The next chain that the device has given back, and how many bytes it says it wrote.
    pub fn next_used(&mut self) -> Option<(Chain, usize)> {
        if self.view.word(self.used_at + 2).load(Ordering::Acquire) == self.last_used {
            return None;
        }
        let slot = usize::from(self.last_used & (self.size - 1));
        let mut entry = [0; 8];
        self.view.read(self.used_at + 4 + 8 * slot, &mut entry);
        let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let (id, len) = (word(0) as usize, word(4) as usize);
        self.last_used = self.last_used.wrapping_add(1);
        let chain = self.offered.get_mut(id).and_then(Option::take);
        let chain =
            chain.unwrap_or_else(|| panic!("used entry {slot} names chain {id}, which is not offered"));
        let room: usize = chain.parts.iter().map(|part| part.1).sum();
        assert!(
            len <= room,
            "used entry {slot} says {len} bytes of chain {id}, which holds {room}"
        );
        self.free.extend(&chain.descriptors);
        Some((chain, len))
    }

    /// The used index as the device has published it.
    pub fn used_index(&self) -> u16 {
        self.view.word(self.used_at + 2).load(Ordering::Acquire)
    }

    /// Writes descriptor `index` of the table, whatever it says.
    pub fn write_descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.view.write(
            self.desc_at + 16 * usize::from(index),
            &descriptor(addr, len, flags, next),
        );
    }

    /// Writes the next available entry, whatever it says; it shows with [`publish`](Self::publish).
    pub fn push_available(&mut self, head: u16) {
        let slot = usize::from(self.avail & (self.size - 1));
        self.view
            .word(self.avail_at + 4 + 2 * slot)
            .store(head, Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
    }

    /// Writes the available index, whatever it says.
    pub fn write_available_index(&self, index: u16) {
        self.view.word(self.avail_at + 2).store(index, Ordering::Release);
    }
}

/// The bytes of a descriptor.
pub fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
