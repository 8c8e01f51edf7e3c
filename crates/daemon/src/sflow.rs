//! sFlow: samples of frames and counters of interfaces, sent to collectors as datagrams of version 5
//! ([`wire::sflow`]).
//!
//! Workers put samples into bounded rings ([`dataplane::sampling`]); one thread takes them out ten
//! times a second and sends them, and of all interfaces in turn what they have counted. It may wait
//! for the controller; the workers do not notice, and what they had to leave out is counted.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::sampling::{self, Samples};
use dataplane::{PortSlot, Switch};
use wire::sflow::{CountersSample, Datagram, FlowSample, Output};

use crate::app::App;

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

/// An address of the options. The error is a sentence.
pub fn collector(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("--sflow '{text}': it is ADDRESS:PORT, as 192.0.2.9:6343"))
}

impl Sflow {
    /// What it has counted.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Has the workers take one frame in `rate`, and begins to tell these collectors; none: nothing
    /// is done.
    pub fn start(&self, collectors: &[SocketAddr], rate: u32, app: Arc<App>) -> Result<(), String> {
        if collectors.is_empty() {
            return Ok(());
        }
        let switch = app.workers.switch().clone();
        let samples = switch.sample(rate).map_err(|e| e.to_string())?;
        let agent = Agent {
            sflow: self.clone(),
            app,
            switch,
            samples,
            rate,
            collectors: collectors.iter().map(|to| Collector::new(*to)).collect(),
            inputs: BTreeMap::new(),
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
    rate: u32,
    collectors: Vec<Collector>,
    /// Numbers of the last flow sample and counter sample of each interface.
    inputs: BTreeMap<PortSlot, [u32; 2]>,
    turn: Turn,
    began: Instant,
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

impl Agent {
    fn run(mut self) {
        while !self.sflow.0.stopped.load(Ordering::Relaxed) {
            std::thread::park_timeout(POLL);
            self.tell_flows();
            self.tell_counters();
            for collector in &mut self.collectors {
                collector.finish(self.began, &self.sflow.0.counts);
            }
        }
        // Workers that have ended sample nothing any more.
        let _ = self.switch.end_samples();
    }

    fn tell_flows(&mut self) {
        let counts = &self.sflow.0.counts;
        let lost = self.samples.lost();
        counts.lost[0].store(lost, Ordering::Relaxed);
        let mut pools: BTreeMap<PortSlot, u64> = BTreeMap::new();
        for sample in self.samples.take() {
            let [flows, _] = self.inputs.entry(sample.input).or_default();
            *flows = flows.wrapping_add(1);
            let pool = pools
                .entry(sample.input)
                .or_insert_with(|| self.switch.port_counters(sample.input).rx_frames);
            let sample = FlowSample {
                sequence: *flows,
                rate: self.rate,
                pool: *pool as u32,
                drops: lost as u32,
                input: index(sample.input),
                output: match sample.output {
                    sampling::Output::Unknown => Output::Unknown,
                    sampling::Output::Port(slot) => Output::Interface(index(slot)),
                    sampling::Output::Several(count) => Output::Several(count),
                    sampling::Output::Dropped(_) => Output::Dropped,
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

    fn tell_counters(&mut self) {
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
            let [_, sequence] = self.inputs.entry(interface.slot).or_default();
            *sequence = sequence.wrapping_add(1);
            let now = self.switch.port_counters(interface.slot);
            let sample = CountersSample {
                sequence: *sequence,
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
        self.inputs.retain(|slot, _| there.contains(slot));
        all
    }
}

/// Where datagrams are sent.
struct Collector {
    to: SocketAddr,
    socket: Option<(UdpSocket, IpAddr)>,
    datagram: Option<Datagram>,
    sequence: u32,
    failing: bool,
}

impl Collector {
    fn new(to: SocketAddr) -> Collector {
        Collector {
            to,
            socket: None,
            datagram: None,
            sequence: 0,
            failing: false,
        }
    }

    /// Adds a sample, and sends before what is full.
    fn push(&mut self, began: Instant, counts: &Counts, push: impl Fn(&mut Datagram) -> bool) {
        for _ in 0..2 {
            let agent = match self.agent() {
                Ok(agent) => agent,
                Err(error) => return self.lost(1, counts, &error),
            };
            let datagram = self.datagram.get_or_insert_with(|| Datagram::new(agent));
            if push(datagram) {
                return;
            }
            // It fits into an empty one.
            self.finish(began, counts);
        }
    }

    /// Sends what there is.
    fn finish(&mut self, began: Instant, counts: &Counts) {
        let Some(datagram) = self.datagram.take() else {
            return;
        };
        let samples = datagram.samples();
        // One that is lost is missing for the collector, too: it sees a gap.
        self.sequence = self.sequence.wrapping_add(1);
        let uptime = began.elapsed().as_millis() as u32;
        let bytes = datagram.finish(self.sequence, uptime);
        let sent = match &self.socket {
            Some((socket, _)) => socket.send(&bytes).map(drop),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        match sent {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("samples are sent to the collector {} again", self.to);
                }
            }
            Err(error) => self.lost(samples, counts, &error),
        }
    }

    fn lost(&mut self, samples: u32, counts: &Counts, error: &std::io::Error) {
        counts.lost[1].fetch_add(samples.into(), Ordering::Relaxed);
        // The one before may be of a network that is gone.
        self.socket = None;
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                "samples cannot be sent to the collector {}: {error}",
                self.to
            );
        }
    }

    /// The address that the collector knows this host by.
    fn agent(&mut self) -> std::io::Result<IpAddr> {
        if let Some((_, agent)) = &self.socket {
            return Ok(*agent);
        }
        let any: IpAddr = match self.to.is_ipv6() {
            false => Ipv4Addr::UNSPECIFIED.into(),
            true => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(self.to)?;
        let agent = socket.local_addr()?.ip();
        self.socket = Some((socket, agent));
        Ok(agent)
    }
}

#[cfg(test)]
mod tests {
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
        assert!(counts.lost()[1] > 0);
    }

    #[test]
    fn a_collector_is_an_address_and_a_port() {
        for bad in ["", "192.0.2.9", "collector:6343"] {
            let error = collector(bad).unwrap_err();
            assert!(error.contains("ADDRESS:PORT"), "{error}");
        }
    }
}
