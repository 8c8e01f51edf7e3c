//! A NIC that does its worst beside two that talk to each other: what is left to those of the
//! worker that they share.
//!
//! Guests and switch take turns on one core, as in `path`: what counts are the cycles of the
//! worker's turns, and the numbers repeat. The victims are two guests of one network, the attacker
//! is in another with a crowd of guests. Its ring is full whenever a turn begins. Two things are
//! measured, beside each attack and alone:
//!
//! - *share*: one victim's ring is full as well; frames that arrive for a million cycles, as a part
//!   of what its fair half of the worker would carry;
//! - *round trip*: one frame to the other victim and back, from a random moment in a turn, so that
//!   the rest of that turn counts; the time that guests take is not in it.
//!
//! That is done in rounds, each with a quiet switch of its own to compare with. Of all rounds the
//! medians are told, and whether they are what is aimed at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dataplane::{
    Network, NetworkIdx, PortConfig, PortSlot, PortUid, QueueId, Snapshot, WorkerGone,
};
use io::port::Port;
use sys::cycles;
use wire::offload::Offload;
use wire::parse::TcpFlags;
use wire::{Mac, Vni, build};

use crate::aims::Aim;
use crate::guest::Guest;
use crate::interrupt;
use crate::load::{self, Load, Turns};
use crate::path::{self, Switch};
use crate::peers::{CROWD, PeerError, guest_ip};
use crate::report::{Ratios, Samples};
use crate::switch;

/// The attacker's place among the NICs, behind the two victims; the crowd is behind it.
const ATTACKER: usize = 2;

/// Ring entries of the attacker and of the crowd, whose buffers hold 64 KiB.
const RING: u16 = 64;

/// Queues of an attacker that has several.
const PAIRS: u16 = 16;

/// Descriptors of a chain of the attacker's: the most that there may be.
const CHAIN: u16 = 1024;

/// Flows that the table has room for: an attack by new connections gives up old ones all the time.
const MAX_FLOWS: u32 = 1 << 16;

/// What a round trip is made of, without FCS.
const FRAME: usize = 60;

/// The least share that is aimed at.
const SHARE: f64 = 0.9;

/// The greatest 99th percentile of round trips that is aimed at, as a multiple of a quiet switch's.
const LATE: f64 = 2.0;

/// What the attacker does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// Nothing.
    Quiet,
    /// Small frames to one guest: a neighbour that is just as busy.
    Small,
    /// The same by many queues.
    Queues,
    /// Each frame begins a flow.
    Connections,
    /// Frames of 64 KiB to one guest.
    Large,
    /// Broadcasts of 1,500 bytes to the crowd.
    Broadcasts,
    /// Broadcasts of 64 KiB to the crowd.
    LargeBroadcasts,
    /// Frames of 1,100 bytes in as many descriptors as a chain may have.
    Chains,
    /// First fragments of 24 bytes, each of another datagram.
    Fragments,
    /// Descriptors without a byte of a frame.
    Empty,
    /// Broadcasts of 64 KiB to the crowd, and its rings are taken away and come again, as fast as
    /// another core can ask for it: what a worker sees of a VMM that connects over and over.
    Reconnects,
}

impl Attack {
    const ALL: [Attack; 10] = [
        Attack::Small,
        Attack::Queues,
        Attack::Connections,
        Attack::Large,
        Attack::Broadcasts,
        Attack::LargeBroadcasts,
        Attack::Chains,
        Attack::Fragments,
        Attack::Empty,
        Attack::Reconnects,
    ];

    fn name(self) -> &'static str {
        match self {
            Attack::Quiet => "quiet",
            Attack::Small => "small",
            Attack::Queues => "queues",
            Attack::Connections => "connections",
            Attack::Large => "large",
            Attack::Broadcasts => "broadcasts",
            Attack::LargeBroadcasts => "large_broadcasts",
            Attack::Chains => "chains",
            Attack::Fragments => "fragments",
            Attack::Empty => "empty",
            Attack::Reconnects => "reconnects",
        }
    }

    /// What the attacker sends over and over.
    fn frame(self) -> (Vec<u8>, Offload) {
        let to = match self {
            Attack::Broadcasts | Attack::LargeBroadcasts | Attack::Reconnects => Mac::BROADCAST,
            _ => mac(ATTACKER + 1),
        };
        let ip = build::frame(mac(ATTACKER), to).ip(guest_ip(ATTACKER), guest_ip(ATTACKER + 1));
        match self {
            Attack::Large | Attack::LargeBroadcasts | Attack::Reconnects => {
                let tcp = ip.tcp(10_000, crate::TRAFFIC_PORT, TcpFlags::ACK);
                tcp.payload(&vec![0x5a; 65_000])
                    .gso(1448)
                    .build_with_offload()
            }
            Attack::Fragments => {
                let mut frame = ip
                    .udp(10_000, crate::TRAFFIC_PORT)
                    .payload(&[0x5a; 16])
                    .build();
                // More fragments follow, which never come.
                frame[20] |= 0x20;
                (frame, Offload::default())
            }
            Attack::Empty => (Vec::new(), Offload::default()),
            _ => {
                let len = match self {
                    Attack::Broadcasts => 1472,
                    Attack::Chains => 1058,
                    _ => 18,
                };
                let udp = ip.udp(10_000, crate::TRAFFIC_PORT);
                let mut frame = udp.payload(&vec![0x5a; len]).build();
                // No checksum (RFC 768), so that the ports can be rewritten alone.
                frame[40..42].fill(0);
                (frame, Offload::default())
            }
        }
    }
}

/// Runs it and prints the table.
pub fn run(quick: bool) -> Result<Ratios, PeerError> {
    // Turns of the one, and trips of the other.
    let (rounds, count) = if quick { (3, 4_000) } else { (5, 10_000) };
    let per_us = cycles_per_us();
    let attacks = || [Attack::Quiet].into_iter().chain(Attack::ALL);
    let mut all: Vec<Seen> = attacks().map(Seen::of).collect();
    for _ in 0..rounds {
        let mut quiet = (0.0, 0.0);
        for seen in &mut all {
            interrupt::check()?;
            let rate = beside(seen.attack, |scene| scene.rate(count))?;
            let times = beside(seen.attack, |scene| scene.round_trips(count))?;
            let times = times.scaled(1.0 / per_us);
            if seen.attack == Attack::Quiet {
                quiet = (rate, times.quantile(0.99));
            }
            seen.add(rate, &times, quiet);
        }
    }
    println!("{CROWD} NICs hear the attacker; round trips in us of the worker's turns");
    println!("beside                share   p50 us   p99 us   of quiet");
    all.iter().for_each(|seen| println!("{}", seen.line()));
    let aims = all.iter().flat_map(Seen::aims);
    print!("{}", aims.map(|aim| aim.line()).collect::<String>());
    let mut ratios = Ratios::default();
    all.iter().for_each(|seen| seen.tell(&mut ratios));
    println!("\nbeside OVS-DPDK, the switch on a core of its own:");
    ratios.extend(switch::floods(quick)?);
    Ok(ratios)
}

/// What was seen beside an attack, a sample a round.
struct Seen {
    attack: Attack,
    share: Samples,
    /// Of round trips: the median and the 99th percentile in microseconds, and the latter as a
    /// multiple of a quiet switch's.
    median: Samples,
    late: Samples,
    times: Samples,
}

impl Seen {
    fn of(attack: Attack) -> Seen {
        Seen {
            attack,
            share: Samples::default(),
            median: Samples::default(),
            late: Samples::default(),
            times: Samples::default(),
        }
    }

    /// `quiet`: rate and 99th percentile of a quiet switch.
    fn add(&mut self, rate: f64, times: &Samples, quiet: (f64, f64)) {
        // Alone all of the worker is the victim's, and half of it beside somebody.
        let fair = if self.attack == Attack::Quiet {
            1.0
        } else {
            0.5
        };
        let late = times.quantile(0.99);
        self.share.push(rate / quiet.0 / fair);
        self.median.push(times.median());
        self.late.push(late);
        self.times.push(late / quiet.1);
    }

    /// Its line of the table.
    fn line(&self) -> String {
        let [share, median, late, times] =
            [&self.share, &self.median, &self.late, &self.times].map(Samples::median);
        let name = self.attack.name();
        format!("{name:<20} {share:>6.2} {median:>8.2} {late:>8.2} {times:>10.1}")
    }

    /// Of what is beside an attack.
    fn aims(&self) -> Vec<Aim> {
        if self.attack == Attack::Quiet {
            return Vec::new();
        }
        let name = self.attack.name();
        let share = format!("{name}_share at least {SHARE}");
        let late = format!("{name}_p99 at most {LATE} times a quiet switch's");
        vec![
            Aim::new(share, self.share.clone(), |value| value >= SHARE),
            Aim::new(late, self.times.clone(), |value| value <= LATE),
        ]
    }

    fn tell(&self, ratios: &mut Ratios) {
        let name = self.attack.name();
        ratios.push(format!("{name}_p99_us"), self.late.median());
        if self.attack != Attack::Quiet {
            ratios.push(format!("{name}_share"), self.share.median());
            ratios.push(format!("{name}_p99"), self.times.median());
        }
    }
}

/// Measures beside an attack, for which [`Attack::Reconnects`] has a thread of its own.
fn beside<T>(
    attack: Attack,
    measure: impl FnOnce(&mut Scene) -> Result<T, PeerError>,
) -> Result<T, PeerError> {
    let mut scene = Scene::new(attack)?;
    if attack != Attack::Reconnects {
        return measure(&mut scene);
    }
    let stop = AtomicBool::new(false);
    let handle = scene.switch.handle();
    let reconnect = || -> Result<(), PeerError> {
        let gone = |error: WorkerGone| PeerError(error.to_string());
        let queue = PortSlot(ATTACKER as u32).into();
        while !stop.load(Ordering::Relaxed) {
            if let Some(port) = handle.detach(queue).map_err(gone)? {
                drop(handle.attach(queue, port).map_err(gone)?);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let reconnecting = scope.spawn(reconnect);
        let measured = measure(&mut scene);
        stop.store(true, Ordering::Relaxed);
        // What it asks for is answered in turns.
        while !reconnecting.is_finished() {
            scene.switch.turn();
        }
        let done = reconnecting.join();
        done.map_err(|_| PeerError("a reconnection panicked".to_owned()))??;
        measured
    })
}

/// The victims, the attacker, its crowd and the switch.
struct Scene {
    victims: [Guest; 2],
    /// Its queues.
    attacker: Vec<Guest>,
    attack: Attack,
    turns: Turns,
    crowd: Vec<Guest>,
    switch: Switch,
    /// Of the attacker's datagrams in fragments.
    datagrams: u16,
    /// Of a random sequence (xorshift).
    random: u64,
}

impl Scene {
    fn new(attack: Attack) -> Result<Scene, PeerError> {
        let small = Load::Udp {
            frame_len: 64,
            flows: 1,
        };
        let mut victims = [path::guest(small)?, path::guest(small)?];
        let (pairs, ring, frame_max) = match attack {
            Attack::Chains => (1, CHAIN, 128),
            Attack::Queues => (PAIRS, RING, 128),
            _ => (1, RING, 65_536),
        };
        let attacker: Result<Vec<Guest>, _> =
            (0..pairs).map(|_| Guest::new(ring, frame_max)).collect();
        let mut attacker = attacker?;
        let crowd: Result<Vec<Guest>, _> = (0..CROWD).map(|_| Guest::new(RING, 65_536)).collect();
        let crowd = crowd?;
        let guests = victims.iter().chain([&attacker[0]]).chain(&crowd);
        let first = (0..).zip(guests).map(|(slot, guest)| (slot, 0, guest));
        let others = (1..).zip(&attacker[1..]);
        let others = others.map(|(pair, guest)| (ATTACKER as u32, pair, guest));
        let port = |(slot, pair, guest): (u32, u16, &Guest)| {
            let slot = PortSlot(slot);
            Ok::<(QueueId, Port), PeerError>((QueueId { slot, pair }, guest.port()?))
        };
        let ports: Result<_, _> = first.chain(others).map(port).collect();
        let mut switch = Switch::new(ports?, MAX_FLOWS, snapshot(attack)?)?;
        for from in [1, 0, 1, 0] {
            victims[from].prepare(&load::datagram(from, FRAME)?, &Offload::default());
            victims[from].send(1, |_| ());
            switch.turn();
            victims[1 - from].receive();
        }
        let (frame, offload) = attack.frame();
        for queue in &mut attacker {
            match attack {
                Attack::Chains => queue.prepare_chain(&frame, &offload),
                _ => queue.prepare(&frame, &offload),
            }
        }
        let flows = match attack {
            Attack::Connections => 1_000_000,
            _ => 1,
        };
        Ok(Scene {
            victims,
            attacker,
            attack,
            turns: Turns::of(Load::Udp {
                frame_len: 64,
                flows,
            }),
            crowd,
            switch,
            datagrams: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// One turn, with the attacker's rings full at its beginning; gives its cycles.
    fn turn(&mut self) -> u64 {
        let (turns, datagrams) = (&mut self.turns, &mut self.datagrams);
        for queue in &mut self.attacker {
            match self.attack {
                Attack::Quiet => 0,
                Attack::Empty | Attack::Chains => queue.send(RING, |_| ()),
                Attack::Fragments => queue.send(RING, |write| {
                    *datagrams = datagrams.wrapping_add(1);
                    write(18, &datagrams.to_be_bytes());
                }),
                _ => queue.send(RING, |write| turns.next(write)),
            };
        }
        let cycles = self.switch.turn();
        for guest in &mut self.crowd {
            guest.receive();
        }
        cycles
    }

    /// Frames a million cycles from one victim to the other.
    fn rate(&mut self, turns: usize) -> Result<f64, PeerError> {
        let (mut frames, mut spent) = (0u64, 0u64);
        // The first tenth is for the caches, and for what the switch learns of the attacker.
        for turn in 0..turns + turns / 10 {
            self.victims[0].send(256, |_| ());
            let cycles = self.turn();
            let arrived = self.victims[1].receive();
            if turn >= turns / 10 {
                frames += u64::from(arrived);
                spent += cycles;
            }
        }
        match frames {
            0 => Err(PeerError("no frame of the victim's arrived".to_owned())),
            _ => Ok(frames as f64 * 1e6 / spent as f64),
        }
    }

    /// Cycles of round trips.
    fn round_trips(&mut self, trips: usize) -> Result<Samples, PeerError> {
        let mut times = Samples::default();
        for _ in 0..100 {
            self.turn();
        }
        for _ in 0..trips {
            // It is sent while a turn is under way that has looked at the victim's ring already.
            let under_way = self.turn() as f64;
            let mut time = under_way * self.share_of_one();
            for from in 0..2 {
                self.victims[from].send(1, |_| ());
                let mut waited = 0;
                loop {
                    time += self.turn() as f64;
                    if self.victims[1 - from].receive() > 0 {
                        break;
                    }
                    waited += 1;
                    if waited > 100_000 {
                        return Err(PeerError("a victim's frame did not arrive".to_owned()));
                    }
                }
            }
            times.push(time);
        }
        Ok(times)
    }

    /// Between 0 and 1.
    fn share_of_one(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mac(nic: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, nic as u8])
}

/// The victims' network, and another one of the attacker and its crowd.
fn snapshot(attack: Attack) -> Result<Snapshot, PeerError> {
    let mut snapshot = path::snapshot(crate::RULES)?;
    let vni = Vni::new(2).map_err(|error| PeerError(error.to_string()))?;
    let victim = snapshot.ports.get(0).cloned().flatten();
    let victim = victim.ok_or_else(|| PeerError("no victim".to_owned()))?;
    let mut network = Network {
        vni,
        macs: Default::default(),
        ports: Vec::new(),
        shared: Default::default(),
        learners: Vec::new(),
        overlay: None,
    };
    for nic in ATTACKER..=ATTACKER + CROWD {
        let slot = PortSlot(nic as u32);
        network.macs.insert(mac(nic), slot);
        network.ports.push(slot);
        snapshot.ports.push_back(Some(Arc::new(PortConfig {
            slot,
            uid: PortUid(slot.0 + 1),
            name: "nic".into(),
            vni,
            network: NetworkIdx(1),
            mac: mac(nic),
            addresses: vec![guest_ip(nic).into()],
            bypass: !matches!(attack, Attack::Connections | Attack::Fragments),
            ..PortConfig::clone(&victim)
        })));
    }
    snapshot.networks.push_back(Some(Arc::new(network)));
    Ok(snapshot)
}

/// Of the cycle counter.
fn cycles_per_us() -> f64 {
    let (start, from) = (Instant::now(), cycles::now());
    while start.elapsed().as_millis() < 20 {
        std::hint::spin_loop();
    }
    (cycles::now() - from) as f64 / start.elapsed().as_micros() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_said() {
        let mut seen = Seen::of(Attack::Broadcasts);
        for (rate, late) in [(40.0, 20.0), (44.0, 25.0), (60.0, 22.0)] {
            seen.add(rate, &Samples::from(vec![late]), (100.0, 11.0));
        }
        let lines: String = seen.aims().iter().map(Aim::line).collect();
        assert_eq!(
            lines,
            "MISSED  broadcasts_share at least 0.9: 0.880 ±23%\n\
             reached broadcasts_p99 at most 2 times a quiet switch's: 2.00 ±11%\n"
        );
        let mut ratios = Ratios::default();
        seen.tell(&mut ratios);
        assert_eq!(
            ratios.to_string(),
            "broadcasts_p99_us=22.00 broadcasts_share=0.88 broadcasts_p99=2.00"
        );
    }
}
