//! A device that DPDK drives, as an uplink.
//!
//! The kernel does not see it, so it gets an end of its own, a TAP device with the NIC's address
//! and MTU. Addresses, neighbours and routes are the kernel's there as on any interface; the plan,
//! the next hops and the groups need to know nothing of it. It has no XDP program: its ports tell
//! VXLAN from the rest themselves.

use std::sync::{Arc, Weak};

use dpdk::{Device, Queue, QueueOptions};
use io::dpdk::DpdkPort;
use io::tap::{TapBeside, TapOptions};
use wire::Mac;

use crate::interface::{JoinRequest, Joined, Mode};

/// A device and the kernel's end of it. There is one at the most.
#[derive(Debug)]
pub struct DpdkUplink {
    device: Arc<Device>,
    beside: Arc<TapBeside>,
    /// So many queues are of use: the workers.
    queues: u16,
}

impl DpdkUplink {
    /// Makes the kernel's end, by this name. `queues`: as many as there are workers. To be called
    /// in the network namespace of the uplinks.
    ///
    /// # Errors
    /// A sentence: the interface cannot be made.
    pub fn new(device: Device, name: &str, queues: u16) -> Result<DpdkUplink, String> {
        let options = TapOptions {
            name: name.to_owned(),
            mac: Mac(device.mac()),
            mtu: Some(device.mtu()),
            offloads: false,
        };
        let beside = TapBeside::open(&options).map_err(|error| error.to_string())?;
        Ok(DpdkUplink {
            device: Arc::new(device),
            beside: Arc::new(beside),
            queues,
        })
    }

    /// The name of the kernel's end, which is the uplink's.
    pub fn name(&self) -> &str {
        self.beside.name()
    }

    /// Opens the device's queues, for this MTU.
    pub(crate) fn join(&self, request: &JoinRequest, port: u16) -> Result<Joined, String> {
        if self.device.is_removed() {
            return Err(gone(&self.device));
        }
        let mtu = u16::try_from(request.link.mtu()).unwrap_or(u16::MAX);
        let options = QueueOptions {
            queues: self.queues,
            frames: u16::try_from(request.frames)
                .unwrap_or(u16::MAX)
                .min(FRAMES_MAX),
            mtu,
        };
        let queues = self
            .device
            .open(options)
            .map_err(|error| error.to_string())?;
        let made = |queue: Queue| {
            let link = request.link.clone();
            DpdkPort::new(queue, &self.device, self.beside.clone(), link, port).into()
        };
        self.follow_link();
        Ok(Joined {
            ports: queues.into_iter().map(made).collect(),
            sockets: Vec::new(),
            packet: Weak::new(),
            mode: Mode::Dpdk {
                driver: self.device.driver().to_owned(),
                device: self.device.name().to_owned(),
                sums: self.device.sums(),
            },
            mtu_max: mtu.into(),
        })
    }

    /// Tells the kernel whether there is a link. Why the device is of no use any more, if it was
    /// taken away.
    pub(crate) fn look(&self) -> Option<String> {
        if self.device.is_removed() {
            self.beside.set_carrier(false);
            return Some(gone(&self.device));
        }
        self.follow_link();
        None
    }

    /// What the device has counted.
    pub(crate) fn counters(&self) -> dpdk::Counters {
        self.device.counters()
    }

    fn follow_link(&self) {
        self.beside.set_carrier(self.device.is_up());
    }
}

/// Frames that wait in a queue at the most: each has a buffer of its own.
const FRAMES_MAX: u16 = 1024;

fn gone(device: &Device) -> String {
    format!("DPDK's device {} was taken away", device.name())
}
