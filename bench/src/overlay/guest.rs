//! The guest of a host under test: rings of vhost-user, or for the kernel's bridge what it takes
//! from a container and from a virtual machine; or none.

use std::time::{Duration, Instant};

use testkit::vhost_frontend::Frontend;
use wire::offload::Offload;
use xdp::Attachment;

use super::kernel::Ports;
use crate::guest::{Guest, pause};
use crate::interrupt;
use crate::load::Turns;
use crate::peers::PeerError;

/// Pauses of a driver that found nothing to do.
const GAP: u32 = 200;

/// Frames that a driver of rings moves at a time.
const MOST: u16 = 256;

/// A guest, connected.
pub enum Side {
    /// Rings, driven by this process.
    Rings {
        /// The driver.
        guest: Box<Guest>,
        /// The session.
        _sessions: Vec<Frontend>,
    },
    /// Ports of a bridge.
    Ports(Box<Ports>),
    /// What arrives at the host is counted by its interface, and dropped there.
    Discard { _sink: Attachment },
}

impl Side {
    /// Sends one frame.
    pub fn say(&mut self, frame: &[u8]) -> Result<(), PeerError> {
        match self {
            Side::Rings { guest, .. } => {
                guest.prepare(frame, &Offload::default());
                guest.send(1, |_| ());
                Ok(())
            }
            Side::Ports(ports) => ports.send(frame, 1),
            Side::Discard { .. } => Ok(()),
        }
    }

    /// Sends the same frame for so long, as often as it is taken.
    pub fn flood(
        &mut self,
        frame: &[u8],
        offload: &Offload,
        turns: &mut Turns,
        time: Duration,
    ) -> Result<(), PeerError> {
        let guest = match self {
            Side::Rings { guest, .. } => guest,
            Side::Ports(ports) => return ports.flood(frame, offload, time),
            Side::Discard { .. } => return Ok(()),
        };
        let start = Instant::now();
        let chunk = MOST.min(guest.transmit.size / 4);
        while start.elapsed() < time {
            interrupt::check()?;
            for _ in 0..16 {
                if guest.offer(chunk, |write| turns.next(write)) == 0 {
                    pause(GAP);
                }
            }
        }
        Ok(())
    }

    /// What is sent with [`flood`](Side::flood) from now on.
    pub fn prepare(&mut self, frame: &[u8], offload: &Offload) {
        if let Side::Rings { guest, .. } = self {
            guest.prepare(frame, offload);
        }
    }

    /// Takes what has arrived. Gives how many frames, as far as they have to be taken to be
    /// counted.
    pub fn take(&mut self) -> u64 {
        match self {
            Side::Rings { guest, .. } => guest.receive().into(),
            Side::Ports(_) | Side::Discard { .. } => 0,
        }
    }
}
