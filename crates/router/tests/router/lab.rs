//! A namespace that forwards between `east` and `west`, and the two wires.
//!
//! A frame written to a TAP device has gone all its way when the write returns, by the kernel's
//! path as by ours: what comes of it can be read at once, and nothing has to be waited for.

use crate::cables::{Cables, PLAIN};
use crate::ours::Ours;
use butterfly_router::Options;
use butterfly_router::layout::Counter;
use io::frame::Batch;
use io::port::Port;
use io::tap::{TapOptions, TapPort};
use testkit::netns::Namespace;
use wire::Mac;
use wire::offload::Offload;
use wire::virtio_net::HDR_LEN_MRG;

pub const EAST: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
pub const WEST: Mac = Mac([2, 0, 0, 0, 0, 0xf]);
/// Hosts on both sides: `HOST(n)` has 10.1.0.n and 2001:db8:1::n in the east, 10.2.0.n and
/// 2001:db8:2::n in the west.
pub fn host(side: u8, n: u8) -> Mac {
    Mac([2, 0, 0, 0, side, n])
}

/// Both ends of the wires.
pub struct Lab {
    pub east: Wire,
    pub west: Wire,
}

/// The far end of a TAP device, or of several that the router has as one interface.
pub struct Wire {
    ports: Vec<Port>,
    batch: Batch,
    tag: &'static [u8],
}

impl Wire {
    /// `tag` is what a frame has behind its addresses on this wire; the tests see frames without
    /// it.
    fn new(names: &[&str], mac: Mac, tag: &'static [u8]) -> Wire {
        let port = |name: &&str| {
            let options = TapOptions {
                name: (*name).into(),
                mac,
                mtu: None,
                offloads: false,
            };
            Port::Tap(TapPort::open(&options).expect("a TAP device"))
        };
        Wire {
            ports: names.iter().map(port).collect(),
            batch: Batch::new(),
            tag,
        }
    }

    pub fn send(&mut self, frame: &[u8]) {
        self.send_by(0, frame);
    }

    /// By one of several devices.
    pub fn send_by(&mut self, port: usize, frame: &[u8]) {
        let tagged = [&frame[..12], self.tag, &frame[12..]].concat();
        self.batch
            .push_bytes(&tagged, Offload::default())
            .expect("an empty batch");
        let port = &mut self.ports[port];
        port.transmit(&self.batch, 0).expect("a wire that is up");
        port.flush().expect("a wire that is up");
        self.batch.clear();
    }

    /// A frame as it is, without the wire's tag, of which the kernel takes the first `linear` bytes
    /// in one piece if it is long (0: as it likes): `hdr_len` of a virtio-net header.
    pub fn send_as_it_is(&self, frame: &[u8], linear: u16) {
        self.write([0, linear, 0, 0, 0], frame);
    }

    /// Segments of TCP over IPv4 with `size` bytes of payload each, their checksums only begun, as
    /// one frame.
    pub fn send_segments(&self, frame: &[u8], size: u16) {
        // VIRTIO_NET_HDR_F_NEEDS_CSUM, and VIRTIO_NET_HDR_GSO_TCPV4. From where on a checksum is to
        // be made, and where in that it is put.
        self.write([0x0101, 54, size, 34, 16], frame);
    }

    /// A frame behind the five words of a virtio-net header.
    fn write(&self, words: [u16; 5], frame: &[u8]) {
        let Port::Tap(device) = &self.ports[0] else {
            unreachable!("a wire is a TAP device");
        };
        let device = device.descriptor().expect("a device that is there");
        let mut header = [0; HDR_LEN_MRG];
        for (place, word) in header.chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        rustix::io::write(device, &[&header, frame].concat()).expect("a wire that is up");
    }

    /// All that has come but what the kernel asks of neighbours on its own account. A frame without
    /// the wire's tag is as it came.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for port in &mut self.ports {
            while port.receive(&mut self.batch).expect("a wire that is up") > 0 {
                frames.extend((0..self.batch.len()).map(|index| self.batch.to_bytes(index)));
                port.complete(&mut self.batch);
                self.batch.clear();
            }
        }
        let end = 12 + self.tag.len();
        for frame in &mut frames {
            if frame.get(12..end) == Some(self.tag) {
                frame.drain(12..end);
            }
        }
        frames.retain(|frame| !is_chatter(frame));
        frames
    }
}

/// ARP, and of ICMPv6 neighbour and router discovery and multicast listeners: the kernel's timers
/// send them, with any number of tags (a VLAN that carries another has an address of its own).
fn is_chatter(frame: &[u8]) -> bool {
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    if matches!(ethertype, 0x8100 | 0x88a8) && frame.len() >= 18 {
        return is_chatter(&frame[4..]);
    }
    if ethertype == 0x0806 {
        return true;
    }
    let kind = match (ethertype, frame.get(20)) {
        (0x86dd, Some(58)) => frame.get(54),
        // A hop-by-hop header in front: MLD.
        (0x86dd, Some(0)) => frame.get(62),
        _ => None,
    };
    kind.is_some_and(|kind| (130..=137).contains(kind) || *kind == 143)
}

/// Runs a story in a fresh namespace that forwards.
pub fn story(setup: &str, story: impl AsyncFnOnce(&Namespace, Lab) + Send) {
    story_over(&PLAIN, setup, story);
}

/// Runs a story in a fresh namespace that forwards, over these cables. `setup` runs when all
/// interfaces are there.
pub fn story_over(cables: &Cables, setup: &str, story: impl AsyncFnOnce(&Namespace, Lab) + Send) {
    let namespace = Namespace::new().expect("a namespace");
    let work = || {
        namespace.ok(SYSTEM).expect("settings");
        let lab = Lab {
            east: Wire::new(cables.east, EAST, cables.east_tag),
            west: Wire::new(cables.west, WEST, cables.west_tag),
        };
        namespace
            .ok(&format!("{}\n{NETWORK}\n{setup}", cables.setup))
            .expect("the network");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(story(&namespace, lab));
    };
    namespace.inside(work).expect("enter the namespace");
}

/// ICMP errors without a limit, so that each packet has its answer in both runs.
const SYSTEM: &str = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                      net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0 \
                      net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 \
                      net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=100000 \
                      net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0";

const NETWORK: &str = "set -e
    sysctl -qw net.ipv4.conf.east.rp_filter=0 net.ipv4.conf.west.rp_filter=0
    ip link set west mtu 1400
    ip addr add 10.1.0.1/24 dev east; ip addr add 10.2.0.1/24 dev west
    ip addr add 2001:db8:1::1/64 dev east nodad; ip addr add 2001:db8:2::1/64 dev west nodad
    for n in 2 3 4 5; do
        ip neigh add 10.1.0.$n lladdr 02:00:00:00:01:0$n dev east
        ip neigh add 10.2.0.$n lladdr 02:00:00:00:02:0$n dev west
        ip neigh add 2001:db8:1::$n lladdr 02:00:00:00:01:0$n dev east
        ip neigh add 2001:db8:2::$n lladdr 02:00:00:00:02:0$n dev west
    done
    ip neigh add fe80::2 lladdr 02:00:00:00:01:02 dev east
    ip route add 203.0.113.0/24 via 10.2.0.2; ip route add 198.51.100.0/25 via 10.2.0.3 mtu 1300
    ip -6 route add 2001:db8:f::/48 via 2001:db8:2::2
    ip -6 route add 2001:db8:e::/64 via 2001:db8:2::3";

impl Ours {
    /// In the modes of these cables.
    pub async fn start_over(cables: &Cables, options: &Options) -> Ours {
        Ours::start_in(cables.modes, options).await
    }

    /// Follows what has changed until the report says what is looked for.
    pub async fn until(&mut self, what: &str, seen: impl FnMut(&mut Ours) -> bool) {
        self.until_within(10, what, seen).await;
    }

    /// A counter of both interfaces and families together.
    pub fn count(&self, counter: Counter) -> u64 {
        let report = self.report();
        let each = report
            .interfaces
            .iter()
            .map(|interface| interface.total(counter));
        each.sum()
    }
}

/// What one frame from the east adds to a counter, and the neighbour's MAC address that it went to
/// on the west's wire.
pub fn adds(lab: &mut Lab, ours: &Ours, counter: Counter, frame: &[u8]) -> (u64, Option<[u8; 6]>) {
    let before = ours.count(counter);
    lab.east.send(frame);
    lab.east.receive();
    let out = lab.west.receive();
    let mac = out
        .first()
        .map(|frame| frame[..6].try_into().expect("six bytes"));
    (ours.count(counter) - before, mac)
}

/// Tables for a few routes.
pub const SMALL: Options = Options {
    nodes4: 4096,
    nodes6: 65_536,
    paths: 1024,
};
