//! A vhost-user port: the two rings of a guest's queue pair, and what it has negotiated.
//!
//! Names are the guest's: it transmits on `transmitq` (virtqueue 1) and receives from `receiveq`
//! (virtqueue 0). The session that negotiated with the VMM makes the port and hands it to a worker;
//! to change anything it takes the port back, takes it apart with [`VhostPort::into_parts`] and
//! makes a new one.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::deliver::{self, Accepts, Piece, Sink};
use crate::error::{PortError, TransmitError};
use crate::fault_guard;
use crate::frame::{Batch, Fault};
use crate::guest_memory::GuestMemory;
use crate::port_info::PortInfo;
use crate::vhost::features;
use crate::vhost::virtqueue::queue::Queue;
use crate::vhost::virtqueue::transmit::{Framing, PutError};

/// What a port is made of. A ring that is `None` is not running: nothing is taken from it or put
/// into it.
#[derive(Debug)]
pub struct PortParts {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// What was negotiated.
    pub features: u64,
    /// Where the guest receives from.
    pub receiveq: Option<Queue>,
    /// Where the guest transmits.
    pub transmitq: Option<Queue>,
    /// What the guest transmits is taken, and is to be dropped ([`Fault::RingOff`]): its VMM has
    /// turned the ring off.
    pub transmitq_off: bool,
    /// The MTU that the guest was told.
    pub mtu: Option<u16>,
}

/// A queue pair that a worker owns.
#[derive(Debug)]
pub struct VhostPort {
    parts: PortParts,
    accepts: Accepts,
    /// What the guest may leave undone in what it sends.
    sends: Accepts,
    framing: Framing,
    frames_received: u64,
    frames_transmitted: u64,
    kicks: u64,
    /// Set once: no ring is touched afterwards.
    broken: Option<String>,
    reported: bool,
    /// What the guest receives is noted in a log, which is done the long way alone.
    is_logged: bool,
    /// Mappings lost, of whatever guest, when ours was last known to be there.
    lost_seen: u64,
}

impl VhostPort {
    /// A port that polls.
    pub fn new(parts: PortParts) -> Self {
        let has = |bit: u64| parts.features & bit != 0;
        let accepts = Accepts {
            checksum: has(features::GUEST_CSUM),
            tso4: has(features::GUEST_TSO4),
            tso6: has(features::GUEST_TSO6),
            ecn: has(features::GUEST_ECN),
            uso: has(features::GUEST_USO4) && has(features::GUEST_USO6),
        };
        let sends = Accepts {
            checksum: has(features::CSUM),
            tso4: has(features::HOST_TSO4),
            tso6: has(features::HOST_TSO6),
            ecn: has(features::HOST_ECN),
            uso: has(features::HOST_USO),
        };
        let mergeable = has(features::MRG_RXBUF);
        let header_len = if mergeable || has(features::VERSION_1) {
            12
        } else {
            10
        };
        let mut port = VhostPort {
            is_logged: parts.receiveq.as_ref().is_some_and(Queue::is_logged),
            parts,
            accepts,
            sends,
            framing: Framing {
                header_len,
                mergeable,
            },
            frames_received: 0,
            frames_transmitted: 0,
            kicks: 0,
            broken: None,
            reported: false,
            // Looked at in any case, before anything is written there.
            lost_seen: u64::MAX,
        };
        port.check_memory();
        port
    }

    /// Takes the port apart, between two batches. [`Queue::into_parts`] then gives back what is
    /// still held.
    pub fn into_parts(self) -> PortParts {
        self.parts
    }

    /// Why the port was stopped, if the guest broke the protocol.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    #[inline]
    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.check_memory();
        if self.broken.is_some() {
            return self.report().map(|()| 0);
        }
        let Some(queue) = &mut self.parts.transmitq else {
            return Ok(0);
        };
        match queue.receive(batch, self.framing.header_len, self.sends) {
            Ok(count) => {
                self.frames_received += count as u64;
                if self.parts.transmitq_off {
                    let before = batch.len() - count;
                    for frame in &mut batch.frames_mut()[before..] {
                        frame.set_fault(Fault::RingOff);
                    }
                }
                Ok(count)
            }
            Err(fault) => {
                self.stop(|| format!("transmitq: {fault}"));
                self.report().map(|()| 0)
            }
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, chains: usize) {
        if let Some(queue) = &mut self.parts.transmitq
            && self.broken.is_none()
        {
            queue.publish(chains);
        }
    }

    pub(crate) fn transmit(&mut self, batch: &Batch, index: usize) -> Result<(), TransmitError> {
        debug_assert!(index < batch.len());
        let mut result = [Ok(())];
        self.transmit_all(batch, &[index as u8], &mut result);
        result[0]
    }

    /// See [`Port::transmit_all`](crate::port::Port::transmit_all).
    pub(crate) fn transmit_all(
        &mut self,
        batch: &Batch,
        frames: &[u8],
        results: &mut [Result<(), TransmitError>],
    ) {
        let (framing, accepts) = (self.framing, self.accepts);
        let mut done = 0;
        // How many may go the short way. After a frame that did not, fewer are tried, so that a
        // guest which takes all frames the long way costs no look ahead that is thrown away. What
        // goes to many goes the long way, which leaves the caches alone.
        let mut ahead = frames.len();
        while done < frames.len() {
            if self.broken.is_none()
                && !self.is_logged
                && !batch.for_many
                && let Some(queue) = &mut self.parts.receiveq
            {
                let next = &frames[done..][..ahead.min(frames.len() - done)];
                let written = queue.put_whole(batch, next, framing, accepts);
                results[done..done + written].fill(Ok(()));
                self.frames_transmitted += written as u64;
                done += written;
                ahead = 2 * written + 1;
                if written == next.len() {
                    continue;
                }
            }
            if done < frames.len() {
                results[done] = deliver::deliver(batch, usize::from(frames[done]), accepts, self);
                done += 1;
            }
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.check_memory();
        if self.broken.is_some() {
            return self.report();
        }
        if let Some(queue) = &mut self.parts.receiveq {
            queue.publish(usize::MAX);
        }
        Ok(())
    }

    /// Of the ring that the guest transmits on alone: room to deliver into is never waited for.
    pub(crate) fn arm(&mut self) -> bool {
        if self.broken.is_some() {
            return !self.reported;
        }
        self.parts.transmitq.as_mut().is_some_and(Queue::arm)
    }

    pub(crate) fn disarm(&mut self) {
        if let Some(queue) = &mut self.parts.transmitq
            && self.broken.is_none()
        {
            queue.disarm();
        }
    }

    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.parts.transmitq.as_ref().and_then(Queue::kick_fd)
    }

    pub(crate) fn count_kick(&mut self) {
        self.kicks += 1;
    }

    /// One ring is enough: a guest may enable one before the other, or one alone.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        let parts = &self.parts;
        self.broken.is_none()
            && (parts.receiveq.is_some() || (parts.transmitq.is_some() && !parts.transmitq_off))
    }

    pub(crate) fn takes_frames(&self) -> bool {
        self.parts.receiveq.is_some()
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        self.parts.mtu
    }

    pub(crate) fn accepts(&self) -> Accepts {
        self.accepts
    }

    pub(crate) fn info(&self) -> PortInfo {
        let transmitq = self.parts.transmitq.as_ref().map(Queue::info);
        let receiveq = self.parts.receiveq.as_ref().map(Queue::info);
        PortInfo {
            kind: "vhost-user",
            up: self.is_up(),
            frames_received: self.frames_received,
            frames_transmitted: self.frames_transmitted,
            kicks: self.kicks,
            calls: [&transmitq, &receiveq]
                .into_iter()
                .flatten()
                .map(|queue| queue.calls)
                .sum(),
            transmitq,
            receiveq,
            broken: self.broken.clone(),
        }
    }

    /// Stops the port when the guest's memory, or the log of what is written there, was taken away
    /// under it: what is read there now are zeros.
    #[inline]
    fn check_memory(&mut self) {
        let lost = fault_guard::lost_count();
        if lost != self.lost_seen {
            self.lost_seen = lost;
            if self.broken.is_none() && self.lost().is_some() {
                self.stop(String::new);
            }
        }
    }

    /// Stops the port. Whatever it looks like, memory that is gone is the reason if it is gone.
    #[cold]
    fn stop(&mut self, what: impl FnOnce() -> String) {
        self.broken = Some(match self.lost() {
            Some(lost) if self.parts.memory.is_arriving() => format!(
                "the file that holds {lost} was cut short while it was in use, or has no page \
                 where one had come"
            ),
            Some(lost) if self.parts.memory.refuses_missing() => format!(
                "the file that holds {lost} was cut short while it was in use, or has no page \
                 where one was used (--guest-memory-populated)"
            ),
            Some(lost) => format!("the file that holds {lost} was cut short while it was in use"),
            None => what(),
        });
    }

    /// What of the VMM's memory is gone.
    #[cold]
    fn lost(&self) -> Option<&'static str> {
        let parts = &self.parts;
        let mut queues = [&parts.receiveq, &parts.transmitq].into_iter().flatten();
        if parts.memory.is_lost() {
            Some("the guest's memory")
        } else if queues.any(Queue::is_log_lost) {
            Some("the log of written pages")
        } else {
            None
        }
    }

    /// The error of a broken port, the first time it is asked for.
    #[cold]
    fn report(&mut self) -> Result<(), PortError> {
        match &self.broken {
            Some(what) if !std::mem::replace(&mut self.reported, true) => {
                Err(PortError::Broken { what: what.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl Sink for VhostPort {
    fn put(&mut self, piece: &Piece<'_>) -> Result<(), TransmitError> {
        let Some(queue) = &mut self.parts.receiveq else {
            return Err(TransmitError::Down);
        };
        if self.broken.is_some() {
            return Err(TransmitError::Down);
        }
        match queue.put(piece, self.framing) {
            Ok(()) => {
                self.frames_transmitted += 1;
                Ok(())
            }
            Err(PutError::Transmit(error)) => Err(error),
            Err(PutError::Ring(fault)) => {
                self.stop(|| format!("receiveq: {fault}"));
                Err(TransmitError::Broken)
            }
        }
    }
}
