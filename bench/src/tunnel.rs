//! What a frame costs on its way to another host and from there: encapsulate, decapsulate, segment.
//!
//! The engine alone: a guest on vhost-user rings, the data plane with its rules, and an uplink
//! whose rings and UMEM are those of AF_XDP with both ends in memory, in one process and on one
//! core as in [`crate::path`]. So neither a veth nor a driver is measured. A turn of the worker is
//! timed, from receiving the batch to flushing what became of it.

use std::hint::black_box;
use std::net::IpAddr;

use dataplane::overlay::{HostIdx, Overlay};
use dataplane::underlay::{Encapsulation, Hop, Underlay};
use dataplane::{PortSlot, PortUid, Snapshot};
use io::frame::BATCH;
use io::port::Port;
use io::uplink::UplinkPort;
use io::xsk::{XskPeer, XskPort};
use sys::cycles;
use wire::offload::Offload;
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni};

use crate::guest::Guest;
use crate::load::{self, Load, Turns};
use crate::path::{self, Switch};
use crate::peers::{GUEST_MACS, PeerError};
use crate::report::{Ratios, Samples};

/// Our host and the other host's.
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

/// Batches in a window.
const WINDOW: u64 = 64;

/// Frames that the uplink has room for: a batch of the largest ones, cut.
const UPLINK_FRAMES: u32 = 4096;

/// MTU of the wire: inner frames of 1518 bytes fit.
const MTU: u16 = 1600;

/// Bytes from one place of the bare copy to the next.
const PLACE: usize = 2048;

/// Bytes of the outer headers over IPv4.
const OUTER: usize = 50;

/// Runs it and prints the table; `only`: the loads whose names begin with one of these.
pub fn run(quick: bool, only: &[String]) -> Result<Ratios, PeerError> {
    let windows = if quick { 300 } else { 3000 };
    let per_ns = cycles_per_ns();
    let mut ratios = Ratios::default();
    let udp = |frame_len, flows| Load::Udp { frame_len, flows };
    println!(
        "ns a frame on one core: lowest window, and the median one in brackets; \
         millions a second of the median"
    );
    for load in [
        udp(64, 1),
        udp(64, 1000),
        udp(64, 65_536),
        udp(512, 1),
        udp(1518, 1),
        Load::Tso,
    ] {
        let chosen = |start: &String| load.name().starts_with(start.as_str());
        if !only.is_empty() && !only.iter().any(chosen) {
            continue;
        }
        let (out, bare) = encapsulate(load, windows)?;
        report("encapsulate", load, &out, per_ns, &mut ratios);
        if load == Load::Tso {
            report("bare copy", load, &bare, per_ns, &mut ratios);
            let times = out.quotients(&bare);
            println!(
                "{:<12} {:<16} {} times the copy, window by window",
                "",
                "",
                times.summary()
            );
            ratios.push("tso_vs_copy", times.median());
        }
        if load != Load::Tso {
            report(
                "decapsulate",
                load,
                &decapsulate(load, windows)?,
                per_ns,
                &mut ratios,
            );
        }
    }
    Ok(ratios)
}

/// Cycles of the counter in a nanosecond.
pub fn cycles_per_ns() -> f64 {
    let (began, start) = (std::time::Instant::now(), cycles::now());
    while began.elapsed().as_millis() < 50 {
        std::hint::spin_loop();
    }
    (cycles::now() - start) as f64 / began.elapsed().as_nanos() as f64
}

/// A host with one guest and an uplink; the other guest is on another host.
struct Host {
    guest: Guest,
    wire: XskPeer,
    switch: Switch,
}

impl Host {
    fn new(load: Load) -> Result<Host, PeerError> {
        let guest = path::guest(load)?;
        let (uplink, wire) = uplink()?;
        let ports = vec![
            (PortSlot(0).into(), guest.port()?),
            (PortSlot::uplink(0).into(), uplink),
        ];
        let mut switch = Switch::new(ports, path::MAX_FLOWS, snapshot()?)?;
        switch.set_underlay(underlay_to([THERE].into_iter())?)?;
        Ok(Host {
            guest,
            wire,
            switch,
        })
    }
}

/// An uplink's queue, and the other end of its wire.
pub fn uplink() -> Result<(Port, XskPeer), PeerError> {
    let made = XskPort::in_memory(UPLINK_FRAMES, MTU.into());
    let (uplink, wire) = made.map_err(|error| PeerError(format!("uplink: {error}")))?;
    Ok((UplinkPort::from(uplink).into(), wire))
}

/// What the guest sends goes to the wire; of large frames also the bare copy, a window after each
/// window, so that a machine that is faster now than then is so for both.
fn encapsulate(load: Load, windows: usize) -> Result<(Samples, Samples), PeerError> {
    let mut bare = (load == Load::Tso)
        .then(|| BareCopy::new(load))
        .transpose()?;
    let mut host = Host::new(load)?;
    let script = load::script(load)?;
    host.introduce(&script.first)?;
    host.guest.prepare(&script.frame, &script.offload);
    let segments = pieces(load);
    let mut turns = Turns::of(load);
    let settle = settle(load);
    let (mut samples, mut copies) = (Samples::default(), Samples::default());
    for window in 0..settle + windows {
        let mut spent = 0;
        for _ in 0..WINDOW {
            host.guest.send(BATCH as u16, |write| turns.next(write));
            let mut sent = || host.wire.swallow() as usize / segments;
            spent += host.switch.deliver(&mut sent)?;
        }
        if window >= settle {
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
            if let Some(bare) = &mut bare {
                copies.push(bare.window());
            }
        }
    }
    Ok((samples, copies))
}

/// What nobody can do without: the same bytes of the same frames, in pieces of a packet's size to
/// places as far apart as the uplink's.
struct BareCopy {
    guest: Guest,
    frame_len: usize,
    index: u16,
    places: Vec<u8>,
    next: usize,
}

impl BareCopy {
    fn new(load: Load) -> Result<BareCopy, PeerError> {
        let mut guest = path::guest(load)?;
        guest.prepare(&vec![0x5a; load.frame_bytes()], &Offload::default());
        Ok(BareCopy {
            guest,
            frame_len: load.frame_bytes(),
            index: 0,
            places: vec![0; UPLINK_FRAMES as usize * PLACE],
            next: 0,
        })
    }

    /// Cycles a frame.
    fn window(&mut self) -> f64 {
        let start = cycles::now();
        for _ in 0..WINDOW * BATCH as u64 {
            let from = self.guest.transmit.buffer(self.index);
            self.index = self.index.wrapping_add(1);
            for piece in (0..self.frame_len).step_by(1448) {
                let len = (self.frame_len - piece).min(1448);
                let place = &mut self.places[self.next..self.next + len];
                self.guest.view.read(from + piece, place);
                // Somebody could read it: or the compiler leaves the copy out.
                black_box(place);
                self.next = (self.next + PLACE) % self.places.len();
            }
        }
        (cycles::now() - start) as f64 / (WINDOW * BATCH as u64) as f64
    }
}

/// Frames on the wire that one of a guest becomes.
pub fn pieces(load: Load) -> usize {
    match load {
        Load::Udp { .. } => 1,
        Load::Tso => (load.frame_bytes() - 54).div_ceil(1448),
    }
}

/// What comes from the wire goes to the guest.
fn decapsulate(load: Load, windows: usize) -> Result<Samples, PeerError> {
    let mut host = Host::new(load)?;
    // The far guest begins the flows, to the ports that the rules let in.
    let mut frame = wrapped(&load::request_from_afar(load.frame_bytes())?)?;
    let mut turns = Turns::of(load);
    let settle = settle(load);
    let mut samples = Samples::default();
    for window in 0..settle + windows {
        let mut spent = 0;
        for _ in 0..WINDOW {
            for _ in 0..BATCH {
                turns.next(&mut |at, bytes| {
                    frame[OUTER + at..OUTER + at + bytes.len()].copy_from_slice(bytes);
                });
                if !host.wire.inject(&frame, 0) {
                    return Err(PeerError("the uplink has no buffer".to_owned()));
                }
            }
            spent += host.switch.deliver(|| host.guest.receive().into())?;
        }
        if window >= settle {
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
        }
    }
    Ok(samples)
}

/// Windows until every flow has been seen twice.
fn settle(load: Load) -> usize {
    2 * u64::from(load.flows()).div_ceil(WINDOW * BATCH as u64) as usize
}

impl Host {
    /// What the guests say once, before the load.
    fn introduce(&mut self, first: &[(usize, Vec<u8>)]) -> Result<(), PeerError> {
        for (from, frame) in first {
            if *from == 0 {
                self.guest.prepare(frame, &Offload::default());
                self.guest.send(1, |_| ());
            } else {
                self.wire.inject(&wrapped(frame)?, 0);
            }
            self.switch.turn();
            self.guest.receive();
            self.wire.swallow();
        }
        Ok(())
    }
}

/// A frame as the other host sends it.
pub fn wrapped(inner: &[u8]) -> Result<Vec<u8>, PeerError> {
    wrapped_in(inner, vni()?, THERE, 50_000)
}

/// A frame of a network as a host sends it, from that UDP port.
pub fn wrapped_in(inner: &[u8], vni: Vni, host: IpAddr, port: u16) -> Result<Vec<u8>, PeerError> {
    let macs = (Mac([2, 0, 0, 0, 0xff, 2]), Mac([2, 0, 0, 0, 0xff, 1]));
    let ends =
        Ends::new(host, HERE).ok_or_else(|| PeerError("hosts of two families".to_owned()))?;
    let mut outer = Outer::new(macs, None, ends, 64, vxlan::PORT, UdpChecksum::Zero);
    outer.set_flow(vni, port, 0);
    let mut frame = vec![0; outer.len()];
    outer.write(&mut frame, inner.len(), 0);
    frame.extend_from_slice(inner);
    Ok(frame)
}

fn vni() -> Result<Vni, PeerError> {
    Vni::new(1).map_err(|error| PeerError(error.to_string()))
}

/// One NIC of [`path::snapshot`] is here, the other one on another host.
fn snapshot() -> Result<Snapshot, PeerError> {
    let mut snapshot = path::snapshot(crate::RULES)?;
    snapshot.ports.truncate(1);
    snapshot.hosts.push_back(Some(THERE));
    let far: Mac = GUEST_MACS[1]
        .parse()
        .map_err(|error| PeerError(format!("{error}")))?;
    let mut overlay = Overlay::new(PortUid(1000));
    overlay.bindings.insert(far, HostIdx(0));
    overlay.members = [HostIdx(0)].into();
    if let Some(Some(network)) = snapshot.networks.get_mut(0) {
        let network = std::sync::Arc::make_mut(network);
        network.macs.remove(&far);
        network.ports.truncate(1);
        network.overlay = Some(overlay.into());
    }
    Ok(snapshot)
}

/// All those hosts are reached by one next hop.
pub fn underlay_to(hosts: impl Iterator<Item = IpAddr>) -> Result<Underlay, PeerError> {
    let hop = Hop {
        uplink: PortSlot::uplink(0),
        src_mac: Mac([2, 0, 0, 0, 0xff, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0xff, 2]),
        vlan: None,
        source: HERE,
        mtu: MTU,
        weight: 1,
        device: 0,
    };
    Underlay::new(
        Encapsulation::default(),
        [(HERE, 0)],
        hosts.map(|host| (host, vec![hop.clone()])),
    )
    .map_err(|error| PeerError(error.to_string()))
}

/// One line of the table.
fn report(what: &str, load: Load, samples: &Samples, per_ns: f64, ratios: &mut Ratios) {
    let (low, median) = (samples.quantile(0.0) / per_ns, samples.median() / per_ns);
    let gigabits = load.frame_bytes() as f64 * 8.0 / median;
    println!(
        "{what:<12} {:<16} {low:>8.1} [{median:>8.1}] ns {:>8.2} M/s {gigabits:>7.1} Gbit/s",
        load.name(),
        1000.0 / median
    );
    ratios.push(
        format!("{}_{}_ns", what.replace(' ', "_"), load.name()),
        low,
    );
}
