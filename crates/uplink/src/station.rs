//! Where no interface has our address: a TAP device, and our station on it.
//!
//! The kernel keeps neighbours for every interface that has an address of ours; here it has none,
//! and whoever uses the interface is at the other end of a cable. So the station answers for our
//! addresses itself, and asks for those of other hosts ([`neighbours`]), and tells switches which
//! groups it hears ([`memberships`]). Three threads meet here: the worker that has the port lets it
//! [hear](Station::hear), whoever looks for next hops [finds](Station::find) neighbours with it,
//! the engine opens and closes the device.

mod memberships;
mod neighbours;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io::tap::{Received, Receiver, TapError, TapOptions, TapUplink, TapVoice};
use io::xsk::Link;
use wire::{Mac, membership, parse};

use memberships::Memberships;
use neighbours::{Neighbours, is_tunnel};

/// First octets of locally administered addresses (IEEE 802), one for each end of the cable.
const OURS: u8 = 0x02;
const KERNELS: u8 = 0x06;

/// Our end of the wire that a TAP device is. It exists also while the device does not.
#[derive(Debug)]
pub struct Station {
    mac: Mac,
    /// VXLAN's UDP port.
    port: u16,
    neighbours: Mutex<Neighbours>,
    memberships: Mutex<Memberships>,
    /// `None`: there is no device.
    voice: Mutex<Option<TapVoice>>,
    /// A neighbour was found, or has another MAC.
    moved: AtomicBool,
}

impl Station {
    /// The station with these addresses, and VXLAN on this UDP port. Its MAC follows from the first
    /// address, so that others know it again after a restart.
    pub(crate) fn new(addresses: &[IpAddr], port: u16) -> Station {
        let mac = mac(OURS, addresses);
        Station {
            mac,
            port,
            neighbours: Mutex::new(Neighbours::new(mac, addresses)),
            memberships: Mutex::new(Memberships::new(mac, addresses)),
            voice: Mutex::new(None),
            moved: AtomicBool::new(false),
        }
    }

    /// Its hardware address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The hardware address of a neighbour, if it is known. One that is not, or has not been heard
    /// of for a while, is asked for.
    pub fn find(&self, neighbour: IpAddr) -> Option<Mac> {
        let (known, question) = self.neighbours().find(neighbour, Instant::now());
        if let (Some(question), Some(voice)) = (question, self.voice().as_ref()) {
            // Where there is no room for it now it is asked again.
            voice.say(&question);
        }
        known
    }

    /// The hardware address of a neighbour, if it is known; nobody is asked. For a process that is
    /// not to say anything yet.
    pub fn known(&self, neighbour: IpAddr) -> Option<Mac> {
        self.neighbours().known(neighbour, Instant::now())
    }

    /// All neighbours that are known.
    pub(crate) fn all_known(&self) -> Vec<(IpAddr, Mac)> {
        self.neighbours().all(Instant::now())
    }

    /// Takes up the neighbours that another process knew.
    pub(crate) fn take_up(&self, neighbours: impl Iterator<Item = (IpAddr, Mac)>) {
        self.neighbours().take_up(neighbours, Instant::now());
    }

    /// True when other neighbours are known than when this was asked last.
    pub fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Makes the multicast groups that we hear exactly these, and tells switches and routers so
    /// (IGMP, MLD).
    pub fn join(&self, groups: &BTreeSet<IpAddr>) {
        let said = self.memberships().join(groups, Instant::now());
        self.say_all(&said);
    }

    /// Reports our groups to switches and routers where it is time to, or where they have asked. To
    /// be called every now and then, more often than once a second.
    pub fn report(&self) {
        let said = self.memberships().take_due(Instant::now());
        self.say_all(&said);
    }

    /// Where there is no room for a frame, or no device, it is lost; whoever wants to know asks
    /// again.
    fn say_all(&self, frames: &[Vec<u8>]) {
        if let Some(voice) = self.voice().as_ref() {
            for frame in frames {
                voice.say(frame);
            }
        }
    }

    /// Makes the device, or goes on with the one that another process has made, and its port, and
    /// tells the others on the wire that we are there.
    pub(crate) fn open(
        self: &Arc<Self>,
        name: &str,
        link: Arc<Link>,
        handed: Option<OwnedFd>,
    ) -> Result<TapUplink, TapError> {
        let options = TapOptions {
            name: name.to_owned(),
            mac: mac(KERNELS, &self.neighbours().addresses),
            mtu: None,
            offloads: false,
        };
        let station = self.clone();
        let receiver: Receiver = Arc::new(move |frame| station.receive(frame));
        let (port, voice) = match handed {
            Some(device) => TapUplink::adopt(device, &options, link, receiver),
            None => TapUplink::open(&options, link, receiver),
        }?;
        *self.voice() = Some(voice);
        let announcements = self.neighbours().announcements();
        self.say_all(&announcements);
        let groups = self.memberships().all();
        self.say_all(&groups);
        Ok(port)
    }

    /// The device, for another process; `None` while there is none.
    pub(crate) fn device(&self) -> Option<std::io::Result<OwnedFd>> {
        self.voice().as_ref().map(TapVoice::try_clone)
    }

    /// Stops answering and forgets all neighbours: the device goes with its port.
    pub(crate) fn close(&self) {
        *self.voice() = None;
        self.neighbours().forget();
    }

    /// What a frame is. On a worker's thread: tunnelled packets ask for no lock, and a question or
    /// an answer that would have to wait for it is not heard, and comes again.
    fn receive(&self, frame: &[u8]) -> Received {
        let Ok(packet) = parse::parse(frame, frame.len()) else {
            return Received::Else;
        };
        if packet.dst != self.mac && !packet.dst.is_multicast() {
            return Received::Else;
        }
        if is_tunnel(&packet, self.port) {
            return Received::Ours;
        }
        if let Some(group) = packet.ip().and_then(|ip| membership::query(frame, ip)) {
            let answer = self.memberships.try_lock().ok();
            let answer =
                answer.and_then(|mut memberships| memberships.receive(group, Instant::now()));
            return answer.map_or(Received::Else, Received::Question);
        }
        let Ok(mut neighbours) = self.neighbours.try_lock() else {
            return Received::Else;
        };
        let (answer, moved) = neighbours.receive(frame, &packet, Instant::now());
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        answer.map_or(Received::Else, Received::Question)
    }

    fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        // Each call leaves the table whole.
        self.neighbours
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn memberships(&self) -> MutexGuard<'_, Memberships> {
        // Each call leaves the table whole.
        self.memberships
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn voice(&self) -> MutexGuard<'_, Option<TapVoice>> {
        self.voice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A MAC that follows from the last four octets of the first address.
fn mac(first: u8, addresses: &[IpAddr]) -> Mac {
    let [a, b, c, d] = match addresses.first() {
        Some(IpAddr::V4(ip)) => ip.octets(),
        Some(IpAddr::V6(ip)) => (ip.to_bits() as u32).to_be_bytes(),
        None => [0; 4],
    };
    Mac([first, 0xbf, a, b, c, d])
}
