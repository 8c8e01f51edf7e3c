//! One attachment of the switch, whatever is behind it.
//!
//! A worker owns its ports and calls, in this order, a batch at a time: [`Port::receive`], then
//! [`Port::transmit`] on the targets, [`Port::flush`] on each target, [`Port::complete`] on the
//! source. Before it sleeps it calls [`Port::arm`], and [`Port::disarm`] when it polls again. A
//! port whose peer broke the protocol says so once, by [`PortError`], and is down from then on; the
//! session that made it decides what becomes of it.

use std::os::fd::BorrowedFd;

use wire::vxlan::Outer;

use crate::bench::BenchPort;
use crate::frame::Batch;
use crate::memory_port::MemoryPort;
use crate::tap::TapPort;
use crate::uplink::UplinkPort;
use crate::vhost::port::VhostPort;
use crate::xsk::XskPort;
use sys::poll::Poller;

pub use crate::deliver::Accepts;
pub use crate::error::{PortError, TransmitError};
pub use crate::port_info::{PortInfo, QueueInfo};

/// An attachment. A new kind is a new variant and an arm in each method below.
#[derive(Debug)]
pub enum Port {
    /// A guest on vhost-user.
    Vhost(Box<VhostPort>),
    /// A pair of queues in memory: tests and simulations.
    Memory(MemoryPort),
    /// A TAP device: containers, namespaces, the host.
    Tap(TapPort),
    /// A host without a guest, for measuring.
    Bench(Box<BenchPort>),
    /// A queue of an interface that joins this host to others.
    Uplink(Box<UplinkPort>),
}

impl Port {
    /// Takes up to a batch of frames from the peer; gives how many were added.
    #[inline]
    pub fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        match self {
            Port::Vhost(port) => port.receive(batch),
            Port::Memory(port) => port.receive(batch),
            Port::Tap(port) => port.receive(batch),
            Port::Bench(port) => Ok(port.receive(batch)),
            Port::Uplink(port) => port.receive(batch),
        }
    }

    /// Gives the buffers of what [`receive`](Self::receive) took into this batch back to the peer,
    /// tells it when it wants to be told, and clears the batch. Several batches of one port may be
    /// under way; they come back in the order in which they were received.
    #[inline]
    pub fn complete(&mut self, batch: &mut Batch) {
        match self {
            Port::Vhost(port) => port.complete(batch.owed()),
            Port::Uplink(port) => port.complete(batch.owed()),
            Port::Memory(_) | Port::Tap(_) | Port::Bench(_) => {}
        }
        batch.clear();
    }

    /// Writes frame `index` of the batch to the peer. It becomes visible with
    /// [`flush`](Self::flush). On an error the peer sees nothing of the frame, but for a frame that
    /// is cut into segments: those that fitted.
    #[inline]
    pub fn transmit(&mut self, batch: &Batch, index: usize) -> Result<(), TransmitError> {
        match self {
            Port::Vhost(port) => port.transmit(batch, index),
            Port::Memory(port) => port.transmit(batch, index),
            Port::Tap(port) => port.transmit(batch, index),
            Port::Bench(port) => port.transmit(batch, index),
            Port::Uplink(port) => port.transmit(batch, index, None),
        }
    }

    /// Writes frame `index` of the batch to the wire behind `outer`, as
    /// [`transmit`](Self::transmit) does without: a large frame becomes its segments, each behind
    /// headers of its own, and no checksum is left undone. For uplinks; a vhost-user or bench port
    /// is none and is [`Down`](TransmitError::Down).
    #[inline]
    pub fn transmit_outer(
        &mut self,
        batch: &Batch,
        index: usize,
        outer: &Outer,
    ) -> Result<(), TransmitError> {
        match self {
            Port::Uplink(port) => port.transmit(batch, index, Some(outer)),
            Port::Memory(port) => port.transmit_outer(batch, index, outer),
            Port::Tap(port) => port.transmit_outer(batch, index, outer),
            Port::Vhost(_) | Port::Bench(_) => Err(TransmitError::Down),
        }
    }

    /// Writes several frames of the batch, in this order, and says of each what
    /// [`transmit`](Self::transmit) would have said: `results` has an entry for each of `frames`.
    /// Cheaper than one by one: the port's state is looked up once, and the room for all is fetched
    /// before the first is written (64 bytes through two rings: 46.1 cycles where it was 63.5,
    /// 2026-11-20).
    #[inline]
    pub fn transmit_all(
        &mut self,
        batch: &Batch,
        frames: &[u8],
        results: &mut [Result<(), TransmitError>],
    ) {
        debug_assert_eq!(frames.len(), results.len());
        if let Port::Vhost(port) = self {
            return port.transmit_all(batch, frames, results);
        }
        for (&frame, result) in frames.iter().zip(results) {
            *result = self.transmit(batch, usize::from(frame));
        }
    }

    /// Makes what was transmitted visible to the peer and tells it, once.
    #[inline]
    pub fn flush(&mut self) -> Result<(), PortError> {
        match self {
            Port::Vhost(port) => port.flush()?,
            Port::Memory(port) => port.flush(),
            Port::Tap(port) => port.flush()?,
            Port::Uplink(port) => port.flush()?,
            Port::Bench(_) => {}
        }
        Ok(())
    }

    /// Asks the peer to wake us ([`kick_fd`](Self::kick_fd)). True when there is work already: do
    /// not sleep.
    pub fn arm(&mut self) -> bool {
        match self {
            Port::Vhost(port) => port.arm(),
            Port::Memory(port) => port.arm(),
            // Its descriptor is readable whenever there is a frame.
            Port::Tap(_) => false,
            Port::Bench(port) => port.arm(),
            Port::Uplink(port) => port.arm(),
        }
    }

    /// Whether an armed port has work by now, as memory shows it; only who sleeps has to wait for
    /// its descriptor, which need not be in a poller before. `None`: the descriptor alone says.
    pub fn look(&mut self) -> Option<bool> {
        match self {
            Port::Uplink(port) => port.look(),
            Port::Vhost(_) | Port::Memory(_) | Port::Tap(_) | Port::Bench(_) => None,
        }
    }

    /// Whether frames are there to be received, for who polls and does not receive now; true as
    /// well where only its descriptor would say.
    pub fn may_have_frames(&mut self) -> bool {
        match self {
            Port::Vhost(_) | Port::Memory(_) | Port::Bench(_) => {
                let has_frames = self.arm();
                self.disarm();
                has_frames
            }
            Port::Tap(_) => true,
            Port::Uplink(port) => port.look().unwrap_or(true),
        }
    }

    /// We poll again: the peer need not wake us.
    pub fn disarm(&mut self) {
        match self {
            Port::Vhost(port) => port.disarm(),
            Port::Memory(port) => port.disarm(),
            Port::Uplink(port) => port.disarm(),
            Port::Tap(_) | Port::Bench(_) => {}
        }
    }

    /// Tells the port what time it is (monotonic): once a turn. Bench NICs mind, and uplinks that
    /// are polled.
    #[inline]
    pub fn tick(&mut self, mono_ns: u64) {
        match self {
            Port::Bench(port) => port.tick(mono_ns),
            Port::Uplink(port) => port.tick(mono_ns),
            Port::Vhost(_) | Port::Memory(_) | Port::Tap(_) => {}
        }
    }

    /// When [`tick`](Self::tick) is needed next, for a worker that wants to sleep; `None`: not.
    pub fn next_tick(&self) -> Option<u64> {
        match self {
            Port::Bench(port) => port.next_tick(),
            Port::Uplink(port) => port.next_tick(),
            _ => None,
        }
    }

    /// Readable when an armed port's peer has sent something; `None` when nothing can come.
    pub fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Port::Vhost(port) => port.kick_fd(),
            Port::Memory(port) => Some(port.kick_fd()),
            Port::Tap(port) => port.kick_fd(),
            Port::Uplink(port) => port.kick_fd(),
            Port::Bench(_) => None,
        }
    }

    /// Has a poller report [`kick_fd`](Self::kick_fd) as `token`. `None` where there is none. After
    /// a report, [`kicked`](Self::kicked) is to be called.
    pub fn add_to(&self, poller: &Poller, token: u64) -> Option<std::io::Result<()>> {
        let fd = self.kick_fd()?;
        Some(match self {
            // Eventfds whose counters nobody reads: reported when they are written to.
            Port::Vhost(_) | Port::Memory(_) => poller.add_edges(fd, token),
            // Readable as long as frames wait.
            Port::Tap(_) | Port::Uplink(_) | Port::Bench(_) => poller.add(fd, token),
        })
    }

    /// A poller reports the port for as long as there are frames, asked for or not: who leaves them
    /// there has to take it out.
    pub fn is_reported_while_readable(&self) -> bool {
        matches!(self, Port::Tap(_))
    }

    /// The poller has reported the port.
    pub fn kicked(&mut self) {
        match self {
            Port::Vhost(port) => port.count_kick(),
            Port::Uplink(port) => port.kicked(),
            Port::Memory(_) | Port::Tap(_) | Port::Bench(_) => {}
        }
    }

    /// True when frames can pass.
    #[inline]
    pub fn is_up(&self) -> bool {
        match self {
            Port::Vhost(port) => port.is_up(),
            Port::Memory(port) => port.is_up(),
            Port::Tap(port) => port.is_up(),
            Port::Uplink(port) => port.is_up(),
            Port::Bench(_) => true,
        }
    }

    /// True when there is something to deliver into: a pair whose receiving ring is off can still
    /// send.
    pub fn takes_frames(&self) -> bool {
        match self {
            Port::Vhost(port) => port.takes_frames(),
            Port::Memory(_) | Port::Tap(_) | Port::Bench(_) | Port::Uplink(_) => true,
        }
    }

    /// The MTU that the peer was told, if it was.
    pub fn mtu(&self) -> Option<u16> {
        match self {
            Port::Vhost(port) => port.mtu(),
            Port::Memory(port) => port.mtu(),
            Port::Tap(port) => port.mtu(),
            Port::Uplink(port) => port.mtu(),
            Port::Bench(_) => None,
        }
    }

    /// What the peer takes as the sender left it.
    pub fn accepts(&self) -> Accepts {
        match self {
            Port::Vhost(port) => port.accepts(),
            Port::Memory(port) => port.accepts(),
            Port::Tap(port) => port.accepts(),
            Port::Bench(port) => port.accepts(),
            // What is out on the wire takes packets, and nothing undone.
            Port::Uplink(_) => Accepts::default(),
        }
    }

    /// The port of a queue by an AF_XDP socket, if it is one: for whoever hands it over.
    pub fn as_xsk(&mut self) -> Option<&mut XskPort> {
        match self {
            Port::Uplink(port) => match &mut **port {
                UplinkPort::Xsk(port) => Some(port),
                UplinkPort::Packet(_) | UplinkPort::Tap(_) | UplinkPort::Dpdk(_) => None,
            },
            Port::Vhost(_) | Port::Memory(_) | Port::Tap(_) | Port::Bench(_) => None,
        }
    }

    /// Indices and counters, for dumps.
    pub fn info(&self) -> PortInfo {
        match self {
            Port::Vhost(port) => port.info(),
            Port::Memory(port) => port.info(),
            Port::Tap(port) => port.info(),
            Port::Bench(port) => port.info(),
            Port::Uplink(port) => port.info(),
        }
    }
}

impl From<VhostPort> for Port {
    fn from(port: VhostPort) -> Self {
        Port::Vhost(Box::new(port))
    }
}

impl From<MemoryPort> for Port {
    fn from(port: MemoryPort) -> Self {
        Port::Memory(port)
    }
}

impl From<TapPort> for Port {
    fn from(port: TapPort) -> Self {
        Port::Tap(port)
    }
}

impl From<BenchPort> for Port {
    fn from(port: BenchPort) -> Self {
        Port::Bench(Box::new(port))
    }
}

impl From<UplinkPort> for Port {
    fn from(port: UplinkPort) -> Self {
        Port::Uplink(Box::new(port))
    }
}
