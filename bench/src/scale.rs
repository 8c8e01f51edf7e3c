//! Frames at random over a whole overlay, beside those of one tunnel.
//!
//! 15,000 machines on 10,667 other hosts, in the networks of 64 NICs of this host, which knows
//! 350,000 networks: each frame goes to another machine or comes from one, of another host and
//! mostly of another network than the frame before. Beside it in one run the same number of flows
//! to one machine, and to as many machines on one host. As in [`crate::tunnel`] the engine alone is
//! measured, and a turn of the worker is timed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use dataplane::overlay::{HostIdx, Overlay};
use dataplane::snapshot::{Network, NetworkIdx};
use dataplane::{PortSlot, PortUid, Snapshot};
use io::frame::BATCH;
use io::xsk::XskPeer;
use wire::offload::Offload;
use wire::{Mac, Vni, build};

use crate::guest::Guest;
use crate::load::{self, Load};
use crate::path::{self, Switch};
use crate::peers::{PeerError, guest_ip, guest_mac};
use crate::report::{Ratios, Samples};
use crate::tunnel;

/// What the talk was measured with, and this daemon's limits.
const MACHINES: usize = 15_000;
const HOSTS: usize = 10_667;
const VNIS: u32 = 350_000;
/// Networks that have a NIC here: each one's frames come from a ring of its own.
const NICS: usize = 64;

/// Frames of 64 bytes; the ports that tell flows apart are those of [`load::ports`].
const LOAD: Load = Load::Udp {
    frame_len: 64,
    flows: MACHINES as u32,
};
/// Batches in a window.
const WINDOW: u64 = 64;
/// Windows until nearly all machines have been met.
const SETTLE: usize = 60;
/// From the IP header's checksum to the ports of UDP: all that differs from machine to machine
/// besides its MAC.
const VARIES: std::ops::Range<usize> = 24..38;

/// An overlay, and how it is named.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    nics: usize,
    machines: usize,
    hosts: usize,
    vnis: u32,
}

/// The second is what the others are compared with: as many rings are looked at.
const SHAPES: [Shape; 4] = [
    Shape {
        name: "one_nic",
        nics: 1,
        machines: 1,
        hosts: 1,
        vnis: 1,
    },
    Shape {
        name: "one_tunnel",
        nics: NICS,
        machines: NICS,
        hosts: 1,
        vnis: NICS as u32,
    },
    Shape {
        name: "one_host",
        nics: NICS,
        machines: MACHINES,
        hosts: 1,
        vnis: NICS as u32,
    },
    Shape {
        name: "all_hosts",
        nics: NICS,
        machines: MACHINES,
        hosts: HOSTS,
        vnis: VNIS,
    },
];

/// Runs it and prints the table.
pub fn run(quick: bool) -> Result<Ratios, PeerError> {
    let windows = if quick { 200 } else { 2000 };
    let per_ns = tunnel::cycles_per_ns();
    let mut ratios = Ratios::default();
    println!(
        "ns a frame of 64 bytes on one core, {MACHINES} flows at random: lowest window, and the \
         median one in brackets"
    );
    for (what, direction) in [
        ("encapsulate", Direction::Out),
        ("decapsulate", Direction::In),
    ] {
        let mut medians = Vec::new();
        for shape in SHAPES {
            let samples = measure(shape, direction, windows)?;
            let (low, median) = (samples.quantile(0.0) / per_ns, samples.median() / per_ns);
            println!(
                "{what:<12} {:<11} {:>2} NICs {:>6} hosts {:>6} machines {:>6} VNIs {low:>8.1} \
                 [{median:>8.1}] ns {:>6.2} M/s",
                shape.name,
                shape.nics,
                shape.hosts,
                shape.machines,
                shape.vnis,
                1000.0 / median,
            );
            ratios.push(format!("{what}_{}_ns", shape.name), median);
            medians.push(median);
        }
        for (shape, median) in SHAPES.iter().zip(&medians).skip(2) {
            ratios.push(format!("{what}_{}_rate", shape.name), medians[1] / median);
        }
    }
    Ok(ratios)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

/// A machine on another host.
struct Machine {
    /// The NIC here that is in its network.
    nic: usize,
    mac: Mac,
    ip: Ipv4Addr,
    host: usize,
}

impl Shape {
    fn machine(self, number: usize) -> Machine {
        let [.., b, c] = (number as u32).to_be_bytes();
        Machine {
            nic: number % self.nics,
            mac: Mac([2, 1, 0, 0, b, c]),
            ip: Ipv4Addr::new(10, 1, b, c),
            // All hosts have one, and neighbours in the order of machines are none in that of
            // hosts.
            host: number * 7919 % self.hosts,
        }
    }

    fn vni(self, nic: usize) -> Result<Vni, PeerError> {
        Vni::new(1 + nic as u32).map_err(|error| PeerError(error.to_string()))
    }
}

fn host_address(host: usize) -> IpAddr {
    let [.., b, c] = (host as u32).to_be_bytes();
    Ipv4Addr::new(172, 16, b, c).into()
}

/// Cycles a frame.
fn measure(shape: Shape, direction: Direction, windows: usize) -> Result<Samples, PeerError> {
    let (mut guests, mut wire, mut switch) = host(shape)?;
    let frames = frames(shape, direction)?;
    let mut random = Random(1);
    for (guest, frame) in guests.iter_mut().zip(&frames) {
        guest.prepare(frame, &Offload::default());
    }
    let mut samples = Samples::default();
    for window in 0..SETTLE + windows {
        let mut spent = 0;
        for _ in 0..WINDOW {
            spent += match direction {
                Direction::Out => {
                    send(shape, &mut guests, &frames, &mut random, |_| ());
                    switch.deliver(|| wire.swallow() as usize)?
                }
                Direction::In => {
                    for _ in 0..BATCH {
                        let frame = &frames[random.below(frames.len())];
                        if !wire.inject(frame, 0) {
                            return Err(PeerError("the uplink has no buffer".to_owned()));
                        }
                    }
                    let mut received = || guests.iter_mut().map(|g| usize::from(g.receive())).sum();
                    switch.deliver(&mut received)?
                }
            };
        }
        if window >= SETTLE {
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
        }
    }
    Ok(samples)
}

/// Sends a batch of one guest's at random, of frames for machines of its network; `sent` is told
/// the number of each.
fn send(
    shape: Shape,
    guests: &mut [Guest],
    frames: &[Vec<u8>],
    random: &mut Random,
    mut sent: impl FnMut(usize),
) {
    let nic = random.below(shape.nics);
    guests[nic].send(BATCH as u16, |write| {
        let number = random.below(frames.len() / shape.nics) * shape.nics + nic;
        let frame = &frames[number];
        write(0, &frame[..6]);
        write(VARIES.start, &frame[VARIES]);
        sent(number);
    });
}

/// A frame of each flow: to or from each machine, or as many flows of one machine. Number `n` is of
/// NIC `n` modulo the NICs.
fn frames(shape: Shape, direction: Direction) -> Result<Vec<Vec<u8>>, PeerError> {
    let count = MACHINES / shape.nics * shape.nics;
    let frames = (0..count).map(|number| {
        let machine = shape.machine(number % shape.machines);
        let (mac, ip) = (guest_mac(machine.nic)?, guest_ip(machine.nic));
        let header = match direction {
            Direction::Out => build::frame(mac, machine.mac).ip(ip, machine.ip),
            Direction::In => build::frame(machine.mac, mac).ip(machine.ip, ip),
        };
        let [source, destination] = load::ports(number as u32);
        let payload = vec![0x5a; LOAD.frame_bytes() - 42];
        let mut bytes = header.udp(source, destination).payload(&payload).build();
        // No checksum (RFC 768).
        bytes[40..42].fill(0);
        match direction {
            Direction::Out => Ok(bytes),
            Direction::In => tunnel::wrapped_in(
                &bytes,
                shape.vni(machine.nic)?,
                host_address(machine.host),
                50_000,
            ),
        }
    });
    frames.collect()
}

/// This host, with its guests and its uplink.
fn host(shape: Shape) -> Result<(Vec<Guest>, XskPeer, Switch), PeerError> {
    let guests = (0..shape.nics).map(|_| path::guest(LOAD));
    let guests = guests.collect::<Result<Vec<Guest>, PeerError>>()?;
    let (uplink, wire) = tunnel::uplink()?;
    let ports = guests.iter().enumerate().map(|(nic, guest)| {
        let slot = PortSlot(nic as u32);
        Ok((slot.into(), guest.port()?))
    });
    let ports = ports.chain([Ok((PortSlot::uplink(0).into(), uplink))]);
    let ports = ports.collect::<Result<Vec<_>, PeerError>>()?;
    let mut switch = Switch::without_time(vec![ports], path::MAX_FLOWS, snapshot(shape)?)?;
    let hosts = (0..shape.hosts).map(host_address);
    switch.set_underlay(tunnel::underlay_to(hosts)?)?;
    Ok((guests, wire, switch))
}

/// Each NIC is alone on this host in its network; the other networks have a machine each.
fn snapshot(shape: Shape) -> Result<Snapshot, PeerError> {
    let mut snapshot = path::snapshot_of(shape.nics, crate::RULES)?;
    for host in 0..shape.hosts {
        snapshot.hosts.push_back(Some(host_address(host)));
    }
    snapshot.networks.truncate(0);
    let mut overlays: Vec<Overlay> = (0..shape.nics)
        .map(|nic| Overlay::new(PortUid(1_000_000 + nic as u32)))
        .collect();
    let mut members = vec![BTreeSet::new(); shape.nics];
    for machine in (0..shape.machines).map(|number| shape.machine(number)) {
        let host = HostIdx(machine.host as u32);
        overlays[machine.nic].bindings.insert(machine.mac, host);
        members[machine.nic].insert(host);
    }
    for (nic, mut overlay) in overlays.into_iter().enumerate() {
        overlay.members = members[nic].iter().copied().collect();
        let slot = PortSlot(nic as u32);
        let mut network = network(shape.vni(nic)?, overlay);
        network.macs.insert(guest_mac(nic)?, slot);
        network.ports.push(slot);
        snapshot.networks.push_back(Some(network.into()));
        if let Some(Some(port)) = snapshot.ports.get_mut(nic) {
            let port = Arc::make_mut(port);
            port.vni = shape.vni(nic)?;
            port.network = NetworkIdx(nic as u32);
        }
    }
    for number in shape.nics as u32..shape.vnis {
        let mut overlay = Overlay::new(PortUid(2_000_000 + number));
        let host = HostIdx(number % shape.hosts as u32);
        let [_, a, b, c] = number.to_be_bytes();
        overlay.bindings.insert(Mac([2, 2, 0, a, b, c]), host);
        overlay.members = [host].into();
        let vni = shape.vni(number as usize)?;
        let network = network(vni, overlay);
        snapshot.networks.push_back(Some(network.into()));
    }
    Ok(snapshot)
}

fn network(vni: Vni, overlay: Overlay) -> Network {
    Network {
        vni,
        macs: Default::default(),
        ports: Vec::new(),
        shared: Default::default(),
        learners: Vec::new(),
        overlay: Some(overlay.into()),
    }
}

/// Random numbers that every run draws alike (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHES: usize = 40;
    const ALL_HOSTS: Shape = SHAPES[3];

    #[test]
    fn each_frame_leaves_for_the_host_of_its_machine() -> Result<(), PeerError> {
        let shape = ALL_HOSTS;
        let (mut guests, mut wire, mut switch) = host(shape)?;
        let frames = frames(shape, Direction::Out)?;
        for (guest, frame) in guests.iter_mut().zip(&frames) {
            guest.prepare(frame, &Offload::default());
        }
        let (mut random, mut hosts) = (Random(1), BTreeSet::new());
        for _ in 0..BATCHES {
            let mut numbers = Vec::new();
            send(shape, &mut guests, &frames, &mut random, |number| {
                numbers.push(number)
            });
            let mut left = Vec::new();
            switch.deliver(|| {
                let before = left.len();
                left.extend(std::iter::from_fn(|| wire.take()));
                left.len() - before
            })?;
            assert_eq!(left.len(), BATCH);
            for (number, outer) in numbers.into_iter().zip(left) {
                let machine = shape.machine(number);
                // Behind Ethernet, IPv4, UDP and VXLAN (RFC 7348): the frame as it was.
                let (headers, inner) = outer.split_at(14 + 20 + 8 + 8);
                let to: [u8; 4] = headers[30..34].try_into().expect("four bytes");
                assert_eq!(IpAddr::from(to), host_address(machine.host));
                assert_eq!(
                    headers[46..49],
                    shape.vni(machine.nic)?.id().to_be_bytes()[1..]
                );
                assert_eq!(inner, frames[number]);
                hosts.insert(machine.host);
            }
        }
        assert!(hosts.len() > BATCHES * BATCH / 2, "{} hosts", hosts.len());
        Ok(())
    }

    #[test]
    fn each_frame_that_comes_reaches_the_guest_of_its_network() -> Result<(), PeerError> {
        let shape = ALL_HOSTS;
        let (mut guests, mut wire, mut switch) = host(shape)?;
        let frames = frames(shape, Direction::In)?;
        let mut random = Random(1);
        for _ in 0..BATCHES {
            let (mut expected, mut reached) = (vec![0; shape.nics], vec![0; shape.nics]);
            for _ in 0..BATCH {
                let number = random.below(frames.len());
                assert!(wire.inject(&frames[number], 0));
                expected[shape.machine(number).nic] += 1;
            }
            switch.deliver(|| {
                let before: usize = reached.iter().sum();
                for (reached, guest) in reached.iter_mut().zip(&mut guests) {
                    *reached += usize::from(guest.receive());
                }
                reached.iter().sum::<usize>() - before
            })?;
            assert_eq!(reached, expected);
        }
        Ok(())
    }
}
