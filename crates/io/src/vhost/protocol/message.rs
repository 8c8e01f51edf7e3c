//! vhost-user messages: cutting a byte stream into messages, and replies into bytes.
//!
//! The protocol is QEMU's `docs/interop/vhost-user.rst`. Nothing here does I/O: [`super::server`]
//! reads at most [`Reader::space`] at a time, so that descriptors that come with a read belong to
//! the message being read. What a message says is [`super::request`]'s business.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::vhost::protocol::request_number;

/// Bytes before the payload: request, flags, payload size; 32 bits each in the machine's byte
/// order.
pub const HEADER_LEN: usize = 12;

/// The largest payload that is accepted. The largest known one, a memory table, has 264 bytes.
pub const PAYLOAD_MAX: usize = 4096;

/// The most descriptors that come with a message, and the most regions in a memory table.
pub const FDS_MAX: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// One message as it came, its parts not yet looked at.
#[derive(Debug)]
pub struct Message {
    /// The request number.
    pub request: u32,
    flags: u32,
    /// What follows the header.
    pub payload: Vec<u8>,
    /// The descriptors that came with it, in order; closed when dropped.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The frontend asks for an acknowledgement (REPLY_ACK).
    pub fn needs_reply(&self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }
}

/// Collects one message after another from a byte stream, however it is cut into reads.
#[derive(Default)]
pub struct Reader {
    bytes: Vec<u8>,
    filled: usize,
    fds: Vec<OwnedFd>,
}

impl Reader {
    /// Between two messages.
    pub fn new() -> Self {
        Reader {
            bytes: vec![0; HEADER_LEN],
            filled: 0,
            fds: Vec::new(),
        }
    }

    /// Where the next bytes go: never empty, and never more than what is missing of the present
    /// message.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// True when a message has begun and is not complete.
    pub fn is_partial(&self) -> bool {
        self.filled > 0
    }

    /// The number of the request that is being read; 0, which is none, before it is known.
    pub fn request(&self) -> u32 {
        if self.filled < 4 { 0 } else { self.word(0) }
    }

    /// Notes that the first `count` bytes of [`space`](Reader::space) were filled, and that `fds`
    /// came along. Returns the message if that completed it. After an error the stream has no
    /// meaning any more.
    pub fn filled(
        &mut self,
        count: usize,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Message>, MessageError> {
        self.filled = (self.filled + count).min(self.bytes.len());
        self.fds.extend(fds);
        if self.filled < HEADER_LEN {
            return Ok(None);
        }
        let (request, flags, size) = (self.word(0), self.word(4), self.word(8) as usize);
        let wrong = |problem| Err(MessageError { request, problem });
        if flags & VERSION_MASK != VERSION {
            return wrong(Problem::Version(flags & VERSION_MASK));
        }
        if flags & FLAG_REPLY != 0 {
            return wrong(Problem::Reply);
        }
        if size > PAYLOAD_MAX {
            return wrong(Problem::PayloadTooLong(size));
        }
        if self.fds.len() > FDS_MAX {
            return wrong(Problem::Descriptors {
                got: self.fds.len(),
                expected: FDS_MAX,
            });
        }
        if self.bytes.len() < HEADER_LEN + size {
            self.bytes.resize(HEADER_LEN + size, 0);
        }
        if self.filled < self.bytes.len() {
            return Ok(None);
        }
        let payload = self.bytes.split_off(HEADER_LEN);
        self.filled = 0;
        Ok(Some(Message {
            request,
            flags,
            payload,
            fds: std::mem::take(&mut self.fds),
        }))
    }

    fn word(&self, at: usize) -> u32 {
        // The caller has made sure that the header is there.
        word(&self.bytes, at)
    }
}

/// 32 bits of a message; they are there.
pub(in crate::vhost) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A reply of this side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A number: features, a count, or an acknowledgement (0 is success).
    Number(u64),
    /// A ring and a value of it.
    Ring(RingValue),
    /// A part of the configuration space.
    Config(ConfigSpan),
    /// Nothing but a descriptor, which goes along.
    Descriptor,
    /// A memory table as it came, with addresses of this side's: of each region guest address,
    /// size, address here, and offset.
    Table(Vec<[u64; 4]>),
    /// A single memory region likewise.
    Region([u64; 4]),
}

impl Reply {
    /// An acknowledgement for a request that has no reply of its own.
    pub fn ack(success: bool) -> Self {
        Reply::Number(u64::from(!success))
    }

    /// The message's bytes; the reply carries the number of the request that it answers.
    pub fn encode(self, request: u32) -> Vec<u8> {
        let mut payload = Vec::new();
        match self {
            Reply::Number(number) => payload.extend(number.to_ne_bytes()),
            Reply::Ring(RingValue { index, value }) => {
                payload.extend(index.to_ne_bytes());
                payload.extend(value.to_ne_bytes());
            }
            Reply::Config(ConfigSpan {
                offset,
                flags,
                bytes: content,
            }) => {
                for word in [offset, content.len() as u32, flags] {
                    payload.extend(word.to_ne_bytes());
                }
                payload.extend(content);
            }
            Reply::Descriptor => {}
            Reply::Table(regions) => {
                // A number of 32 bits, and as many that mean nothing.
                payload.extend((regions.len() as u64).to_le_bytes());
                let words = regions.as_flattened().iter();
                payload.extend(words.flat_map(|word| word.to_ne_bytes()));
            }
            Reply::Region(region) => {
                let words = [0].into_iter().chain(region);
                payload.extend(words.flat_map(u64::to_ne_bytes));
            }
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        for word in [request, VERSION | FLAG_REPLY, payload.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(payload);
        bytes
    }
}

/// A ring's index and a number about it ("vring state description").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingValue {
    /// Which ring.
    pub index: u32,
    /// Size, base or enable flag.
    pub value: u32,
}

/// A part of the device's configuration space ("virtio device config space").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigSpan {
    /// Where it begins.
    pub offset: u32,
    /// 0: a driver's access, 1: of live migration.
    pub flags: u32,
    /// What is there; in a question only as many bytes as are asked for. In an answer none means
    /// that there is none.
    pub bytes: Vec<u8>,
}

impl ConfigSpan {
    /// Bytes before the content.
    pub(in crate::vhost) const HEADER_LEN: usize = 12;
}

/// A message that is not as the specification says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageError {
    /// The number in its header.
    pub request: u32,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The version in the flags is not 1.
    Version(u32),
    /// It claims to be a reply; this side has asked nothing.
    Reply,
    /// The header announces more than [`PAYLOAD_MAX`].
    PayloadTooLong(usize),
    /// The payload has another length than the request's.
    Payload {
        /// Bytes in the message.
        got: usize,
        /// Bytes that the request has.
        expected: usize,
    },
    /// The number of descriptors is another than the request's.
    Descriptors {
        /// Descriptors that came.
        got: usize,
        /// Descriptors that belong to the request.
        expected: usize,
    },
    /// A memory table has no regions, or more than [`FDS_MAX`].
    Regions(usize),
    /// The kernel could not hand over all descriptors: there were too many, or this process has no
    /// room.
    DescriptorsLost,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({})",
            request_number::name(self.request),
            self.request
        )?;
        match self.problem {
            Problem::Version(version) => {
                write!(f, " has protocol version {version} instead of {VERSION}")
            }
            Problem::Reply => write!(f, " is marked as a reply, but nothing was asked"),
            Problem::PayloadTooLong(size) => {
                write!(
                    f,
                    " announces a payload of {size} bytes, more than {PAYLOAD_MAX}"
                )
            }
            Problem::Payload { got, expected } => {
                write!(f, " has a payload of {got} bytes instead of {expected}")
            }
            Problem::Descriptors { got, expected } => {
                write!(f, " came with {got} file descriptors instead of {expected}")
            }
            Problem::Regions(count) => write!(f, " has {count} memory regions, not 1 to {FDS_MAX}"),
            Problem::DescriptorsLost => {
                write!(f, " came with more file descriptors than could be taken")
            }
        }
    }
}

impl std::error::Error for MessageError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in pieces of `step`; gives the first result that is not "more, please".
    fn feed(
        reader: &mut Reader,
        bytes: &[u8],
        step: usize,
    ) -> Result<Option<Message>, MessageError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = reader.space();
            let count = step.min(space.len()).min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            if let Some(message) = reader.filled(count, Vec::new())? {
                assert!(
                    rest.is_empty(),
                    "the reader asks for no byte of the next message"
                );
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
        [request, flags, size]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    }

    #[test]
    fn a_message_is_the_same_however_it_is_cut() {
        let mut bytes = header(request_number::SET_FEATURES, 0x9, 8);
        bytes.extend(0x1122_3344_5566_7788u64.to_ne_bytes());
        for step in 1..=bytes.len() {
            let mut reader = Reader::new();
            for _ in 0..2 {
                let message = feed(&mut reader, &bytes, step)
                    .unwrap()
                    .expect("a whole message");
                assert_eq!(
                    (message.request, message.needs_reply()),
                    (request_number::SET_FEATURES, true)
                );
                assert_eq!(message.payload, 0x1122_3344_5566_7788u64.to_ne_bytes());
                assert!(!reader.is_partial());
            }
        }
    }

    #[test]
    fn a_message_without_payload_ends_with_its_header() {
        let message = feed(
            &mut Reader::new(),
            &header(request_number::GET_FEATURES, 1, 0),
            12,
        )
        .unwrap()
        .unwrap();
        assert_eq!(
            (
                message.request,
                message.needs_reply(),
                message.payload.len()
            ),
            (1, false, 0)
        );
    }

    #[test]
    fn a_bad_header_is_refused_before_its_payload_is_waited_for() {
        let problem = |bytes: &[u8]| feed(&mut Reader::new(), bytes, 12).unwrap_err().problem;
        assert_eq!(problem(&header(1, 0, 0)), Problem::Version(0));
        assert_eq!(problem(&header(1, 2, 0)), Problem::Version(2));
        assert_eq!(problem(&header(1, 5, 0)), Problem::Reply);
        assert_eq!(problem(&header(1, 1, 4097)), Problem::PayloadTooLong(4097));
        assert_eq!(
            problem(&header(1, 1, u32::MAX)),
            Problem::PayloadTooLong(u32::MAX as usize)
        );
        assert!(
            feed(&mut Reader::new(), &header(99, 1, 4096), 12)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_reply_carries_version_flag_and_number_of_its_request() {
        let mut expected = header(request_number::GET_FEATURES, 0x5, 8);
        expected.extend(7u64.to_ne_bytes());
        assert_eq!(
            Reply::Number(7).encode(request_number::GET_FEATURES),
            expected
        );

        let mut expected = header(request_number::GET_VRING_BASE, 0x5, 8);
        expected.extend([1u32.to_ne_bytes(), 513u32.to_ne_bytes()].concat());
        let reply = Reply::Ring(RingValue {
            index: 1,
            value: 513,
        });
        assert_eq!(reply.encode(request_number::GET_VRING_BASE), expected);
        assert_eq!(Reply::ack(true), Reply::Number(0));
        assert_eq!(Reply::ack(false), Reply::Number(1));
    }

    #[test]
    fn more_descriptors_than_a_message_can_have_are_refused() {
        let fds = (0..FDS_MAX + 1).map(|_| rustix::pipe::pipe().unwrap().0);
        let mut reader = Reader::new();
        reader.space()[..12].copy_from_slice(&header(5, 1, 8));
        let error = reader.filled(12, fds.collect()).unwrap_err();
        assert_eq!(
            error.problem,
            Problem::Descriptors {
                got: 9,
                expected: 8
            }
        );
        assert_eq!(
            error.to_string(),
            "SET_MEM_TABLE (5) came with 9 file descriptors instead of 8"
        );
    }
}
