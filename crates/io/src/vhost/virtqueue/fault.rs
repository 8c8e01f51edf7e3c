//! What a guest can do wrong in a ring, and how it is said.

use std::fmt;

use crate::vhost::limits::{CHAIN_MAX, scatter_max};

/// What a guest did wrong in a ring. The message names the thing and its value; the queue's name
/// goes before it. `head` is the first descriptor of the chain: its index in the table of a split
/// ring, its slot in a packed one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are the values that the messages below name"
)]
pub enum RingFault {
    /// More chains are offered than the queue has entries.
    AvailJump { avail: u16, taken: u16, size: u16 },
    /// An available entry names a descriptor that does not exist.
    Head { head: u16, size: u16 },
    /// A chain goes on at a descriptor that does not exist.
    Next { head: u16, next: u16, count: u32 },
    /// A chain is longer than its table, [`CHAIN_MAX`] or what the guest has left of a packed ring:
    /// usually a loop.
    TooMany { head: u16, limit: u32 },
    /// A descriptor names memory that the guest does not have.
    Address { head: u16, addr: u64, len: u32 },
    /// A buffer to be written where one to be read belongs, or the other way round.
    Direction {
        head: u16,
        flags: u16,
        writable: bool,
    },
    /// An indirect descriptor although the feature was not negotiated.
    IndirectNotNegotiated { head: u16 },
    /// An indirect descriptor in an indirect table.
    IndirectNested { head: u16 },
    /// An indirect descriptor with a successor.
    IndirectNext { head: u16 },
    /// An indirect descriptor behind another one, which a packed ring does not have (virtio 1.2,
    /// section 2.8.7).
    IndirectBehind { head: u16 },
    /// An indirect table of a length that no number of descriptors has.
    IndirectLength { head: u16, len: u32 },
    /// More bytes than the largest frame has.
    TooLong { head: u16, limit: u64 },
    /// Fewer bytes than the virtio-net header has.
    NoHeader { head: u16, len: u64 },
    /// A frame would take more descriptors than [`scatter_max`] says: their buffers are empty, or
    /// next to that.
    Scattered { head: u16, len: u64 },
    /// Nobody did anything wrong: a part of it has yet to come from the host that the guest was on.
    NotThere { head: u16 },
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
            Head { head, size } => write!(
                f,
                "available descriptor {head} is outside a table of {size}"
            ),
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
                    "the chain of descriptor {head} names {len} bytes at {addr:#x}, not all guest \
                     memory"
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
                    "the chain of descriptor {head} has flags {flags:#x} where a {wanted} buffer \
                     belongs"
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
            IndirectBehind { head } => {
                write!(
                    f,
                    "the chain of descriptor {head} has an indirect descriptor behind another one"
                )
            }
            IndirectLength { head, len } => {
                write!(
                    f,
                    "the chain of descriptor {head} has an indirect table of {len} bytes, not 1 to \
                     {CHAIN_MAX} descriptors of 16"
                )
            }
            TooLong { head, limit } => {
                write!(
                    f,
                    "the chain of descriptor {head} holds more than {limit} bytes"
                )
            }
            NoHeader { head, len } => {
                write!(
                    f,
                    "the chain of descriptor {head} holds {len} bytes, less than the virtio-net \
                     header"
                )
            }
            Scattered { head, len } => {
                write!(
                    f,
                    "{len} bytes take more than {} descriptors, up to the chain of descriptor \
                     {head}",
                    scatter_max(len)
                )
            }
            NotThere { head } => {
                write!(
                    f,
                    "the chain of descriptor {head} names memory that has yet to come from another \
                     host"
                )
            }
        }
    }
}
