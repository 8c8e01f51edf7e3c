//! Where no interface has our address: a TAP device, and the station that we are on it.
//!
//! The kernel keeps neighbours for every interface that has an address of ours; here it has none, and whoever uses the
//! interface is at the other end of a cable. So the station answers for our addresses itself, and asks for those of other hosts
//! ([`neighbours`]). Three threads meet here: the worker that has the port lets it [hear](Station::hear), whoever looks for
//! ways [finds](Station::find) with it, the engine opens and closes the device.

mod neighbours;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io::tap::{Heard, TapError, TapOptions, TapUplink, TapVoice};
use io::xsk::Link;
use wire::{Mac, parse};

use neighbours::{Neighbours, is_tunnel};

/// In the first octet: an address of somebody's own making (IEEE 802), and the two ends of the cable apart.
const OURS: u8 = 0x02;
const KERNELS: u8 = 0x06;

/// We, on the wire that a TAP device is. It is there also while the device is not.
#[derive(Debug)]
pub struct Station {
    mac: Mac,
    /// VXLAN's UDP port.
    port: u16,
    neighbours: Mutex<Neighbours>,
    /// `None`: there is no device.
    voice: Mutex<Option<TapVoice>>,
    /// A neighbour was found, or has another MAC.
    moved: AtomicBool,
}

impl Station {
    /// The station with these addresses, and VXLAN on this UDP port. Its MAC follows from the first address, so that others know it
    /// again after a restart.
    pub(crate) fn new(addresses: &[IpAddr], port: u16) -> Station {
        let mac = mac(OURS, addresses);
        Station {
            mac,
            port,
            neighbours: Mutex::new(Neighbours::new(mac, addresses)),
            voice: Mutex::new(None),
            moved: AtomicBool::new(false),
        }
    }

    /// Its hardware address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The hardware address of a neighbour, if it is known. One that is not, or has not been heard of for a while, is asked for.
    pub fn find(&self, neighbour: IpAddr) -> Option<Mac> {
        let (known, question) = self.neighbours().find(neighbour, Instant::now());
        if let (Some(question), Some(voice)) = (question, self.voice().as_ref()) {
            // Where there is no room for it now it is asked again.
            voice.say(&question);
        }
        known
    }

    /// True when other neighbours are known than when this was asked last.
    pub fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Makes the device, its port, and tells the others on the wire that we are there.
    pub(crate) fn open(self: &Arc<Self>, name: &str, link: Arc<Link>) -> Result<TapUplink, TapError> {
        let options = TapOptions {
            name: name.to_owned(),
            mac: mac(KERNELS, &self.neighbours().addresses),
            mtu: None,
            offloads: false,
        };
        let station = self.clone();
        let (port, voice) = TapUplink::open(&options, link, Arc::new(move |frame| station.hear(frame)))?;
        let announcements = self.neighbours().announcements();
        for announcement in &announcements {
            voice.say(announcement);
        }
        *self.voice() = Some(voice);
        Ok(port)
    }

    /// Nothing is said any more, and nobody is known: the device goes with its port.
    pub(crate) fn close(&self) {
        *self.voice() = None;
        self.neighbours().forget();
    }

    /// What a frame is. On a worker's thread: tunnelled packets ask for no lock, and a question or an answer that would have
    /// to wait for it is not heard, and comes again.
    fn hear(&self, frame: &[u8]) -> Heard {
        let Ok(packet) = parse::parse(frame, frame.len()) else {
            return Heard::Else;
        };
        if packet.dst != self.mac && !packet.dst.is_multicast() {
            return Heard::Else;
        }
        if is_tunnel(&packet, self.port) {
            return Heard::Ours;
        }
        let Ok(mut neighbours) = self.neighbours.try_lock() else {
            return Heard::Else;
        };
        let (answer, moved) = neighbours.hear(frame, &packet, Instant::now());
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        answer.map_or(Heard::Else, Heard::Question)
    }

    fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        // Each call leaves the table whole.
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner)
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
