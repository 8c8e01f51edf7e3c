//! DPDK's virtio-user as the guest and the VMM: its kinds of rings, with and without huge pages, in
//! both modes of vhost-user. What a ring driver of ours sends to each port comes back with its
//! addresses and ports swapped, whole frames compared; what testpmd says it sent is what the daemon
//! counts.

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::peer::Peer;
use butterfly_tests::testpmd::{HugePages, Testpmd};
use butterfly_tests::trials::run_each;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;
use testkit::{PATIENCE, Result, wait_for};
use wire::{Mac, build};

/// A port of testpmd: what its driver is told, and the features (virtio 1.2, section 6) that it
/// must have taken and must not have taken.
struct Kind {
    options: &'static str,
    has: u64,
    lacks: u64,
}

const MRG_RXBUF: u64 = 1 << 15;
const RING_PACKED: u64 = 1 << 34;
const IN_ORDER: u64 = 1 << 35;

const fn kind(options: &'static str, has: u64, lacks: u64) -> Kind {
    Kind {
        options,
        has,
        lacks,
    }
}

const KINDS: [Kind; 9] = [
    kind("in_order=0", MRG_RXBUF, RING_PACKED | IN_ORDER),
    kind(
        "in_order=0,mrg_rxbuf=0",
        0,
        MRG_RXBUF | RING_PACKED | IN_ORDER,
    ),
    kind(
        "in_order=0,mrg_rxbuf=0,vectorized=1",
        0,
        MRG_RXBUF | RING_PACKED,
    ),
    kind(
        "in_order=1,queue_size=1024",
        MRG_RXBUF | IN_ORDER,
        RING_PACKED,
    ),
    kind("in_order=1,mrg_rxbuf=0", IN_ORDER, MRG_RXBUF | RING_PACKED),
    kind("packed_vq=1,in_order=0", MRG_RXBUF | RING_PACKED, IN_ORDER),
    kind(
        "packed_vq=1,in_order=0,mrg_rxbuf=0",
        RING_PACKED,
        MRG_RXBUF | IN_ORDER,
    ),
    kind(
        "packed_vq=1,in_order=1,queue_size=1024",
        MRG_RXBUF | RING_PACKED | IN_ORDER,
        0,
    ),
    kind(
        "packed_vq=1,in_order=1,mrg_rxbuf=0,vectorized=1",
        RING_PACKED | IN_ORDER,
        MRG_RXBUF,
    ),
];

/// Kinds of guests with several pairs of queues; the switch gives each flow its pair.
const KINDS_OF_PAIRS: [Kind; 4] = [
    kind("in_order=0", MRG_RXBUF, RING_PACKED | IN_ORDER),
    kind("in_order=1,mrg_rxbuf=0", IN_ORDER, MRG_RXBUF | RING_PACKED),
    kind("packed_vq=1,in_order=0", MRG_RXBUF | RING_PACKED, IN_ORDER),
    kind(
        "packed_vq=1,in_order=1",
        MRG_RXBUF | RING_PACKED | IN_ORDER,
        0,
    ),
];

/// What a session has of ports.
#[derive(Clone, Copy)]
struct Ports {
    kinds: &'static [Kind],
    /// Of queues, of each port.
    pairs: u16,
}

const ONE_PAIR: Ports = Ports {
    kinds: &KINDS,
    pairs: 1,
};

/// Memory of ordinary pages, in one memfd.
const SMALL_PAGES: &[&str] = &["--no-huge", "-m", "256"];

/// Memory of huge pages that no file system holds, in one file: virtio-user can hand over eight
/// regions.
const HUGE_PAGES: &[&str] = &["--in-memory", "--single-file-segments", "-m", "96"];

/// Frames sent at a time: fewer than any ring has entries, so that none is lost.
const BURST: usize = 32;

/// Bursts to each port: enough to go round each ring.
const BURSTS: usize = 40;

/// Frames that testpmd sends by itself, at least.
const MANY: u64 = 20_000;

const PEER_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// The source of what testpmd sends by itself.
const TESTPMD_SENDS_FROM: &str = "198.18.0.1/32";

fn main() {
    run_each([
        ("the_switch_listens", || {
            session(ONE_PAIR, false, SMALL_PAGES)
        }),
        ("testpmd_listens", || session(ONE_PAIR, true, SMALL_PAGES)),
        ("two_pairs", || several(2, false)),
        ("three_pairs", || several(3, true)),
        ("four_pairs", || several(4, false)),
        ("the_switch_is_another_process", || outlived(ONE_PAIR)),
        ("the_switch_is_another_process_two_pairs", || {
            outlived(Ports {
                kinds: &KINDS_OF_PAIRS,
                pairs: 2,
            })
        }),
        ("the_switch_listens_huge_pages", || with_huge_pages(false)),
        ("testpmd_listens_huge_pages", || with_huge_pages(true)),
    ])
}

fn several(pairs: u16, testpmd_listens: bool) -> Result<()> {
    let kinds = &KINDS_OF_PAIRS;
    session(Ports { kinds, pairs }, testpmd_listens, SMALL_PAGES)
}

fn with_huge_pages(testpmd_listens: bool) -> Result<()> {
    match HugePages::reserve(128) {
        // Two testpmds come one after the other, and the first one's memory goes only when the
        // daemon has let go of it.
        Ok(_pages) => session(ONE_PAIR, testpmd_listens, HUGE_PAGES),
        Err(why) => {
            eprintln!("skipped: {why}");
            Ok(())
        }
    }
}

/// All kinds of ports in one testpmd. The VMM that listens goes and returns, and so does its
/// switch.
fn session(ports: Ports, testpmd_listens: bool, memory: &[&str]) -> Result<()> {
    let mut lab = Lab::with(Daemon::start(&[])?, ports, testpmd_listens, memory)?;
    let outcome = lab.run();
    lab.explained(outcome)
}

/// The daemon is killed, stopped and upgraded while every port sends as fast as it can: testpmd,
/// which would not come back to a socket that it has lost, keeps its connections, and its rings go
/// on where they were.
fn outlived(ports: Ports) -> Result<()> {
    let options = ["--store", "{dir}/store", "--keeper", "{dir}/keeper"];
    let daemon = Daemon::start(&options)?;
    let mut lab = Lab::with(daemon, ports, false, SMALL_PAGES)?;
    let mut ends = || -> Result<()> {
        lab.testpmd.wait_ready()?;
        lab.frames_come_back()?;
        lab.sends_over(Daemon::kill_and_restart)?;
        lab.sends_over(Daemon::kill_and_restart)?;
        lab.sends_over(Daemon::stop_and_restart)?;
        lab.sends_over(Daemon::upgrade)?;
        lab.features_are_taken()
    };
    let outcome = ends();
    lab.explained(outcome)
}

/// A daemon, testpmd with a port for each kind, and the peer of them all.
struct Lab {
    daemon: Daemon,
    testpmd: Testpmd,
    peer: Peer,
    ports: Ports,
    testpmd_listens: bool,
    memory: Vec<String>,
}

impl Lab {
    fn with(daemon: Daemon, ports: Ports, testpmd_listens: bool, memory: &[&str]) -> Result<Self> {
        let peer = configure(&daemon, ports, testpmd_listens)?;
        let testpmd = launch(&daemon, ports, testpmd_listens, memory)?;
        Ok(Self {
            daemon,
            testpmd,
            peer,
            ports,
            testpmd_listens,
            memory: memory.iter().map(|&word| word.to_owned()).collect(),
        })
    }

    fn run(&mut self) -> Result<()> {
        self.testpmd.wait_ready()?;
        self.frames_come_back()?;
        self.features_are_taken()?;
        self.counters_agree()?;
        // The VMM dies, and another one comes at the same paths.
        self.testpmd.kill();
        let memory: Vec<&str> = self.memory.iter().map(String::as_str).collect();
        self.testpmd = launch(&self.daemon, self.ports, self.testpmd_listens, &memory)?;
        self.testpmd.wait_ready()?;
        self.frames_come_back()?;
        if self.testpmd_listens {
            // virtio-user takes a switch that returns only where it listens itself.
            self.daemon.kill_and_restart()?;
            self.peer = configure(&self.daemon, self.ports, true)?;
            self.frames_come_back()?;
        }
        Ok(())
    }

    /// With what both say when it has failed.
    fn explained(&self, outcome: Result<()>) -> Result<()> {
        outcome.map_err(|e| {
            format!(
                "{e}\n{}\n--- testpmd\n{}",
                self.daemon.dump(),
                self.testpmd.log()
            )
        })
    }

    /// While every port sends, another process takes the daemon's place; they go on sending, and
    /// what is sent to them comes back.
    fn sends_over(&mut self, replace: fn(&mut Daemon) -> Result<()>) -> Result<()> {
        self.testpmd.ask("set fwd txonly")?;
        self.testpmd.ask("start")?;
        self.all_send()?;
        replace(&mut self.daemon)?;
        self.all_send()?;
        self.testpmd.ask("stop")?;
        // What is on its way.
        wait_for("no more frames to come", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(200));
            Ok(self.peer.arrived().is_empty().then_some(()))
        })?;
        self.frames_come_back()
    }

    /// The daemon has many more frames of every port than it had.
    fn all_send(&mut self) -> Result<()> {
        let before = self.sent()?;
        wait_for("every port to send", PATIENCE, || {
            self.peer.arrived();
            let now = self.sent()?;
            let mut all = now.iter().zip(&before);
            Ok(all.all(|(now, before)| now - before > MANY).then_some(()))
        })
    }

    /// Every port has all its pairs of queues: a NIC is up with the first, and the others follow.
    fn wait_up(&self) -> Result<()> {
        for port in 0..self.ports.kinds.len() {
            wait_for(&format!("all queues of p{port}"), PATIENCE, || {
                let all = self.daemon.json(&format!("nic show p{port}"))?;
                let pairs = all[0]["queues"]["pairs"].as_array().map_or(0, Vec::len);
                Ok((pairs == usize::from(self.ports.pairs)).then_some(()))
            })?;
        }
        Ok(())
    }

    /// What each driver has taken.
    fn features_are_taken(&self) -> Result<()> {
        for (port, kind) in self.ports.kinds.iter().enumerate() {
            let taken = self.daemon.features(&format!("p{port}"))?;
            check(
                taken & kind.has == kind.has && taken & kind.lacks == 0,
                &format!(
                    "{} has {:#x} and lacks {:#x} in {taken:#x}",
                    kind.options, kind.has, kind.lacks
                ),
            )?;
        }
        Ok(())
    }

    /// testpmd swaps MACs, addresses and ports of what it gets, and sends it back.
    fn frames_come_back(&mut self) -> Result<()> {
        self.wait_up()?;
        self.testpmd.ask("set fwd 5tswap")?;
        self.testpmd.ask("start")?;
        for (port, kind) in self.ports.kinds.iter().enumerate() {
            for burst in 0..BURSTS {
                let there: Vec<Vec<u8>> = (0..BURST)
                    .map(|i| frame(port, burst * BURST + i, true))
                    .collect();
                let mut back: Vec<Vec<u8>> = (0..BURST)
                    .map(|i| frame(port, burst * BURST + i, false))
                    .collect();
                self.peer.send(&there)?;
                let what = |e| format!("p{port} ({}), burst {burst}: {e}", kind.options);
                let mut came = self.peer.receive(BURST, PATIENCE).map_err(what)?;
                if self.ports.pairs > 1 {
                    // In order are those of a flow alone, of which there are as many as of UDP
                    // ports.
                    for frames in [&mut came, &mut back] {
                        frames.sort_by_key(|frame| frame.get(34..38).map(<[u8]>::to_vec));
                    }
                }
                check(
                    came == back,
                    &what("each frame comes back as it was sent".to_owned()),
                )?;
            }
        }
        self.testpmd.ask("stop").map(drop)
    }

    /// Every port sends as fast as it can, far more than the peer can take.
    fn counters_agree(&mut self) -> Result<()> {
        self.testpmd.ask("clear port stats all")?;
        let before = self.sent()?;
        let taken_before = self.daemon.stat("peer", "ingress_frames")?;
        let lost_before = self.daemon.drops("peer", "INGRESS", &[])?;
        self.testpmd.ask("set fwd txonly")?;
        self.testpmd.ask("start")?;
        let mut received = 0;
        wait_for("every port to send", PATIENCE, || {
            received += self.peer.arrived().len() as u64;
            let now = self.sent()?;
            Ok(now
                .iter()
                .zip(&before)
                .all(|(now, before)| now - before > MANY)
                .then_some(()))
        })?;
        self.testpmd.ask("stop")?;
        let mut said = Vec::new();
        for port in 0..self.ports.kinds.len() {
            said.push(self.testpmd.counter(port, "TX-packets")?);
        }
        let counted = wait_for("the rings to be empty", PATIENCE, || {
            received += self.peer.arrived().len() as u64;
            let counted: Vec<u64> = self
                .sent()?
                .iter()
                .zip(&before)
                .map(|(now, before)| now - before)
                .collect();
            Ok((counted == said).then_some(counted))
        })
        .map_err(|e| format!("{e}: testpmd says it sent {said:?}"))?;
        // What was taken from the ports is with the peer, or was dropped on the way to it; a worker
        // may be in between.
        let total: u64 = counted.iter().sum();
        let mut seen = String::new();
        wait_for("every frame to be with the peer or lost", PATIENCE, || {
            received += self.peer.arrived().len() as u64;
            let taken = self.daemon.stat("peer", "ingress_frames")? - taken_before;
            let lost = self.daemon.drops("peer", "INGRESS", &[])? - lost_before;
            seen = format!("{total} sent are {taken} taken ({received} received) and {lost} lost");
            Ok((taken + lost == total && received == taken).then_some(()))
        })
        .map_err(|e| format!("{e}: {seen}"))
    }

    /// Frames that the daemon has had from each port.
    fn sent(&self) -> Result<Vec<u64>> {
        let frames = |port| self.daemon.stat(&format!("p{port}"), "egress_frames");
        (0..self.ports.kinds.len()).map(frames).collect()
    }
}

/// The NICs of all ports and of the peer, who lets everything in.
fn configure(daemon: &Daemon, ports: Ports, testpmd_listens: bool) -> Result<Peer> {
    daemon.cli("sg rule add open --ip-proto all")?;
    let nic = |id: &str, mac: Mac, ip: Ipv4Addr, more: &str| {
        daemon.cli(&format!(
            "nic add --id {id} --mac {mac} --vni 1 --ip {ip} --sg open {more}"
        ))
    };
    nic("peer", PEER_MAC, PEER_IP, "")?;
    for port in 0..ports.kinds.len() {
        let mut more = format!("--allowed-address-pair {TESTPMD_SENDS_FROM}");
        if testpmd_listens {
            more += &format!(" --client --path {}", path(daemon, port, true).display());
        }
        nic(&format!("p{port}"), mac(port), ip(port), &more)?;
    }
    Peer::connect(&daemon.socket("peer"))
}

fn launch(
    daemon: &Daemon,
    ports: Ports,
    testpmd_listens: bool,
    memory: &[&str],
) -> Result<Testpmd> {
    let mut vdevs = Vec::new();
    for (port, kind) in ports.kinds.iter().enumerate() {
        let path = path(daemon, port, testpmd_listens);
        if testpmd_listens {
            // What a VMM that was killed leaves behind, and testpmd does not remove.
            let _ = std::fs::remove_file(&path);
        }
        vdevs.push(format!(
            "net_virtio_user{port},path={},mac={},server={},queues={},{}",
            path.display(),
            mac(port),
            u8::from(testpmd_listens),
            ports.pairs,
            kind.options
        ));
    }
    let peers: Vec<String> = (0..ports.kinds.len())
        .map(|port| format!("--eth-peer={port},{PEER_MAC}"))
        .collect();
    let queues = ["rxq", "txq"].map(|queue| format!("--{queue}={}", ports.pairs));
    let mut options = vec!["--total-num-mbufs=16384"];
    options.extend(queues.each_ref().map(String::as_str));
    options.extend(peers.iter().map(String::as_str));
    Testpmd::launch(daemon.dir(), memory, &vdevs, &options)
}

fn path(daemon: &Daemon, port: usize, testpmd_listens: bool) -> PathBuf {
    if testpmd_listens {
        daemon.dir().join(format!("vmm-{port}"))
    } else {
        daemon.socket(&format!("p{port}"))
    }
}

fn mac(port: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 1, port as u8])
}

fn ip(port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, port as u8)
}

/// Frame `number` from the peer to a port (`there`), or as it comes back. All lengths that fit the
/// MTU occur.
fn frame(port: usize, number: usize, there: bool) -> Vec<u8> {
    let payload: Vec<u8> = (0..18 + number * 37 % 1455)
        .map(|i| (i + number) as u8)
        .collect();
    let udp = (10_000 + (number % 8) as u16, 7);
    let builder = if there {
        build::frame(PEER_MAC, mac(port))
            .ip(PEER_IP, ip(port))
            .udp(udp.0, udp.1)
    } else {
        build::frame(mac(port), PEER_MAC)
            .ip(ip(port), PEER_IP)
            .udp(udp.1, udp.0)
    };
    builder.id(number as u16).payload(&payload).build()
}
