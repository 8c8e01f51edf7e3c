//! Frames a second for real: a sender's veth, the balancer's two, a server's, and frames of many
//! flows from BPF_F_TEST_XDP_LIVE_FRAMES. All of it runs on one core: what sends a frame also takes
//! it in, balances it and takes it in again.
//!
//! In turn: the same frames dropped where they come in (what sending costs), sent back by a program
//! that does nothing else, balanced by us, by the peer of the usual design, and by the kernel
//! itself: nftables at the interface's ingress, which chooses a server by hash, writes its MAC and
//! sends the packet on. That one keeps no flows, counts, and looks at no TTL.

use std::time::Duration;

use butterfly_balancer::Tunnel;
use testkit::netns::Namespace;
use testkit::results::Results;
use wire::Mac;
use wire::parse::TcpFlags;
use xdp::{Attachment, Mode, Program, objects};

use crate::again::Again;
use crate::classic::Classic;
use crate::stage::{self, OURS};

const FLOWS: u32 = 1 << 16;
const FRAMES: u32 = 1 << 18;
const SERVER: Mac = Mac([2, 0, 0, 0, 0, 7]);

struct Net {
    sender: Namespace,
    balancer: Namespace,
    server: Namespace,
}

/// All who take turns.
pub fn measure(results: &mut Results, rounds: usize) {
    let net = network();
    let load = |name, object| Program::load(name, object, |_| Ok(())).expect("the program loads");
    let (drop, transmit) = (
        load("drop", objects::DROP),
        load("transmit", objects::TRANSMIT),
    );
    let pass = load("pass", objects::PASS);
    let (from, to) = (
        ifindex(&net.balancer, "in0"),
        ifindex(&net.balancer, "out0"),
    );
    let balancer = stage::balancer(from, to, &[SERVER], Tunnel::None, false, false);
    let classic = Classic::new(to, &[SERVER], false);
    // The ends take what they get and drop it.
    let _server = attach(&net.server, "eth0", &drop);
    let _sender = attach(&net.sender, "eth0", &drop);
    let again = Again::new();
    let frame = stage::tcp(false, TcpFlags::ACK);
    again.set_frame(&frame, FLOWS);
    again.hand_to(&transmit);
    println!(
        "frames over veth, sender and receivers on one core, of {FLOWS} flows; \
         medians of {rounds} rounds"
    );
    let turns: [(&'static str, &Program); 5] = [
        ("dropped", &drop),
        ("sent back", &transmit),
        ("balancer", balancer.program()),
        ("classic", &classic.program),
        ("nftables", &pass),
    ];
    let mut rates = turns.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((who, program), rates) in turns.iter().zip(&mut rates) {
            let _here = attach(&net.balancer, "in0", program);
            let _rules = (*who == "nftables").then(|| Rules::new(&net.balancer));
            let before = received(&net);
            let took = send(&net, &again, &frame).as_secs_f64();
            let there = match *who {
                "dropped" | "sent back" => u64::from(FRAMES),
                _ => received(&net) - before,
            };
            rates.push(there as f64 / took / 1e6);
        }
    }
    for (name, other) in [
        ("veth_to_back", 1),
        ("veth_to_classic", 3),
        ("veth_to_nftables", 4),
    ] {
        results.ratio_by_round(name, &rates[2], &rates[other]);
    }
    for ((who, _), rates) in turns.iter().zip(rates) {
        results.add("frames over veth", who, "Mframes/s", rates);
    }
    let counters = balancer.counters().expect("maps can be read");
    let counted: u64 = counters.servers.values().map(|its| its.packets).sum();
    assert_eq!(
        counted,
        rounds as u64 * u64::from(FRAMES),
        "every frame was balanced"
    );
}

fn network() -> Net {
    let space = || Namespace::new().expect("a namespace");
    let net = Net {
        sender: space(),
        balancer: space(),
        server: space(),
    };
    for (name, other) in [("in0", &net.sender), ("out0", &net.server)] {
        let pid = other.pid();
        let pair = format!(
            "ip link add {name} address {} type veth peer name eth0 netns {pid} && \
             ip link set {name} up",
            if name == "in0" {
                OURS
            } else {
                Mac([2, 0, 0, 0, 0, 8])
            }
        );
        net.balancer.ok(&pair).expect("a veth pair");
        other.ok("ip link set eth0 up").expect("the other end");
    }
    net
}

/// The kernel's own balancer, while it is there.
struct Rules<'a>(&'a Namespace);

impl<'a> Rules<'a> {
    fn new(space: &'a Namespace) -> Self {
        let servers: Vec<String> = (0..16).map(|slot| format!("{slot} : {SERVER}")).collect();
        let rule = format!(
            "ip daddr {} tcp dport 80 counter ether saddr set {OURS} \
             ether daddr set jhash ip saddr . tcp sport mod 16 map {{ {} }} fwd to \"out0\"",
            stage::vip(false),
            servers.join(", ")
        );
        let chain = "type filter hook ingress device \"in0\" priority 0; policy accept;";
        space
            .ok(&format!(
                "nft 'table netdev peer {{ chain in {{ {chain} {rule}; }}; }}'"
            ))
            .expect("nftables balances at the ingress of an interface");
        Rules(space)
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        // The namespace goes with the benchmark: it would end there too.
        let _ = self.0.ok("nft delete table netdev peer");
    }
}

/// Frames that came to the server.
fn received(net: &Net) -> u64 {
    net.server.counter("rx_packets").expect("it is there")
}

fn ifindex(space: &Namespace, device: &str) -> u32 {
    space.ifindex(device).expect("it is there")
}

fn attach(space: &Namespace, device: &str, program: &Program) -> Attachment {
    let ifindex = ifindex(space, device);
    let attached = space.inside(|| xdp::attach(program, ifindex, Some(Mode::Native)));
    attached.expect("enter").expect("veth takes native mode")
}

fn send(net: &Net, again: &Again, frame: &[u8]) -> Duration {
    let from = ifindex(&net.sender, "eth0");
    let sent = net
        .sender
        .inside(|| xdp::send(&again.program, frame, from, FRAMES));
    sent.expect("enter").expect("veth sends")
}
