//! Single questions.

use crate::follow::{index, inside, ip, two_networks, wait};
use butterfly_netlink::{Error, Mirror, Query, Requests, RouteKind};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use testkit::netns::Namespace;
use testkit::{PATIENCE, wait_for};
use wire::parse::ETHERNET_LEN;
use wire::{Mac, build};

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn the_kernel_says_where_a_packet_would_go() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let (a, b) = (
            index(&mirror.snapshot(), "east"),
            index(&mirror.snapshot(), "west"),
        );
        let requests = Requests::new().expect("a socket");
        ip(
            &namespace,
            "route add 10.0.0.0/8 mtu 1400 nexthop via 192.0.2.9 weight 2 nexthop via 198.51.100.9 \
             weight 5",
        );
        ip(&namespace, "route add unreachable 10.9.0.0/16");
        ip(&namespace, "-6 route add 2001:db8:f::/48 via 2001:db8:a::9");
        ip(
            &namespace,
            "-6 route append 2001:db8:f::/48 via 2001:db8:a::8",
        );
        ip(&namespace, "-6 route add blackhole 2001:db8:e::/48");

        let found = requests
            .resolve(&Query::to(address("10.1.2.3")))
            .await
            .expect("a route");
        assert_eq!(
            (found.kind, found.table, found.prefix.to_string()),
            (RouteKind::Unicast, 254, "10.0.0.0/8".into())
        );
        let hops: Vec<_> = found
            .hops
            .iter()
            .map(|hop| (hop.gateway, hop.ifindex, hop.weight))
            .collect();
        assert_eq!(
            hops,
            [
                (Some(address("192.0.2.9")), a, 2),
                (Some(address("198.51.100.9")), b, 5)
            ]
        );
        assert!(
            found.source == Some(address("192.0.2.1"))
                || found.source == Some(address("198.51.100.1"))
        );
        assert_eq!(found.mtu, Some(1400));

        let connected = requests
            .resolve(&Query::to(address("198.51.100.77")))
            .await
            .expect("a route");
        assert_eq!(
            (connected.hops[0].gateway, connected.hops[0].ifindex),
            (None, b)
        );
        assert_eq!(connected.source, Some(address("198.51.100.1")));
        assert_eq!(
            requests
                .resolve(&Query::to(address("192.0.2.1")))
                .await
                .expect("us")
                .kind,
            RouteKind::Local
        );

        let six = requests
            .resolve(&Query::to(address("2001:db8:f::1")))
            .await
            .expect("a route");
        // IPv6 answers beginning with any of them.
        let gateways: BTreeSet<_> = six.hops.iter().filter_map(|hop| hop.gateway).collect();
        assert_eq!(
            gateways,
            [address("2001:db8:a::9"), address("2001:db8:a::8")].into()
        );
        assert_eq!(six.source, Some(address("2001:db8:a::1")));

        for nowhere in ["10.9.1.1", "172.16.0.1", "2001:db8:e::1", "2001:db9::1"] {
            let error = requests
                .resolve(&Query::to(address(nowhere)))
                .await
                .expect_err(nowhere);
            assert!(
                matches!(error, Error::Unreachable { dst, .. } if dst == address(nowhere)),
                "{error}"
            );
        }
    });
}

/// The kernel notes what a stranger's "fragmentation needed" and "packet too big" say, of packets
/// that nobody has sent. How large packets to a server may be is the route's to say, and the
/// interface's.
#[test]
fn a_stranger_does_not_say_how_large_packets_may_be() {
    let namespace = two_networks();
    let stranger = Namespace::new().expect("a namespace");
    stranger
        .adopt_from(
            &namespace,
            "east-peer",
            "02:00:00:00:00:66",
            &["192.0.2.66/24", "2001:db8:a::66/64"],
        )
        .expect("the other end");
    for route in [
        "route add 10.0.0.0/8 via 192.0.2.66 mtu 1400",
        "-6 route add 2001:db8:f::/48 via 2001:db8:a::66 mtu 1400",
    ] {
        ip(&namespace, route);
    }
    for (ours, server, mtu) in [
        ("192.0.2.1", "192.0.2.9", None),
        ("192.0.2.1", "10.1.2.3", Some(1400)),
        ("2001:db8:a::1", "2001:db8:a::9", None),
        ("2001:db8:a::1", "2001:db8:f::1", Some(1400)),
    ] {
        let (ours, server) = (address(ours), address(server));
        let error = too_big(ours, server, 1300);
        let send = || send_icmp(&error, ours);
        stranger.inside(send).expect("enter");
        wait_for("the kernel to believe it", PATIENCE, || {
            let way = namespace.ok(&format!("ip route get {server}"))?;
            Ok(way.contains("mtu 1300").then_some(()))
        })
        .expect("it believes it");
        inside(&namespace, async || {
            let requests = Requests::new().expect("a socket");
            let found = requests.resolve(&Query::to(server)).await.expect("a route");
            assert_eq!((found.mtu, found.source), (mtu, Some(ours)), "{server}");
        });
    }
}

/// An ICMP message which says that an echo reply from `ours` to `server` is longer than `mtu`.
fn too_big(ours: IpAddr, server: IpAddr, mtu: u32) -> Vec<u8> {
    let frame = || build::frame(Mac([2; 6]), Mac([4; 6]));
    let quoted = frame().ip(ours, server).echo_reply(7, 1).build();
    let (kind, code, ip_len) = match ours {
        IpAddr::V4(_) => (3, 4, 20),
        IpAddr::V6(_) => (2, 0, 40),
    };
    let error = frame()
        .ip(server, ours)
        .icmp(kind, code, mtu)
        .payload(&quoted[ETHERNET_LEN..])
        .build();
    error[ETHERNET_LEN + ip_len..].to_vec()
}

/// Sends it with the caller's own address. The checksum of ICMPv6 is the kernel's to make.
fn send_icmp(message: &[u8], to: IpAddr) {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = socket(family, SocketType::RAW, Some(protocol)).expect("a raw socket");
    let to = SocketAddr::new(to, 0);
    sendto(&socket, message, SendFlags::empty(), &to).expect("it is sent");
}

#[test]
fn a_probe_makes_the_kernel_ask() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let a = index(&mirror.snapshot(), "east");
        let requests = Requests::new().expect("a socket");
        let nobody = address("192.0.2.77");
        assert_eq!(
            requests.neighbour(a, nobody).await.expect("an answer"),
            None
        );
        requests.probe(a, nobody).await.expect("a probe");
        // The groups tell of an entry once the question is answered, or has failed.
        let asked = requests
            .neighbour(a, nobody)
            .await
            .expect("an answer")
            .expect("an entry");
        assert_eq!(
            (asked.state_name(), asked.is_valid()),
            ("incomplete", false)
        );
        // Whoever answers is the kernel of another namespace: here the entry is simply filled in.
        ip(
            &namespace,
            "neigh replace 192.0.2.77 lladdr 02:00:00:00:00:77 nud reachable dev east",
        );
        let found = wait(&mirror, "answer", |now| {
            now.neighbour(a, nobody)
                .copied()
                .filter(|n| n.is_confirmed())
        })
        .await;
        assert_eq!(
            requests.neighbour(a, nobody).await.expect("an answer"),
            Some(found)
        );
        let error = requests
            .probe(99_999, nobody)
            .await
            .expect_err("no such interface");
        assert!(
            error
                .to_string()
                .starts_with("the kernel refused to resolve a neighbour"),
            "{error}"
        );
    });
}
