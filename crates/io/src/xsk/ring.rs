//! A ring between us and the kernel: one side writes entries and the producer index, the other
//! reads them and writes the consumer index (Linux, Documentation/networking/af_xdp.rst).
//!
//! Orderings: entries are written before the producer index that announces them (Release, read by
//! Acquire), and read before the consumer index that frees them (the same the other way). Each side
//! keeps its own index and a copy of the other's, and reads the shared one only when the copy says
//! too little: a cache line that both write costs more than all the rest. Indices count up and wrap
//! at 2^32; a place is the index modulo the size, which is a power of two, so that no index,
//! whatever it be, leads out of the ring.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

use super::mapping::Mapping;

/// What a ring may hold: any bytes are a valid one.
pub(super) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// A ring's place in memory.
#[derive(Debug)]
pub(super) struct XskRing<T> {
    mapping: Arc<Mapping>,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: *mut T,
    size: u32,
    _entries: PhantomData<T>,
}

// SAFETY: `entries` leads into the mapping that the ring keeps; each side has one owner that reads
// or writes through it.
unsafe impl<T: Entry> Send for XskRing<T> {}

impl<T: Entry> XskRing<T> {
    /// The ring of `size` entries (a power of two) at these offsets. `None` when it does not lie in
    /// the mapping.
    pub fn new(mapping: Arc<Mapping>, offsets: &XdpRingOffset, size: u32) -> Option<XskRing<T>> {
        let index = |offset: u64| {
            let offset = usize::try_from(offset).ok()?;
            (offset.is_multiple_of(4) && offset.checked_add(4)? <= mapping.len()).then_some(offset)
        };
        let first = usize::try_from(offsets.desc).ok()?;
        let end = first.checked_add(size as usize * size_of::<T>())?;
        if end > mapping.len() || !first.is_multiple_of(align_of::<T>()) || !size.is_power_of_two()
        {
            return None;
        }
        Some(XskRing {
            producer: index(offsets.producer)?,
            consumer: index(offsets.consumer)?,
            flags: match offsets.flags {
                Some(offset) => Some(index(offset)?),
                None => None,
            },
            entries: mapping.start().wrapping_add(first).cast(),
            size,
            mapping,
            _entries: PhantomData,
        })
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is aligned and inside the mapping (`new`), which starts at a page and
        // lives as long as `self`; both sides use the word as an atomic.
        unsafe { AtomicU32::from_ptr(self.mapping.start().add(offset).cast()) }
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> *mut T {
        self.entries
            .wrapping_add((index & (self.size - 1)) as usize)
    }

    /// The entries from one index to another. `None`: they are more than the ring has.
    fn between(&self, from: u32, to: u32) -> Option<impl Iterator<Item = T>> {
        let count = to.wrapping_sub(from);
        // SAFETY: a place inside the ring, of a type of which any bytes are a valid one; neither
        // side writes to what lies between the consumer and the producer.
        let entry = move |behind| unsafe { self.entry(from.wrapping_add(behind)).read() };
        (count <= self.size).then(|| (0..count).map(entry))
    }

    /// The kernel sleeps on this ring and wants to be called. What was published before is visible
    /// to it if it is not.
    #[inline]
    fn wants_wakeup(&self) -> bool {
        // Our store of the index comes before the look at the flag; without the fence both sides
        // could miss the other.
        fence(Ordering::SeqCst);
        self.flags.is_some_and(|flags| {
            self.word(flags).load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits()
                != 0
        })
    }
}

/// The writing side: fill and transmit rings are ours to write.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: XskRing<T>,
    /// Where the next entry goes.
    next: u32,
    /// What the other side has been shown.
    published: u32,
    /// The consumer index as last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Takes the ring up where it is.
    pub fn new(ring: XskRing<T>) -> Self {
        let next = ring.word(ring.producer).load(Ordering::Relaxed);
        let consumed = ring.word(ring.consumer).load(Ordering::Acquire);
        Producer {
            ring,
            next,
            published: next,
            consumed,
        }
    }

    /// Takes the ring up where it is by now: somebody else has written to it.
    pub fn renew(&mut self) {
        self.next = self.ring.word(self.ring.producer).load(Ordering::Relaxed);
        self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        self.published = self.next;
    }

    /// How many entries can be pushed: all there is room for, or `want` at least if the copy of the
    /// index says so.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        if self.free() < want {
            self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        }
        self.free()
    }

    #[inline]
    fn free(&self) -> u32 {
        self.ring
            .size
            .saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Writes the next entry, to be seen after [`publish`](Self::publish). There has to be
    /// [`room`](Self::room).
    #[inline]
    pub fn push(&mut self, entry: T) {
        debug_assert!(self.free() > 0);
        // SAFETY: `entry` gives a place inside the ring; there is room, so that the other side does
        // not read it.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows what was pushed to the other side. True when there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        self.ring
            .word(self.ring.producer)
            .store(self.next, Ordering::Release);
        true
    }

    /// Entries that were published and that the other side has not taken yet.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        self.published
            .wrapping_sub(self.consumed)
            .min(self.ring.size)
    }

    /// What was published and the other side has not taken, as it was when this side [took the ring
    /// up](Self::renew). `None`: the indices are further apart than the ring is long.
    pub fn outstanding(&self) -> Option<impl Iterator<Item = T>> {
        self.ring.between(self.consumed, self.published)
    }

    /// How many entries the other side has taken since the ring was made; wraps around.
    pub fn taken(&self) -> u32 {
        self.consumed
    }

    /// See [`XskRing::wants_wakeup`].
    #[inline]
    pub fn wants_wakeup(&self) -> bool {
        self.ring.wants_wakeup()
    }
}

/// The reading side: completion and receive rings are the kernel's to write.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: XskRing<T>,
    /// The next entry to read.
    next: u32,
    /// The producer index as last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// Takes the ring up where it is.
    pub fn new(ring: XskRing<T>) -> Self {
        let next = ring.word(ring.consumer).load(Ordering::Relaxed);
        Consumer {
            ring,
            next,
            produced: next,
        }
    }

    /// Takes the ring up where it is by now: somebody else has read from it.
    pub fn renew(&mut self) {
        self.next = self.ring.word(self.ring.consumer).load(Ordering::Relaxed);
        self.produced = self.next;
    }

    /// How many entries can be read: `want` at least, if there are so many.
    #[inline]
    pub fn available(&mut self, want: u32) -> u32 {
        if self.ready() < want {
            self.produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        }
        self.ready()
    }

    #[inline]
    fn ready(&self) -> u32 {
        self.produced.wrapping_sub(self.next).min(self.ring.size)
    }

    /// The entry so many behind the next one; it is [`available`](Self::available).
    #[inline]
    pub fn peek(&self, behind: u32) -> T {
        debug_assert!(behind < self.ready());
        // SAFETY: a place inside the ring, of a type of which any bytes are a valid one; the other
        // side does not write it before it is released.
        unsafe { self.ring.entry(self.next.wrapping_add(behind)).read() }
    }

    /// What the other side has written and this side has not released. `None`: the indices are
    /// further apart than the ring is long.
    pub fn outstanding(&mut self) -> Option<impl Iterator<Item = T>> {
        self.produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        self.ring.between(self.next, self.produced)
    }

    /// How many entries the other side had written since the ring was made, when this side looked
    /// last; wraps around.
    pub fn written(&self) -> u32 {
        self.produced
    }

    /// Gives the first `count` entries back to the other side.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        self.ring
            .word(self.ring.consumer)
            .store(self.next, Ordering::Release);
    }
}

/// Both ends of a ring in memory of our own, its indices at `first`: for those who play the kernel.
pub(super) fn in_memory<T: Entry>(
    size: u32,
    first: u32,
) -> Result<(Producer<T>, Consumer<T>), Errno> {
    let offsets = XdpRingOffset {
        producer: 0,
        consumer: 64,
        flags: Some(128),
        desc: 192,
    };
    let mapping = Arc::new(Mapping::anonymous(192 + size as usize * size_of::<T>())?);
    let ring = || XskRing::new(mapping.clone(), &offsets, size).ok_or(Errno::INVAL);
    let (writing, reading) = (ring()?, ring()?);
    for index in [writing.producer, writing.consumer] {
        writing.word(index).store(first, Ordering::Relaxed);
    }
    Ok((Producer::new(writing), Consumer::new(reading)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_as_they_went_in_also_where_the_index_wraps() {
        let (mut producer, mut consumer) = in_memory::<u64>(4, u32::MAX - 5).unwrap();
        for round in 0..10u64 {
            assert_eq!((producer.room(4), consumer.available(1)), (4, 0));
            for entry in 0..3 {
                producer.push(round * 10 + entry);
            }
            assert_eq!(consumer.available(3), 0, "nothing before it is published");
            assert!(producer.publish() && !producer.publish());
            assert_eq!((producer.room(2), producer.waiting()), (1, 3));
            assert_eq!(consumer.available(3), 3);
            assert_eq!(
                [0, 1, 2].map(|behind| consumer.peek(behind)),
                [0, 1, 2].map(|entry| round * 10 + entry)
            );
            consumer.release(3);
            assert_eq!(producer.waiting(), 0);
        }
    }

    #[test]
    fn an_index_that_cannot_be_gives_no_more_than_the_ring_holds() {
        let (mut producer, mut consumer) = in_memory::<u64>(8, 0).unwrap();
        producer.ring.word(0).store(0x8000_0000, Ordering::Relaxed);
        assert_eq!(consumer.available(64), 8);
        consumer.ring.word(64).store(77, Ordering::Relaxed);
        assert!(producer.room(8) <= 8);
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let ring = |desc, producer, size| {
            let offsets = XdpRingOffset {
                producer,
                consumer: 64,
                flags: None,
                desc,
            };
            XskRing::<u64>::new(mapping.clone(), &offsets, size).is_some()
        };
        assert!(ring(192, 0, 4));
        assert!(
            !ring(4096 - 24, 0, 4)
                && !ring(193, 0, 4)
                && !ring(192, 4094, 4)
                && !ring(192, 2, 4)
                && !ring(192, 0, 3)
        );
        assert!(!ring(u64::MAX, 0, 4) && !ring(192, u64::MAX, 4));
    }
}
