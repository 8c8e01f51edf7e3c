//! What two workers cost each other: cycles a frame of one alone, of two with flows of their own,
//! and of two that both see the same flows.
//!
//! Each worker has a ring of a guest and a queue of the uplink, and shares its core with its
//! guest's driver and the other end of its wire, as in [`crate::tunnel`]: so two cores are enough,
//! and a turn of the worker is what is timed. Workers share the snapshot, the table of flows and
//! the NICs' counters; what they write to in common travels from core to core, and is the
//! difference between the three. Every frame leaves by its worker's own queue of the uplink:
//! nothing is handed over.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::overlay::{HostIdx, Overlay};
use dataplane::{PortSlot, PortUid, QueueId, Snapshot};
use io::frame::BATCH;
use io::xsk::XskPeer;
use wire::offload::Offload;
use wire::{Mac, build};

use crate::guest::Guest;
use crate::load::{self, Load, Turns};
use crate::path::{self, Switch, TimedWorker};
use crate::peers::{PeerError, guest_ip, guest_mac};
use crate::regime;
use crate::report::{Ratios, Samples};
use crate::tunnel;

/// Where all frames go to.
const FAR_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const FAR_MAC: Mac = Mac([2, 1, 0, 0, 0, 1]);
const FAR_IP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// Batches in a window.
const WINDOW: u64 = 64;

/// Who works, and on what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// The first worker; the second has no turn.
    Alone,
    /// Each has a NIC.
    Apart,
    /// Both have a queue of one NIC, and see all its flows.
    Shared,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::Alone, Shape::Apart, Shape::Shared];

    /// The NIC that a worker's guest is.
    fn nic(self, worker: usize) -> usize {
        match self {
            Shape::Alone | Shape::Apart => worker,
            Shape::Shared => 0,
        }
    }

    fn queue(self, worker: usize) -> QueueId {
        QueueId {
            slot: PortSlot(self.nic(worker) as u32),
            pair: if self == Shape::Shared {
                worker as u16
            } else {
                0
            },
        }
    }
}

/// Runs it and prints the table. `cores`: those of the two workers.
pub fn run(cores: [usize; 2], quick: bool, ratios: &mut Ratios) -> Result<(), PeerError> {
    let (rounds, windows) = if quick { (3, 200) } else { (9, 1000) };
    println!(
        "TSC cycles a frame of 64 bytes to another host, each worker with its guest on a core of \
         its own: one alone, two with flows of their own, two with the same flows"
    );
    for flows in [1, 1_000, 65_536] {
        let load = Load::Udp {
            frame_len: 64,
            flows,
        };
        let mut medians: [Samples; Shape::ALL.len()] = Default::default();
        for _ in 0..rounds {
            for (shape, medians) in Shape::ALL.into_iter().zip(&mut medians) {
                medians.push(measure(shape, load, cores, windows)?);
            }
        }
        let [alone, apart, shared] = &medians;
        let (own, same) = (apart.quotients(alone), shared.quotients(apart));
        println!(
            "{:<14} alone {}, apart {}, shared {}; apart to alone {}, shared to apart {}",
            load.name(),
            alone.summary(),
            apart.summary(),
            shared.summary(),
            own.summary(),
            same.summary()
        );
        ratios.push(format!("{}_apart_vs_alone", load.name()), own.median());
        ratios.push(format!("{}_shared_vs_apart", load.name()), same.median());
    }
    Ok(())
}

/// What a worker has, and the other end of it.
struct Side<'a> {
    worker: &'a mut TimedWorker,
    guest: &'a mut Guest,
    wire: &'a mut XskPeer,
}

/// The median window's cycles a frame, of both workers where two work.
fn measure(shape: Shape, load: Load, cores: [usize; 2], windows: usize) -> Result<f64, PeerError> {
    let mut guests = [path::guest(load)?, path::guest(load)?];
    let (mut switch, mut wires) = host(shape, &guests)?;
    for (worker, guest) in guests.iter_mut().enumerate() {
        guest.prepare(&frame(shape.nic(worker), load)?, &Offload::default());
    }
    let working = if shape == Shape::Alone { 1 } else { 2 };
    let sides = switch.workers().iter_mut().zip(&mut guests).zip(&mut wires);
    let sides = sides.map(|((worker, guest), wire)| Side {
        worker,
        guest,
        wire,
    });
    // No window counts beside which the other worker rests.
    let (together, over) = (Barrier::new(working), AtomicBool::new(false));
    let mut all = Samples::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = sides
            .zip(cores)
            .take(working)
            .map(|(side, core)| {
                let (together, over) = (&together, &over);
                scope.spawn(move || {
                    regime::pin(core);
                    let samples = side.run(load, windows, together, over);
                    over.store(true, Ordering::Relaxed);
                    samples
                })
            })
            .collect();
        for thread in running {
            let samples = thread
                .join()
                .map_err(|_| PeerError("a worker's thread panicked".to_owned()))?;
            all.extend(&samples?);
        }
        Ok(all.median())
    })
}

impl Side<'_> {
    /// Cycles a frame of each window until this worker or the other has had all its windows.
    fn run(
        mut self,
        load: Load,
        windows: usize,
        together: &Barrier,
        over: &AtomicBool,
    ) -> Result<Samples, PeerError> {
        let mut turns = Turns::of(load).written();
        let mut samples = Samples::default();
        let settle = 2 * u64::from(load.flows()).div_ceil(WINDOW * BATCH as u64);
        let mut settled = Ok(0);
        for _ in 0..settle {
            settled = settled.and_then(|_| self.window(&mut turns));
        }
        // Also if it fails: the other one waits.
        together.wait();
        settled?;
        for _ in 0..windows {
            let spent = self.window(&mut turns)?;
            if over.load(Ordering::Relaxed) {
                break;
            }
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
        }
        Ok(samples)
    }

    /// The worker's cycles of a window; also says that all of its frames have left by its own
    /// queue.
    fn window(&mut self, turns: &mut Turns) -> Result<u64, PeerError> {
        let mut spent = 0;
        for _ in 0..WINDOW {
            self.guest.send(BATCH as u16, |write| turns.next(write));
            let wire = &mut *self.wire;
            spent += self.worker.deliver(|| wire.swallow() as usize)?;
        }
        Ok(spent)
    }
}

/// Two workers, and the other ends of their queues of the uplink.
fn host(shape: Shape, guests: &[Guest; 2]) -> Result<(Switch, Vec<XskPeer>), PeerError> {
    let (mut ports, mut wires) = (Vec::new(), Vec::new());
    for (worker, guest) in guests.iter().enumerate() {
        let (uplink, wire) = tunnel::uplink()?;
        let queue = QueueId {
            slot: PortSlot::uplink(0),
            pair: worker as u16,
        };
        ports.push(vec![(shape.queue(worker), guest.port()?), (queue, uplink)]);
        wires.push(wire);
    }
    let mut switch = Switch::without_time(ports, path::MAX_FLOWS, snapshot()?)?;
    switch.set_underlay(tunnel::underlay_to([FAR_HOST].into_iter())?)?;
    Ok((switch, wires))
}

/// Two NICs here, in a network that has a machine on another host.
fn snapshot() -> Result<Snapshot, PeerError> {
    let mut snapshot = path::snapshot(crate::RULES)?;
    snapshot.hosts.push_back(Some(FAR_HOST));
    let mut overlay = Overlay::new(PortUid(1000));
    overlay.bindings.insert(FAR_MAC, HostIdx(0));
    overlay.members = [HostIdx(0)].into();
    if let Some(Some(network)) = snapshot.networks.get_mut(0) {
        std::sync::Arc::make_mut(network).overlay = Some(overlay.into());
    }
    Ok(snapshot)
}

/// What a NIC sends to the machine.
fn frame(nic: usize, load: Load) -> Result<Vec<u8>, PeerError> {
    let [source, destination] = load::ports(0);
    let payload = vec![0x5a; load.frame_bytes() - 42];
    let mut frame = build::frame(guest_mac(nic)?, FAR_MAC)
        .ip(guest_ip(nic), FAR_IP)
        .udp(source, destination)
        .payload(&payload)
        .build();
    // No checksum (RFC 768), so that the ports can be rewritten alone.
    frame[40..42].fill(0);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One after the other on this thread: each frame has left by the queue of its worker, and
    /// there are as many flows as the shape has.
    #[test]
    fn workers_share_the_flows_of_a_nic_that_both_have() -> Result<(), PeerError> {
        let load = Load::Udp {
            frame_len: 64,
            flows: 100,
        };
        for (shape, flows) in [(Shape::Apart, 200), (Shape::Shared, 100)] {
            let mut guests = [path::guest(load)?, path::guest(load)?];
            let (mut switch, mut wires) = host(shape, &guests)?;
            for (worker, guest) in guests.iter_mut().enumerate() {
                guest.prepare(&frame(shape.nic(worker), load)?, &Offload::default());
                let mut side = Side {
                    worker: &mut switch.workers()[worker],
                    guest,
                    wire: &mut wires[worker],
                };
                side.window(&mut Turns::of(load))?;
            }
            let handle = switch.handle();
            let known = switch.answer(|| handle.flows(None))?;
            assert_eq!(known.len(), flows, "{shape:?}");
        }
        Ok(())
    }

    #[test]
    fn all_shapes_are_measured() -> Result<(), PeerError> {
        let load = Load::Udp {
            frame_len: 64,
            flows: 10,
        };
        for shape in Shape::ALL {
            let cycles = measure(shape, load, [0, 1], 3)?;
            assert!(cycles > 0.0, "{shape:?}: {cycles}");
        }
        Ok(())
    }
}
