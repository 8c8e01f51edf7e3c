//! The namespace: `sender` – `east`, the router's interfaces, `west` – `sink`, all here, and two
//! without traffic; and routes in great numbers.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::ours::Ours;
use butterfly_router::Options;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::netns::Namespace;
use wire::{Mac, build};

pub const EAST: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
const HOST: Mac = Mac([2, 0, 0, 0, 1, 2]);

/// A frame of `len` bytes to address zero.
pub fn frame(v6: bool, len: usize) -> Vec<u8> {
    let (src, dst): (&str, &str) = if v6 {
        ("2001:db8:1::2", "::")
    } else {
        ("10.1.0.2", "0.0.0.0")
    };
    let packet = build::frame(HOST, EAST).ip(
        src.parse::<IpAddr>().expect("an address"),
        dst.parse::<IpAddr>().expect("an address"),
    );
    let headers = if v6 { 14 + 40 + 8 } else { 14 + 20 + 8 };
    packet
        .udp(1000, 2000)
        .payload(&vec![0; len.saturating_sub(headers)])
        .build()
}

/// A namespace that forwards, with 64 neighbours in the west.
pub fn namespace() -> Namespace {
    let namespace = Namespace::new().expect("a namespace");
    let setup = "set -e
        sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv6.route.max_size=10000000
        ip link add east address 02:00:00:00:00:0e type veth peer name sender
        ip link add west type veth peer name sink
        for name in east west sender sink; do sysctl -qw net.ipv4.conf.$name.rp_filter=0
        ip link set $name up; done
        for name in spare0 spare1; do ip link add $name type veth peer name $name-end
        ip link set $name up; done
        for name in sender sink east west; do ethtool -K $name gro on; done
        ip addr add 10.1.0.1/24 dev east; ip addr add 10.2.0.1/24 dev west
        ip addr add 2001:db8:1::1/64 dev east nodad; ip addr add 2001:db8:2::1/64 dev west nodad
        sysctl -qw net.ipv6.conf.sink.disable_ipv6=1 net.ipv6.conf.sender.disable_ipv6=1
        for n in $(seq 10 73); do
            ip neigh add 10.2.0.$n lladdr 02:00:00:00:02:$n dev west
            ip neigh add 2001:db8:2::$n lladdr 02:00:00:00:02:$n dev west
        done";
    namespace.ok(setup).expect("the network");
    namespace
}

/// So many different prefixes, of the lengths that a table of the Internet has: of IPv4 mostly /24,
/// of IPv6 /48 within a thousandth as many /32.
pub fn prefixes(v6: bool, count: usize) -> Vec<(IpAddr, u8)> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut seen = std::collections::HashSet::new();
    while seen.len() < count {
        let prefix = if v6 {
            let site = rng.random_range(0..(count as u128 / 50).max(1));
            let bits = 0x2a00u128 << 112 | site << 96 | u128::from(rng.random::<u16>()) << 80;
            (IpAddr::from(bits.to_be_bytes()), 48)
        } else {
            let len = if rng.random_bool(0.6) {
                24
            } else {
                rng.random_range(17..=25)
            };
            // 16.0.0.0 to 223.255.255.255, past the private ones.
            let address = rng.random_range(16u32 << 24..224 << 24) >> (32 - len) << (32 - len);
            if address >> 24 == 127 {
                continue;
            }
            (IpAddr::from(address.to_be_bytes()), len as u8)
        };
        seen.insert(prefix);
    }
    let mut all: Vec<_> = seen.into_iter().collect();
    all.sort();
    all
}

/// Addresses under the prefixes, in no order.
pub fn destinations(prefixes: &[(IpAddr, u8)], count: usize) -> Vec<IpAddr> {
    let mut rng = StdRng::seed_from_u64(8);
    let one = |_| match prefixes[rng.random_range(0..prefixes.len())] {
        (IpAddr::V4(ip), len) => {
            IpAddr::from((u32::from(ip) | rng.random::<u32>() >> len).to_be_bytes())
        }
        (IpAddr::V6(ip), len) => {
            IpAddr::from((u128::from(ip) | rng.random::<u128>() >> len).to_be_bytes())
        }
    };
    (0..count).map(one).collect()
}

/// Gives the kernel the routes by `ip -batch`; seconds it took.
pub fn load(namespace: &Namespace, prefixes: &[(IpAddr, u8)]) -> Duration {
    let mut text = String::new();
    for (number, (ip, len)) in prefixes.iter().enumerate() {
        let gateway = if ip.is_ipv6() {
            "2001:db8:2::"
        } else {
            "10.2.0."
        };
        let _ = writeln!(
            text,
            "route add {ip}/{len} via {gateway}{}",
            10 + number % 64
        );
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a file");
    let start = Instant::now();
    namespace
        .ok(&format!("ip -batch {}", file.path().display()))
        .expect("ip -batch");
    start.elapsed()
}

/// Tables large enough for a million routes.
pub fn large() -> Options {
    Options {
        nodes4: 1 << 19,
        nodes6: 1 << 20,
        ..Options::default()
    }
}

impl Ours {
    /// Prefixes of IPv4 or of IPv6 that the program knows.
    pub fn prefixes(&self, v6: bool) -> usize {
        self.report().tables[usize::from(v6)].prefixes
    }
}

/// Runs something in the namespace, on a runtime of its own.
pub fn inside(namespace: &Namespace, work: impl AsyncFnOnce() + Send) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(work());
    };
    namespace.inside(run).expect("enter the namespace");
}
