//! A guest that does nothing but receive, beside the hostile ones: what is not its own business
//! must not reach its memory.

use io::port::{Port, TransmitError};
use io::vhost::features::*;
use testkit::ring_driver::{Guest, GuestOptions, Received, Shape};

/// What an ordinary Linux guest negotiates, and all offloads.
pub const EVERYTHING: u64 =
    PLAIN | CSUM | GUEST_CSUM | OFFLOADS | HOST_USO | GUEST_USO4 | GUEST_USO6;

/// No offload at all: frames come with their checksums complete and cut to size.
pub const PLAIN: u64 = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | EVENT_IDX;

const MEMORY: usize = 64 << 10;
const RING: u16 = 32;

/// The guest and its port.
pub struct Witness {
    guest: Guest,
    pub port: Port,
    before: Vec<u8>,
}

impl Witness {
    pub fn new(features: u64) -> Self {
        let guest = Guest::new(GuestOptions {
            features,
            queue_size: RING,
            memory_len: MEMORY,
            receive_shape: Shape::cut(&[1024]),
            receive_chains: RING.into(),
            ..GuestOptions::default()
        });
        Witness {
            port: guest.port().into(),
            before: guest.memory().bytes(0, MEMORY),
            guest,
        }
    }

    /// What it got; its buffers are then as new.
    pub fn receive(&mut self) -> Vec<Received> {
        self.port.flush().expect("the witness breaks no rule");
        self.guest.refill_at_once = false;
        self.guest.receive()
    }

    /// True when a frame was refused for a reason of this guest's own.
    pub fn may_refuse(error: TransmitError) -> bool {
        matches!(
            error,
            TransmitError::Full | TransmitError::TooSmall | TransmitError::BadOffload
        )
    }

    /// Every byte that changed lies in a buffer that it offered or in the ring that the device
    /// writes.
    pub fn check(mut self) {
        self.receive();
        assert!(self.port.is_up());
        assert_eq!(self.guest.reclaim(), 0, "chains that it never sent");
        let after = self.guest.memory().bytes(0, MEMORY);
        let mut rings = self.guest.receiveq.written_by_device();
        rings.extend(self.guest.transmitq.written_by_device());
        let buffers = self.buffers();
        // By pieces first: most of them are as they were.
        const PIECE: usize = 64;
        let pieces = self
            .before
            .chunks(PIECE)
            .zip(after.chunks(PIECE))
            .enumerate();
        for (piece, _) in pieces.filter(|(_, (before, after))| before != after) {
            for at in
                (piece * PIECE..(piece + 1) * PIECE).filter(|&at| self.before[at] != after[at])
            {
                let allowed = rings.iter().any(|ring| ring.contains(&at));
                let buffer = buffers
                    .iter()
                    .any(|&(start, len)| (start..start + len).contains(&at));
                assert!(allowed || buffer, "byte {at:#x} of the witness was written");
            }
        }
    }

    /// The buffers that its descriptors name, which it wrote before anything else happened.
    fn buffers(&self) -> Vec<(usize, usize)> {
        let table = &self.before[self.guest.receiveq.desc_at..][..16 * usize::from(RING)];
        let word = |entry: &[u8], at: usize| {
            u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"))
        };
        let one = |entry: &[u8]| {
            let addr = word(entry, 0).checked_sub(testkit::ring_driver::GUEST_BASE)?;
            Some((addr as usize, (word(entry, 8) & 0xffff_ffff) as usize))
        };
        table.chunks(16).filter_map(one).collect()
    }
}
