//! A queue of a device that DPDK drives.
//!
//! The device is ours alone: the kernel's end of it is a TAP device ([`TapBeside`]). VXLAN for us
//! becomes frames of a batch, whose bodies stay in the device's buffers until the one copy into the
//! receiver; all else is the kernel's. The queue with the number 0 takes what the kernel sends.
//! DPDK's drivers are polled: a worker that has such a queue looks at it every
//! [`POLL_EVERY_NS`] at least, and does not wait for it.

use std::sync::Arc;

use dpdk::{BURST, Queue, WriteError};
use wire::Mac;
use wire::offload::Offload;
use wire::vxlan::{self, Outer};

use crate::deliver::Piece;
use crate::error::{PortError, TransmitError};
use crate::frame::{Batch, FRAME_MAX, HEAD_MAX};
use crate::outer::{self, OuterSink};
use crate::ring_info::RingState;
use crate::segment::Segment;
use crate::tap::TapBeside;
use crate::xsk::Link;

/// How long a worker without work sleeps at the most.
pub const POLL_EVERY_NS: u64 = 100_000;
/// How often, in turns with frames, the kernel is asked for some: each time is a system call.
const KERNEL_EVERY: u32 = 16;
/// Frames of the kernel's in one turn.
const KERNEL_FRAMES: usize = 32;
/// What a frame may have beyond the link's MTU: Ethernet header and one VLAN tag.
const LINK_HEADER: usize = 14 + 4;

/// The port.
#[derive(Debug)]
pub struct DpdkPort {
    queue: Queue,
    beside: Arc<TapBeside>,
    link: Arc<Link>,
    mac: Mac,
    /// VXLAN's UDP port.
    port: u16,
    received: u64,
    transmitted: u64,
    turns: u32,
    ticked_ns: u64,
    /// A frame in one piece.
    scratch: Box<[u8]>,
}

impl DpdkPort {
    /// `beside` is the kernel's end of the device, `mac` its address, `link` its MTU and state, and
    /// `port` VXLAN's UDP port.
    pub fn new(
        queue: Queue,
        beside: Arc<TapBeside>,
        link: Arc<Link>,
        mac: Mac,
        port: u16,
    ) -> DpdkPort {
        DpdkPort {
            queue,
            beside,
            link,
            mac,
            port,
            received: 0,
            transmitted: 0,
            turns: 0,
            ticked_ns: 0,
            scratch: vec![0; FRAME_MAX].into(),
        }
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        let came = self.queue.receive(batch.room().min(BURST));
        for index in 0..came {
            match self.queue.bytes(index) {
                Some(bytes) if is_ours(bytes, self.mac, self.port) => {
                    push(batch, bytes);
                    self.queue.keep(index);
                }
                Some(bytes) => {
                    self.beside.write(bytes);
                }
                None => self.take_copy(batch, index),
            }
        }
        let count = batch.len() - before;
        self.received += count as u64;
        self.turns = self.turns.wrapping_add(1);
        if self.queue.index() == 0 && (came == 0 || self.turns.is_multiple_of(KERNEL_EVERY)) {
            self.send_kernels();
        }
        Ok(count)
    }

    /// A frame in several pieces.
    #[cold]
    fn take_copy(&mut self, batch: &mut Batch, index: usize) {
        let length = self.queue.copy(index, &mut self.scratch);
        let Some(bytes) = self.scratch.get(..length) else {
            return;
        };
        if is_ours(bytes, self.mac, self.port) {
            let _ = batch.push_bytes(bytes, Offload::default());
        } else {
            self.beside.write(bytes);
        }
    }

    /// What the kernel sends by its end leaves by the device. A frame that there is no room for is
    /// lost, as on any wire.
    fn send_kernels(&mut self) {
        for _ in 0..KERNEL_FRAMES {
            let Some(length) = self.beside.read(&mut self.scratch) else {
                break;
            };
            let bytes = &self.scratch[..length];
            let _ = self.queue.write(length, |out| out.copy_from_slice(bytes));
        }
        self.queue.flush();
    }

    /// Gives the buffers of kept frames back.
    #[inline]
    pub(crate) fn complete(&mut self, buffers: usize) {
        self.queue.give_back(buffers);
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.queue.flush();
        Ok(())
    }

    /// Nobody wakes us: see [`next_tick`](Self::next_tick). True: something is to be sent yet.
    pub(crate) fn arm(&mut self) -> bool {
        !self.queue.flush() && self.link.is_up()
    }

    #[inline]
    pub(crate) fn tick(&mut self, mono_ns: u64) {
        self.ticked_ns = mono_ns;
    }

    /// When it is to be looked at next.
    pub(crate) fn next_tick(&self) -> u64 {
        self.ticked_ns + POLL_EVERY_NS
    }

    pub(crate) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        Some(u16::try_from(self.link.mtu()).unwrap_or(u16::MAX))
    }

    pub(crate) fn ring_state(&self) -> RingState {
        RingState {
            kind: "dpdk",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            ..RingState::default()
        }
    }
}

impl OuterSink for DpdkPort {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        let length = outer::len(outer, piece);
        if length > self.link.mtu() as usize + LINK_HEADER {
            return Err(TransmitError::TooSmall);
        }
        let written = self
            .queue
            .write(length, |out| outer::write(out, outer, piece, None));
        written.map_err(|error| match error {
            WriteError::Full => TransmitError::Full,
            WriteError::TooLong => TransmitError::TooSmall,
        })?;
        self.transmitted += 1;
        Ok(())
    }
}

/// VXLAN to us, or to a group.
fn is_ours(frame: &[u8], mac: Mac, port: u16) -> bool {
    let to = frame.get(..6);
    let here = to.is_some_and(|to| to == mac.0 || to[0] & 1 != 0);
    here && vxlan::is_to_port(frame, port)
}

/// A frame whose body stays where it is.
#[inline]
fn push(batch: &mut Batch, bytes: &[u8]) {
    let head_len = bytes.len().min(HEAD_MAX);
    let (frames, segments) = batch.slots(1);
    let frame = &mut frames[0];
    frame.head_space()[..head_len].copy_from_slice(&bytes[..head_len]);
    let start = segments.len();
    if bytes.len() > head_len {
        // Valid until the frame is given back, as its memory is until the process ends.
        segments.push(Segment {
            ptr: bytes[head_len..].as_ptr(),
            len: bytes.len() - head_len,
        });
    }
    frame.fill(bytes.len(), start..segments.len(), Offload::default(), None);
    batch.commit(1);
    batch.owe(1);
}
