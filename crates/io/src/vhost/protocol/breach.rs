//! What a VMM or its guest can do wrong in setting up a device. Each message names the request and
//! the value.

use std::time::Duration;

use wire::Mac;

use crate::guest_memory::{FileError, MemoryError};
use crate::post_copy::PostCopyError;
use crate::vhost::limits::SLOTS_MAX;
use crate::vhost::protocol::message::MessageError;
use crate::vhost::protocol::request_number::name;
use crate::vhost::virtqueue::ring::QueueError;

/// A request that is not followed.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// It is not well-formed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It names a ring that does not exist.
    #[error("{} names ring {ring} of {rings}", name(*.request))]
    Index {
        /// The request.
        request: u32,
        /// The ring it names.
        ring: u32,
        /// How many there are.
        rings: usize,
    },
    /// It takes features that were not offered.
    #[error("{} takes features {surplus:#x} that were not offered", name(*.request))]
    Features {
        /// The request.
        request: u32,
        /// The bits that were not offered.
        surplus: u64,
    },
    /// The guest's memory cannot be had.
    #[error("SET_MEM_TABLE: {0}")]
    Memory(#[from] MemoryError),
    /// A ring's size is impossible.
    #[error(
        "SET_VRING_NUM: ring {ring} of {size} entries is not possible, 1 to 32768 are; \
         powers of two if it is split"
    )]
    Size {
        /// The ring.
        ring: u32,
        /// The size it was to have.
        size: u32,
    },
    /// A ring's writes were to be noted in a log without the feature that brings one.
    #[error("SET_VRING_ADDR asks for writes to ring {ring} to be logged, without LOG_SHMFD")]
    Logging {
        /// The ring.
        ring: u32,
    },
    /// The log of written pages cannot be had.
    #[error("SET_LOG_BASE: the log of written pages {0}")]
    Log(FileError),
    /// What is to be raised when something was noted in the log is no eventfd.
    #[error("SET_LOG_FD: the descriptor is not an eventfd")]
    LogFd,
    /// A ring's base does not fit into its index.
    #[error("SET_VRING_BASE: ring {ring} cannot begin at {base}, indices have 16 bits")]
    Base {
        /// The ring.
        ring: u32,
        /// Where it was to begin.
        base: u32,
    },
    /// Neither enable nor disable.
    #[error("SET_VRING_ENABLE: ring {ring} has {value} instead of 0 or 1")]
    Enable {
        /// The ring.
        ring: u32,
        /// What was there.
        value: u32,
    },
    /// The MTU is not one, or larger than the NIC's.
    #[error("NET_SET_MTU: {mtu} is not 68 to {max}")]
    Mtu {
        /// What was asked for.
        mtu: u64,
        /// The NIC's own.
        max: u16,
    },
    /// A MAC address that is not the NIC's was to be announced. A guest may have set it.
    #[error("SEND_RARP: {mac} is not the NIC's address {own}")]
    Rarp {
        /// What was to be announced.
        mac: Mac,
        /// The NIC's own.
        own: Mac,
    },
    /// The guest is announced too often: each time is a frame to all of its network.
    #[error(
        "SEND_RARP: more than {burst} at once, or than one in {} ms after them",
        every.as_millis()
    )]
    Announcements {
        /// How many at once.
        burst: u32,
        /// How long after the one before in the long run.
        every: Duration,
    },
    /// What is to be the channel to the VMM cannot be one.
    #[error("SET_BACKEND_REQ_FD: the descriptor is not one of a pair of stream sockets")]
    Channel,
    /// There is no such device status.
    #[error("SET_STATUS: {0:#x} is no status of a device")]
    Status(u64),
    /// The configuration space cannot be written.
    #[error("SET_CONFIG: {len} bytes at {offset} are not the VMM's to write")]
    Config {
        /// Where.
        offset: u32,
        /// How many.
        len: usize,
    },
    /// More memory regions than were said to be possible.
    #[error("ADD_MEM_REG: there are {SLOTS_MAX} regions already")]
    Slots,
    /// Pages that are still elsewhere cannot be waited for.
    #[error("{}: {error}", name(*.request))]
    PostCopy {
        /// The request.
        request: u32,
        /// Why.
        error: PostCopyError,
    },
    /// The guest's memory is here already, and its pages would have been made.
    #[error("POSTCOPY_LISTEN comes after the guest's memory")]
    Late,
    /// Memory is said to be watched that nobody waits for, or not to be.
    #[error("{} says {value} of memory, where it is to be watched and to say 0", name(*.request))]
    Watched {
        /// The request.
        request: u32,
        /// What it says.
        value: u64,
    },
    /// Another descriptor of what came cannot be had, for the next process.
    #[error("descriptors have run out: {0}")]
    Copy(std::io::Error),
    /// A ring is described so that it cannot run.
    #[error("ring {ring} cannot run: {error}")]
    Queue {
        /// The ring.
        ring: u32,
        /// Why.
        error: QueueError,
    },
    /// A request of features that were not offered, or of no known kind; ignored.
    #[error(
        "request {request} ({}) is not supported and ignored, as others after it",
        name(*.request)
    )]
    Unknown {
        /// Its number.
        request: u32,
    },
    /// Like [`Breach::Unknown`], but the VMM waits for an answer that there is none to.
    #[error("request {request} ({}) is not supported", name(*.request))]
    Unanswerable {
        /// Its number.
        request: u32,
    },
}

impl Breach {
    /// True when only a VMM can have caused it: the connection is closed. What a guest can cause
    /// through an honest VMM must not cost it the connection, which many VMMs do not make again.
    pub fn closes(&self) -> bool {
        match self {
            Breach::Message(_)
            | Breach::Index { .. }
            | Breach::Features { .. }
            | Breach::Memory(_)
            | Breach::Logging { .. }
            | Breach::Log(_)
            | Breach::LogFd
            | Breach::Base { .. }
            | Breach::Enable { .. }
            | Breach::Channel
            | Breach::Status(_)
            | Breach::Slots
            | Breach::PostCopy { .. }
            | Breach::Late
            | Breach::Watched { .. }
            | Breach::Copy(_)
            | Breach::Unanswerable { .. } => true,
            Breach::Config { .. }
            | Breach::Size { .. }
            | Breach::Mtu { .. }
            | Breach::Rarp { .. }
            | Breach::Announcements { .. }
            | Breach::Queue { .. }
            | Breach::Unknown { .. } => false,
        }
    }
}
