//! What all parts of the benchmark balance: a service of each family, ten servers, clients behind a
//! router.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use butterfly_balancer::{
    Balancer, Hop, Interface, Options, Protocol, Server, Service, ServiceKey, Tunnel,
};
use wire::parse::TcpFlags;
use wire::{Mac, build};

/// The balancer's interface.
pub const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// BPF_PROG_TEST_RUN's frames come by it.
pub const LOOPBACK: u32 = 1;
/// Flows that are remembered.
pub const MAX_FLOWS: u32 = 1 << 20;
const PORT: u16 = 80;
const PAYLOAD: [u8; 46] = [0; 46];

/// Who is balanced, of IPv6 or IPv4.
pub fn vip(v6: bool) -> IpAddr {
    match v6 {
        true => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x80].into(),
        false => [192, 0, 2, 80].into(),
    }
}

fn client(v6: bool) -> IpAddr {
    match v6 {
        true => [0x2001, 0xdb8, 0xc1, 0, 0, 0, 0, 1].into(),
        false => [10, 0, 0, 1].into(),
    }
}

/// A client's segment to the service.
pub fn tcp(v6: bool, flags: TcpFlags) -> Vec<u8> {
    segment(client(v6), vip(v6), flags)
}

/// A client's segment to somebody else.
pub fn stranger(v6: bool) -> Vec<u8> {
    segment(client(v6), client(v6), TcpFlags::ACK)
}

fn segment(from: IpAddr, to: IpAddr, flags: TcpFlags) -> Vec<u8> {
    build::frame(ROUTER, OURS)
        .ip(from, to)
        .tcp(1, PORT, flags)
        .payload(&PAYLOAD)
        .build()
}

/// So many servers' MACs.
pub fn macs(count: u8) -> Vec<Mac> {
    (1..=count).map(|n| Mac([2, 0, 0, 1, 0, n])).collect()
}

/// A balancer of frames that come by `from`, with a server for each of these MACs behind `to`.
pub fn balancer(
    from: u32,
    to: u32,
    macs: &[Mac],
    tunnel: Tunnel,
    servers_v6: bool,
    remember_all: bool,
) -> Balancer {
    let options = Options {
        max_flows: MAX_FLOWS,
        remember_all,
        ..Options::default()
    };
    let mut balancer = Balancer::new(&options).expect("the program loads");
    balancer
        .set_interface(Interface::new(from, OURS))
        .expect("the only one");
    let address = |n: usize| -> IpAddr {
        match servers_v6 {
            false => [10, 1, 2, n as u8].into(),
            true => [0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, n as u16].into(),
        }
    };
    let hop = |mac: &Mac| Hop {
        ifindex: to,
        source_mac: OURS,
        mac: *mac,
        vlans: Vec::new(),
        mtu: 1500,
        direct: true,
        source: Some(address(100)),
    };
    let hops: BTreeMap<_, _> = (1..)
        .zip(macs)
        .map(|(n, mac)| (address(n), hop(mac)))
        .collect();
    let services = [false, true].map(|v6| {
        let key = ServiceKey::new(vip(v6), Protocol::Tcp, NonZeroU16::new(PORT)).expect("a host");
        let servers =
            (1..=macs.len()).map(|n| Server::new(address(n)).expect("a host").tunnel(tunnel));
        servers.fold(Service::new(key), Service::with)
    });
    balancer
        .apply_with(services.into_iter().collect(), hops)
        .expect("there is room");
    balancer
}
