//! sFlow: samples of frames and counters of interfaces, sent to collectors as datagrams of version
//! 5 ([`wire::sflow`]).
//!
//! Workers put samples into bounded rings ([`dataplane::sampling`]); one thread takes them out ten
//! times a second and sends them, and of all interfaces in turn what they have counted. It may wait
//! for the controller; the workers do not notice, and what they had to leave out is counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::sampling::{self, Samples};
use dataplane::{DropReason, PortSlot, Switch};
use wire::sflow::{CountersSample, Datagram, FlowSample, Output, Reason};

use crate::app::App;
use crate::datagrams::{Datagrams, Sent};

/// How often the rings are emptied.
const POLL: Duration = Duration::from_millis(100);
/// How often each interface's counters are sent.
const COUNTERS_EVERY: Duration = Duration::from_secs(20);

/// What was told, and what was lost.
#[derive(Debug, Default)]
pub struct Counts {
    /// Flow samples and counter samples that were sent, to one collector or more.
    sent: [AtomicU64; 2],
    /// By the workers, and by collectors' networks.
    lost: [AtomicU64; 2],
}

/// Names of what is sent, as metrics have them.
pub const KINDS: [&str; 2] = ["flow", "counters"];
/// Names of where samples are lost.
pub const PLACES: [&str; 2] = ["ring", "network"];

impl Counts {
    /// In the order of [`KINDS`].
    pub fn sent(&self) -> [u64; 2] {
        self.sent
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }

    fn lose(&self, samples: u32) {
        self.lost[1].fetch_add(samples.into(), Ordering::Relaxed);
    }

    /// In the order of [`PLACES`].
    pub fn lost(&self) -> [u64; 2] {
        self.lost
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// The agent. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sflow(Arc<Shared>);

#[derive(Default)]
struct Shared {
    counts: Counts,
    stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sflow {
    /// What it has counted.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Has the workers take one frame in `rate` where a NIC has no rate of its own, 0: none, and
    /// begins to tell these collectors; none: nothing is done.
    pub fn start(&self, collectors: &[SocketAddr], rate: u32, app: Arc<App>) -> Result<(), String> {
        if collectors.is_empty() {
            return Ok(());
        }
        let switch = app.workers.switch().clone();
        let samples = switch
            .sample(rate, sys::cycles::now())
            .map_err(|e| e.to_string())?;
        let agent = Agent {
            sflow: self.clone(),
            app,
            switch,
            samples,
            collectors: collectors.iter().map(|to| Collector::new(*to)).collect(),
            sources: BTreeMap::new(),
            turn: Turn::default(),
            began: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("sflow".into());
        let thread = thread.spawn(move || agent.run());
        let thread = thread.map_err(|e| format!("sFlow's thread cannot be started: {e}"))?;
        *self.0.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Ends it. Waits for that.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        let thread = self.0.thread.lock();
        if let Some(thread) = thread.unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            // One that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// The thread's.
struct Agent {
    sflow: Sflow,
    app: Arc<App>,
    switch: Arc<Switch>,
    samples: Samples,
    collectors: Vec<Collector>,
    sources: BTreeMap<PortSlot, Source>,
    turn: Turn,
    began: Instant,
}

/// What was told of an interface: sFlow's data source.
#[derive(Default)]
struct Source {
    /// Number of its last flow sample.
    flows: u32,
    /// Number of its last counter sample.
    counters: u32,
    /// Its frames that could have been sampled, by the workers that had some.
    pools: BTreeMap<usize, u64>,
}

/// Interfaces whose counters are still to be told in this round of [`COUNTERS_EVERY`].
#[derive(Default)]
struct Turn {
    left: Vec<Interface>,
    /// So many in one [`POLL`].
    at_once: usize,
    next: Option<Instant>,
}

struct Interface {
    slot: PortSlot,
    name: String,
    is_up: bool,
}

/// ifIndex: that of NICs begins at 1, and uplinks are behind them. 0 means that it is not known.
fn index(slot: PortSlot) -> u32 {
    slot.0 + 1
}

fn as_sflow(reason: Option<DropReason>) -> Reason {
    use DropReason as Of;
    let Some(reason) = reason else {
        return Reason::Unknown;
    };
    match reason {
        Of::NoEgressRule | Of::NoIngressRule | Of::ForeignSource => Reason::AccessList,
        Of::ConnectionLimit | Of::FloodLimit | Of::BitLimit | Of::PacketLimit => Reason::RateLimit,
        Of::RingFull | Of::HandoffFull | Of::FlowShareFull | Of::FlowTableFull => {
            Reason::NoBufferSpace
        }
        Of::MtuExceeded => Reason::TooBig,
        _ => Reason::Unknown,
    }
}

impl Agent {
    fn run(mut self) {
        while !self.sflow.0.stopped.load(Ordering::Relaxed) {
            std::thread::park_timeout(POLL);
            self.send_flows();
            self.send_counters();
            for collector in &mut self.collectors {
                collector.finish(self.began, &self.sflow.0.counts);
            }
        }
        // Workers that have ended sample nothing any more.
        let _ = self.switch.end_samples();
    }

    fn send_flows(&mut self) {
        let counts = &self.sflow.0.counts;
        let lost = self.samples.lost();
        counts.lost[0].store(lost, Ordering::Relaxed);
        for (worker, sample) in self.samples.take() {
            let source = self.sources.entry(sample.input).or_default();
            source.flows = source.flows.wrapping_add(1);
            source.pools.insert(worker, sample.pool);
            let sample = FlowSample {
                sequence: source.flows,
                rate: sample.rate,
                pool: source.pools.values().sum::<u64>() as u32,
                drops: lost as u32,
                input: index(sample.input),
                output: match sample.output {
                    sampling::Output::Unknown => Output::Unknown,
                    sampling::Output::Port(slot) => Output::Interface(index(slot)),
                    sampling::Output::Several(count) => Output::Several(count),
                    sampling::Output::Dropped(reason) => Output::Dropped(as_sflow(reason)),
                },
                frame_len: sample.frame_len,
                header: &sample.head[..usize::from(sample.head_len)],
            };
            counts.sent[0].fetch_add(1, Ordering::Relaxed);
            for collector in &mut self.collectors {
                collector.push(self.began, counts, |datagram| datagram.push_flow(&sample));
            }
        }
    }

    fn send_counters(&mut self) {
        let due = |at: Instant| at <= Instant::now();
        if self.turn.left.is_empty() && self.turn.next.is_none_or(due) {
            self.turn.next = Some(Instant::now() + COUNTERS_EVERY);
            self.turn.left = self.interfaces();
            let turns = (COUNTERS_EVERY.as_millis() / POLL.as_millis()) as usize;
            self.turn.at_once = self.turn.left.len().div_ceil(turns);
        }
        let counts = &self.sflow.0.counts;
        let from = self.turn.left.len().saturating_sub(self.turn.at_once);
        for interface in self.turn.left.drain(from..) {
            let source = self.sources.entry(interface.slot).or_default();
            source.counters = source.counters.wrapping_add(1);
            let now = self.switch.port_counters(interface.slot);
            let sample = CountersSample {
                sequence: source.counters,
                index: index(interface.slot),
                name: &interface.name,
                is_up: interface.is_up,
                octets: [now.rx_bytes, now.tx_bytes],
                frames: [now.rx_frames, now.tx_frames],
                discards: [now.drops_from.iter().sum(), now.drops_to.iter().sum()],
            };
            counts.sent[1].fetch_add(1, Ordering::Relaxed);
            for collector in &mut self.collectors {
                collector.push(self.began, counts, |datagram| {
                    datagram.push_counters(&sample)
                });
            }
        }
    }

    /// All that there are now; what is gone is forgotten.
    fn interfaces(&mut self) -> Vec<Interface> {
        let mut all: Vec<Interface> = self
            .app
            .control()
            .nics()
            .map(|status| Interface {
                slot: status.slot,
                name: status.nic.id.to_string(),
                is_up: status.state == control::NicState::Up,
            })
            .collect();
        let facts = self.app.uplinks.running().map(|uplinks| uplinks.facts());
        for fact in facts.iter().flat_map(|facts| facts.iter()) {
            all.push(Interface {
                slot: PortSlot::uplink(fact.number),
                name: fact.interface.clone(),
                is_up: fact.joined,
            });
        }
        let there: std::collections::BTreeSet<PortSlot> = all.iter().map(|one| one.slot).collect();
        self.sources.retain(|slot, _| there.contains(slot));
        all
    }
}

/// Where datagrams are sent.
struct Collector {
    datagrams: Datagrams,
    /// What is put together.
    next: Option<Datagram>,
    /// The last one's number, and how many samples it had.
    sequence: u32,
    last: u32,
}

impl Collector {
    fn new(to: SocketAddr) -> Collector {
        Collector {
            datagrams: Datagrams::new(to),
            next: None,
            sequence: 0,
            last: 0,
        }
    }

    /// Adds a sample, and sends before what is full.
    fn push(&mut self, began: Instant, counts: &Counts, push: impl Fn(&mut Datagram) -> bool) {
        for _ in 0..2 {
            if self.next.is_none() {
                let Ok(agent) = self.datagrams.source("samples") else {
                    return counts.lose(1);
                };
                self.next = Some(Datagram::new(agent));
            }
            if self.next.as_mut().is_some_and(&push) {
                return;
            }
            // It fits into an empty one.
            self.finish(began, counts);
        }
    }

    /// Sends what there is.
    fn finish(&mut self, began: Instant, counts: &Counts) {
        let Some(datagram) = self.next.take() else {
            return;
        };
        let samples = datagram.samples();
        let before = std::mem::replace(&mut self.last, samples);
        // One that is lost is missing for the collector, too: it sees a gap.
        self.sequence = self.sequence.wrapping_add(1);
        let uptime = began.elapsed().as_millis() as u32;
        let bytes = datagram.finish(self.sequence, uptime);
        match self.datagrams.send(&bytes, "samples") {
            Ok(Sent::Fine) => {}
            Ok(Sent::OneBeforeRefused) => counts.lose(before),
            Err(_) => counts.lose(samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_are_numbered_and_what_is_lost_is_counted() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut collector = Collector::new(listener.local_addr().unwrap());
        let (counts, began) = (Counts::default(), Instant::now());
        let sample = FlowSample {
            sequence: 1,
            rate: 10,
            pool: 10,
            drops: 0,
            input: 1,
            output: Output::Unknown,
            frame_len: 200,
            header: &[7; 128],
        };
        let push = |collector: &mut Collector| {
            collector.push(began, &counts, |datagram| datagram.push_flow(&sample));
        };
        for _ in 0..10 {
            push(&mut collector);
        }
        collector.finish(began, &counts);
        collector.finish(began, &counts);
        let mut bytes = [0; 2048];
        let mut next = || {
            let len = listener.recv(&mut bytes).unwrap();
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            (len <= wire::sflow::DATAGRAM_MAX, word(16), word(24))
        };
        assert_eq!(next(), (true, 1, 7));
        assert_eq!(next(), (true, 2, 3));
        // Nobody listens: what is sent is refused with the next one.
        drop(listener);
        for _ in 0..3 {
            push(&mut collector);
            collector.finish(began, &counts);
        }
        assert_eq!(counts.lost()[1], 2);
    }
}
