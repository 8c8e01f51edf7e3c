//! UDP there and back: a socket in the west echoes what one in the east sends, through the kernel
//! and through us.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use butterfly_router::Options;
use testkit::netns::Namespace;

use crate::lab::{inside, namespace};
use crate::ours::Ours;
use testkit::results::Results;

const SERVER: &str = "10.2.0.2:7";
const TIMES: usize = 4000;
const PATIENCE: Duration = Duration::from_secs(5);

/// The median round trip of a small packet with one in flight, both ways.
pub fn measure(results: &mut Results, rounds: usize) {
    let middle = namespace();
    let (left, right) = (host(&middle, "sender", 1), host(&middle, "sink", 2));
    let server = right
        .inside(|| UdpSocket::bind(SERVER).expect("a socket"))
        .expect("enter");
    let client = left
        .inside(|| UdpSocket::bind("10.1.0.2:0").expect("a socket"))
        .expect("enter");
    client.connect(SERVER).expect("a route");
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let (mut kernel, mut ours) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&server));
        inside(&middle, async || {
            for round in 0..=rounds {
                let theirs = median(&client);
                let router = Ours::start(&Options::default()).await;
                let fast = median(&client);
                drop(router);
                if round > 0 {
                    kernel.push(theirs);
                    ours.push(fast);
                }
            }
        });
        client.send(&[]).expect("the end of it");
    });
    results.ratio_by_round("round_trip_to_kernel", &ours, &kernel);
    results.add("udp round trip", "kernel", "ns", kernel);
    results.add("udp round trip", "router", "ns", ours);
}

/// The far end of a wire as a host of its own, with address 10.SIDE.0.2. It computes its checksums:
/// what a veth leaves to be done is not done by any program on the way.
fn host(middle: &Namespace, device: &str, side: u8) -> Namespace {
    let host = Namespace::new().expect("a namespace");
    let (mac, near) = (
        format!("02:00:00:00:0{side}:02"),
        if side == 1 { "east" } else { "west" },
    );
    host.adopt_from(middle, device, &mac, &[&format!("10.{side}.0.2/24")])
        .expect("a host");
    host.ok(&format!(
        "ip route add default via 10.{side}.0.1 && ethtool -K eth0 tx off gro on"
    ))
    .expect("a route");
    middle
        .ok(&format!(
            "ip neigh replace 10.{side}.0.2 lladdr {mac} dev {near}"
        ))
        .expect("a neighbour");
    host
}

fn echo(server: &UdpSocket) {
    let mut buffer = [0; 64];
    // Nothing but an empty packet, or silence, ends it.
    while let Ok((len @ 1.., from)) = server.recv_from(&mut buffer) {
        server.send_to(&buffer[..len], from).expect("the way back");
    }
}

fn median(client: &UdpSocket) -> f64 {
    let mut took: Vec<u128> = (0..TIMES).map(|_| once(client)).collect();
    took.sort_unstable();
    took[TIMES / 2] as f64
}

fn once(client: &UdpSocket) -> u128 {
    let mut buffer = [0; 64];
    let start = Instant::now();
    client.send(&[1; 18]).expect("a packet");
    client.recv(&mut buffer).expect("its echo");
    start.elapsed().as_nanos()
}
