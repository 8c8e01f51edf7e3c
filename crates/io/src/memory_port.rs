//! A port that is a pair of queues in memory: the guest of unit tests and of the simulator.
//!
//! [`MemoryPort::pair`] gives the switch's end and the peer's. The peer sends frames with the
//! offload fields of its choice and says what it accepts, so that everything a vhost-user port does
//! to a frame on its way out (complete the checksum, cut the segments) can be seen without a ring.
//! Queues are bounded, and a full one answers as a full ring does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::EventfdFlags;
use wire::offload::Offload;
use wire::vxlan::Outer;

use crate::deliver::{self, Accepts, Piece, Sink};
use crate::error::{PortError, TransmitError};
use crate::frame::Batch;
use crate::outer::{self, OuterSink};
use crate::port_info::PortInfo;

/// Frames that wait in one direction at most, unless [`MemoryPeer::set_capacity`] says otherwise.
pub const CAPACITY: usize = 1024;

#[derive(Debug)]
struct Shared {
    to_switch: VecDeque<(Vec<u8>, Offload)>,
    to_peer: VecDeque<(Vec<u8>, Offload)>,
    accepts: Accepts,
    capacity: usize,
    peer_gone: bool,
    up: bool,
    break_with: Option<String>,
    /// The switch sleeps and wants the eventfd written when something comes.
    armed: bool,
    kicks: u64,
}

/// The switch's end.
#[derive(Debug)]
pub struct MemoryPort {
    shared: Arc<Mutex<Shared>>,
    kick: Arc<OwnedFd>,
    mtu: Option<u16>,
    received: u64,
    transmitted: u64,
    /// Frames that became visible to the peer only at the next flush, as with a ring.
    staged: Vec<(Vec<u8>, Offload)>,
}

/// The guest's end.
#[derive(Debug)]
pub struct MemoryPeer {
    shared: Arc<Mutex<Shared>>,
    kick: Arc<OwnedFd>,
}

impl MemoryPort {
    /// A port and its peer, joined. The peer accepts whole frames with nothing left to do; see
    /// [`MemoryPeer::accept`].
    pub fn pair() -> (MemoryPort, MemoryPeer) {
        let shared = Arc::new(Mutex::new(Shared {
            to_switch: VecDeque::new(),
            to_peer: VecDeque::new(),
            accepts: Accepts::default(),
            capacity: CAPACITY,
            peer_gone: false,
            up: true,
            break_with: None,
            armed: false,
            kicks: 0,
        }));
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        // An eventfd fails only when the process is out of descriptors or memory: nothing a test
        // goes on after.
        let kick =
            Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd for a memory port"));
        let port = MemoryPort {
            shared: Arc::clone(&shared),
            kick: Arc::clone(&kick),
            mtu: None,
            received: 0,
            transmitted: 0,
            staged: Vec::new(),
        };
        (port, MemoryPeer { shared, kick })
    }

    /// This port with a stated MTU.
    pub fn with_mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let mut shared = lock(&self.shared);
        if let Some(what) = shared.break_with.take() {
            shared.up = false;
            return Err(PortError::Broken { what });
        }
        let mut count = 0;
        while shared.up && batch.room() > 0 {
            let Some((bytes, offload)) = shared.to_switch.pop_front() else {
                break;
            };
            // Cannot be refused: there is room, and `MemoryPeer::send` bounds the length.
            count += usize::from(batch.push_bytes(&bytes, offload).is_some());
        }
        self.received += count as u64;
        Ok(count)
    }

    pub(crate) fn transmit(&mut self, batch: &Batch, index: usize) -> Result<(), TransmitError> {
        let accepts = self.accepts();
        deliver::deliver(batch, index, accepts, self)
    }

    pub(crate) fn transmit_outer(
        &mut self,
        batch: &Batch,
        index: usize,
        outer: &Outer,
    ) -> Result<(), TransmitError> {
        outer::deliver(batch, index, Some(outer), Accepts::default(), self)
    }

    pub(crate) fn flush(&mut self) {
        lock(&self.shared).to_peer.extend(self.staged.drain(..));
    }

    pub(crate) fn arm(&mut self) -> bool {
        let mut shared = lock(&self.shared);
        shared.armed = true;
        !shared.to_switch.is_empty() || shared.break_with.is_some()
    }

    pub(crate) fn disarm(&mut self) {
        lock(&self.shared).armed = false;
    }

    pub(crate) fn accepts(&self) -> Accepts {
        lock(&self.shared).accepts
    }

    pub(crate) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    pub(crate) fn is_up(&self) -> bool {
        let shared = lock(&self.shared);
        shared.up && !shared.peer_gone
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    pub(crate) fn info(&self) -> PortInfo {
        let shared = lock(&self.shared);
        PortInfo {
            kind: "memory",
            up: shared.up && !shared.peer_gone,
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            kicks: shared.kicks,
            ..PortInfo::default()
        }
    }
}

impl MemoryPort {
    /// Why no frame can be staged, if that is so.
    fn refusal(&self) -> Option<TransmitError> {
        let shared = lock(&self.shared);
        if !shared.up || shared.peer_gone {
            return Some(TransmitError::Down);
        }
        (shared.to_peer.len() + self.staged.len() >= shared.capacity).then_some(TransmitError::Full)
    }
}

impl Sink for MemoryPort {
    fn put(&mut self, piece: &Piece<'_>) -> Result<(), TransmitError> {
        self.refusal().map_or(Ok(()), Err)?;
        let mut bytes = Vec::new();
        piece.linearize(&mut bytes);
        self.staged.push((bytes, piece.offload));
        self.transmitted += 1;
        Ok(())
    }
}

impl OuterSink for MemoryPort {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        self.refusal().map_or(Ok(()), Err)?;
        // Forgotten bytes show.
        let mut bytes = vec![0xa5; outer::len(outer, piece)];
        outer::write(&mut bytes, outer, piece, None);
        self.staged.push((bytes, Offload::default()));
        self.transmitted += 1;
        Ok(())
    }
}

impl MemoryPeer {
    /// Queues a frame for the switch, and wakes it when it sleeps. False when the queue is full or
    /// the frame longer than [`FRAME_MAX`](crate::frame::FRAME_MAX).
    pub fn send(&self, bytes: Vec<u8>, offload: Offload) -> bool {
        let mut shared = lock(&self.shared);
        if shared.to_switch.len() >= shared.capacity || bytes.len() > crate::frame::FRAME_MAX {
            return false;
        }
        shared.to_switch.push_back((bytes, offload));
        self.wake(&mut shared);
        true
    }

    /// The next frame that the switch delivered and flushed.
    pub fn receive(&self) -> Option<(Vec<u8>, Offload)> {
        lock(&self.shared).to_peer.pop_front()
    }

    /// What this guest has negotiated from now on.
    pub fn accept(&self, accepts: Accepts) {
        lock(&self.shared).accepts = accepts;
    }

    /// How many frames wait in each direction at most.
    pub fn set_capacity(&self, frames: usize) {
        lock(&self.shared).capacity = frames;
    }

    /// Takes the link down or up again: a port that is down delivers and receives nothing.
    pub fn set_up(&self, up: bool) {
        lock(&self.shared).up = up;
    }

    /// The next `receive` of the switch fails with this message, as after a broken ring.
    pub fn break_port(&self, what: &str) {
        let mut shared = lock(&self.shared);
        shared.break_with = Some(what.to_owned());
        self.wake(&mut shared);
    }

    /// How often the switch had to be woken.
    pub fn kicks(&self) -> u64 {
        lock(&self.shared).kicks
    }

    fn wake(&self, shared: &mut Shared) {
        if std::mem::take(&mut shared.armed) {
            shared.kicks += 1;
            // Fails only when the counter is full, and then the eventfd is readable already.
            let _ = rustix::io::write(&*self.kick, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for MemoryPeer {
    fn drop(&mut self) {
        lock(&self.shared).peer_gone = true;
    }
}

/// The lock, also when another test thread panicked while holding it: the queues are whole at any
/// time.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HEAD_MAX;
    use crate::port::Port;
    use wire::offload::PartialChecksum;

    fn forward(from: &mut Port, to: &mut Port) -> Vec<Result<(), TransmitError>> {
        let mut batch = Batch::new();
        from.receive(&mut batch).unwrap();
        let results = (0..batch.len())
            .map(|index| to.transmit(&batch, index))
            .collect();
        to.flush().unwrap();
        from.complete(&mut batch);
        assert!(batch.is_empty());
        results
    }

    #[test]
    fn frames_pass_whole_and_in_order_and_show_only_after_a_flush() {
        let (a, peer_a) = MemoryPort::pair();
        let (b, peer_b) = MemoryPort::pair();
        let (mut a, mut b) = (Port::from(a), Port::from(b));
        let frames: Vec<Vec<u8>> = [60, HEAD_MAX, 1514, 65_550]
            .map(|len| vec![len as u8; len])
            .into();
        for frame in &frames {
            assert!(peer_a.send(frame.clone(), Offload::default()));
        }
        let mut batch = Batch::new();
        assert_eq!(a.receive(&mut batch), Ok(4));
        for index in 0..4 {
            b.transmit(&batch, index).unwrap();
        }
        assert_eq!(peer_b.receive(), None, "nothing before the flush");
        b.flush().unwrap();
        a.complete(&mut batch);
        for frame in frames {
            assert_eq!(peer_b.receive(), Some((frame, Offload::default())));
        }
        assert_eq!((peer_b.receive(), peer_a.receive()), (None, None));
        assert_eq!(
            (a.info().frames_received, b.info().frames_transmitted),
            (4, 4)
        );
    }

    #[test]
    fn a_partial_checksum_is_passed_on_or_completed_as_the_receiver_asked() {
        let (a, peer_a) = MemoryPort::pair();
        let (b, peer_b) = MemoryPort::pair();
        let (mut a, mut b) = (Port::from(a), Port::from(b));
        let offload = Offload {
            checksum: Some(PartialChecksum {
                start: 34,
                offset: 6,
            }),
            ..Offload::default()
        };
        // RFC 1071 section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let mut frame = vec![0; 34];
        frame.extend([0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0x00, 0x00, 0xf6, 0xf7]);
        peer_a.send(frame.clone(), offload);
        assert_eq!(forward(&mut a, &mut b), [Ok(())]);
        let mut completed = frame.clone();
        completed[40..42].copy_from_slice(&(!0xddf2u16).to_be_bytes());
        assert_eq!(peer_b.receive(), Some((completed, Offload::default())));

        peer_b.accept(Accepts {
            checksum: true,
            ..Accepts::default()
        });
        peer_a.send(frame.clone(), offload);
        assert_eq!(forward(&mut a, &mut b), [Ok(())]);
        assert_eq!(peer_b.receive(), Some((frame, offload)));
    }

    #[test]
    fn a_checksum_outside_the_frame_is_refused() {
        let (a, peer_a) = MemoryPort::pair();
        let (b, peer_b) = MemoryPort::pair();
        let (mut a, mut b) = (Port::from(a), Port::from(b));
        for (start, offset) in [(34, 40), (59, 0), (0xffff, 0xffff), (0, 16)] {
            let checksum = Some(PartialChecksum { start, offset });
            peer_a.send(
                vec![0; 60],
                Offload {
                    checksum,
                    ..Offload::default()
                },
            );
            assert_eq!(forward(&mut a, &mut b), [Err(TransmitError::BadOffload)]);
            assert_eq!(peer_b.receive(), None);
        }
    }

    #[test]
    fn full_down_gone_and_broken_are_told_apart() {
        let (a, peer_a) = MemoryPort::pair();
        let (b, peer_b) = MemoryPort::pair();
        let (mut a, mut b) = (Port::from(a), Port::from(b));
        peer_b.set_capacity(1);
        let send =
            |n: usize| (0..n).for_each(|_| assert!(peer_a.send(vec![1; 60], Offload::default())));
        send(2);
        assert_eq!(forward(&mut a, &mut b), [Ok(()), Err(TransmitError::Full)]);
        peer_b.set_up(false);
        send(1);
        assert_eq!(forward(&mut a, &mut b), [Err(TransmitError::Down)]);
        peer_b.set_up(true);
        peer_b.receive().unwrap();
        peer_b.break_port("ring on fire");
        let mut batch = Batch::new();
        assert_eq!(
            b.receive(&mut batch),
            Err(PortError::Broken {
                what: "ring on fire".into()
            })
        );
        assert_eq!((b.receive(&mut batch), b.is_up()), (Ok(0), false));
        drop(peer_b);
        peer_a.set_up(true);
        assert!(a.is_up() && !b.is_up());
    }

    #[test]
    fn an_armed_port_is_kicked_once_and_work_that_is_there_forbids_sleep() {
        let (a, peer) = MemoryPort::pair();
        let mut a = Port::from(a);
        assert!(!a.arm());
        for _ in 0..3 {
            peer.send(vec![1; 60], Offload::default());
        }
        assert_eq!(peer.kicks(), 1);
        assert!(a.arm());
        a.disarm();
        peer.send(vec![1; 60], Offload::default());
        assert_eq!(peer.kicks(), 1);
    }
}
