//! As many connections as xvs was seen with, 700,000 of them to one address, in trial frames: each
//! is opened, and its packets go on to its server while servers come, drain, die and go.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use butterfly_balancer::{
    Balancer, Hop, Interface, Options, Protocol, Server, Service, ServiceKey, Services, State,
};
use wire::parse::TcpFlags;
use wire::{Mac, build};
use xdp::Verdict;

const CONNECTIONS: u32 = 700_000;
/// What the daemon is told with `--balance-max-flows 1048576`: 80 MiB.
const MAX_FLOWS: u32 = 1 << 20;
const SERVERS: u8 = 20;
/// A trial's packets come in by the loopback.
const LOOPBACK: u32 = 1;
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const VIP: [u8; 4] = [192, 0, 2, 80];
const PORT: u16 = 8000;

fn address(n: u8) -> Ipv4Addr {
    [10, 1, 2, n].into()
}

fn key() -> ServiceKey {
    let port = NonZeroU16::new(PORT);
    ServiceKey::new(VIP.into(), Protocol::Tcp, port).expect("a host")
}

/// A balancer that knows the way to all servers, each by a MAC that ends with its number.
fn balancer(remember_all: bool) -> Balancer {
    let options = Options {
        max_flows: MAX_FLOWS,
        remember_all,
        ..Options::default()
    };
    let mut balancer = Balancer::new(&options).expect("the program loads");
    let interface = Interface::new(LOOPBACK, OURS);
    balancer.set_interface(interface).expect("the only one");
    let hop = |n| Hop {
        ifindex: LOOPBACK,
        source_mac: OURS,
        mac: Mac([2, 0, 0, 1, 0, n]),
        vlans: Vec::new(),
        mtu: 1500,
        direct: true,
        source: Some([10, 1, 2, 3].into()),
    };
    let hops: BTreeMap<_, _> = (1..=SERVERS).map(|n| (address(n).into(), hop(n))).collect();
    balancer.set_hops(hops).expect("maps can be written");
    balancer
}

/// Makes the service's servers these.
fn serve(balancer: &mut Balancer, servers: &[(u8, State)]) {
    let service = servers
        .iter()
        .fold(Service::new(key()), |service, (n, state)| {
            let server = Server::new(address(*n).into()).expect("a host");
            service.with(server.state(*state))
        });
    let services = [service].into_iter().collect::<Services>();
    balancer.apply(services).expect("there is room");
}

/// All connections, by their numbers: the server of each, 0 when it has been lost on purpose.
struct Connections {
    servers: Vec<u8>,
    /// Time in the program, and packets.
    spent: (Duration, u64),
}

impl Connections {
    fn open(balancer: &Balancer) -> Connections {
        let mut all = Connections {
            servers: vec![0; CONNECTIONS as usize],
            spent: (Duration::ZERO, 0),
        };
        for n in 0..CONNECTIONS {
            let server = all.send(balancer, n, TcpFlags::SYN);
            assert!(server > 0, "the SYN of connection {n} goes to a server");
            let stays = all.send(balancer, n, TcpFlags::ACK);
            assert_eq!(stays, server, "the handshake of connection {n}");
            all.servers[n as usize] = server;
        }
        all
    }

    /// A packet of a connection; gives the server that it goes to, 0 if to none.
    fn send(&mut self, balancer: &Balancer, n: u32, flags: TcpFlags) -> u8 {
        // 50,000 ports of each client.
        let client = Ipv4Addr::from(0xc612_0000 + n / 50_000);
        let port = 10_000 + (n % 50_000) as u16;
        let frame = build::frame(ROUTER, OURS)
            .ip(client, VIP)
            .tcp(port, PORT, flags)
            .build();
        let run = xdp::run(balancer.program(), &frame, 0, 1).expect("the kernel tries it");
        self.spent.0 += run.took;
        self.spent.1 += 1;
        match run.verdict == Verdict::Transmit && run.frame[..5] == [2, 0, 0, 1, 0] {
            true => run.frame[5],
            false => 0,
        }
    }

    /// Has each send a packet; gives how many did not come to their servers.
    fn strays(&mut self, balancer: &Balancer) -> usize {
        (0..CONNECTIONS)
            .filter(|n| {
                let server = self.servers[*n as usize];
                server > 0 && self.send(balancer, *n, TcpFlags::ACK) != server
            })
            .count()
    }

    /// Those to a server that has gone are nobody's any more.
    fn give_up(&mut self, server: u8) {
        let its = self.servers.iter_mut().filter(|of| **of == server);
        its.for_each(|of| *of = 0);
    }

    fn left(&self) -> usize {
        self.servers.iter().filter(|of| **of > 0).count()
    }
}

fn stay(remember_all: bool) {
    use State::{Draining, Up};
    let mut balancer = balancer(remember_all);
    let up = |numbers: std::ops::RangeInclusive<u8>| numbers.map(|n| (n, Up)).collect::<Vec<_>>();
    serve(&mut balancer, &up(1..=10));
    let begun = Instant::now();
    let mut all = Connections::open(&balancer);
    for n in 1..=10 {
        let its = all.servers.iter().filter(|of| **of == n).count();
        assert!((55_000..85_000).contains(&its), "server {n} has {its}");
    }
    // Ten come.
    serve(&mut balancer, &up(1..=20));
    assert_eq!(all.strays(&balancer), 0, "after ten have come");
    // One drains, and keeps what it has.
    let mut servers = up(1..=20);
    servers[0].1 = Draining;
    serve(&mut balancer, &servers);
    assert_eq!(all.strays(&balancer), 0, "after one has begun to drain");
    // It goes, and another one with it.
    serve(&mut balancer, &up(3..=20));
    all.give_up(1);
    all.give_up(2);
    assert_eq!(all.strays(&balancer), 0, "after two have gone");
    // They come back, and others go in the same step.
    servers = up(1..=20);
    servers.retain(|(n, _)| ![3, 20].contains(n));
    serve(&mut balancer, &servers);
    all.give_up(3);
    assert_eq!(
        all.strays(&balancer),
        0,
        "after two have come and two have gone"
    );
    let (left, (spent, packets)) = (all.left(), all.spent);
    assert!(left > 450_000, "{left} connections are left");
    println!(
        "{CONNECTIONS} connections, {packets} packets in {:.0} s: {:.0} ns each in the program, \
         {left} left of which none was moved (remember all: {remember_all})",
        begun.elapsed().as_secs_f64(),
        spent.as_nanos() as f64 / packets as f64,
    );
}

#[test]
fn seven_hundred_thousand_connections_stay_while_servers_come_and_go() {
    stay(false);
}

#[test]
fn and_so_they_do_where_all_are_remembered() {
    stay(true);
}
