//! The four rings of one queue and the chunks that go round in them, without the socket: what a
//! test can drive with a kernel of its own making.
//!
//! Receiving goes by chunks: fill ring → kernel → receive ring → *taken* (a batch refers to it) →
//! fill ring, or aside while enough others go round ([`Window`]). Transmitting goes by *slots*,
//! neighbouring chunks that the longest frame fits in, so that a frame is written in one go
//! whatever its length: free → transmit ring → kernel → completion ring, chunk by chunk → free when
//! all its chunks are back. Nothing else happens to either, so that at any time those with the
//! kernel, those taken, those aside and those free are what the UMEM has.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::ring::{Consumer, Producer};
use super::umem::Umem;
use super::window::Window;
use crate::copy::LINE;

/// Buffers of one packet at most: Linux has a fixed 18 (MAX_SKB_FRAGS and the linear part) unless
/// built otherwise.
pub(super) const PARTS_MAX: u32 = 64;

/// What the kernel did that it never does. The queue is not to be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueFault {
    #[error("the receive ring names {len} bytes at {addr:#x}, which no chunk for receiving holds")]
    BadBuffer { addr: u64, len: u32 },
    #[error("the receive ring holds a packet of more than {PARTS_MAX} buffers")]
    EndlessPacket,
    #[error("the completion ring names {addr:#x}, which was not sent")]
    BadCompletion { addr: u64 },
}

/// The rings of one socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub fill: Producer<u64>,
    pub receive: Consumer<XdpDesc>,
    pub transmit: Producer<XdpDesc>,
    pub completion: Consumer<u64>,
}

/// One filled buffer, as the receive ring had it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub ptr: *const u8,
    pub len: u32,
    /// So many bytes as a head takes can be read from `ptr`, whatever `len` is.
    pub ample: bool,
    /// The packet goes on in the next buffer.
    pub more: bool,
    chunk: u32,
}

impl Filled {
    pub const NONE: Filled = Filled {
        ptr: std::ptr::null(),
        len: 0,
        ample: false,
        more: false,
        chunk: 0,
    };
}

/// Rings and chunks.
#[derive(Debug)]
pub(super) struct Queue {
    pub umem: Arc<Umem>,
    pub rings: Rings,
    /// Chunks for receiving that batches refer to, oldest first.
    taken: VecDeque<u32>,
    /// Chunks for receiving that the kernel has not got, and need not have.
    aside: Vec<u32>,
    /// How many it should have.
    window: Window,
    /// Slots that nobody uses; the last is the one used last, and likely still in the cache.
    free: Vec<u32>,
    /// By slot: its chunks that are with the kernel.
    sent: Vec<u8>,
    /// Chunks of a slot.
    slot_chunks: u32,
}

impl Queue {
    /// Gives all chunks for receiving to the kernel, and makes slots of `slot_chunks` (1 to 64, a
    /// power of two). The rings are as large as the UMEM has chunks of each kind, the fill ring
    /// [larger](super::options::Sizes::fill_ring).
    pub fn new(umem: Arc<Umem>, rings: Rings, slot_chunks: u32) -> Queue {
        let mut queue = Queue::idle(umem, rings, slot_chunks);
        queue.free = (0..queue.sent.len() as u32).rev().collect();
        for chunk in 0..queue.umem.count() {
            queue.give(chunk);
        }
        queue.rings.fill.publish();
        queue
    }

    /// A queue that another process has used, before it is told where that one has
    /// [stopped](Self::left): it touches no ring, and has nothing.
    pub fn idle(umem: Arc<Umem>, rings: Rings, slot_chunks: u32) -> Queue {
        debug_assert!(slot_chunks.is_power_of_two() && slot_chunks <= 64);
        let count = umem.count();
        let slots = count / slot_chunks;
        Queue {
            taken: VecDeque::with_capacity(count as usize),
            aside: Vec::with_capacity(count as usize),
            window: Window::new(count),
            free: Vec::with_capacity(slots as usize),
            sent: vec![0; slots as usize],
            slot_chunks,
            umem,
            rings,
        }
    }

    /// Where this queue is to be gone on with by another process that has its memory and socket
    /// ([`take_up`](Self::take_up)): what the rings do not show. This one is not to be used unless
    /// that one does not.
    pub fn left(&mut self) -> Vec<u8> {
        self.rings.fill.publish();
        self.rings.transmit.publish();
        let own = self.taken.iter().chain(&self.aside);
        let words = [
            self.window.size(),
            (self.taken.len() + self.aside.len()) as u32,
        ];
        let words = words.iter().chain(own).flat_map(|word| word.to_le_bytes());
        words.chain(self.sent.iter().copied()).collect()
    }

    /// Goes on where another process has [left](Self::left) the queue. `None`: it has said what
    /// cannot be, and nothing has changed.
    pub fn take_up(&mut self, left: &[u8]) -> Option<()> {
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let (size, left) = left
            .split_first_chunk()
            .map(|(head, rest)| (word(head), rest))?;
        let (count, left) = left
            .split_first_chunk()
            .map(|(head, rest)| (word(head), rest))?;
        let (own, sent) = left.split_at_checked((count as usize).checked_mul(4)?)?;
        let (own, _) = own.as_chunks();
        let mut aside: Vec<u32> = own.iter().map(word).collect();
        let is_sent = |chunks: &u8| u32::from(*chunks) <= self.slot_chunks;
        aside.sort_unstable();
        aside.dedup();
        let is_whole = aside.len() == own.len() && sent.len() == self.sent.len();
        let is_chunk = aside.last().is_none_or(|last| *last < self.umem.count());
        if !is_whole || !is_chunk || !sent.iter().all(is_sent) {
            return None;
        }
        self.rings.fill.renew();
        self.rings.receive.renew();
        self.rings.transmit.renew();
        self.rings.completion.renew();
        self.window.widen_to(size);
        self.taken.clear();
        self.aside = aside;
        self.sent.copy_from_slice(sent);
        let free = (0..).zip(sent).filter(|(_, chunks)| **chunks == 0);
        self.free = free.map(|(slot, _)| slot).collect();
        Some(())
    }

    /// Goes on where another process has ended amid its work, which has [left](Self::left) nothing:
    /// what is in no ring is nobody's. So it is in copy mode, where the kernel has a buffer between
    /// two rings only within a call or an interrupt; but for what it sends, of which it gives how
    /// many chunks are still on their way: unless there are none, nothing has changed. `None`: the
    /// rings hold what cannot be, and nothing has changed.
    pub fn recover(&mut self) -> Option<u32> {
        self.rings.fill.renew();
        self.rings.receive.renew();
        self.rings.transmit.renew();
        self.rings.completion.renew();
        let mut with_kernel = vec![false; self.umem.count() as usize];
        // In this order: a buffer that is filled meanwhile is seen twice, and not never.
        for addr in self.rings.fill.outstanding()? {
            let chunk = addr / u64::from(self.umem.chunk_len());
            let is_twice = std::mem::replace(with_kernel.get_mut(chunk as usize)?, true);
            if is_twice {
                return None;
            }
        }
        for XdpDesc { addr, len, .. } in self.rings.receive.outstanding()? {
            let (chunk, ..) = self.umem.filled(addr, len, 0)?;
            with_kernel[chunk as usize] = true;
        }
        let mut sent = vec![0; self.sent.len()];
        let waiting = self.rings.transmit.outstanding()?.map(|entry| entry.addr);
        let waiting: Vec<u64> = waiting.collect();
        for addr in waiting
            .into_iter()
            .chain(self.rings.completion.outstanding()?)
        {
            let chunk = self.umem.transmit_chunk(addr)? - self.umem.count();
            let sent: &mut u8 = sent.get_mut((chunk / self.slot_chunks) as usize)?;
            *sent += 1;
            if u32::from(*sent) > self.slot_chunks {
                return None;
            }
        }
        let completed = self.rings.completion.written();
        let under_way = self.rings.transmit.taken().wrapping_sub(completed);
        if under_way > self.umem.count() {
            return None;
        }
        if under_way == 0 {
            self.taken.clear();
            let own = (0..).zip(&with_kernel).filter(|(_, is)| !**is);
            self.aside = own.map(|(chunk, _)| chunk).collect();
            let free = (0..).zip(&sent).filter(|(_, chunks)| **chunks == 0);
            self.free = free.map(|(slot, _)| slot).collect();
            self.sent = sent;
        }
        Some(under_way)
    }

    /// Chunks of each slot.
    pub fn slot_chunks(&self) -> u32 {
        self.slot_chunks
    }

    /// How many buffers are filled: `want` at least, if there are so many.
    #[inline]
    pub fn filled(&mut self, want: u32) -> u32 {
        self.rings.receive.available(want)
    }

    /// The buffer so many behind the next one, checked.
    #[inline]
    pub fn peek(&self, behind: u32, ample: usize) -> Result<Filled, QueueFault> {
        let XdpDesc { addr, len, options } = self.rings.receive.peek(behind);
        let Some((chunk, ptr, ample)) = self.umem.filled(addr, len, ample) else {
            return Err(QueueFault::BadBuffer { addr, len });
        };
        Ok(Filled {
            ptr,
            len,
            ample,
            more: options.contains(XdpDescOptions::XDP_PKT_CONTD),
            chunk,
        })
    }

    /// So many were filled when a batch began to take them.
    #[inline]
    pub fn saw(&mut self, filled: u32) {
        self.window.saw(filled);
    }

    /// Takes the next buffer off the ring's list for a batch that will [put it
    /// back](Self::put_back). To be [released](Self::release) with the others.
    #[inline]
    pub fn take(&mut self, filled: &Filled) {
        self.taken.push_back(filled.chunk);
    }

    /// The first `count` entries of the receive ring were taken or refused.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.rings.receive.release(count);
    }

    /// Gives a buffer that was not taken back to the kernel.
    pub fn refuse(&mut self, filled: &Filled) {
        self.give(filled.chunk);
    }

    /// Gives the `count` buffers that were taken first back to the kernel, as far as it should have
    /// them. True when it wants to be told.
    #[inline]
    pub fn put_back(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(chunk) = self.taken.pop_front() else {
                debug_assert!(false, "more put back than was taken");
                break;
            };
            // Counted as the kernel's already.
            if self.given() <= self.window.size() {
                self.give(chunk);
            } else {
                self.aside.push(chunk);
            }
        }
        self.give_up_to(self.window.size())
    }

    /// Gives the kernel all that nobody else has: there will be no one to look for a while. True
    /// when it wants to be told.
    pub fn give_all(&mut self) -> bool {
        self.give_up_to(u32::MAX)
    }

    /// Chunks that the kernel has, filled ones that were not taken yet among them.
    #[inline]
    fn given(&self) -> u32 {
        let others = self.taken.len() + self.aside.len();
        self.umem.count().saturating_sub(others as u32)
    }

    /// Gives the kernel of what is aside until it has so many.
    #[inline]
    fn give_up_to(&mut self, count: u32) -> bool {
        while self.given() < count
            && let Some(chunk) = self.aside.pop()
        {
            self.give(chunk);
        }
        self.rings.fill.publish() && self.rings.fill.wants_wakeup()
    }

    #[inline]
    fn give(&mut self, chunk: u32) {
        // There is room (`Sizes::fill_ring`). `room` also reads the kernel's index, which `push`
        // does not.
        if self.rings.fill.room(1) > 0 {
            self.rings.fill.push(self.umem.addr(chunk));
        } else {
            debug_assert!(false, "no room in the fill ring");
        }
    }

    /// Bytes of the longest frame that can be sent.
    pub fn slot_len(&self) -> usize {
        (self.slot_chunks * self.umem.chunk_len()) as usize
    }

    /// The slot that [`send`](Self::send) sends next, to be written to; it holds
    /// [`slot_len`](Self::slot_len) bytes. `None`: all are with the kernel, or the ring is full.
    #[inline]
    pub fn writable(&mut self) -> Result<Option<NonNull<u8>>, QueueFault> {
        if self.free.is_empty() {
            self.collect()?;
        }
        let Some(&slot) = self.free.last() else {
            return Ok(None);
        };
        if self.rings.transmit.room(self.slot_chunks) < self.slot_chunks {
            return Ok(None);
        }
        let at = self.umem.addr(self.first_chunk(slot)) as usize;
        Ok(NonNull::new(self.umem.start().wrapping_add(at)))
    }

    /// How far into the slot a frame of `len` bytes begins so that its body, `head` bytes behind,
    /// begins a cache line: vectors of the copy then do not straddle two. 0 where the frame takes
    /// more than one chunk.
    #[inline]
    pub fn indent(&self, head: usize, len: usize) -> usize {
        let indent = head.wrapping_neg() % LINE;
        if indent + len <= self.umem.chunk_len() as usize {
            indent
        } else {
            0
        }
    }

    /// How far behind the slot that is [`writable`](Self::writable) that one lies which will be
    /// when this one is sent; wraps around.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        let [.., next, slot] = self.free[..] else {
            return None;
        };
        let [next, this] = [next, slot].map(|slot| self.umem.addr(self.first_chunk(slot)) as usize);
        Some(next.wrapping_sub(this))
    }

    /// Puts `len` bytes from [`indent`](Self::indent) on of the slot that is
    /// [`writable`](Self::writable) into the transmit ring, to be seen by the kernel when that is
    /// published.
    #[inline]
    pub fn send(&mut self, indent: usize, len: usize) {
        debug_assert!((1..=self.slot_len()).contains(&(indent + len)));
        let Some(slot) = self.free.pop() else {
            debug_assert!(false, "nothing is writable");
            return;
        };
        let (mut chunk, mut left, mut indent) = (self.first_chunk(slot), len as u32, indent as u64);
        while left > 0 {
            let part = left.min(self.umem.chunk_len());
            left -= part;
            self.rings.transmit.push(XdpDesc {
                addr: self.umem.addr(chunk) + std::mem::take(&mut indent),
                len: part,
                options: match left {
                    0 => XdpDescOptions::empty(),
                    _ => XdpDescOptions::XDP_PKT_CONTD,
                },
            });
            self.sent[slot as usize] += 1;
            chunk += 1;
        }
    }

    /// Takes back what the kernel has sent.
    #[inline]
    pub fn collect(&mut self) -> Result<(), QueueFault> {
        let count = self.rings.completion.available(1);
        for behind in 0..count {
            let addr = self.rings.completion.peek(behind);
            let chunk = self.umem.transmit_chunk(addr);
            let slot = chunk.map(|chunk| (chunk - self.umem.count()) / self.slot_chunks);
            let out = slot.and_then(|slot| self.sent.get_mut(slot as usize));
            let (Some(slot), Some(out @ 1..)) = (slot, out) else {
                return Err(QueueFault::BadCompletion { addr });
            };
            *out -= 1;
            if *out == 0 {
                self.free.push(slot);
            }
        }
        if count > 0 {
            self.rings.completion.release(count);
        }
        Ok(())
    }

    fn first_chunk(&self, slot: u32) -> u32 {
        self.umem.count() + slot * self.slot_chunks
    }

    /// Chunks that batches refer to, and slots that nobody uses: for tests of what is lost.
    #[cfg(test)]
    pub fn accounting(&self) -> (usize, usize) {
        (self.taken.len(), self.free.len())
    }
}
