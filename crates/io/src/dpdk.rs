//! A queue of a device that DPDK drives.
//!
//! The device is ours alone: the kernel's end of it is a TAP device ([`TapBeside`]). VXLAN for us
//! becomes frames of a batch, whose bodies stay in the device's buffers until the one copy into the
//! receiver; all else is the kernel's. The queue with the number 0 takes what the kernel sends.
//! A checksum of an inner packet that a guest has left undone is left to a device that makes it.
//! DPDK's drivers are polled: a worker that has such a queue looks at it every
//! [`POLL_EVERY_NS`] at least, and does not wait for it.

use std::sync::Arc;

use dpdk::{BURST, Device, LeftSum, Queue, WriteError};
use wire::Mac;
use wire::offload::Offload;
use wire::parse::{ethertype, protocol};
use wire::vxlan::{self, Outer};

use crate::deliver::{Accepts, Piece};
use crate::error::{PortError, TransmitError};
use crate::frame::{Batch, FRAME_MAX, Frame, HEAD_MAX};
use crate::outer::{self, OuterSink};
use crate::port_info::PortInfo;
use crate::segment::Segment;
use crate::tap::TapBeside;
use crate::xsk::Link;

/// How long a worker without work sleeps at the most.
pub const POLL_EVERY_NS: u64 = 100_000;
/// So long a device may take nothing of what it is to send, at the least: a wire may be paused.
const STUCK_NS: u64 = 10_000_000;
/// How often, in turns with frames, the kernel is asked for some: each time is a system call.
const KERNEL_EVERY: u32 = 16;
/// Frames of the kernel's in one turn.
const KERNEL_FRAMES: usize = 32;
/// What a frame to or from the kernel counts as, in small frames of the switch: a call of the
/// system and the way through its stack, which take more than these.
const KERNEL_WORK: usize = 8;
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
    /// The device makes checksums.
    sums: bool,
    /// That of the frame that is being written.
    left: Option<LeftSum>,
    received: u64,
    transmitted: u64,
    turns: u32,
    ticked_ns: u64,
    /// When the device took something, or there was nothing to take.
    taken_ns: u64,
    /// A frame in one piece.
    scratch: Box<[u8]>,
}

impl DpdkPort {
    /// A queue of `device`. `beside` is the kernel's end of that, `link` its MTU and state, and
    /// `port` VXLAN's UDP port.
    pub fn new(
        queue: Queue,
        device: &Device,
        beside: Arc<TapBeside>,
        link: Arc<Link>,
        port: u16,
    ) -> DpdkPort {
        DpdkPort {
            queue,
            beside,
            link,
            mac: Mac(device.mac()),
            port,
            sums: device.sums(),
            left: None,
            received: 0,
            transmitted: 0,
            turns: 0,
            ticked_ns: 0,
            taken_ns: 0,
            scratch: vec![0; FRAME_MAX].into(),
        }
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.hand_over();
        let before = batch.len();
        let came = self.queue.receive(batch.room().min(BURST));
        let mut kernels = 0;
        for index in 0..came {
            match self.queue.bytes(index) {
                Some(bytes) if is_ours(bytes, self.mac, self.port) => {
                    push(batch, bytes);
                    self.queue.keep(index);
                }
                Some(bytes) => {
                    self.beside.write(bytes);
                    kernels += 1;
                }
                None => kernels += usize::from(!self.take_copy(batch, index)),
            }
        }
        let count = batch.len() - before;
        self.received += count as u64;
        self.turns = self.turns.wrapping_add(1);
        if self.queue.index() == 0 && (came == 0 || self.turns.is_multiple_of(KERNEL_EVERY)) {
            kernels += self.send_kernels();
        }
        batch.count_others(KERNEL_WORK * kernels);
        Ok(count)
    }

    /// A frame in several pieces. False: it is the kernel's.
    #[cold]
    fn take_copy(&mut self, batch: &mut Batch, index: usize) -> bool {
        let length = self.queue.copy(index, &mut self.scratch);
        let Some(bytes) = self.scratch.get(..length) else {
            return true;
        };
        let ours = is_ours(bytes, self.mac, self.port);
        if ours {
            let _ = batch.push_bytes(bytes, Offload::default());
        } else {
            self.beside.write(bytes);
        }
        ours
    }

    /// What the kernel sends by its end leaves by the device. A frame that there is no room for is
    /// lost, as on any wire. Gives how many there were.
    fn send_kernels(&mut self) -> usize {
        let mut count = 0;
        while count < KERNEL_FRAMES
            && let Some(length) = self.beside.read(&mut self.scratch)
        {
            count += 1;
            let bytes = &self.scratch[..length];
            let _ = self
                .queue
                .write(length, None, |out| out.copy_from_slice(bytes));
        }
        self.hand_over();
        count
    }

    /// Hands over what is written. What a device does not take for long is lost, as on a wire that
    /// is cut: it would be tried without end.
    fn hand_over(&mut self) {
        let before = self.queue.waiting();
        if self.queue.flush() || self.queue.waiting() < before {
            self.taken_ns = self.ticked_ns;
        } else if self.ticked_ns.saturating_sub(self.taken_ns) > STUCK_NS {
            self.queue.discard();
        }
    }

    /// Writes a frame, cut, behind `outer` if that is given. It is complete, but for a checksum
    /// that the device makes.
    pub(crate) fn transmit(
        &mut self,
        batch: &Batch,
        index: usize,
        outer: Option<&Outer>,
    ) -> Result<(), TransmitError> {
        self.left = match self.sums {
            true => left_sum(&batch.frames()[index], outer),
            false => None,
        };
        let accepts = Accepts {
            checksum: self.left.is_some(),
            ..Accepts::default()
        };
        outer::deliver(batch, index, outer, accepts, self)
    }

    /// Gives the buffers of kept frames back.
    #[inline]
    pub(crate) fn complete(&mut self, buffers: usize) {
        self.queue.give_back(buffers);
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.hand_over();
        Ok(())
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

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            kind: "dpdk",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            ..PortInfo::default()
        }
    }
}

impl OuterSink for DpdkPort {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        let length = outer::len(outer, piece);
        if length > self.link.mtu() as usize + LINK_HEADER {
            return Err(TransmitError::TooSmall);
        }
        let written = self.queue.write(length, self.left, |out| {
            outer::write(out, outer, piece, None)
        });
        written.map_err(|error| match error {
            WriteError::Full => TransmitError::Full,
            WriteError::TooLong => TransmitError::TooSmall,
        })?;
        self.transmitted += 1;
        Ok(())
    }
}

/// What a device is told of a checksum that a guest has left undone. `None`: there is none, or not
/// as a device makes it, or the outer one is made of it.
fn left_sum(frame: &Frame, outer: Option<&Outer>) -> Option<LeftSum> {
    let partial = frame.offload.checksum?;
    if frame.fault().is_some() || outer.is_some_and(Outer::needs_sum) {
        return None;
    }
    let head = frame.head();
    let byte = |at: usize| head.get(at).copied();
    let half = |at: usize| Some(u16::from_be_bytes([byte(at)?, byte(at + 1)?]));
    let (kind, ip_at) = match half(12)? {
        ethertype::VLAN => (half(16)?, 18),
        kind => (kind, 14),
    };
    let is_ipv4 = kind == ethertype::IPV4;
    let (protocol, ip) = match kind {
        ethertype::IPV4 => (byte(ip_at + 9)?, usize::from(byte(ip_at)? & 15) * 4),
        ethertype::IPV6 => (byte(ip_at + 6)?, 40),
        _ => return None,
    };
    let l4_at = ip_at + ip;
    let (is_tcp, l4) = match (protocol, partial.offset) {
        (protocol::TCP, 16) => (true, usize::from(byte(l4_at + 12)? >> 4) * 4),
        (protocol::UDP, 6) => (false, 8),
        _ => return None,
    };
    let least = if is_tcp { 20 } else { 8 };
    let front = outer.map_or(0, Outer::len) + ip_at;
    let is_there = usize::from(partial.start) == l4_at && l4_at + l4 <= head.len();
    let is_known = is_there && ip >= 20 && l4 >= least && front <= LeftSum::FRONT_MAX.into();
    is_known.then_some(LeftSum {
        front: front as u16,
        ip: ip as u16,
        l4: l4 as u16,
        is_ipv4,
        is_tcp,
    })
}

/// VXLAN to us, or to a group. Of which of our addresses in which VLAN is looked at behind it.
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use wire::build::{self, Builder};
    use wire::offload::PartialChecksum;
    use wire::parse::TcpFlags;
    use wire::vxlan::{Ends, UdpChecksum};

    use super::*;

    fn left(
        frame: &Builder,
        outer: Option<&Outer>,
        change: impl Fn(&mut Offload),
    ) -> Option<LeftSum> {
        let (bytes, mut offload) = frame.clone().partial_checksum().build_with_offload();
        change(&mut offload);
        let mut batch = Batch::new();
        batch.push_bytes(&bytes, offload).unwrap();
        left_sum(&batch.frames()[0], outer)
    }

    #[test]
    fn a_device_is_told_what_it_sums_and_of_nothing_else() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let [here, there] = [1, 2].map(|last| Ipv4Addr::new(192, 0, 2, last));
        let outer = |checksum| {
            let ends = Ends::V4(here, there);
            Outer::new((a, b), None, ends, 64, vxlan::PORT, checksum)
        };
        let v4 = build::frame(a, b).ip([10, 0, 0, 1], [10, 0, 0, 2]);
        let v6 = build::frame(a, b).ip([1u16, 2, 3, 4, 5, 6, 7, 8], [1u16, 2, 3, 4, 9, 10, 11, 12]);
        let tcp = v4.clone().tcp(1, 80, TcpFlags::ACK).tcp_options(&[1; 12]);
        let sum = |front, ip, l4, is_ipv4, is_tcp| {
            Some(LeftSum {
                front,
                ip,
                l4,
                is_ipv4,
                is_tcp,
            })
        };
        let zero = outer(UdpChecksum::Zero);
        let same = |_: &mut Offload| {};
        assert_eq!(left(&tcp, Some(&zero), same), sum(64, 20, 32, true, true));
        assert_eq!(left(&tcp, None, same), sum(14, 20, 32, true, true));
        let tagged = tcp.clone().tag(7);
        assert_eq!(
            left(&tagged, Some(&zero), same),
            sum(68, 20, 32, true, true)
        );
        let udp = v6.clone().udp(1, 53).payload(b"name");
        assert_eq!(left(&udp, Some(&zero), same), sum(64, 40, 8, false, false));
        // The outer checksum is one over the inner.
        assert_eq!(left(&tcp, Some(&outer(UdpChecksum::Full)), same), None);
        // Nothing is left, or somewhere else.
        assert_eq!(
            left(&tcp, Some(&zero), |offload| offload.checksum = None),
            None
        );
        for (start, offset) in [(34, 6), (35, 16), (14, 16), (60_000, 16)] {
            let partial = PartialChecksum { start, offset };
            assert_eq!(
                left(&tcp, Some(&zero), |offload| offload.checksum =
                    Some(partial)),
                None
            );
        }
        // Not as a driver finds the pseudo header.
        let extended = v6.extension(60, &[0; 6]).udp(1, 53);
        assert_eq!(left(&extended, Some(&zero), same), None);
    }
}
