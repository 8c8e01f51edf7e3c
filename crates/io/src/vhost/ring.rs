//! One ring as its VMM has described it, and the queue made of that.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::request::RingAddresses;
use super::split::{QueueError, QueueSetup, SplitQueue};
use crate::guest_memory::GuestMemory;

/// Where in the available ring to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// As the VMM says. The ring's own used index is what is begun with: all that is taken from a ring is given
    /// back before it is stopped, so the two are the same, unless the VMM has lost count (virtio-user says 0
    /// after every reconnection).
    Given(u16),
    /// As the queue itself was left; the VMM has not spoken since.
    Kept(u16),
}

impl Base {
    pub fn index(self) -> u16 {
        match self {
            Base::Given(index) | Base::Kept(index) => index,
        }
    }
}

/// What is known of a ring. While a worker has the queue, its descriptors are with the queue.
#[derive(Debug)]
pub(super) struct Ring {
    /// Entries, a power of two; 0 before SET_VRING_NUM.
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub base: Base,
    pub kick: Option<OwnedFd>,
    pub call: Option<OwnedFd>,
    /// Between SET_VRING_KICK and GET_VRING_BASE.
    pub started: bool,
    /// As SET_VRING_ENABLE says.
    pub enabled: bool,
    /// Why the ring, though started, does not run. It stays stopped until it is started anew.
    pub fault: Option<String>,
    /// The fault is of how the ring lies in memory: other memory may mend it.
    misplaced: bool,
}

/// A ring at one moment, for dumps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingInfo {
    /// Entries; 0 before the VMM has said it.
    pub size: u16,
    /// The VMM has started it.
    pub started: bool,
    /// The VMM lets it run.
    pub enabled: bool,
    /// Why it does not run although it could.
    pub fault: Option<String>,
}

impl Default for Ring {
    fn default() -> Self {
        Ring {
            size: 0,
            addresses: None,
            base: Base::Given(0),
            kick: None,
            call: None,
            started: false,
            enabled: false,
            fault: None,
            misplaced: false,
        }
    }
}

impl Ring {
    /// The guest's memory is another: what failed for the old one is tried again.
    pub fn memory_changed(&mut self) {
        if std::mem::take(&mut self.misplaced) {
            self.fault = None;
        }
    }

    /// The queue, if everything is known that it takes. An error is kept as the ring's fault.
    pub fn run(
        &mut self,
        memory: &Arc<GuestMemory>,
        features: u64,
    ) -> Result<Option<SplitQueue>, QueueError> {
        let (true, Some(addresses)) = (
            self.started && self.size > 0 && self.fault.is_none(),
            self.addresses,
        ) else {
            return Ok(None);
        };
        let setup = QueueSetup {
            memory: Arc::clone(memory),
            size: self.size,
            desc: addresses.descriptors,
            avail: addresses.available,
            used: addresses.used,
            features,
            last_avail: match self.base {
                Base::Given(_) => None,
                Base::Kept(index) => Some(index),
            },
            kick: self.kick.take(),
            call: self.call.take(),
        };
        match SplitQueue::new(setup) {
            Ok(queue) => Ok(Some(queue)),
            Err(error) => {
                self.misplaced = matches!(error, QueueError::Outside { .. } | QueueError::Misaligned { .. });
                self.fault = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// The queue comes back from a worker; `broken` if the worker has stopped it.
    pub fn take_back(&mut self, queue: SplitQueue, broken: Option<String>) {
        let parts = queue.into_parts();
        self.base = Base::Kept(parts.last_avail);
        self.kick = parts.kick;
        self.call = parts.call;
        self.fault = broken;
    }

    /// GET_VRING_BASE: the ring is left alone until it is started again.
    pub fn stop(&mut self) {
        self.started = false;
        self.fault = None;
        self.kick = None;
    }

    pub fn info(&self, enabled: bool) -> RingInfo {
        RingInfo {
            size: self.size,
            started: self.started,
            enabled,
            fault: self.fault.clone(),
        }
    }
}
