//! How long a change takes until it is in force, and for how long it keeps a worker from polling.
//!
//! The controller and one worker in this process: 16,000 NICs in 160 networks, all in one group,
//! to which 10,000 rules come one by one; then members, NICs and a rule that opens everybody to
//! everybody. An operation returns when its snapshot is in force, so its time is the time until
//! then. The worker's thread polls without pause and notes how much of the processor each turn took
//! that carried a command out: its own time, so that what else runs on the machine is not counted,
//! and the clock's beside it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use control::model::{Config, Direction, Group, GroupId, Nic, NicId, Peer, Ports, Rule, RuleMatch};
use control::{AttachError, Attachments, Controller, HostSettings, OpenRequest};
use dataplane::snapshot::PortSlot;
use dataplane::{Now, Switch, Worker, WorkerConfig};
use rustix::time::{ClockId, clock_gettime};
use wire::{Mac, Vni};

use crate::peers::PeerError;
use crate::report::{Ratios, Samples};

const NICS: u32 = 16_000;
const NETWORKS: u32 = 160;
const RULES: u32 = 10_000;

/// Changes of each kind but rules.
const CHANGES: u32 = 500;

const GROUP: &str = "everybody";

/// Prints the table and gives its numbers.
pub fn run() -> Result<Ratios, PeerError> {
    let mut ratios = Ratios::default();
    add_to(&mut ratios)?;
    Ok(ratios)
}

/// Prints the table and adds its numbers.
pub fn add_to(ratios: &mut Ratios) -> Result<(), PeerError> {
    let config = |_| WorkerConfig {
        max_flows: 65_536,
        max_fragments: 64,
        max_learned_macs: 64,
        seed: 1,
        on_broken: Box::new(|_, _| ()),
    };
    let (switch, mut workers) =
        Switch::new(1, config).map_err(|error| PeerError(format!("a worker: {error}")))?;
    let switch = Arc::new(switch);
    let pauses = Arc::new(Pauses::default());
    let worker = workers.remove(0);
    let thread = std::thread::spawn({
        let pauses = pauses.clone();
        move || poll(worker, &pauses)
    });
    let settings = HostSettings {
        overlay: true,
        ..HostSettings::default()
    };
    let mut controller = Controller::new(settings, Box::new(Nowhere), switch.clone());
    let measured = measure(&mut controller, &pauses, ratios);
    switch.stop();
    thread
        .join()
        .map_err(|_| PeerError("the worker's thread panicked".into()))?;
    measured
}

/// What the turns have taken that carried commands out, since the last look; nanoseconds.
#[derive(Default)]
struct Pauses {
    /// Of the processor.
    longest_cpu: AtomicU64,
    /// Of the clock.
    longest_clock: AtomicU64,
    /// Turns that were noted.
    turns: AtomicU64,
    /// The worker is told to measure.
    on: AtomicBool,
}

impl Pauses {
    /// After the turn that is under way: what asked for something has its answer within that.
    fn take(&self) -> [f64; 2] {
        let turns = self.turns.load(Ordering::Acquire);
        while self.turns.load(Ordering::Acquire) == turns {
            std::hint::spin_loop();
        }
        [&self.longest_cpu, &self.longest_clock]
            .map(|longest| longest.swap(0, Ordering::Relaxed) as f64 / 1e9)
    }
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The worker's thread: polls until it is stopped.
fn poll(mut worker: Worker, pauses: &Pauses) {
    loop {
        let cpu = nanos(ClockId::ThreadCPUTime);
        let began = nanos(ClockId::Monotonic);
        let turn = worker.turn(Now {
            mono_ns: began,
            unix_ns: 0,
        });
        if (turn.commands > 0 || turn.busy) && pauses.on.load(Ordering::Relaxed) {
            let cpu = nanos(ClockId::ThreadCPUTime) - cpu;
            let clock = nanos(ClockId::Monotonic) - began;
            pauses.longest_cpu.fetch_max(cpu, Ordering::Relaxed);
            pauses.longest_clock.fetch_max(clock, Ordering::Relaxed);
        }
        pauses.turns.fetch_add(1, Ordering::Release);
        if turn.stopped {
            return;
        }
    }
}

/// What one kind of change has taken, seconds: until it was in force, and the worker's longest turn
/// meanwhile.
#[derive(Default)]
struct Row {
    in_force: Samples,
    pause_cpu: Samples,
    pause_clock: Samples,
}

impl Row {
    fn add(
        &mut self,
        pauses: &Pauses,
        change: impl FnOnce() -> Result<(), control::Error>,
    ) -> Result<(), PeerError> {
        pauses.take();
        let start = Instant::now();
        change().map_err(|error| PeerError(error.to_string()))?;
        self.in_force.push(start.elapsed().as_secs_f64());
        let [cpu, clock] = pauses.take();
        self.pause_cpu.push(cpu);
        self.pause_clock.push(clock);
        Ok(())
    }

    fn print(&self, name: &str, ratios: &mut Ratios) {
        let micros = |samples: &Samples, share| samples.quantile(share) * 1e6;
        let [p50, p99] = [0.5, 0.99].map(|share| micros(&self.in_force, share));
        let [pause_p50, pause_p99, pause] =
            [0.5, 0.99, 1.0].map(|share| micros(&self.pause_cpu, share));
        let clock = micros(&self.pause_clock, 1.0);
        println!(
            "{name:<22} {p50:>9.0} {p99:>9.0} {pause_p50:>9.1} {pause_p99:>9.1} {pause:>9.1} \
             {clock:>9.0}"
        );
        let name = name.replace(' ', "_");
        ratios.push(format!("{name}_in_force_p50_us"), p50);
        ratios.push(format!("{name}_in_force_p99_us"), p99);
        ratios.push(format!("{name}_pause_us"), pause);
    }
}

fn measure(
    controller: &mut Controller,
    pauses: &Pauses,
    ratios: &mut Ratios,
) -> Result<(), PeerError> {
    let group = GroupId::new(GROUP).map_err(fail)?;
    println!("a change in force at {NICS} NICs and up to {RULES} rules of their group, one worker");
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}   microseconds",
        "", "p50", "p99", "pause p50", "pause p99", "pause max", "by clock"
    );
    pauses.on.store(true, Ordering::Relaxed);

    let nics = (0..NICS)
        .map(|number| nic(number, &group).map(|nic| (nic.id.clone(), nic)))
        .collect::<Result<_, _>>()?;
    let config = Config {
        nics,
        groups: [(group.clone(), Group::new(group.clone()))].into(),
        ..Config::default()
    };
    let mut all = Row::default();
    all.add(pauses, || controller.apply(config, false).map(drop))?;
    all.print("all NICs at once", ratios);

    let mut rules: [Row; 10] = Default::default();
    for number in 0..RULES {
        let rule = rule(number)?;
        rules[(number * 10 / RULES) as usize]
            .add(pauses, || controller.add_rule(&group, rule).map(drop))?;
    }
    rules[0].print("first 1000 rules", ratios);
    rules[9].print("last 1000 rules", ratios);
    let mut every = Row::default();
    for row in &rules {
        every.in_force.extend(&row.in_force);
        every.pause_cpu.extend(&row.pause_cpu);
        every.pause_clock.extend(&row.pause_clock);
    }
    every.print("rule", ratios);

    let mut removed = Row::default();
    for number in 0..CHANGES {
        let rule = rule(number * (RULES / CHANGES))?;
        removed.add(pauses, || controller.delete_rule(&group, &rule).map(drop))?;
    }
    removed.print("rule removed", ratios);

    let mut members = Row::default();
    for number in 0..CHANGES {
        let member = IpAddr::from((0xc0a8_0000 + number).to_be_bytes());
        members.add(pauses, || controller.add_member(&group, member).map(drop))?;
    }
    members.print("member", ratios);

    let mut nics = Row::default();
    for number in 0..CHANGES {
        let (there, new) = (nic(number, &group)?, nic(NICS + number, &group)?);
        nics.add(pauses, || controller.delete_nic(&there.id).map(drop))?;
        nics.add(pauses, || controller.put_nic(new).map(drop))?;
    }
    nics.print("NIC", ratios);

    let open = Rule::new(Direction::Ingress, None, RuleMatch::Any, Peer::Any).map_err(fail)?;
    let mut opened = Row::default();
    for _ in 0..CHANGES / 50 {
        opened.add(pauses, || {
            controller.add_rule(&group, open.clone()).map(drop)
        })?;
        opened.add(pauses, || controller.delete_rule(&group, &open).map(drop))?;
    }
    opened.print("all NICs opened", ratios);
    Ok(())
}

fn fail(error: control::Error) -> PeerError {
    PeerError(error.to_string())
}

fn nic(number: u32, group: &GroupId) -> Result<Nic, PeerError> {
    let [_, a, b, c] = number.to_be_bytes();
    let vni = Vni::new(number % NETWORKS).map_err(|error| PeerError(error.to_string()))?;
    let id = NicId::new(&format!("nic{number}")).map_err(fail)?;
    Ok(Nic {
        ips: vec![IpAddr::from([10, a, b, c])],
        security_groups: vec![group.clone()],
        ..Nic::new(id, Mac([0x52, 0x54, 0, a, b, c]), vni)
    })
}

/// Rules of all kinds: a port for anybody, a port for a network, a range, a group's members.
fn rule(number: u32) -> Result<Rule, PeerError> {
    let port = 1_000 + (number / 4) as u16;
    let network = IpAddr::from((0x0b00_0000 + (number << 8)).to_be_bytes());
    let (ports, peer) = match number % 4 {
        0 => (port..=port, Peer::Any),
        1 => (443..=443, peer_net(network)?),
        2 => (port..=port + 100, Peer::Any),
        _ => (port..=port, Peer::Group(GroupId::new(GROUP).map_err(fail)?)),
    };
    let ports = RuleMatch::Ports(Ports {
        start: *ports.start(),
        end: *ports.end(),
    });
    Rule::new(Direction::Ingress, Some(6), ports, peer).map_err(fail)
}

fn peer_net(address: IpAddr) -> Result<Peer, PeerError> {
    let net = ipnet::IpNet::new(address, 24).map_err(|error| PeerError(error.to_string()))?;
    Ok(Peer::Net(net))
}

/// NICs without a guest.
struct Nowhere;

impl Attachments for Nowhere {
    fn open(&mut self, _: &OpenRequest<'_>) -> Result<(), AttachError> {
        Ok(())
    }

    fn close(&mut self, _: &[(Arc<Nic>, PortSlot)]) {}

    fn trace(&mut self, _: &Nic, _: &str) -> Result<Option<io::trace::Trace>, AttachError> {
        Ok(None)
    }
}
