//! Two guests and the bare switch between them: what comes from one goes to the other, nothing is
//! judged.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::Cell;
use std::ops::Range;

use butterfly_io::frame::Batch;
use butterfly_io::port::{Port, PortError, TransmitError};
use butterfly_io::vhost::features::*;
use proptest::prelude::*;
use testkit::ring_driver::{Guest, GuestOptions, Received};
use wire::Mac;

pub const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// What an ordinary Linux guest negotiates.
pub const LINUX: u64 = VERSION_1
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | CSUM
    | GUEST_CSUM
    | HOST_TSO4
    | HOST_TSO6
    | HOST_USO
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_USO4
    | GUEST_USO6;

/// What a guest without any offload negotiates.
pub const PLAIN: u64 = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | EVENT_IDX;

thread_local! {
    static KIND: Cell<u64> = const { Cell::new(0) };
}

/// What all guests that this thread makes negotiate beside what they are told: the kind of their
/// rings.
pub fn kind() -> u64 {
    KIND.get()
}

/// Does something with rings of a kind.
pub fn with_kind<T>(kind: u64, run: impl FnOnce() -> T) -> T {
    KIND.set(kind);
    run()
}

/// Any kind of ring.
pub fn kinds() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, IN_ORDER, RING_PACKED, RING_PACKED | IN_ORDER])
}

/// A test for each kind of ring.
#[macro_export]
macro_rules! every_ring {
    ($(#[$doc:meta])* fn $name:ident() $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;
            use butterfly_io::vhost::features::{IN_ORDER as _IN_ORDER, RING_PACKED as _RING_PACKED};
            fn run() $body
            #[test]
            fn split() {
                common::with_kind(0, run);
            }
            #[test]
            fn split_in_order() {
                common::with_kind(_IN_ORDER, run);
            }
            #[test]
            fn packed() {
                common::with_kind(_RING_PACKED, run);
            }
            #[test]
            fn packed_in_order() {
                common::with_kind(_RING_PACKED | _IN_ORDER, run);
            }
        }
    };
}

/// A guest with rings of the [`kind`] that is tried.
pub fn guest(options: GuestOptions) -> Guest {
    Guest::new(GuestOptions {
        features: options.features | kind(),
        ..options
    })
}

/// True when the two differ nowhere but in these ranges.
pub fn same_but(before: &[u8], after: &[u8], ranges: &[Range<usize>]) -> bool {
    assert_eq!(before.len(), after.len());
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|range| range.start);
    let mut at = 0;
    for range in ranges {
        if before[at..range.start] != after[at..range.start] {
            return false;
        }
        at = range.end;
    }
    before[at..] == after[at..]
}

pub struct Pair {
    pub from: Guest,
    pub to: Guest,
    pub from_port: Port,
    pub to_port: Port,
    pub batch: Batch,
    /// The frames go to others, too.
    pub for_many: bool,
}

/// What became of the frames of one turn.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Turn {
    pub sent: Vec<Result<(), TransmitError>>,
    pub error: Option<PortError>,
}

impl Turn {
    pub fn ok(frames: usize) -> Turn {
        Turn {
            sent: vec![Ok(()); frames],
            error: None,
        }
    }
}

impl Pair {
    pub fn new(from: GuestOptions, to: GuestOptions) -> Pair {
        let (from, to) = (guest(from), guest(to));
        Pair {
            from_port: from.port().into(),
            to_port: to.port().into(),
            from,
            to,
            batch: Batch::new(),
            for_many: false,
        }
    }

    pub fn with_features(from: u64, to: u64) -> Pair {
        let options = |features| GuestOptions {
            features,
            ..GuestOptions::default()
        };
        Pair::new(options(from), options(to))
    }

    /// Publishes what the sender queued and lets the switch make one turn.
    pub fn turn(&mut self) -> Turn {
        self.from.transmitq.publish();
        self.poll()
    }

    /// One turn over what is there.
    pub fn poll(&mut self) -> Turn {
        let error = self.from_port.receive(&mut self.batch).err();
        self.batch.for_many = self.for_many;
        let mut turn = Turn {
            sent: Vec::new(),
            error,
        };
        for index in 0..self.batch.len() {
            turn.sent.push(match self.batch.frames()[index].fault() {
                Some(_) => Err(TransmitError::BadOffload),
                None => self.to_port.transmit(&self.batch, index),
            });
        }
        let flushed = self.to_port.flush();
        turn.error = turn.error.or(flushed.err());
        self.from_port.complete(&mut self.batch);
        turn
    }

    /// The one frame that the receiver got.
    pub fn one(&mut self) -> Received {
        let mut frames = self.to.receive();
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames.remove(0)
    }
}

/// Bytes that repeat at no power of two.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The ones' complement sum of 16-bit words, as RFC 1071 section 1 describes it and nothing else.
pub fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)));
    words.fold(0u32, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}
