//! The driver's half of one split ring (virtio 1.2, section 2.7), made so that it shares as little
//! as it can.
//!
//! Every descriptor has its buffer for good and the available ring names descriptor i in entry i,
//! so that to send is to raise one index, and to receive and refill is to read one index and raise
//! another: two cache lines for any number of frames. That holds because all switches measured give
//! chains back in order; [`Ring::check_order`] says so when one does not. Offsets are from the
//! beginning of the guest's memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering, fence};

use io::guest_view::GuestView;
use rustix::event::{EventfdFlags, eventfd};
use testkit::vhost_frontend::RingSpec;

use crate::peers::PeerError;

/// The device may write to the descriptor's buffer.
pub const FLAG_WRITE: u16 = 2;

/// The chain goes on with another descriptor.
const FLAG_NEXT: u16 = 1;

const DESCRIPTOR_LEN: usize = 16;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// One split ring, with a buffer for each descriptor.
pub struct Ring {
    /// Entries, a power of two.
    pub size: u16,
    /// The address that offset 0 has for the device.
    base: u64,
    /// What the guest has made available.
    avail: u16,
    /// The device's used index as it was read last.
    used: u16,
    /// What of it the guest has taken.
    taken: u16,
    descriptors_at: usize,
    avail_at: usize,
    used_at: usize,
    buffers_at: usize,
    stride: usize,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Ring {
    /// Bytes that the three parts of a ring take, each beginning on a page.
    pub fn bytes(size: u16) -> usize {
        let [avail, used, end] = Ring::parts(size);
        debug_assert!(avail < used);
        end
    }

    /// Where the available ring, the used ring and the end are, from the descriptor table.
    fn parts(size: u16) -> [usize; 3] {
        let entries = usize::from(size);
        let avail = (DESCRIPTOR_LEN * entries).next_multiple_of(4096);
        let used = avail + (6 + 2 * entries).next_multiple_of(4096);
        [avail, used, used + (6 + 8 * entries).next_multiple_of(4096)]
    }

    /// A ring at offset `at` whose buffers of `stride` bytes begin at `buffers_at`; `flags` are
    /// every descriptor's.
    pub fn new(
        view: &GuestView,
        base: u64,
        at: usize,
        size: u16,
        (buffers_at, stride): (usize, usize),
        flags: u16,
    ) -> Result<Ring, PeerError> {
        let [avail, used, _] = Ring::parts(size);
        let bell = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| PeerError(format!("eventfd: {error}")))
        };
        let ring = Ring {
            size,
            base,
            avail: 0,
            used: 0,
            taken: 0,
            descriptors_at: at,
            avail_at: at + avail,
            used_at: at + used,
            buffers_at,
            stride,
            kick: bell()?,
            call: bell()?,
        };
        for index in 0..size {
            let mut bytes = [0; DESCRIPTOR_LEN];
            bytes[..8].copy_from_slice(&(base + ring.buffer(index) as u64).to_le_bytes());
            bytes[8..12].copy_from_slice(&(stride as u32).to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            view.write(at + DESCRIPTOR_LEN * usize::from(index), &bytes);
            view.word(ring.avail_at + 4 + 2 * usize::from(index))
                .store(index, Ordering::Relaxed);
        }
        view.word(ring.avail_at)
            .store(NO_INTERRUPT, Ordering::Relaxed);
        Ok(ring)
    }

    /// The ring as a VMM describes it.
    pub fn spec(&self) -> RingSpec<'_> {
        RingSpec {
            size: self.size,
            descriptors: self.base + self.descriptors_at as u64,
            available: self.base + self.avail_at as u64,
            used: self.base + self.used_at as u64,
            kick: self.kick.as_fd(),
            call: self.call.as_fd(),
        }
    }

    /// Where the buffer of entry `index` (taken modulo the size) is.
    #[inline]
    pub fn buffer(&self, index: u16) -> usize {
        self.buffers_at + usize::from(index & (self.size - 1)) * self.stride
    }

    /// Where the buffer of the entry made available next, but `number`, is.
    #[inline]
    pub fn next_buffer(&self, number: u16) -> usize {
        self.buffer(self.avail.wrapping_add(number))
    }

    /// Sets the length of a descriptor.
    pub fn describe(&self, view: &GuestView, index: u16, len: usize) {
        let at = self.descriptors_at + DESCRIPTOR_LEN * usize::from(index) + 8;
        view.write(at, &(len as u32).to_le_bytes());
    }

    /// Makes one chain of all descriptors, which every entry of the available ring names.
    pub fn chain(&self, view: &GuestView) {
        for index in 0..self.size {
            let at = self.descriptors_at + DESCRIPTOR_LEN * usize::from(index) + 12;
            if let Some(next) = index.checked_add(1).filter(|next| *next < self.size) {
                view.write(at, &[FLAG_NEXT.to_le_bytes(), next.to_le_bytes()].concat());
            }
            view.word(self.avail_at + 4 + 2 * usize::from(index))
                .store(0, Ordering::Relaxed);
        }
    }

    /// Entries that are free when at least `wanted` are; else 0. The device's index is read only
    /// when what is known of it does not say so already.
    #[inline]
    pub fn room(&mut self, view: &GuestView, wanted: u16) -> u16 {
        let room = |ring: &Ring| ring.size - ring.avail.wrapping_sub(ring.used);
        if room(self) < wanted {
            self.used = self.used_index(view).load(Ordering::Acquire);
        }
        let room = room(self);
        if room < wanted { 0 } else { room }
    }

    /// Chains that have come back since the last call when they are at least `wanted`; else 0.
    #[inline]
    pub fn take(&mut self, view: &GuestView, wanted: u16) -> u16 {
        self.used = self.used_index(view).load(Ordering::Acquire);
        let count = self.used.wrapping_sub(self.taken);
        if count < wanted {
            return 0;
        }
        self.taken = self.used;
        count
    }

    /// Makes the next `count` entries available, and notifies the device if it asks for that.
    #[inline]
    pub fn publish(&mut self, view: &GuestView, count: u16) {
        if count == 0 {
            return;
        }
        self.avail = self.avail.wrapping_add(count);
        self.avail_index(view).store(self.avail, Ordering::Release);
        // The index first, then the device's flags (virtio 1.2, section 2.7.13.4).
        fence(Ordering::SeqCst);
        if view.word(self.used_at).load(Ordering::Relaxed) & NO_NOTIFY == 0 {
            self.kick();
        }
    }

    /// Notifies the device, whether it wants to know or not.
    pub fn kick(&self) {
        // A counter that is full is a notification that is still to be read.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Fails when nothing has come back, or when the chain that came last was not the one that was
    /// due, which the driver relies on.
    pub fn check_order(&self, view: &GuestView) -> Result<(), PeerError> {
        let used = self.used_index(view).load(Ordering::Acquire);
        if self.taken == 0 && used == 0 {
            return Err(PeerError("nothing arrived".to_owned()));
        }
        let last = used.wrapping_sub(1) & (self.size - 1);
        let id = view
            .word(self.used_at + 4 + 8 * usize::from(last))
            .load(Ordering::Relaxed);
        if id == last {
            Ok(())
        } else {
            Err(PeerError(format!(
                "chain {id} came back where {last} was due"
            )))
        }
    }

    fn avail_index<'a>(&self, view: &'a GuestView) -> &'a AtomicU16 {
        view.word(self.avail_at + 2)
    }

    fn used_index<'a>(&self, view: &'a GuestView) -> &'a AtomicU16 {
        view.word(self.used_at + 2)
    }

    /// Where the two indices are: the driver's, the device's.
    pub fn places(&self) -> [usize; 2] {
        [self.avail_at + 2, self.used_at + 2]
    }

    /// Says that the device wants no notifications, in the device's stead.
    pub fn silence(&self, view: &GuestView) {
        view.word(self.used_at).store(NO_NOTIFY, Ordering::Relaxed);
    }
}
