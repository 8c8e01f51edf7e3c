//! One ring as its VMM has described it, and the queue made of that.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::guest_memory::GuestMemory;
use crate::vhost::dirty_log::{DirtyLog, LogSetup};
use crate::vhost::features;
use crate::vhost::protocol::request::RingAddresses;
use crate::vhost::virtqueue::notifier::NotifyFd;
use crate::vhost::virtqueue::queue::Queue;
use crate::vhost::virtqueue::ring::Begin;
use crate::vhost::virtqueue::ring::QueueError;
use crate::vhost::virtqueue::ring::QueueSetup;

/// Where in the available ring to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) enum Base {
    /// Where the VMM says. The ring itself is asked first, since the VMM may have lost count
    /// (virtio-user says 0 after every reconnection, QEMU where a packed ring was when its device
    /// was last started).
    Given(u32),
    /// Where the queue itself stopped; the VMM has not spoken since.
    Kept(u16),
    /// Nobody has said anything: where a new ring begins.
    New,
}

impl Base {
    /// What the VMM is told (GET_VRING_BASE). Of a packed ring both places, which are the same
    /// since all that is taken is given back: the next slot to take in the lower half, the next to
    /// be used in the upper.
    pub fn value(self, packed: bool) -> u32 {
        match self {
            Base::Given(value) => value,
            Base::Kept(next) if packed => u32::from(next) << 16 | u32::from(next),
            Base::Kept(next) => next.into(),
            Base::New if packed => 0x8000_8000,
            Base::New => 0,
        }
    }

    /// For [`QueueSetup`]. Of a packed ring only the lower half of what the VMM says counts, as in
    /// DPDK: virtio-user leaves the upper one zero.
    fn begin(self) -> Begin {
        match self {
            Base::Given(value) => Begin::AsItWas { told: value as u16 },
            Base::Kept(next) => Begin::At(next),
            Base::New => Begin::AS_IT_WAS,
        }
    }
}

/// Where written pages are to be noted, for all rings that are to note them.
#[derive(Clone, Debug)]
pub(in crate::vhost) struct Log {
    pub log: Arc<DirtyLog>,
    /// Raised when something was noted.
    pub call: Option<Arc<OwnedFd>>,
}

/// What is known of a ring. While a worker has the queue, its descriptors are with the queue.
#[derive(Debug)]
pub(in crate::vhost) struct RingState {
    /// Entries; 0 before SET_VRING_NUM.
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub base: Base,
    pub kick: Option<NotifyFd>,
    pub call: Option<NotifyFd>,
    /// Between SET_VRING_KICK and GET_VRING_BASE.
    pub started: bool,
    /// What SET_VRING_ENABLE said last.
    pub enabled: bool,
    /// It was enabled and is no more: what a guest has put into it meanwhile is to be taken out.
    pub turned_off: bool,
    /// Why the ring, though started, does not run. It stays stopped until it is started anew.
    pub fault: Option<String>,
    /// It cannot run before a part of it has come from the host that the guest was on.
    pub awaits_pages: bool,
    /// The fault is of how the ring lies in memory, or of what the log has bits for: other memory,
    /// or another log, may mend it.
    misplaced: bool,
}

/// What the VMM has said of a ring, and why it does not run, for dumps.
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

impl Default for RingState {
    fn default() -> Self {
        RingState {
            size: 0,
            addresses: None,
            base: Base::New,
            kick: None,
            call: None,
            started: false,
            enabled: false,
            turned_off: false,
            fault: None,
            awaits_pages: false,
            misplaced: false,
        }
    }
}

impl RingState {
    /// The guest's memory is another, or the log, or what is to be in it: what failed for the old
    /// one is tried again.
    pub fn memory_changed(&mut self) {
        if std::mem::take(&mut self.misplaced) {
            self.fault = None;
        }
    }

    /// The queue, if everything is known that it takes. An error is kept as the ring's fault.
    pub fn run(
        &mut self,
        memory: &Arc<GuestMemory>,
        negotiated: u64,
        log: Option<&Log>,
    ) -> Result<Option<Queue>, QueueError> {
        self.awaits_pages = false;
        let (true, Some(addresses)) = (
            self.started && self.size > 0 && self.fault.is_none(),
            self.addresses,
        ) else {
            return Ok(None);
        };
        let used = addresses.is_logged().then_some(addresses.log);
        let buffers = negotiated & features::LOG_ALL != 0;
        let log = log.filter(|_| used.is_some() || buffers);
        let mut setup = QueueSetup {
            memory: Arc::clone(memory),
            size: self.size,
            desc: addresses.descriptors,
            avail: addresses.available,
            used: addresses.used,
            features: negotiated,
            begin: self.base.begin(),
            kick: self.kick.take(),
            call: self.call.take(),
            log: log.map(|Log { log, call }| LogSetup {
                log: Arc::clone(log),
                call: call.clone(),
                buffers,
                used,
            }),
        };
        self.awaits_pages = !Queue::is_there(&setup);
        if self.awaits_pages {
            (self.kick, self.call) = (setup.kick, setup.call);
            return Ok(None);
        }
        match Queue::make(&mut setup) {
            Ok(queue) => Ok(Some(queue)),
            Err(error) => {
                (self.kick, self.call) = (setup.kick, setup.call);
                self.misplaced = matches!(
                    error,
                    QueueError::Outside { .. }
                        | QueueError::Misaligned { .. }
                        | QueueError::LogTooSmall { .. }
                        | QueueError::Lost(_)
                );
                self.fault = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// The queue comes back from a worker; `broken` if the worker has stopped it.
    pub fn take_back(&mut self, queue: Queue, broken: Option<String>) {
        let parts = queue.into_parts();
        self.base = Base::Kept(parts.last_avail);
        self.kick = parts.kick;
        self.call = parts.call;
        self.fault = broken;
    }

    /// SET_VRING_KICK. A ring that has yet to be enabled is left alone: a VMM that has come back
    /// starts it first, and what the guest has sent meanwhile is not to be lost.
    pub fn start(&mut self, kick: Option<NotifyFd>) {
        self.kick = kick;
        self.started = true;
        self.turned_off = false;
        self.fault = None;
    }

    /// A ring that was stopped for a fault may run again, from where it stopped.
    pub fn retry(&mut self) {
        self.fault = None;
        self.misplaced = false;
    }

    /// SET_VRING_ENABLE.
    pub fn enable(&mut self, enabled: bool) {
        self.turned_off = self.enabled && !enabled;
        self.enabled = enabled;
    }

    /// GET_VRING_BASE: the ring is left alone until it is started again.
    pub fn stop(&mut self) {
        self.started = false;
        self.awaits_pages = false;
        self.turned_off = false;
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
