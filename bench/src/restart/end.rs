//! Where frames enter and leave: a guest's rings, or a container's socket.

use std::net::UdpSocket;
use std::os::unix::net::UnixListener;
use std::path::Path;

use io::vhost::features::{EVENT_IDX, MRG_RXBUF, PROTOCOL_FEATURES, RING_PACKED, VERSION_1};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::Frontend;
use wire::offload::Offload;

use super::stream::NUMBER;
use crate::peers::PeerError;

/// Entries of a ring, and bytes of a guest's memory, which has their buffers.
const RING: u16 = 512;
const MEMORY: usize = 4 << 20;

/// Frames that a guest has under way at the most: what waits for a switch that is there again finds
/// room in the receiver's ring.
const WAITING: usize = RING as usize / 2;

/// One guest or container.
pub enum End {
    /// A guest of this process by vhost-user.
    Rings(Box<Rings>),
    /// What a container's own kernel makes of payloads.
    Socket(UdpSocket),
}

/// A guest, and the VMM that we play.
pub struct Rings {
    guest: Guest,
    /// What the guest's driver takes.
    features: u64,
    vmm: Option<Frontend>,
    /// Where a switch that connects does so, anew after each of its ends.
    listener: Option<UnixListener>,
    name: String,
}

impl Rings {
    fn new(packed: bool, socket: &Path) -> Rings {
        let features = VERSION_1 | MRG_RXBUF | EVENT_IDX | if packed { RING_PACKED } else { 0 };
        let options = GuestOptions {
            features,
            queue_size: RING,
            receive_chains: RING.into(),
            memory_len: MEMORY,
            ..GuestOptions::default()
        };
        Rings {
            guest: Guest::new(options),
            features,
            vmm: None,
            listener: None,
            name: socket.display().to_string(),
        }
    }

    /// A guest that connects to the switch's socket, once: the connection is to last.
    pub fn connected(packed: bool, socket: &Path) -> Result<Rings, PeerError> {
        let mut rings = Rings::new(packed, socket);
        let vmm = Frontend::connect(socket).map_err(|error| rings.failed(error))?;
        rings.begin(vmm)?;
        Ok(rings)
    }

    /// A guest to which the switch connects. Its rings are split: where packed ones stopped, the
    /// driver does not know.
    pub fn listening(socket: &Path) -> Result<Rings, PeerError> {
        let mut rings = Rings::new(false, socket);
        let listener = UnixListener::bind(socket).map_err(|error| rings.failed(error))?;
        rings.listener = Some(listener);
        Ok(rings)
    }

    fn failed(&self, error: impl std::fmt::Display) -> PeerError {
        PeerError(format!("{}: {error}", self.name))
    }

    /// Begins a session where the rings are, as QEMU does with a switch that is there again: what
    /// was available and is not used is available.
    fn begin(&mut self, mut vmm: Frontend) -> Result<(), PeerError> {
        let wanted = self.features | PROTOCOL_FEATURES;
        let taken = vmm.negotiate(wanted).map_err(|error| self.failed(error))?;
        if taken & self.features != self.features {
            return Err(self.failed("the switch has no such rings"));
        }
        let bases = [&self.guest.receiveq, &self.guest.transmitq].map(|ring| ring.used_index());
        let started = vmm.start(&self.guest, bases);
        started.map_err(|error| self.failed(error))?;
        self.vmm = Some(vmm);
        Ok(())
    }

    /// Begins a session with the switch that has connected, if one has.
    fn look(&mut self) -> Result<(), PeerError> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let asked = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&NOW));
        if asked.is_ok_and(|count| count > 0) {
            let vmm = Frontend::accept(listener).map_err(|error| self.failed(error))?;
            self.vmm = None;
            self.begin(vmm)?;
        }
        Ok(())
    }
}

/// No waiting.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

impl End {
    /// Queues a frame, or sends its payload; false where there is no room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        match self {
            End::Rings(rings) => {
                let guest = &mut rings.guest;
                let taken = guest.transmitq.outstanding() < WAITING
                    && guest.send(frame, Offload::default(), &Shape::whole());
                guest.transmitq.publish();
                taken
            }
            End::Socket(socket) => socket.send(&frame[NUMBER..]).is_ok(),
        }
    }

    /// Takes back what was sent; begins a session with a switch that is there again.
    pub fn tend(&mut self) -> Result<(), PeerError> {
        if let End::Rings(rings) = self {
            rings.guest.reclaim();
            rings.look()?;
        }
        Ok(())
    }

    /// Gives `take` each frame that has come; of a socket behind as many zeros as it has no
    /// headers.
    pub fn receive(&mut self, mut take: impl FnMut(&[u8])) {
        match self {
            End::Rings(rings) => {
                for received in rings.guest.receive() {
                    take(&received.frame);
                }
            }
            End::Socket(socket) => {
                let mut frame = [0; 128];
                while let Ok(len) = socket.recv(&mut frame[NUMBER..]) {
                    take(&frame[..NUMBER + len]);
                }
            }
        }
    }
}
