//! Descriptor chains of a split ring: walked once, every field judged on a private copy.
//!
//! A guest writes descriptors when it likes, so each is read exactly once, by value, and what it names is
//! translated before it is used. What the walk yields is a list of [`Segment`]s inside the guest's memory.
//! All limits on a chain are here: its indices, its length in descriptors (which also ends loops), the one
//! level of indirection, the direction of its buffers, and the bytes it may hold.

use std::fmt;
use std::sync::Arc;

use crate::frame::Segment;
use crate::guest_memory::{GuestMemory, Region};

/// Descriptors in a chain at most, whatever the queue's size: what QEMU allows too. Linux uses up to 19.
pub const CHAIN_MAX: u32 = 1024;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A descriptor (virtio 1.2, section 2.7.5).
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// What a guest did wrong in a ring. The message names the thing and its value; the queue's name goes before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are the values that the messages below name
pub enum RingFault {
    /// More chains are offered than the queue has entries.
    AvailJump { avail: u16, taken: u16, size: u16 },
    /// An available entry names a descriptor that does not exist.
    Head { head: u16, size: u16 },
    /// A chain goes on at a descriptor that does not exist.
    Next { head: u16, next: u16, count: u32 },
    /// A chain is longer than its table or [`CHAIN_MAX`]: usually a loop.
    TooMany { head: u16, limit: u32 },
    /// A descriptor names memory that the guest does not have.
    Address { head: u16, addr: u64, len: u32 },
    /// A buffer to be written where one to be read belongs, or the other way round.
    Direction { head: u16, flags: u16, writable: bool },
    /// An indirect descriptor although the feature was not negotiated.
    IndirectNotNegotiated { head: u16 },
    /// An indirect descriptor in an indirect table.
    IndirectNested { head: u16 },
    /// An indirect descriptor with a successor.
    IndirectNext { head: u16 },
    /// An indirect table of a length that no number of descriptors has.
    IndirectLength { head: u16, len: u32 },
    /// More bytes than the largest frame has.
    TooLong { head: u16, limit: u64 },
    /// Fewer bytes than the virtio-net header has.
    NoHeader { head: u16, len: u64 },
}

impl fmt::Display for RingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use RingFault::*;
        match *self {
            AvailJump { avail, taken, size } => {
                write!(
                    f,
                    "available index {avail} is more than {size} entries ahead of {taken}"
                )
            }
            Head { head, size } => write!(f, "available descriptor {head} is outside a table of {size}"),
            Next { head, next, count } => {
                write!(
                    f,
                    "the chain of descriptor {head} goes on at {next}, outside a table of {count}"
                )
            }
            TooMany { head, limit } => {
                write!(
                    f,
                    "the chain of descriptor {head} has more than {limit} descriptors"
                )
            }
            Address { head, addr, len } => {
                write!(
                    f,
                    "the chain of descriptor {head} names {len} bytes at {addr:#x}, not all guest memory"
                )
            }
            Direction {
                head,
                flags,
                writable,
            } => {
                let wanted = if writable { "writable" } else { "readable" };
                write!(
                    f,
                    "the chain of descriptor {head} has flags {flags:#x} where a {wanted} buffer belongs"
                )
            }
            IndirectNotNegotiated { head } => {
                write!(
                    f,
                    "the chain of descriptor {head} is indirect, which was not negotiated"
                )
            }
            IndirectNested { head } => {
                write!(
                    f,
                    "the chain of descriptor {head} has an indirect table in an indirect table"
                )
            }
            IndirectNext { head } => {
                write!(
                    f,
                    "the chain of descriptor {head} has an indirect descriptor with a successor"
                )
            }
            IndirectLength { head, len } => {
                write!(
                    f,
                    "the chain of descriptor {head} has an indirect table of {len} bytes, not 1 to {CHAIN_MAX} descriptors of 16"
                )
            }
            TooLong { head, limit } => {
                write!(f, "the chain of descriptor {head} holds more than {limit} bytes")
            }
            NoHeader { head, len } => {
                write!(
                    f,
                    "the chain of descriptor {head} holds {len} bytes, less than the virtio-net header"
                )
            }
        }
    }
}

/// What a walk is for.
#[derive(Clone, Copy)]
pub(super) enum Walk {
    /// All buffers of a chain that the guest transmits: readable, `limit` bytes together at most.
    Readable { limit: u64 },
    /// Buffers of a chain that the guest receives in: writable, as many as hold `want` bytes.
    Writable { want: u64 },
}

/// The descriptor table of a queue and the memory that descriptors name.
pub(super) struct Table {
    memory: Arc<GuestMemory>,
    /// The region that the last descriptor was in: nearly always that of the next.
    last: Region,
    /// Valid for reads of `size` descriptors and aligned to one: checked at setup.
    descriptors: *const Descriptor,
    size: u16,
    indirect: bool,
}

// SAFETY: `descriptors` and `last` point into mappings that belong to no thread and that `memory` keeps.
unsafe impl Send for Table {}

impl Table {
    /// # Safety
    /// `descriptors` is valid for reads of `size` descriptors of 16 bytes, aligned to 16, while `memory` lives.
    pub unsafe fn new(memory: Arc<GuestMemory>, descriptors: *const u8, size: u16, indirect: bool) -> Self {
        Table {
            memory,
            last: Region::NONE,
            descriptors: descriptors.cast(),
            size,
            indirect,
        }
    }

    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Where descriptor `index` is, to be prefetched.
    #[inline]
    pub fn hint(&self, index: u16) -> *const u8 {
        self.descriptors.wrapping_add(index as usize).cast()
    }

    /// Where the first buffer of the chain at `index` seems to be, to be prefetched. Decides nothing.
    #[inline]
    pub fn buffer_hint(&self, index: u16) -> Option<*const u8> {
        if index >= self.size {
            return None;
        }
        // SAFETY: `index < size`.
        let descriptor = unsafe { read(self.descriptors.add(index as usize)) };
        self.last
            .guest(descriptor.addr)
            .map(|(host, _)| host.cast_const())
    }

    /// The only buffer of the chain at `head` when it is a readable one and lies in the region of the one before, which
    /// is how most chains are. `None` says nothing of the chain, but that it has to be walked.
    #[inline(always)]
    pub fn only(&self, head: u16) -> Option<Segment> {
        self.first(head, NEXT | WRITE | INDIRECT, 0, 1)
    }

    /// The same of the first buffer of the chain at `head` when it is a writable one of `want` bytes or more.
    #[inline(always)]
    pub fn roomy(&self, head: u16, want: usize) -> Option<Segment> {
        self.first(head, WRITE | INDIRECT, WRITE, want)
    }

    #[inline(always)]
    fn first(&self, head: u16, mask: u16, flags: u16, least: usize) -> Option<Segment> {
        if head >= self.size {
            return None;
        }
        // SAFETY: `head < size`, and the table is valid for reads of `size` descriptors (`new`).
        let descriptor = unsafe { read_aligned(self.descriptors.add(head as usize)) };
        let (host, left) = self.last.guest(descriptor.addr)?;
        let (len, least) = (u64::from(descriptor.len), least as u64);
        (descriptor.flags & mask == flags && len >= least && len <= left).then_some(Segment {
            ptr: host,
            len: len as usize,
        })
    }

    /// Adds the buffers of the chain at `head` to `out`; gives how many bytes they hold together.
    pub fn walk(&mut self, head: u16, walk: Walk, out: &mut Vec<Segment>) -> Result<u64, RingFault> {
        let mut table = self.descriptors;
        let mut count = u32::from(self.size);
        let mut indirect = false;
        let (mut index, mut steps, mut total) = (head, 0, 0u64);
        if head >= self.size {
            return Err(RingFault::Head {
                head,
                size: self.size,
            });
        }
        loop {
            // SAFETY: `index < count`, checked for the head above and for each next below, and `table` is valid
            // for reads of `count` descriptors: see `new` and `indirect`.
            let descriptor = unsafe { read(table.add(index as usize)) };
            steps += 1;
            if descriptor.flags & INDIRECT != 0 {
                if indirect {
                    return Err(RingFault::IndirectNested { head });
                }
                (table, count) = self.indirect(head, &descriptor)?;
                (indirect, index, steps) = (true, 0, 0);
                continue;
            }
            let writable = matches!(walk, Walk::Writable { .. });
            if (descriptor.flags & WRITE != 0) != writable {
                return Err(RingFault::Direction {
                    head,
                    flags: descriptor.flags,
                    writable,
                });
            }
            total += u64::from(descriptor.len);
            if let Walk::Readable { limit } = walk
                && total > limit
            {
                return Err(RingFault::TooLong { head, limit });
            }
            match self.last.guest(descriptor.addr) {
                Some((host, left)) if u64::from(descriptor.len) <= left && descriptor.len > 0 => {
                    out.push(Segment {
                        ptr: host,
                        len: descriptor.len as usize,
                    });
                }
                _ => self.translate(head, &descriptor, out)?,
            }
            if let Walk::Writable { want } = walk
                && total >= want
            {
                return Ok(total);
            }
            if descriptor.flags & NEXT == 0 {
                return Ok(total);
            }
            index = descriptor.next;
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

    /// The table that an indirect descriptor names, and how many descriptors it has.
    #[inline]
    fn indirect(&self, head: u16, descriptor: &Descriptor) -> Result<(*const Descriptor, u32), RingFault> {
        let Descriptor { addr, len, flags, .. } = *descriptor;
        if !self.indirect {
            return Err(RingFault::IndirectNotNegotiated { head });
        }
        if flags & NEXT != 0 {
            return Err(RingFault::IndirectNext { head });
        }
        if len == 0 || !len.is_multiple_of(16) || len / 16 > CHAIN_MAX {
            return Err(RingFault::IndirectLength { head, len });
        }
        let region = match self.last.guest(addr) {
            Some(_) => &self.last,
            None => self.memory.region(addr).unwrap_or(&Region::NONE),
        };
        match region.guest(addr) {
            Some((host, left)) if u64::from(len) <= left => Ok((host.cast_const().cast(), len / 16)),
            _ => Err(RingFault::Address { head, addr, len }),
        }
    }

    /// The way of a buffer that is not in the last region: in another, across several, empty, or nowhere.
    #[cold]
    fn translate(
        &mut self,
        head: u16,
        descriptor: &Descriptor,
        out: &mut Vec<Segment>,
    ) -> Result<(), RingFault> {
        let outside = RingFault::Address {
            head,
            addr: descriptor.addr,
            len: descriptor.len,
        };
        let (mut addr, mut left) = (descriptor.addr, u64::from(descriptor.len));
        while left > 0 {
            let region = *self.memory.region(addr).ok_or(outside)?;
            let (host, here) = region.guest(addr).ok_or(outside)?;
            self.last = region;
            let len = here.min(left);
            out.push(Segment {
                ptr: host,
                len: len as usize,
            });
            left -= len;
            // No region reaches the end of the address space (`GuestMemory::new`), so that this does not wrap.
            addr += len;
        }
        Ok(())
    }
}

/// Reads a descriptor once: a compiler that went back to guest memory for a field already judged would undo
/// the judgement. The queue's own table is aligned; an indirect one need not be.
///
/// # Safety
/// `from` is valid for reads of 16 bytes; it may be unaligned.
#[inline(always)]
unsafe fn read(from: *const Descriptor) -> Descriptor {
    let from = from.cast::<u64>();
    // SAFETY: 16 bytes by the caller's promise; volatile access is made only where it is aligned.
    unsafe {
        if from.is_aligned() {
            return read_aligned(from.cast());
        }
        descriptor(std::hint::black_box(from.cast::<[u64; 2]>().read_unaligned()))
    }
}

/// The same, of the queue's own table.
///
/// # Safety
/// `from` is valid for reads of 16 bytes and aligned to 8.
#[inline(always)]
unsafe fn read_aligned(from: *const Descriptor) -> Descriptor {
    let from = from.cast::<u64>();
    // SAFETY: the caller's promise.
    descriptor(unsafe { [from.read_volatile(), from.add(1).read_volatile()] })
}

#[inline(always)]
fn descriptor([addr, rest]: [u64; 2]) -> Descriptor {
    Descriptor {
        addr,
        len: rest as u32,
        flags: (rest >> 32) as u16,
        next: (rest >> 48) as u16,
    }
}
