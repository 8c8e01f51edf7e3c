//! Frames a second for real: a sender's veth, the balancer's two, a server's, and frames of many flows from
//! BPF_F_TEST_XDP_LIVE_FRAMES. All of it runs on one core: what sends a frame also takes it in, balances it and takes it in again.
//!
//! Beside it the same frames dropped where they come in (what sending costs), and sent back by a program that does nothing else.

use std::os::fd::AsFd;
use std::time::Duration;

use butterfly_balancer::{Balancer, Interface, Options, Tunnel};
use testkit::netns::Namespace;
use wire::Mac;
use wire::parse::TcpFlags;
use xdp::{Attachment, Mode, Program, objects};

use crate::again::Again;
use crate::rows::{OURS, configure, spread, tcp};

const FLOWS: u32 = 1 << 16;
const FRAMES: u32 = 1 << 18;
const SERVER: Mac = Mac([2, 0, 0, 0, 0, 7]);

struct Net {
    sender: Namespace,
    balancer: Namespace,
    server: Namespace,
}

pub fn measure(rounds: usize) -> Vec<(String, f64)> {
    let net = network();
    let load = |name, object| Program::load(name, object, |_| Ok(())).expect("the program loads");
    let (drop, transmit) = (load("drop", objects::DROP), load("transmit", objects::TRANSMIT));
    let (in_, out) = (ifindex(&net.balancer, "in0"), ifindex(&net.balancer, "out0"));
    let mut balancer = Balancer::new(&Options::default()).expect("the program loads");
    balancer
        .set_interface(Interface::new(in_, OURS))
        .expect("the only one");
    configure(&mut balancer, Tunnel::None, false, out, &[SERVER]);
    // The ends take what they get and drop it.
    let _server = attach(&net.server, "eth0", &drop);
    let _sender = attach(&net.sender, "eth0", &drop);
    let again = Again::new();
    let frame = tcp(false, TcpFlags::ACK);
    again.tell(&frame, FLOWS);
    again.hand_to(&transmit);
    let mut nanoseconds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (program, times) in [&drop, &transmit, balancer.program()]
            .into_iter()
            .zip(&mut nanoseconds)
        {
            let _here = attach(&net.balancer, "in0", program);
            times.push(send(&net, &again, &frame).as_nanos() as f64 / f64::from(FRAMES));
        }
    }
    let counted: u64 = balancer
        .counters()
        .expect("maps can be read")
        .servers
        .values()
        .map(|its| its.packets)
        .sum();
    assert_eq!(
        counted,
        rounds as u64 * u64::from(FRAMES),
        "every frame was balanced"
    );
    println!(
        "frames over veth, sender and receivers on one core, of {FLOWS} flows; medians of {rounds} rounds"
    );
    let rate = |times: &mut Vec<f64>| 1000.0 / spread(times).0;
    let [sent, back, balanced] = nanoseconds.each_mut().map(rate);
    println!(
        "  dropped where they come in {sent:.2}, sent back {back:.2}, balanced to a server {balanced:.2} million a second"
    );
    vec![
        ("veth_mpps".to_owned(), balanced),
        ("veth_to_back".to_owned(), balanced / back),
    ]
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
        let pair =
            format!("ip link add {name} type veth peer name eth0 netns {pid} && ip link set {name} up");
        net.balancer.ok(&pair).expect("a veth pair");
        other.ok("ip link set eth0 up").expect("the other end");
    }
    net
}

fn ifindex(space: &Namespace, device: &str) -> u32 {
    space.ifindex(device).expect("it is there")
}

fn attach(space: &Namespace, device: &str, program: &Program) -> Attachment {
    let ifindex = ifindex(space, device);
    let attached = space.inside(|| xdp::attach(program.as_fd(), ifindex, Some(Mode::Native)));
    attached.expect("enter").expect("veth takes native mode")
}

fn send(net: &Net, again: &Again, frame: &[u8]) -> Duration {
    let from = ifindex(&net.sender, "eth0");
    let sent = net
        .sender
        .inside(|| xdp::send(&again.program, frame, from, FRAMES));
    sent.expect("enter").expect("veth sends")
}
