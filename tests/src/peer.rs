//! A guest that is a ring driver in this process, connected to the daemon as a VMM is: it sends any
//! frame, and gets whole frames back to compare.

use io::vhost::features;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Result;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::Frontend;
use wire::offload::Offload;

/// A connected guest.
pub struct Peer {
    guest: Guest,
    _frontend: Frontend,
}

impl Peer {
    /// Connects to the NIC's socket and starts a split ring of 256 entries in each direction.
    pub fn connect(socket: &Path) -> Result<Self> {
        let guest = Guest::new(GuestOptions::default());
        let fail = |e: std::io::Error| format!("a ring driver at {}: {e}", socket.display());
        let mut frontend = Frontend::connect(socket).map_err(fail)?;
        let wanted = GuestOptions::default().features | features::PROTOCOL_FEATURES;
        let taken = frontend.negotiate(wanted).map_err(fail)?;
        if taken != wanted {
            return Err(format!("the switch offers {taken:#x} of {wanted:#x}"));
        }
        frontend.start(&guest, [0, 0]).map_err(fail)?;
        Ok(Self {
            guest,
            _frontend: frontend,
        })
    }

    /// Sends frames, all of them shown to the switch at once.
    pub fn send(&mut self, frames: &[Vec<u8>]) -> Result<()> {
        self.guest.reclaim();
        for frame in frames {
            if !self.guest.send(frame, Offload::default(), &Shape::whole()) {
                return Err("the switch has not taken what was sent before".to_owned());
            }
        }
        self.guest.transmitq.publish();
        Ok(())
    }

    /// Waits for `count` frames.
    pub fn receive(&mut self, count: usize, patience: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = Instant::now() + patience;
        let mut frames = Vec::new();
        while frames.len() < count {
            if Instant::now() >= deadline {
                return Err(format!(
                    "{} of {count} frames came in {patience:?}",
                    frames.len()
                ));
            }
            // Far shorter than the steps of `wait_for`: a test waits here thousands of times.
            std::thread::sleep(Duration::from_micros(50));
            frames.extend(self.arrived());
        }
        Ok(frames)
    }

    /// What has come, without waiting.
    pub fn arrived(&mut self) -> Vec<Vec<u8>> {
        let received = self.guest.receive();
        received
            .into_iter()
            .map(|received| received.frame)
            .collect()
    }
}
