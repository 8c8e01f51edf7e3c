//! Uplinks from one process to the next, which goes on with their sockets: no queue is let go of,
//! and no frame is asked what it should do meanwhile.
//!
//! Items by name: `queue INTERFACE QUEUE` (see [`XskHandle::hand_over`](io::xsk::XskHandle)),
//! `packet INTERFACE` with why it is no other, interfaces by their indices; `tap NAME`;
//! `neighbours NUMBER`, who is known to the station on that device, a line of address and MAC each,
//! which whoever does not read it asks for; `port ADDRESS`, the UDP socket that nobody reads.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::handed::{Handed, Items};
use wire::Mac;

use super::Engine;
use crate::interface::{Mode, Sockets};

/// Neighbours in one item: a line has 58 bytes at the most, and a note 16 KiB.
const NEIGHBOURS_OF_ITEM: usize = 256;

/// What another process hands over, as long as nothing was made of it.
#[derive(Default)]
pub(super) struct HandedOver {
    items: Items,
    /// True until the other process is gone for good.
    apart: Arc<AtomicBool>,
}

impl HandedOver {
    /// The sockets of an interface.
    pub fn sockets(&mut self, ifindex: u32) -> Option<Sockets> {
        if let Some(packet) = self.items.remove(&format!("packet {ifindex}")) {
            let why = String::from_utf8_lossy(&packet.note).into_owned();
            let [socket] = packet.take()?;
            return Some(Sockets::Packet { socket, why });
        }
        let queue = |queue| self.items.remove(&format!("queue {ifindex} {queue}"));
        let queues: Vec<Handed> = (0..).map_while(queue).collect();
        (!queues.is_empty()).then_some(Sockets::Queues(queues))
    }

    /// The TAP device of that name.
    pub fn tap(&mut self, name: &str) -> Option<OwnedFd> {
        let [device] = self.items.remove(&format!("tap {name}"))?.take()?;
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
    /// Goes on with what another process [hands over](Self::hand_over). As long as `apart` is true
    /// that process may go on itself.
    pub fn with_handed(mut self, items: Items, apart: Arc<AtomicBool>) -> Engine {
        self.handed = HandedOver { items, apart };
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
        let mut add = |name: String, note: Vec<u8>, fds: Vec<OwnedFd>| {
            items.insert(name, Handed { note, fds });
        };
        for (ip, socket) in self.reserved.hand_over()? {
            add(format!("port {ip}"), Vec::new(), vec![socket.into()]);
        }
        for (number, active) in &self.active {
            let name = self.names.get(*number as usize).map_or("", String::as_str);
            match &active.mode {
                Mode::Packet { why } => {
                    if let Some(socket) = active.packet.upgrade() {
                        let note = why.clone().into_bytes();
                        let socket = socket.try_clone()?;
                        add(format!("packet {}", active.ifindex), note, vec![socket]);
                    }
                }
                Mode::Tap { .. } => {
                    if let Some(device) = self.station.device() {
                        add(format!("tap {name}"), Vec::new(), vec![device?]);
                        let known = self.station.all_known();
                        for (number, some) in known.chunks(NEIGHBOURS_OF_ITEM).enumerate() {
                            let lines = some.iter().map(|(ip, mac)| format!("{ip} {mac}\n"));
                            let note = lines.collect::<String>().into_bytes();
                            add(format!("neighbours {number}"), note, Vec::new());
                        }
                    }
                }
                Mode::Xdp { .. } => {
                    for (queue, socket) in active.sockets.iter().enumerate() {
                        if let Some(handed) = socket.hand_over() {
                            let Handed { note, fds } = handed?;
                            add(format!("queue {} {queue}", active.ifindex), note, fds);
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
        self.still = true;
        Ok(items)
    }

    /// The other process has not taken over: follows the kernel's tables again, with the next
    /// [`look`](Self::look).
    pub fn go_on(&mut self) {
        self.missed |= std::mem::take(&mut self.still);
    }

    /// The queues that the workers have: the numbers of their uplinks, and theirs.
    pub fn queues(&self) -> Vec<(u32, u16)> {
        let of = |(number, queues)| (0..queues).map(move |queue| (number, queue));
        let uplinks = self.active.iter();
        let uplinks = uplinks.map(|(number, active)| (*number, active.queues));
        uplinks.flat_map(of).collect()
    }
}
