//! One queue pair of a session: its two rings, and the port that a worker has of them while one of
//! them can run.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use tracing::info;

use crate::guest_memory::GuestMemory;
use crate::port::Port;
use crate::vhost::features;
use crate::vhost::protocol::breach::Breach;
use crate::vhost::protocol::log_lines::{Line, Lines};
use crate::vhost::protocol::ring_state::{Base, Log, RingInfo, RingState};
use crate::vhost::protocol::sink::{PortKey, PortSink};
use crate::vhost::virtqueue::port::{PortParts, VhostPort};
use crate::vhost::virtqueue::queue::Queue;

/// Rings of a pair: the one that the guest receives from comes first, then the one that it
/// transmits on.
pub(in crate::vhost) const RINGS: usize = 2;
const RECEIVEQ: usize = 0;
const TRANSMITQ: usize = 1;

/// Whose pair it is, and where its port goes.
#[derive(Clone, Copy)]
pub(in crate::vhost) struct Owner<'a> {
    pub key: PortKey,
    /// What log lines call the NIC.
    pub nic: &'a str,
    pub sink: &'a dyn PortSink,
    /// The pair's number.
    pub pair: u16,
    pub lines: &'a RefCell<Lines>,
}

/// What all pairs of a session have in common.
#[derive(Clone, Copy)]
pub(in crate::vhost) struct Common<'a> {
    pub memory: &'a Arc<GuestMemory>,
    pub features: u64,
    pub mtu: Option<u16>,
    pub log: Option<&'a Log>,
}

#[derive(Default)]
pub(in crate::vhost) struct Pair {
    pub rings: [RingState; RINGS],
    /// The port is with a worker, and with it the rings' descriptors.
    attached: bool,
    /// The port passes frames: it is not there for a ring alone that was turned off.
    up: bool,
}

impl Pair {
    /// Frames can pass, one way at least.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Takes the port back from its worker, and its parts apart.
    pub fn unplug(&mut self, owner: Owner<'_>) {
        if self.attached {
            self.take_back(owner.sink.detach(owner.key, owner.pair));
        }
    }

    /// Takes a port apart that its worker had; `None`: the worker has none any more.
    pub fn take_back(&mut self, port: Option<Port>) {
        (self.attached, self.up) = (false, false);
        let Some(Port::Vhost(port)) = port else {
            // The worker is stopping: nothing will run again before the VMM starts over.
            self.rings.iter_mut().for_each(RingState::stop);
            return;
        };
        let broken = port.info().broken;
        let PortParts {
            receiveq,
            transmitq,
            ..
        } = port.into_parts();
        for (ring, queue) in self.rings.iter_mut().zip([receiveq, transmitq]) {
            if let Some(queue) = queue {
                ring.take_back(queue, broken.clone());
            }
        }
    }

    /// Hands a port to a worker if it has none and a ring can run. With one of the two rings the
    /// pair works one way, and a transmit ring that was turned off is only emptied.
    pub fn plug(&mut self, owner: Owner<'_>, common: Common<'_>) -> Result<(), Breach> {
        if self.attached {
            return Ok(());
        }
        let (mut queues, mut result) = ([None, None], Ok(()));
        for (at, queue) in queues.iter_mut().enumerate() {
            match self.run_ring(at, owner, common) {
                Ok(made) => *queue = made,
                Err(breach) => result = Err(breach),
            }
        }
        if queues.iter().any(Option::is_some) {
            let [receiveq, transmitq] = queues;
            let port = VhostPort::new(PortParts {
                memory: Arc::clone(common.memory),
                features: common.features,
                receiveq,
                transmitq,
                transmitq_off: self.rings[TRANSMITQ].turned_off,
                mtu: common.mtu,
            });
            self.up = port.is_up();
            owner.sink.attach(owner.key, owner.pair, port.into());
            self.attached = true;
        }
        result
    }

    fn run_ring(
        &mut self,
        at: usize,
        owner: Owner<'_>,
        common: Common<'_>,
    ) -> Result<Option<Queue>, Breach> {
        let emptied = at == TRANSMITQ && self.rings[at].turned_off;
        if !emptied && !is_enabled(&self.rings[at], Some(common.features)) {
            return Ok(None);
        }
        let index = usize::from(owner.pair) * RINGS + at;
        let ring = &mut self.rings[at];
        let queue = ring
            .run(common.memory, common.features, common.log)
            .map_err(|error| Breach::Queue {
                ring: index as u32,
                error,
            })?;
        if let (Some(queue), Base::Given(base)) = (&queue, ring.base)
            && base as u16 != queue.last_avail()
            && let Some(Line { left_out }) = owner.lines.borrow_mut().take(Instant::now())
        {
            let at = queue.last_avail();
            info!(
                nic = owner.nic,
                left_out, "ring {index} goes on at {at}, where it was, not at {base}"
            );
        }
        Ok(queue)
    }

    /// Why one of the rings, though started, does not run.
    pub fn fault(&self) -> Option<&String> {
        self.rings.iter().find_map(|ring| ring.fault.as_ref())
    }

    /// A ring cannot run before a part of it has come from the host that the guest was on.
    pub fn awaits_pages(&self) -> bool {
        self.rings.iter().any(|ring| ring.awaits_pages)
    }

    /// A worker has its port.
    pub fn is_attached(&self) -> bool {
        self.attached
    }

    /// The VMM has said something of its rings.
    pub fn is_known(&self) -> bool {
        self.attached
            || self
                .rings
                .iter()
                .any(|ring| ring.size > 0 || ring.started || ring.enabled)
    }

    pub fn info(&self, features: Option<u64>) -> [RingInfo; RINGS] {
        [RECEIVEQ, TRANSMITQ].map(|at| self.rings[at].info(is_enabled(&self.rings[at], features)))
    }
}

/// Rings start enabled unless the VMM has taken PROTOCOL_FEATURES, which brings the request to
/// enable them.
fn is_enabled(ring: &RingState, features: Option<u64>) -> bool {
    ring.enabled || features.is_some_and(|features| features & features::PROTOCOL_FEATURES == 0)
}
