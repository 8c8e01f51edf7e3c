//! Where the cycles of a frame go: two guests and the switch between them in one process, without
//! sockets.
//!
//! Guests and switch take turns on one core: nothing runs beside what is measured, and the numbers
//! repeat. Cache lines that two cores share cost more than this shows; `switch` measures with them.
//! Two switches are taken apart: `rings`, which takes what guest 0 sends and gives it to guest 1
//! without a look at it, and `switch`, the data plane with its rules; `new` is the latter where
//! every frame begins a flow, and `logged` where all that is written into guests is noted, for one
//! that is being migrated; exchanges that are over at once, and floods, are [`crate::short`]'s.
//! Each step of the first, and a turn of the second, is timed by the
//! cycle counter in windows of many batches. Reported are the lowest window, which other work on
//! the machine has disturbed least, and the median one; and beside them a fixed loop of arithmetic,
//! to tell a slow machine from a slow switch.

use std::sync::Arc;
use std::time::Instant;

use dataplane::flow::FlowMemory;
use dataplane::ruleset::{Direction, Peer, RuleSet, RuleSpec};
use dataplane::{
    Epoch, Group, GroupIdx, Network, NetworkIdx, Now, PortConfig, PortSlot, PortUid, QueueId,
    RuleSlot, Snapshot, Underlay, Worker, WorkerConfig, WorkerGone,
};
use io::frame::{BATCH, Batch};
use io::port::Port;
use ipnet::{IpNet, Ipv4Net};
use sys::cycles;
use wire::Vni;
use wire::offload::Offload;

use crate::guest::Guest;
use crate::load::{self, Load, Turns};
use crate::peers::{PeerError, guest_ip, guest_mac};
use crate::report::{Ratios, Samples};
use crate::short;

/// Batches in a window: short enough that some windows are not interrupted.
const WINDOW: u64 = 64;

/// Flows that the table of the data plane has room for.
pub(crate) const MAX_FLOWS: u32 = 1 << 22;

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// The bare switch's steps.
const STEPS: [&str; 4] = ["receive", "transmit", "flush", "complete"];

/// Runs it and prints the table; `only`: the loads whose names begin with one of these.
pub fn run(quick: bool, only: &[String]) -> Result<Ratios, PeerError> {
    let windows = if quick { 300 } else { 3000 };
    let mut ratios = Ratios::default();
    let udp = |frame_len, flows| Load::Udp { frame_len, flows };
    let chosen =
        |name: &str| only.is_empty() || only.iter().any(|start| name.starts_with(start.as_str()));
    println!("TSC cycles a frame: lowest window, and the median one in brackets");
    for load in [
        udp(64, 1),
        udp(64, 1000),
        udp(64, 65_536),
        udp(64, 1_000_000),
        udp(1518, 1),
        Load::Tso,
    ] {
        if !chosen(&load.name()) {
            continue;
        }
        let reference = reference(windows);
        let steps = rings(load, windows)?;
        report("rings", load, &STEPS, &steps, reference, &mut ratios);
        let turn = switch(load, windows, MAX_FLOWS, Guest::port)?;
        report("switch", load, &["turn"], &[turn], reference, &mut ratios);
        if load.flows() == 1 {
            let turn = switch(load, windows, MAX_FLOWS, Guest::logged_port)?;
            report("logged", load, &["turn"], &[turn], reference, &mut ratios);
        }
        if load.flows() == 65_536 {
            // A table with room for a few of the flows: every frame begins one, and ends the
            // oldest.
            let turn = switch(load, windows, load.flows() / 16, Guest::port)?;
            report("new", load, &["turn"], &[turn], reference, &mut ratios);
        }
    }
    short::run(quick, chosen, &mut ratios)?;
    Ok(ratios)
}

/// Cycles of a step of the arithmetic that is always the same: a multiplication that waits for the
/// one before.
fn reference(windows: usize) -> f64 {
    let mut samples = Samples::default();
    for _ in 0..windows {
        let mut value = std::hint::black_box(1u64);
        let start = cycles::now();
        for _ in 0..10_000 {
            value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            value ^= value >> 32;
        }
        samples.push((cycles::now() - start) as f64 / 10_000.0);
        std::hint::black_box(value);
    }
    samples.quantile(0.0)
}

/// Two guests that are to be measured under a load.
fn guests(load: Load) -> Result<[Guest; 2], PeerError> {
    Ok([guest(load)?, guest(load)?])
}

/// One of them.
pub(crate) fn guest(load: Load) -> Result<Guest, PeerError> {
    let (ring, frame_max) = match load {
        Load::Tso => (RING_LARGE, 65_536),
        Load::Udp { .. } => (RING, 2_036),
    };
    Guest::new(ring, frame_max)
}

/// The bare switch: everything of guest 0 goes to guest 1.
fn rings(load: Load, windows: usize) -> Result<[Samples; STEPS.len()], PeerError> {
    let mut guests = guests(load)?;
    let (mut from, mut to) = (guests[0].port()?, guests[1].port()?);
    let script = load::script(load)?;
    guests[0].prepare(&script.frame, &script.offload);
    let mut turns = Turns::of(load);
    let mut batch = Batch::new();
    let mut samples: [Samples; STEPS.len()] = Default::default();
    for _ in 0..windows {
        let mut spent = [0; STEPS.len()];
        for _ in 0..WINDOW {
            guests[0].send(BATCH as u16, |write| turns.next(write));
            forward(&mut from, &mut to, &mut batch, &mut spent)?;
            let arrived = guests[1].receive();
            if usize::from(arrived) != BATCH {
                return Err(PeerError(format!("{arrived} frames of {BATCH} arrived")));
            }
        }
        for (samples, spent) in samples.iter_mut().zip(spent) {
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
        }
    }
    guests[1].check_order()?;
    Ok(samples)
}

/// One batch; adds what each step took to `spent`.
fn forward(
    from: &mut Port,
    to: &mut Port,
    batch: &mut Batch,
    spent: &mut [u64; STEPS.len()],
) -> Result<(), PeerError> {
    let broken = |error: io::port::PortError| PeerError(error.to_string());
    let times = {
        let start = cycles::now();
        from.receive(batch).map_err(broken)?;
        let received = cycles::now();
        let frames: [u8; BATCH] = std::array::from_fn(|frame| frame as u8);
        let mut results = [Ok(()); BATCH];
        to.transmit_all(batch, &frames[..batch.len()], &mut results[..batch.len()]);
        let transmitted = cycles::now();
        if let Some(error) = results.iter().find_map(|result| result.err()) {
            return Err(PeerError(format!("not transmitted: {error:?}")));
        }
        to.flush().map_err(broken)?;
        let flushed = cycles::now();
        from.complete(batch);
        [start, received, transmitted, flushed, cycles::now()]
    };
    for (spent, pair) in spent.iter_mut().zip(times.windows(2)) {
        *spent += pair[1] - pair[0];
    }
    Ok(())
}

/// The data plane with rules on; `port`: the device's side of a guest.
fn switch(
    load: Load,
    windows: usize,
    max_flows: u32,
    port: fn(&Guest) -> Result<Port, PeerError>,
) -> Result<Samples, PeerError> {
    let mut guests = guests(load)?;
    let ports = vec![
        (PortSlot(0).into(), port(&guests[0])?),
        (PortSlot(1).into(), port(&guests[1])?),
    ];
    let mut switch = Switch::new(ports, max_flows, snapshot(crate::RULES)?)?;
    let script = load::script(load)?;
    for (from, frame) in &script.first {
        guests[*from].prepare(frame, &Offload::default());
        guests[*from].send(1, |_| ());
        switch.turn();
    }
    guests[0].receive();
    guests[1].receive();
    guests[0].prepare(&script.frame, &script.offload);
    let mut turns = Turns::of(load);
    let mut samples = Samples::default();
    let flows = u64::from(load.flows());
    // Every flow is seen before the first window.
    let settle = 2 * flows.div_ceil(WINDOW * BATCH as u64) as usize;
    for window in 0..settle + windows {
        let mut spent = 0;
        for _ in 0..WINDOW {
            guests[0].send(BATCH as u16, |write| turns.next(write));
            spent += switch.deliver(|| guests[1].receive().into())?;
        }
        if window >= settle {
            samples.push(spent as f64 / (WINDOW * BATCH as u64) as f64);
        }
    }
    guests[1].check_order()?;
    Ok(samples)
}

/// Workers under rules; most have one.
pub(crate) struct Switch {
    workers: Vec<TimedWorker>,
    /// The workers are told to stop when this goes.
    handle: Arc<dataplane::Switch>,
}

/// A worker whose turns are timed.
pub(crate) struct TimedWorker {
    worker: Worker,
    /// Where its time begins; `None`: it stands still.
    started: Option<Instant>,
}

impl Switch {
    /// One worker with these ports under a snapshot.
    pub(crate) fn new(
        ports: Vec<(QueueId, Port)>,
        max_flows: u32,
        snapshot: Snapshot,
    ) -> Result<Switch, PeerError> {
        Switch::with_clock(vec![ports], max_flows, snapshot, Some(Instant::now()))
    }

    /// A worker for each list of ports, without a clock: ports that are quiet stay polled. Guests
    /// in this process have no eventfd to wake a worker by.
    pub(crate) fn without_time(
        ports: Vec<Vec<(QueueId, Port)>>,
        max_flows: u32,
        snapshot: Snapshot,
    ) -> Result<Switch, PeerError> {
        Switch::with_clock(ports, max_flows, snapshot, None)
    }

    fn with_clock(
        ports: Vec<Vec<(QueueId, Port)>>,
        max_flows: u32,
        snapshot: Snapshot,
        started: Option<Instant>,
    ) -> Result<Switch, PeerError> {
        let config = |_| WorkerConfig {
            max_flows,
            max_fragments: 1024,
            max_learned_macs: 1024,
            seed: 1,
            on_broken: Box::new(|_, _| ()),
        };
        // As the daemon has them: in memory that outlives it.
        let memory = FlowMemory::new(max_flows)
            .map_err(|error| PeerError(format!("memory of flows: {error}")))?;
        let made = dataplane::Switch::with_memory(ports.len(), Some(memory), config);
        let (handle, workers) = made.map_err(|error| PeerError(format!("workers: {error}")))?;
        let workers = workers
            .into_iter()
            .map(|worker| TimedWorker { worker, started });
        let handle = Arc::new(handle);
        // The daemon does so bit by bit.
        handle.collapse_flow_memory(&mut 0, max_flows as usize, |_| true);
        handle.collapse_flow_index(|_| true);
        let mut switch = Switch {
            workers: workers.collect(),
            handle: handle.clone(),
        };
        switch.answer(|| handle.publish(Arc::new(snapshot)))?;
        for (worker, ports) in ports.into_iter().enumerate() {
            for (queue, port) in ports {
                switch.answer(|| handle.attach(queue, port))?;
                switch.answer(|| handle.move_queue(queue, worker))?;
            }
        }
        Ok(switch)
    }

    /// Puts the next hops of the underlay in force.
    pub(crate) fn set_underlay(&mut self, underlay: Underlay) -> Result<(), PeerError> {
        let handle = self.handle.clone();
        self.answer(|| handle.set_underlay(Arc::new(underlay)))
    }

    /// Carries out what `ask` asks of the workers, on a thread of its own, as it waits for the
    /// answer.
    pub(crate) fn answer<T: Send>(
        &mut self,
        ask: impl FnOnce() -> Result<T, WorkerGone> + Send,
    ) -> Result<T, PeerError> {
        std::thread::scope(|scope| {
            let asking = scope.spawn(ask);
            while !asking.is_finished() {
                for worker in &mut self.workers {
                    worker.turn();
                }
            }
            let answer = asking
                .join()
                .map_err(|_| PeerError("a command panicked".to_owned()))?;
            answer.map_err(|error| PeerError(error.to_string()))
        })
    }

    /// What other threads ask it by; answered in turns.
    pub(crate) fn handle(&self) -> Arc<dataplane::Switch> {
        self.handle.clone()
    }

    /// The workers, each for a thread of its own.
    pub(crate) fn workers(&mut self) -> &mut [TimedWorker] {
        &mut self.workers
    }

    /// [`TimedWorker::deliver`] of the first worker.
    pub(crate) fn deliver(&mut self, receive: impl FnMut() -> usize) -> Result<u64, PeerError> {
        self.workers[0].deliver(receive)
    }

    /// [`TimedWorker::turn`] of the first worker.
    pub(crate) fn turn(&mut self) -> u64 {
        self.workers[0].turn()
    }
}

impl TimedWorker {
    /// Turns until a batch has arrived: a sender waits a few turns for what its frames have cost.
    /// Gives the cycles they took.
    pub(crate) fn deliver(&mut self, mut receive: impl FnMut() -> usize) -> Result<u64, PeerError> {
        let (mut spent, mut arrived) = (0, 0);
        for _ in 0..100 {
            spent += self.turn();
            arrived += receive();
            if arrived >= BATCH {
                return Ok(spent);
            }
        }
        Err(PeerError(format!("{arrived} frames of {BATCH} arrived")))
    }

    /// One turn; gives the cycles it took.
    pub(crate) fn turn(&mut self) -> u64 {
        let now = Now {
            mono_ns: self.started.map_or(1, |at| at.elapsed().as_nanos() as u64),
            unix_ns: 0,
        };
        let start = cycles::now();
        self.worker.turn(now);
        cycles::now() - start
    }
}

/// Two NICs in a group with so many rules: those that `switch` has too.
pub(crate) fn snapshot(rules: u16) -> Result<Snapshot, PeerError> {
    snapshot_of(2, rules)
}

/// So many NICs in a group.
pub(crate) fn snapshot_of(nics: usize, rules: u16) -> Result<Snapshot, PeerError> {
    let vni = Vni::new(1).map_err(|error| PeerError(error.to_string()))?;
    let mut network = Network {
        vni,
        macs: Default::default(),
        ports: Vec::new(),
        shared: Default::default(),
        learners: Vec::new(),
        overlay: None,
    };
    let mut snapshot = Snapshot {
        epoch: Epoch(1),
        ..Snapshot::default()
    };
    for index in 0..nics {
        let (slot, mac) = (PortSlot(index as u32), guest_mac(index)?);
        network.macs.insert(mac, slot);
        network.ports.push(slot);
        snapshot.ports.push_back(Some(Arc::new(PortConfig {
            name: "nic".into(),
            addresses: vec![guest_ip(index).into()],
            groups: vec![GroupIdx(0)],
            flow_share: 1 << 21,
            ..PortConfig::new(slot, PortUid(slot.0 + 1), vni, NetworkIdx(0), mac)
        })));
    }
    snapshot.networks.push_back(Some(Arc::new(network)));
    let subnet = Peer::Net(IpNet::V4(Ipv4Net::new_assert(guest_ip(0), 8).trunc()));
    let (first, last) = (
        crate::TRAFFIC_PORT,
        crate::TRAFFIC_PORT + crate::TRAFFIC_PORTS - 1,
    );
    let others = (2..rules).map(|number| crate::FIRST_RULE_PORT + number);
    let rules = others
        .map(|port| (6, port..=port))
        .chain([(6, first..=last), (17, first..=last)])
        .enumerate()
        .map(|(slot, (protocol, selector))| RuleSpec {
            direction: Direction::Ingress,
            protocol: Some(protocol),
            selector,
            peer: subnet,
            slot: RuleSlot(slot as u32),
        });
    let group = Group {
        rules: RuleSet::new(rules.collect()),
        members: (0..nics).map(|index| guest_ip(index).into()).collect(),
        ..Group::default()
    };
    snapshot.groups.push_back(Some(Arc::new(group)));
    Ok(snapshot)
}

/// One line of the table.
fn report(
    switch: &str,
    load: Load,
    names: &[&str],
    steps: &[Samples],
    reference: f64,
    ratios: &mut Ratios,
) {
    let sum = |share: f64| steps.iter().map(|step| step.quantile(share)).sum::<f64>();
    print!(
        "{switch:<7} {:<17} {:>6.1} [{:>6.1}]  ",
        load.name(),
        sum(0.0),
        sum(0.5)
    );
    for (name, step) in names.iter().zip(steps) {
        print!(" {name} {:.1} [{:.1}]", step.quantile(0.0), step.median());
    }
    println!("  (reference {reference:.2})");
    ratios.push(format!("{switch}_{}_cycles", load.name()), sum(0.0));
}
