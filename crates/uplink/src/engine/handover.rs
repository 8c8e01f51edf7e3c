//! Uplinks from one process to the next, which goes on with their sockets: no queue is let go of,
//! and no frame is asked what it should do meanwhile. So it is with a process that another one is
//! there beside ([`Engine::hand_over`]), and with one that is killed
//! ([`Engine::hold_sockets`]), from which the next one has the sockets alone.
//!
//! Items by name: `queue INTERFACE QUEUE` (see [`XskHandle::hand_over`](io::xsk::XskHandle)),
//! `packet INTERFACE` with why it is no other, interfaces by their indices; `tap NAME`;
//! `neighbours NUMBER`, who is known to the station on that device, a line of address and MAC each,
//! which whoever does not read it asks for; `port ADDRESS`, the UDP socket that nobody reads. Held
//! are sockets, and the TAP device, which would go with its last descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::handed::{Handed, Items};
use wire::Mac;

use super::Engine;
use super::joining::Active;
use crate::interface::{Mode, Sockets};

/// Neighbours in one item: a line has 58 bytes at the most, and a note 16 KiB.
const NEIGHBOURS_OF_ITEM: usize = 256;

/// What another process hands over, as long as nothing was made of it.
#[derive(Default)]
pub(super) struct HandedOver {
    items: Items,
    /// True until the other process is gone for good.
    apart: Arc<AtomicBool>,
    /// It has ended, and somebody has [held](Engine::hold_sockets) this since.
    pub has_ended: bool,
}

/// Who has sockets outlive this process.
pub(super) struct Holder {
    hold: Box<HoldSocket>,
    /// The names of those that it has.
    held: BTreeSet<String>,
}

type HoldSocket = dyn Fn(&str, Option<Handed>) + Send;

impl Holder {
    fn hold(&mut self, name: String, socket: Handed) {
        (self.hold)(&name, Some(socket));
        self.held.insert(name);
    }

    fn release(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.held.remove(&name);
            (self.hold)(&name, None);
        }
    }
}

impl HandedOver {
    /// The sockets of an interface.
    pub fn sockets(&mut self, ifindex: u32) -> Option<Sockets> {
        if let Some(packet) = self.items.remove(&packet_name(ifindex)) {
            let why = String::from_utf8_lossy(&packet.note).into_owned();
            let [socket] = packet.take()?;
            return Some(Sockets::Packet { socket, why });
        }
        let queue = |queue: u32| self.items.remove(&queue_name(ifindex, queue));
        let queues: Vec<Handed> = (0..).map_while(queue).collect();
        (!queues.is_empty()).then_some(Sockets::Queues(queues))
    }

    /// The TAP device of that name.
    pub fn tap(&mut self, name: &str) -> Option<OwnedFd> {
        let [device] = self.items.remove(&tap_name(name))?.take()?;
        Some(device)
    }

    /// The neighbours of the station on it.
    pub fn neighbours(&mut self) -> Vec<(IpAddr, Mac)> {
        let is_one = |name: &String, _: &mut Handed| name.starts_with("neighbours ");
        let items = self.items.extract_if(.., is_one);
        let notes: Vec<Vec<u8>> = items.map(|(_, item)| item.note).collect();
        let read = |line: &str| {
            let (ip, mac) = line.split_once(' ')?;
            Some((ip.parse().ok()?, mac.parse().ok()?))
        };
        let texts = notes
            .iter()
            .filter_map(|note| std::str::from_utf8(note).ok());
        texts.flat_map(str::lines).filter_map(read).collect()
    }

    /// The other process goes on should this one not take over: nothing is to be made that frames
    /// of its go to.
    pub fn is_apart(&self) -> bool {
        self.apart.load(Ordering::SeqCst)
    }

    /// The sockets on our addresses.
    fn ports(&mut self) -> BTreeMap<IpAddr, UdpSocket> {
        let of = |name: &String| name.strip_prefix("port ")?.parse().ok();
        let mut ports = BTreeMap::new();
        let names: Vec<String> = self.items.keys().cloned().collect();
        for name in names {
            if let Some(ip) = of(&name)
                && let Some([socket]) = self.items.remove(&name).and_then(Handed::take)
            {
                ports.insert(ip, UdpSocket::from(socket));
            }
        }
        ports
    }
}

impl Engine {
    /// Has `hold` told of each socket of an interface, and of the TAP device, that another process
    /// can go on with when this one is killed, by its name and as it is
    /// [handed over](Self::hand_over), and with `None` of each that is closed. Not of those in
    /// zero-copy mode, whose driver alone knows its buffers.
    pub fn hold_sockets(mut self, hold: impl Fn(&str, Option<Handed>) + Send + 'static) -> Engine {
        let (hold, held) = (Box::new(hold), BTreeSet::new());
        self.holder = Some(Holder { hold, held });
        self
    }

    /// Goes on with what a process that has ended had [held](Self::hold_sockets).
    pub fn with_left(mut self, items: Items) -> Engine {
        if let Some(holder) = &mut self.holder
            && !items.is_empty()
        {
            holder.held.extend(items.keys().cloned());
            self.handed.items = items;
            self.handed.has_ended = true;
        }
        self
    }

    /// What no interface has asked for of what was [left](Self::with_left) is closed.
    pub fn forget_left(&mut self) {
        if self.handed.has_ended {
            let unused = std::mem::take(&mut self.handed.items).into_keys();
            if let Some(holder) = &mut self.holder {
                holder.release(unused);
            }
        }
    }

    /// Has the sockets of an uplink held, or its TAP device.
    pub(super) fn hold(&mut self, number: u32) {
        let (Some(active), Some(holder)) = (self.active.get(&number), &mut self.holder) else {
            return;
        };
        let name = self.names.get(number as usize).map_or("", String::as_str);
        if let Mode::Tap { .. } = active.mode {
            match self.station.device() {
                Some(Ok(device)) => {
                    let (note, fds) = (Vec::new(), vec![device]);
                    holder.hold(tap_name(name), Handed { note, fds });
                }
                Some(Err(e)) => tracing::error!("uplink '{name}' goes with this process: {e}"),
                None => (),
            }
            return;
        }
        if let Mode::Xdp { sockets, .. } = &active.mode
            && sockets.zero_copy
        {
            return;
        }
        match active.sockets() {
            Ok(sockets) => {
                for (name, socket) in sockets {
                    holder.hold(name, socket);
                }
            }
            Err(e) => tracing::error!("sockets of uplink '{name}' go with this process: {e}"),
        }
    }

    /// Lets the sockets of an interface go that are held.
    pub(super) fn release(&mut self, ifindex: u32) {
        let (packet, queue) = (packet_name(ifindex), queue_name(ifindex, ""));
        if let Some(holder) = &mut self.holder {
            let of_interface = |name: &&String| **name == packet || name.starts_with(&queue);
            let names = holder.held.iter().filter(of_interface).cloned();
            let names: Vec<String> = names.collect();
            holder.release(names);
        }
    }

    /// Lets the TAP device of that name go, if it is held.
    pub(super) fn release_tap(&mut self, name: &str) {
        let name = tap_name(name);
        if let Some(holder) = &mut self.holder
            && holder.held.contains(&name)
        {
            holder.release([name]);
        }
    }

    /// Goes on with what another process [hands over](Self::hand_over). As long as `apart` is true
    /// that process may go on itself.
    pub fn with_handed(mut self, items: Items, apart: Arc<AtomicBool>) -> Engine {
        self.handed = HandedOver {
            items,
            apart,
            has_ended: false,
        };
        let ports = self.handed.ports();
        self.reserved.hand(ports);
        self
    }

    /// Stands still from now on, whatever the kernel's tables say, and gives what another process
    /// goes on by.
    ///
    /// # Errors
    /// The process is out of descriptors; a device of DPDK's is this process's alone. It does not
    /// stand still then.
    pub fn hand_over(&mut self) -> std::io::Result<Items> {
        let mut items = Items::new();
        let item = |note: Vec<u8>, fds: Vec<OwnedFd>| Handed { note, fds };
        for (ip, socket) in self.reserved.hand_over()? {
            items.insert(format!("port {ip}"), item(Vec::new(), vec![socket.into()]));
        }
        for (number, active) in &self.active {
            let name = self.names.get(*number as usize).map_or("", String::as_str);
            match &active.mode {
                Mode::Packet { .. } | Mode::Xdp { .. } => items.extend(active.sockets()?),
                Mode::Tap { .. } => {
                    if let Some(device) = self.station.device() {
                        items.insert(tap_name(name), item(Vec::new(), vec![device?]));
                        let known = self.station.all_known();
                        for (number, some) in known.chunks(NEIGHBOURS_OF_ITEM).enumerate() {
                            let lines = some.iter().map(|(ip, mac)| format!("{ip} {mac}\n"));
                            let note = lines.collect::<String>().into_bytes();
                            items.insert(format!("neighbours {number}"), item(note, Vec::new()));
                        }
                    }
                }
                Mode::Dpdk { device, .. } => {
                    return Err(std::io::Error::other(format!(
                        "DPDK's device {device} is this process's alone"
                    )));
                }
            }
        }
        for number in self.active.keys() {
            self.leave_arrivals(*number);
        }
        self.still = true;
        Ok(items)
    }

    /// The other process has not taken over: follows the kernel's tables again, with the next
    /// [`look`](Self::look).
    pub fn go_on(&mut self) {
        if std::mem::take(&mut self.still) {
            self.missed = true;
            for number in self.active.keys() {
                self.join_arrivals(*number);
            }
        }
    }

    /// The queues that the workers have: the numbers of their uplinks, and theirs.
    pub fn queues(&self) -> Vec<(u32, u16)> {
        let of = |(number, queues)| (0..queues).map(move |queue| (number, queue));
        let uplinks = self.active.iter();
        let uplinks = uplinks.map(|(number, active)| (*number, active.queues));
        uplinks.flat_map(of).collect()
    }
}

impl Active {
    /// The sockets, each by its name among what is handed over.
    fn sockets(&self) -> std::io::Result<Items> {
        let mut items = Items::new();
        if let (Mode::Packet { why }, Some(socket)) = (&self.mode, self.packet.upgrade()) {
            let note = why.clone().into_bytes();
            let fds = vec![socket.try_clone()?];
            items.insert(packet_name(self.ifindex), Handed { note, fds });
        }
        for (queue, socket) in self.sockets.iter().enumerate() {
            if let Some(handed) = socket.hand_over() {
                items.insert(queue_name(self.ifindex, queue), handed?);
            }
        }
        Ok(items)
    }
}

/// What the names begin with of TAP devices.
const TAP: &str = "tap ";

/// Whether it is a TAP device that is handed over by this name. Others have no hand in it but by
/// the frames that wait there.
pub fn is_tap_name(name: &str) -> bool {
    name.starts_with(TAP)
}

fn tap_name(name: &str) -> String {
    format!("{TAP}{name}")
}

fn packet_name(ifindex: u32) -> String {
    format!("packet {ifindex}")
}

fn queue_name(ifindex: u32, queue: impl Display) -> String {
    format!("queue {ifindex} {queue}")
}
