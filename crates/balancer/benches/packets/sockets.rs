//! What programs on two hosts see of a balancer between them, beside the kernel's own: sockets over
//! veths with the offloads that the kernel gives them, so that a stream comes in packets of up to
//! 64 KiB with checksums that are only begun.
//!
//! The server's answers come back through the balancer's host. By us they pass the kernel as they
//! are; nftables, which rewrites addresses (DNAT), has to see them again. The kernel's forwarding
//! without any balancer is beside both.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Mutex;

use butterfly_balancer::{
    Balancer, Follower, Options, Protocol, Server, Service, ServiceKey, Services,
};
use testkit::beside::{self, Ends};
use testkit::netns::Namespace;
use testkit::results::Results;
use testkit::routed_hosts::{RoutedHosts, WEST};
use testkit::traffic::{DISCARD, ECHO, Station, UPLOAD};

/// Who is balanced, of IPv4 and of IPv6.
const VIPS: [&str; 2] = ["192.168.101.1", "2001:db8:99::1"];

/// By the kernel alone, by nftables and by us in turn.
pub fn measure(results: &mut Results, rounds: usize) {
    let hosts = RoutedHosts::with_default_offloads("east0", "west0").expect("the kernel forwards");
    let station = Station::new(&hosts.west).expect("a station");
    let take = VIPS.map(|vip| format!("ip addr add {vip} dev lo"));
    hosts
        .west
        .ok(&take.join(" && "))
        .expect("the server has the VIPs");
    let ends = Ends {
        from: &hosts.east,
        station: &station,
        to: VIPS.map(|vip| vip.parse().expect("an address")),
    };
    let mut kernel = |round: &mut (dyn FnMut() + Send)| {
        let routes = |verb: &str| {
            let line = [0, 1].map(|n| format!("ip route {verb} {} via {}", VIPS[n], WEST[n]));
            hosts.router.ok(&line.join(" && ")).expect("routes")
        };
        routes("add");
        round();
        routes("del");
    };
    let mut nftables = |round: &mut (dyn FnMut() + Send)| {
        let rules = Rules::new(&hosts.router);
        round();
        drop(rules);
    };
    let mut ours = |round: &mut (dyn FnMut() + Send)| balanced(&hosts.router, round);
    let measured = beside::measure(
        results,
        rounds,
        &ends,
        &mut [
            ("kernel", &mut kernel),
            ("nftables", &mut nftables),
            ("balancer", &mut ours),
        ],
    );
    measured.expect("sockets reach each other");
}

/// The kernel's own balancer, while it is there.
struct Rules<'a>(&'a Namespace);

impl<'a> Rules<'a> {
    fn new(host: &'a Namespace) -> Self {
        let rule = format!(
            "nft 'table inet peer {{ chain in {{ type nat hook prerouting priority -100;
             ip daddr {} dnat ip to {}; ip6 daddr {} dnat ip6 to {}; }}; }}'",
            VIPS[0], WEST[0], VIPS[1], WEST[1]
        );
        host.ok(&rule).expect("nftables balances");
        Rules(host)
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        // The namespace goes with the benchmark: it would end there too.
        let _ = self.0.ok("nft delete table inet peer");
    }
}

/// A round with the balancer on the client's side, in the mode that it chooses itself.
fn balanced(host: &Namespace, round: &mut (dyn FnMut() + Send)) {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let follower = Follower::start().await.expect("netlink");
            let balancer =
                Mutex::new(Balancer::new(&Options::default()).expect("the program loads"));
            let services = services();
            follower
                .learn(&balancer, &services)
                .await
                .expect("next_hops");
            follower
                .apply(&balancer, services)
                .await
                .expect("there is room");
            let mut here = balancer.lock().expect("nobody panicked");
            follower
                .attach(&mut here, "east0", None)
                .expect("the interface");
            round();
        });
    };
    host.inside(work).expect("enter");
}

/// All that a station listens on, of both families, with the west as the one server.
fn services() -> Services {
    let protocols = [
        (Protocol::Tcp, UPLOAD),
        (Protocol::Tcp, ECHO),
        (Protocol::Udp, DISCARD),
    ];
    let next_hops = VIPS.into_iter().zip(WEST);
    let all = next_hops.flat_map(|(vip, server)| {
        protocols.map(|(protocol, port)| {
            let vip: IpAddr = vip.parse().expect("an address");
            let port = NonZeroU16::new(port).expect("not zero");
            let key = ServiceKey::new(vip, protocol, Some(port)).expect("a host");
            Service::new(key)
                .with(Server::new(server.parse().expect("an address")).expect("a host"))
        })
    });
    all.collect()
}
