//! The device's side of a split virtqueue (virtio 1.2, section 2.7): indices, notifications, used entries.
//!
//! One [`SplitQueue`] is one ring. [`VhostPort`](super::port::VhostPort) owns two and drives them: `receive`
//! (in `receive.rs`) on the ring that the guest transmits on, `put` (in `transmit.rs`) on the one it receives
//! from. Here is what both share.
//!
//! # Orderings
//!
//! Each index has one writer: the guest writes `avail.idx`, we write `used.idx`.
//! - The guest stores ring entries and descriptors, then `avail.idx`. We load `avail.idx` with Acquire, once a
//!   batch, and only then read entries up to it: what they name was written before.
//! - We write buffers and used entries, then store `used.idx` with Release, once a flush: a guest that sees the
//!   index sees what is behind it.
//! - Whether to notify is Dekker's problem: each side stores its index and then loads the other's wish (or
//!   stores its wish and then loads the other's index). A store may pass a later load, so that both could miss
//!   the other; a SeqCst fence between the two forbids that. It stands in [`SplitQueue::publish`] (index, then
//!   the guest's `used_event` or flags) and in [`SplitQueue::arm`] (`avail_event` or flags, then the guest's
//!   index): whoever comes second sees the first.
//!
//! What is not defended against: the eventfds are shared with the VMM, which can make them blocking again and
//! fill them, so that our write waits. It would take a thread of its own to notify guests that do that.
//!
//! While we poll, the guest is told not to notify us, on both rings: a guest also kicks after it has refilled
//! the ring it receives from, and there we never need to know.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::chain::{RingFault, Table};
use super::features;
use crate::frame::Segment;
use crate::guest_memory::GuestMemory;
use crate::port::QueueState;

#[cfg(target_endian = "big")]
compile_error!("rings are little-endian and are read as they are");

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// What a queue is made of.
#[derive(Debug)]
pub struct QueueSetup {
    /// The guest's memory, where the rings lie.
    pub memory: Arc<GuestMemory>,
    /// Entries: a power of two up to 32768.
    pub size: u16,
    /// The descriptor table, as an address of the VMM's.
    pub desc: u64,
    /// The available ring, as an address of the VMM's.
    pub avail: u64,
    /// The used ring, as an address of the VMM's.
    pub used: u64,
    /// What was negotiated.
    pub features: u64,
    /// The next available entry to take; `None` begins at the used index that is in memory, which is right
    /// after a reconnection: nothing that was given back is taken again.
    pub last_avail: Option<u16>,
    /// Where the guest notifies us.
    pub kick: Option<OwnedFd>,
    /// Where we notify the guest; without it the guest polls.
    pub call: Option<OwnedFd>,
}

/// What is left of a queue for the session to keep.
#[derive(Debug)]
pub struct QueueParts {
    /// The next available entry, for GET_VRING_BASE or a new queue.
    pub last_avail: u16,
    /// As in [`QueueSetup`].
    pub kick: Option<OwnedFd>,
    /// As in [`QueueSetup`].
    pub call: Option<OwnedFd>,
}

/// Why a queue cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Not a power of two from 1 to 32768.
    #[error("a queue of {0} entries is not possible; powers of two up to 32768 are")]
    Size(u16),
    /// A part of the ring does not lie in one region of the guest's memory.
    #[error("the {part} of {len} bytes at {addr:#x} is not in the guest's memory")]
    Outside {
        /// Which part.
        part: &'static str,
        /// The VMM's address of it.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// A part of the ring is not aligned as the specification asks.
    #[error("the {part} at {addr:#x} is not aligned to {align}")]
    Misaligned {
        /// Which part.
        part: &'static str,
        /// The VMM's address of it.
        addr: u64,
        /// What it has to be a multiple of.
        align: usize,
    },
    /// A kick or call descriptor that could make the worker wait.
    #[error("the {0} descriptor is not an eventfd")]
    NotEventfd(&'static str),
}

/// A used entry, ready to be written (virtio 1.2, section 2.7.8).
#[derive(Clone, Copy)]
pub(super) struct Used {
    pub id: u16,
    pub len: u32,
}

/// One ring.
pub struct SplitQueue {
    pub(super) table: Table,
    /// Valid for the available ring's `6 + 2 * size` bytes, aligned to 2.
    avail: *const u16,
    /// Valid for the used ring's `6 + 8 * size` bytes, aligned to 4.
    used: *mut u16,
    pub(super) size: u16,
    /// The next available entry to take.
    pub(super) next_avail: u16,
    /// The guest's available index when it was last read.
    avail_seen: u16,
    used_index: u16,
    /// Used entries not yet published; never more than `size`.
    pub(super) staged: Vec<Used>,
    /// Buffers of the chain being filled, kept for their allocation.
    pub(super) buffers: Vec<Segment>,
    event_idx: bool,
    /// The guest's last wish is not known to us: notify whatever it says.
    notify_anyway: bool,
    features: u64,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    calls: u64,
}

// SAFETY: the pointers lead into mappings that belong to no thread and that `table` keeps.
unsafe impl Send for SplitQueue {}

impl std::fmt::Debug for SplitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}

impl SplitQueue {
    /// Checks everything about the rings that does not change, and tells the guest that we poll.
    pub fn new(setup: QueueSetup) -> Result<Self, QueueError> {
        let QueueSetup {
            memory,
            size,
            features,
            kick,
            call,
            ..
        } = setup;
        if !size.is_power_of_two() || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let entries = u64::from(size);
        let desc = place(&memory, "descriptor table", setup.desc, 16 * entries, 16)?;
        let avail = place(&memory, "available ring", setup.avail, 6 + 2 * entries, 2)?.cast::<u16>();
        let used = place(&memory, "used ring", setup.used, 6 + 8 * entries, 4)?.cast::<u16>();
        for (name, fd) in [("kick", &kick), ("call", &call)] {
            check_eventfd(name, fd.as_ref())?;
        }
        // SAFETY: `place` found `16 * size` bytes, aligned to 16, in `memory`.
        let table = unsafe { Table::new(memory, desc, size, features & features::INDIRECT_DESC != 0) };
        let mut queue = SplitQueue {
            table,
            avail,
            used,
            size,
            next_avail: 0,
            avail_seen: 0,
            used_index: 0,
            staged: Vec::with_capacity(usize::from(size)),
            buffers: Vec::with_capacity(64),
            event_idx: features & features::EVENT_IDX != 0,
            notify_anyway: true,
            features,
            kick,
            call,
            calls: 0,
        };
        queue.used_index = queue.used_idx().load(Ordering::Relaxed);
        queue.next_avail = setup.last_avail.unwrap_or(queue.used_index);
        queue.avail_seen = queue.next_avail;
        queue.disarm();
        Ok(queue)
    }

    /// Takes the queue apart; what was taken from the guest and not given back yet is given back.
    pub fn into_parts(mut self) -> QueueParts {
        self.publish();
        QueueParts {
            last_avail: self.next_avail,
            kick: self.kick.take(),
            call: self.call.take(),
        }
    }

    /// The next available entry that will be taken.
    pub fn last_avail(&self) -> u16 {
        self.next_avail
    }

    /// Readable when the guest has notified us.
    pub fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    /// Asks the guest to notify us of new chains. True when there are some already, and always when there is no
    /// descriptor to be notified on: such a ring has to be polled.
    pub fn arm(&mut self) -> bool {
        if self.kick.is_none() {
            return true;
        }
        if self.event_idx {
            self.avail_event().store(self.next_avail, Ordering::Relaxed);
        } else {
            self.used_flags().store(0, Ordering::Relaxed);
        }
        // The wish first, then the index: see the orderings above.
        fence(Ordering::SeqCst);
        self.avail_idx().load(Ordering::Acquire) != self.next_avail
    }

    /// Tells the guest that we poll. It may have notified us before it sees this.
    pub fn disarm(&mut self) {
        if self.event_idx {
            // The index that is furthest away: one idle notification in 65,536 chains.
            self.avail_event()
                .store(self.next_avail.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.used_flags().store(USED_NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Chains that can be taken, by a fresh look at the guest's index.
    #[inline]
    pub(super) fn look(&mut self) -> Result<u16, RingFault> {
        let avail = self.avail_idx().load(Ordering::Acquire);
        let ready = avail.wrapping_sub(self.next_avail);
        if ready > self.size {
            return Err(RingFault::AvailJump {
                avail,
                taken: self.next_avail,
                size: self.size,
            });
        }
        self.avail_seen = avail;
        Ok(ready)
    }

    /// Chains known to be there from entry `next` on, without looking again.
    #[inline]
    pub(super) fn known(&self, next: u16) -> u16 {
        self.avail_seen.wrapping_sub(next)
    }

    /// The descriptor that an available entry names; not judged yet.
    #[inline]
    pub(super) fn head_at(&self, index: u16) -> u16 {
        let slot = usize::from(index & (self.size - 1));
        // SAFETY: `slot < size`, and the ring's entries begin behind two 16-bit words (`place` in `new`).
        unsafe { self.avail.add(2 + slot).read_volatile() }
    }

    /// Writes the staged used entries, makes them visible and notifies the guest if it wants that.
    #[inline]
    pub fn publish(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let old = self.used_index;
        let mut index = old;
        for used in &self.staged {
            let slot = usize::from(index & (self.size - 1));
            // SAFETY: `slot < size`, and the entries, of two 32-bit words, begin behind two 16-bit words in a
            // ring aligned to 4 (`place` in `new`).
            unsafe {
                let entry = self.used.add(2 + 4 * slot).cast::<u32>();
                entry.write_volatile(u32::from(used.id));
                entry.add(1).write_volatile(used.len);
            }
            index = index.wrapping_add(1);
        }
        self.staged.clear();
        self.used_index = index;
        self.used_idx().store(index, Ordering::Release);
        if self.call.is_some() {
            self.notify(old, index);
        }
    }

    #[inline]
    fn notify(&mut self, old: u16, new: u16) {
        // The index first, then the guest's wish: see the orderings above.
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self.used_event().load(Ordering::Relaxed);
            passed(event, new, old)
        } else {
            self.avail_flags().load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        };
        if wanted || std::mem::take(&mut self.notify_anyway) {
            self.notify_anyway = false;
            self.call();
        }
    }

    #[cold]
    fn call(&mut self) {
        if let Some(call) = &self.call {
            self.calls += 1;
            // A full counter (EAGAIN; the descriptor does not block) is a notification that is still to be read.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }

    /// Indices at this moment.
    pub fn state(&self) -> QueueState {
        QueueState {
            size: self.size,
            avail_index: self.avail_idx().load(Ordering::Relaxed),
            next_avail: self.next_avail,
            used_index: self.used_index,
            in_flight: self.staged.len() as u16,
            interrupts_off: if self.event_idx {
                !passed(
                    self.used_event().load(Ordering::Relaxed),
                    self.used_index.wrapping_add(1),
                    self.used_index,
                )
            } else {
                self.avail_flags().load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT != 0
            },
            calls: self.calls,
            features: self.features,
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
        self.atomic(self.avail.wrapping_add(2 + usize::from(self.size)).cast_mut())
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
        // SAFETY: only called above, with words inside the two rings: `place` in `new` found all `6 + 2 * size`
        // and `6 + 8 * size` bytes, aligned to 2 at least, in memory that `self.table` keeps mapped.
        unsafe { AtomicU16::from_ptr(word) }
    }
}

/// True when `event` is among the entries `old..new`: the guest asked to be told about one of them.
#[inline]
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

fn place(
    memory: &GuestMemory,
    part: &'static str,
    addr: u64,
    len: u64,
    align: usize,
) -> Result<*mut u8, QueueError> {
    let host = memory
        .user(addr, len)
        .ok_or(QueueError::Outside { part, addr, len })?;
    // A region may begin anywhere, so that it is the pointer that has to be aligned.
    if host.addr().is_multiple_of(align) {
        Ok(host)
    } else {
        Err(QueueError::Misaligned { part, addr, align })
    }
}

/// The worker reads and writes these descriptors: one that can make it wait is refused, and an eventfd is made
/// not to wait.
fn check_eventfd(name: &'static str, fd: Option<&OwnedFd>) -> Result<(), QueueError> {
    let Some(fd) = fd else { return Ok(()) };
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let is_eventfd = link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]");
    let flags = rustix::fs::fcntl_getfl(fd).map(|flags| flags | rustix::fs::OFlags::NONBLOCK);
    if is_eventfd && flags.and_then(|flags| rustix::fs::fcntl_setfl(fd, flags)).is_ok() {
        return Ok(());
    }
    Err(QueueError::NotEventfd(name))
}
