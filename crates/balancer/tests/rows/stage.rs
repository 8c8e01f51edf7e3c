//! What the rows play on: a balancer with the interface 1, some servers and the next hops to them,
//! and packets to send.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::sync::OnceLock;

use butterfly_balancer::{
    Hop, Interface, Options, Protocol, Server, Service, ServiceKey, Services, Tunnel, Tuple,
};
use wire::build::{self, Builder};
use wire::parse::TcpFlags;
use wire::{Mac, checksum};
use xdp::{Run, Verdict};

pub use super::player::Balancer;

pub const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Where a trial's packets come in: the loopback.
pub const IN: u32 = 1;
/// Another interface; a trial's redirect goes nowhere, so it need not exist.
pub const OUT: u32 = 1000;
pub const PORT: u16 = 443;

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn vip(v6: bool) -> IpAddr {
    if v6 {
        ip("2001:db8::80")
    } else {
        ip("192.0.2.80")
    }
}

pub fn client(v6: bool, n: u16) -> IpAddr {
    match v6 {
        false => Ipv4Addr::from(0xc633_6400 + u32::from(n)).into(),
        true => Ipv6Addr::from(0x2001_0db8_00c1_0000_0000_0000_0000_0000 + u128::from(n)).into(),
    }
}

/// Our address towards servers of a family.
pub fn source(v6: bool) -> IpAddr {
    if v6 {
        ip("2001:db8:ffff::1")
    } else {
        ip("10.1.2.3")
    }
}

pub fn server(v6: bool, n: u8) -> IpAddr {
    match v6 {
        false => IpAddr::from([10, 1, 2, n]),
        true => ip(&format!("2001:db8:ffff::{n:x}")),
    }
}

pub fn key(v6: bool, protocol: Protocol, port: u16) -> ServiceKey {
    ServiceKey::new(vip(v6), protocol, NonZeroU16::new(port)).expect("a host")
}

pub fn hop(v6: bool, n: u8) -> Hop {
    Hop {
        ifindex: IN,
        source_mac: OURS,
        mac: Mac([2, 0, 0, 1, 0, n]),
        vlans: Vec::new(),
        mtu: 1500,
        direct: true,
        source: Some(source(v6)),
    }
}

/// A balancer that knows the way to twenty servers of each family.
pub fn stage() -> Balancer {
    stage_with(&small())
}

/// The [`stage`] with a balancer that remembers every flow.
pub fn stage_that_remembers_all() -> Balancer {
    stage_with(&Options {
        remember_all: true,
        ..small()
    })
}

/// Both.
pub fn stages() -> [Balancer; 2] {
    [stage(), stage_that_remembers_all()]
}

pub fn small() -> Options {
    Options {
        max_flows: 1024,
        max_services: 16,
        max_servers: 64,
        ..Options::default()
    }
}

pub fn stage_with(options: &Options) -> Balancer {
    let mut balancer = Balancer::new(options).expect("the program loads");
    balancer
        .set_interface(Interface::new(IN, OURS))
        .expect("the only one");
    let all = [false, true]
        .into_iter()
        .flat_map(|v6| (1..=20).map(move |n| (server(v6, n), hop(v6, n))));
    balancer
        .set_hops(all.collect::<BTreeMap<_, _>>())
        .expect("maps can be written");
    balancer
}

/// A service with servers 1 to `count` of its own family, on layer 2.
pub fn service(key: ServiceKey, count: u8) -> Service {
    let v6 = key.vip().is_ipv6();
    (1..=count).fold(Service::new(key), |service, n| {
        service.with(Server::new(server(v6, n)).expect("a host"))
    })
}

pub fn apply(balancer: &mut Balancer, services: impl IntoIterator<Item = Service>) {
    balancer
        .apply(services.into_iter().collect::<Services>())
        .expect("there is room");
}

/// Who sees every frame and what became of it: the benchmark. In the tests nobody does.
pub static WATCHER: OnceLock<fn(&[u8], &Run)> = OnceLock::new();

thread_local! {
    /// Whether this thread's rows are of the program at tc ingress.
    static AT_TC: Cell<bool> = const { Cell::new(false) };
}

/// Plays rows with the program for tc ingress.
#[allow(
    dead_code,
    reason = "the benchmark, which has these rows too, times XDP alone"
)]
pub fn at_tc(play: impl FnOnce()) {
    AT_TC.set(true);
    play();
    AT_TC.set(false);
}

/// What the program says of a frame that it sends from another interface than it came by. At tc
/// that is no other word.
pub fn elsewhere() -> Verdict {
    if AT_TC.get() {
        Verdict::Transmit
    } else {
        Verdict::Redirect
    }
}

/// The least of a frame that a trial takes: at tc all of an IP header that follows Ethernet's.
pub fn shortest(frame: &[u8]) -> usize {
    match frame[12..14] {
        [0x08, 0x00] if AT_TC.get() => 34,
        [0x86, 0xdd] if AT_TC.get() => 54,
        _ => 14,
    }
}

/// A frame as it leaves with these tags: at tc the outer one lies beside it, where a trial does not
/// show it (but `tests/balancer/sockets.rs` does).
pub fn with_its_tags(mut frame: Vec<u8>, vlans: &[u16]) -> Vec<u8> {
    if let Some(outer) = vlans.first().filter(|_| AT_TC.get()) {
        let tag = [0x8100u16.to_be_bytes(), outer.to_be_bytes()].concat();
        frame.splice(12..12, tag);
    }
    frame
}

/// Sends a frame to interface 1. All frames of all rows pass here, or by [`run_summed`].
pub fn run(balancer: &Balancer, frame: &[u8]) -> Run {
    let tried = balancer.run(frame, AT_TC.get());
    seen(frame, tried.expect("the kernel tries it"))
}

/// As [`run`]; at tc as a packet that a NIC has summed, whose sum has to stay right. Kernels before
/// Linux 6.11 cannot try that, and the Go library has no such trial.
pub fn run_summed(balancer: &Balancer, frame: &[u8], row: &str) -> Run {
    let Balancer::Rust(own) = balancer else {
        return run(balancer, frame);
    };
    if !AT_TC.get() {
        return run(balancer, frame);
    }
    let program = own.program().tc().expect("it is for both places");
    match xdp::run_summed(program, frame) {
        Err(xdp::Error::Run(error)) if error.kind() == xdp::ErrorKind::InvalidInput => {
            run(balancer, frame)
        }
        Err(error) => panic!("{row}: {error}"),
        Ok(tried) => seen(frame, tried),
    }
}

fn seen(frame: &[u8], mut run: Run) -> Run {
    if AT_TC.get() && run.verdict == Verdict::Redirect {
        run.verdict = Verdict::Transmit;
    }
    if let Some(watch) = WATCHER.get() {
        watch(frame, &run);
    }
    run
}

/// Whose it became: which of the stage's servers, by the MAC it was sent to.
pub fn goes_to(balancer: &Balancer, frame: &[u8]) -> Option<u8> {
    let run = run(balancer, frame);
    (run.verdict == Verdict::Transmit && run.frame[..5] == [2, 0, 0, 1, 0]).then(|| run.frame[5])
}

/// Left alone, every byte.
#[track_caller]
pub fn passes(balancer: &Balancer, frame: &[u8], why: &str) {
    let run = run(balancer, frame);
    assert_eq!(run.verdict, Verdict::Pass, "{why}");
    assert_eq!(hex(&run.frame), hex(frame), "{why}");
}

#[track_caller]
pub fn drops(balancer: &Balancer, frame: &[u8], why: &str) {
    assert_eq!(run(balancer, frame).verdict, Verdict::Drop, "{why}");
}

#[track_caller]
pub fn becomes(balancer: &Balancer, frame: &[u8], verdict: Verdict, expected: &[u8], row: &str) {
    let run = run(balancer, frame);
    assert_eq!(run.verdict, verdict, "{row}");
    assert_eq!(hex(&run.frame), hex(expected), "{row}");
}

/// A frame from the router to us, before what is above IP.
pub fn arrives(v6: bool, from: u16) -> Builder {
    build::frame(ROUTER, OURS).ip(client(v6, from), vip(v6))
}

pub fn tcp(v6: bool, from: u16, port: u16, flags: TcpFlags) -> Vec<u8> {
    arrives(v6, from).tcp(port, PORT, flags).build()
}

pub fn udp(v6: bool, from: u16, port: u16) -> Vec<u8> {
    arrives(v6, from)
        .udp(port, PORT)
        .payload(b"datagram")
        .build()
}

pub fn tuple(v6: bool, from: u16, port: u16, protocol: Protocol) -> Tuple {
    Tuple {
        client: client(v6, from),
        client_port: port,
        vip: vip(v6),
        port: PORT,
        protocol,
    }
}

/// Where the IP header starts.
pub fn l3(frame: &[u8]) -> usize {
    let mut at = 12;
    while frame[at..at + 2] == [0x81, 0] {
        at += 4;
    }
    at + 2
}

/// The frame's IP packet one hop later, in the Ethernet header that the balancer gives it.
pub fn forwarded(frame: &[u8], to: Mac, vlans: &[u16]) -> Vec<u8> {
    let packet = one_hop_less(&frame[l3(frame)..]);
    let ethertype = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    let builder = vlans
        .iter()
        .fold(build::frame(OURS, to), |builder, vlan| builder.tag(*vlan));
    builder.ethertype(ethertype).payload(&packet).build()
}

/// TTL or hop limit, and IPv4's checksum made anew.
pub fn one_hop_less(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
        return packet;
    }
    packet[8] -= 1;
    let header = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = checksum::checksum(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The packet in a server's tunnel, in a frame. `entropy` is what came out where a flow's hash
/// belongs: source port and flow label are taken from there, everything else is made here.
pub fn tunnelled(packet: &[u8], way: &Hop, to: IpAddr, tunnel: Tunnel, entropy: &[u8]) -> Vec<u8> {
    let v6_in = packet[0] >> 4 == 6;
    let tos = if v6_in {
        (packet[0] << 4) | (packet[1] >> 4)
    } else {
        packet[1]
    };
    let carried = if v6_in { 41 } else { 4 };
    let ethertype: u16 = if v6_in { 0x86dd } else { 0x0800 };
    let (protocol, mut payload) = match tunnel {
        Tunnel::None => unreachable!("no tunnel"),
        Tunnel::Ipip => (carried, Vec::new()),
        Tunnel::Gre => (47, [[0, 0], ethertype.to_be_bytes()].concat()),
        Tunnel::Fou { port } => (17, udp_header(port, packet.len(), entropy, to)),
        Tunnel::Gue { port } => {
            let mut header = udp_header(port, packet.len() + 4, entropy, to);
            header.extend([0, carried, 0, 0]);
            (17, header)
        }
    };
    payload.extend(packet);
    let start = build::frame(way.source_mac, way.mac);
    let builder = way
        .vlans
        .iter()
        .fold(start, |builder, vlan| builder.tag(*vlan));
    let from = source(to.is_ipv6());
    let builder = builder
        .ip(from, to)
        .tos(tos)
        .dont_fragment()
        .protocol(protocol);
    let mut frame = builder.payload(&payload).build();
    if to.is_ipv6() {
        let at = l3(&frame);
        let outer = l3(entropy);
        frame[at + 1] |= entropy[outer + 1] & 0x0f;
        frame[at + 2..at + 4].copy_from_slice(&entropy[outer + 2..outer + 4]);
    }
    frame
}

fn udp_header(port: NonZeroU16, carried: usize, entropy: &[u8], to: IpAddr) -> Vec<u8> {
    let at = l3(entropy) + if to.is_ipv6() { 40 } else { 20 };
    let mut header = entropy[at..at + 2].to_vec();
    header.extend(port.get().to_be_bytes());
    header.extend((carried as u16 + 8).to_be_bytes());
    header.extend([0, 0]);
    header
}

/// For messages: sixteen bytes a line.
pub fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        line.iter()
            .map(|byte| format!("{byte:02x} "))
            .collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}
