//! What a packet costs: of one flow and of many, new flows, each tunnel, and packets that are not ours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use butterfly_balancer::{
    Balancer, Hop, Interface, Options, Protocol, Reason, Server, Service, ServiceKey, Tunnel,
};
use wire::parse::TcpFlags;
use wire::{Mac, build};
use xdp::{Program, Verdict, objects};

use crate::again::Again;

pub const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const LOOPBACK: u32 = 1;
const MAX_FLOWS: u32 = 1 << 20;
const SERVERS: u8 = 10;
const PAYLOAD: [u8; 46] = [0; 46];

struct Row {
    name: &'static str,
    frame: Vec<u8>,
    flows: u32,
    /// A flow's packets before the ones that are timed; none: they begin flows.
    warm: bool,
    tunnel: Tunnel,
    servers_v6: bool,
    remember_all: bool,
    verdict: Verdict,
}

pub fn vip(v6: bool) -> IpAddr {
    if v6 {
        "2001:db8::80".parse()
    } else {
        "192.0.2.80".parse()
    }
    .expect("an address")
}

fn client(v6: bool) -> IpAddr {
    if v6 {
        "2001:db8:c1::1".parse()
    } else {
        "10.0.0.1".parse()
    }
    .expect("an address")
}

pub fn tcp(v6: bool, flags: TcpFlags) -> Vec<u8> {
    build::frame(ROUTER, OURS)
        .ip(client(v6), vip(v6))
        .tcp(1, 80, flags)
        .payload(&PAYLOAD)
        .build()
}

fn all() -> Vec<Row> {
    let row = |name, v6, flows| Row {
        name,
        frame: tcp(v6, TcpFlags::ACK),
        flows,
        warm: true,
        tunnel: Tunnel::None,
        servers_v6: false,
        remember_all: false,
        verdict: Verdict::Transmit,
    };
    let port = NonZeroU16::new(5555).expect("not zero");
    let mut rows = vec![
        Row {
            frame: build::frame(ROUTER, OURS)
                .ip(client(false), client(false))
                .tcp(1, 80, TcpFlags::ACK)
                .payload(&PAYLOAD)
                .build(),
            verdict: Verdict::Pass,
            ..row("not_ours", false, 1)
        },
        row("hit_1", false, 1),
        row("hit_128k", false, 1 << 17),
        row("hit_1m", false, 1 << 20),
        row("hit6_1", true, 1),
        row("hit6_1m", true, 1 << 20),
        Row {
            frame: tcp(false, TcpFlags::SYN),
            warm: false,
            ..row("new", false, 1 << 20)
        },
    ];
    // The same with every flow in the table.
    rows.push(Row {
        remember_all: true,
        ..row("all_hit_1", false, 1)
    });
    rows.push(Row {
        remember_all: true,
        ..row("all_hit_1m", false, 1 << 20)
    });
    rows.push(Row {
        frame: tcp(false, TcpFlags::SYN),
        warm: false,
        remember_all: true,
        ..row("all_new", false, 1 << 20)
    });
    for (name, tunnel) in [
        ("ipip", Tunnel::Ipip),
        ("gre", Tunnel::Gre),
        ("fou", Tunnel::Fou { port }),
        ("gue", Tunnel::Gue { port }),
    ] {
        rows.push(Row {
            tunnel,
            ..row(name, false, 1)
        });
    }
    rows.push(Row {
        tunnel: Tunnel::Ipip,
        servers_v6: true,
        ..row("ipip_4in6", false, 1)
    });
    rows.push(Row {
        tunnel: Tunnel::Ipip,
        ..row("ipip_6in4", true, 1)
    });
    rows.push(Row {
        tunnel: Tunnel::Gue { port },
        servers_v6: true,
        ..row("gue_6in6", true, 1)
    });
    rows
}

/// All rows, as pairs for the last line.
pub fn measure(rounds: usize) -> Vec<(String, f64)> {
    let again = Again::new();
    let transmit = Program::load("transmit", objects::TRANSMIT, |_| Ok(())).expect("the program loads");
    all()
        .iter()
        .map(|row| (row.name.to_owned(), one(&again, &transmit, row, rounds)))
        .collect()
}

fn one(again: &Again, transmit: &Program, row: &Row, rounds: usize) -> f64 {
    // New flows each meet a table as full as it was made for; a row that needs none of it starts with an empty one.
    let balancer = balancer(row);
    let times = if row.flows == 1 { 1 << 18 } else { row.flows };
    again.tell(&row.frame, row.flows);
    again.hand_to(balancer.program());
    if row.warm {
        (0..3).for_each(|_| drop(again.run(&row.frame, times)));
    }
    let mut nets = Vec::new();
    let mut empties = Vec::new();
    for _ in 0..rounds {
        again.hand_to(transmit);
        let empty = again.run(&row.frame, times.min(1 << 18)).took;
        let fresh = (!row.warm).then(|| self::balancer(row));
        again.hand_to(fresh.as_ref().unwrap_or(&balancer).program());
        let run = again.run(&row.frame, times);
        assert_eq!(run.verdict, row.verdict, "{}", row.name);
        let of = fresh.as_ref().unwrap_or(&balancer);
        let counters = of.counters().expect("maps can be read");
        if row.verdict == Verdict::Transmit {
            let bad = counters
                .reasons
                .iter()
                .filter(|(reason, _)| !matches!(reason, Reason::Adopted | Reason::TableFull));
            assert!(
                bad.clone().all(|(_, count)| *count == 0),
                "{}: {:?}",
                row.name,
                counters.reasons
            );
        }
        nets.push(run.took.as_nanos() as f64 - empty.as_nanos() as f64);
        empties.push(empty.as_nanos() as f64);
    }
    let (net, least, most) = spread(&mut nets);
    let (empty, ..) = spread(&mut empties);
    println!(
        "{:>12} {net:6.0} ns  ({least:.0} to {most:.0}; empty {empty:.0})",
        row.name
    );
    net
}

/// Median, least and most.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn balancer(row: &Row) -> Balancer {
    let options = Options {
        max_flows: MAX_FLOWS,
        remember_all: row.remember_all,
        ..Options::default()
    };
    let mut balancer = Balancer::new(&options).expect("the program loads");
    balancer
        .set_interface(Interface::new(LOOPBACK, OURS))
        .expect("the only one");
    configure(
        &mut balancer,
        row.tunnel,
        row.servers_v6,
        LOOPBACK,
        &(1..=SERVERS).map(|n| Mac([2, 0, 0, 1, 0, n])).collect::<Vec<_>>(),
    );
    balancer
}

/// A service for each family, with a server for each of these MACs.
pub fn configure(balancer: &mut Balancer, tunnel: Tunnel, servers_v6: bool, ifindex: u32, macs: &[Mac]) {
    let address = |n: usize| match servers_v6 {
        false => IpAddr::from([10, 1, 2, n as u8]),
        true => IpAddr::from([0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, n as u16]),
    };
    let hops = (1..).zip(macs).map(|(n, mac)| {
        let hop = Hop {
            ifindex,
            source_mac: OURS,
            mac: *mac,
            vlans: Vec::new(),
            mtu: 1500,
            direct: true,
            source: Some(address(100)),
        };
        (address(n), hop)
    });
    balancer
        .set_hops(hops.collect::<BTreeMap<_, _>>())
        .expect("maps can be written");
    let services = [false, true].map(|v6| {
        let key = ServiceKey::new(vip(v6), Protocol::Tcp, NonZeroU16::new(80)).expect("a host");
        let servers = (1..=macs.len()).map(|n| Server::new(address(n)).expect("a host").tunnel(tunnel));
        servers.fold(Service::new(key), Service::with)
    });
    balancer
        .apply(services.into_iter().collect())
        .expect("there is room");
}

/// Kernel memory of the flow table and the flows' names, by what the maps say of themselves.
pub fn bytes_per_flow() -> f64 {
    let balancer = balancer(&all()[0]);
    let bytes: u64 = ["flows", "flow_names"]
        .map(|name| {
            let map = balancer.program().map(name).expect("it has the map");
            u64::from(libbpf_rs::MapCore::value_size(&map)) * u64::from(libbpf_rs::MapCore::max_entries(&map))
        })
        .iter()
        .sum();
    let each = bytes as f64 / f64::from(MAX_FLOWS);
    println!(
        "kernel memory: {each:.0} bytes a flow of --max-flows ({} MiB for {MAX_FLOWS})",
        bytes >> 20
    );
    each
}
