//! Two guests and the bare switch between them: what comes from one goes to the other, nothing is judged.
#![allow(dead_code)] // each test binary uses its part

use butterfly_io::frame::Batch;
use butterfly_io::port::{Port, PortError, TransmitError};
use butterfly_io::vhost::features::*;
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

pub struct Pair {
    pub from: Guest,
    pub to: Guest,
    pub from_port: Port,
    pub to_port: Port,
    pub batch: Batch,
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
        let (from, to) = (Guest::new(from), Guest::new(to));
        Pair {
            from_port: from.port().into(),
            to_port: to.port().into(),
            from,
            to,
            batch: Batch::new(),
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
