//! The uplink of a host where no interface is: a TAP device of ours.

use std::sync::{Arc, Weak};

use io::packet_socket::Packets;
use io::xsk::Link;
use netlink::Snapshot;

use super::Engine;
use crate::facts::Fact;
use crate::interface::{JoinRequest, Joined, Mode};

/// What the kernel gives a TAP device.
const MTU: u32 = 1500;

impl Engine {
    /// Makes the device if it is not there, and follows it.
    pub(super) fn follow_tap(&mut self, number: u32, name: &str, kernel: &Snapshot) -> Fact {
        if let Some(why) = self
            .active
            .get_mut(&number)
            .and_then(|active| active.broken.take())
        {
            self.leave(number, &why);
        }
        let mut fact = Fact {
            number,
            interface: name.to_owned(),
            ifindex: 0,
            joined: false,
            mode: String::new(),
            why: String::new(),
            queues: 1,
            mtu: MTU,
            up: false,
            tap: true,
            of_kernel: false,
            mac: Some(self.station.mac()),
            addresses: self.settings.addresses.clone(),
        };
        if !self.active.contains_key(&number)
            && let Err(why) = self.open_tap(number, name)
        {
            if self
                .facts
                .iter()
                .all(|known| known.number != number || known.why != why)
            {
                tracing::warn!("uplink '{name}' cannot be made: {why}");
            }
            fact.why = why;
            return fact;
        }
        if let Some(active) = self.active.get(&number) {
            // These tables may be older than the device, which was made up and running.
            if let Some(link) = kernel.link_named(name) {
                fact.ifindex = link.index;
                active.link.change(link.mtu, link.up && link.carrier);
            }
            (fact.joined, fact.up, fact.mtu) = (true, active.link.is_up(), active.link.mtu());
            (fact.mode, fact.why) = (active.mode.to_string(), active.mode.why().to_owned());
        }
        fact
    }

    fn open_tap(&mut self, number: u32, name: &str) -> Result<(), String> {
        let addresses: Vec<String> = self
            .settings
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let link = Arc::new(Link::new(MTU, true));
        let handed = self.handed.tap(name);
        if handed.is_some() {
            self.station.take_up(self.handed.neighbours().into_iter());
        }
        let has_left = handed.is_some() && self.handed.has_ended;
        let port = match self.station.open(name, link.clone(), handed) {
            Err(why) if has_left => {
                tracing::info!("what is left of uplink '{name}' is of no use: {why}");
                self.release_tap(name);
                self.station.open(name, link.clone(), None)
            }
            opened => opened,
        };
        let port = port.map_err(|e| e.to_string())?;
        let request = JoinRequest {
            name: name.to_owned(),
            ifindex: 0,
            number,
            queues: 1,
            link,
            frames: self.options.frames,
            mode: None,
            busy_poll: false,
            is_virtual: true,
            packets: Packets::All,
        };
        let joined = Joined {
            ports: vec![port.into()],
            sockets: Vec::new(),
            packet: Weak::new(),
            mode: Mode::Tap {
                why: format!(
                    "no interface is named, and none has {}",
                    addresses.join(", ")
                ),
            },
            mtu_max: u32::from(u16::MAX),
        };
        self.install(number, None, &request, joined)
    }
}
