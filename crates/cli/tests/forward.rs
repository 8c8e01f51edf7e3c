//! `butterfly forward` between two hosts, each a namespace of its own with the kernel's stack: what it prints, and that
//! packets go on when it ends, however it ends.

use std::time::Duration;

use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::wait_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// A host in the east, a router, a host in the west.
struct Hosts {
    east: Namespace,
    router: Namespace,
    west: Namespace,
}

impl Hosts {
    fn new() -> Hosts {
        let [east, router, west] = [(); 3].map(|()| Namespace::new().expect("a namespace"));
        router
            .ok("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
            .expect("sysctl");
        for (name, host, n) in [("east0", &east, 1), ("west0", &west, 2)] {
            router.ok(&format!(
                "ip link add {name} type veth peer name far && ip link set far netns {} name eth0 &&
                 ip addr add 10.{n}.0.1/24 dev {name} && ip addr add 2001:db8:{n}::1/64 dev {name} nodad && ip link set {name} up",
                host.pid()
            )).expect("a wire");
            // GRO: a veth without it, or a program, takes no frames that are redirected to its other end.
            host.ok(&format!(
                "ip addr add 10.{n}.0.2/24 dev eth0 && ip addr add 2001:db8:{n}::2/64 dev eth0 nodad &&
                 ip link set eth0 up && ethtool -K eth0 gro on && ip route add default via 10.{n}.0.1 && ip -6 route add default via 2001:db8:{n}::1"
            )).expect("a host");
        }
        let hosts = Hosts { east, router, west };
        for address in ["10.2.0.2", "2001:db8:2::2"] {
            wait_for("a first answer", PATIENCE, || {
                Ok(hosts
                    .east
                    .succeeds(&format!("ping -q -c 1 -W 1 {address}"))?
                    .then_some(()))
            })
            .expect("the kernel forwards");
        }
        hosts
    }

    fn forward(&self, options: &str) -> Process {
        let command = format!(
            "{} forward east0 west0 {options}",
            env!("CARGO_BIN_EXE_butterfly")
        );
        let process = self.router.start("forward", &command).expect("butterfly");
        wait_for("the interfaces", PATIENCE, || {
            Ok(process.log().contains("are followed.").then_some(()))
        })
        .expect("a start");
        process
    }

    /// Echo requests at 2 ms, in both families, while `meanwhile` happens: all of them are answered.
    fn pinging(&self, meanwhile: impl FnOnce()) {
        let start = |address: &str| {
            let command = format!("ping -q -i 0.002 -c 500 {address}");
            self.east
                .start(&format!("ping-{}", address.len()), &command)
                .expect("ping")
        };
        let mut pings = ["10.2.0.2", "2001:db8:2::2"].map(start);
        meanwhile();
        for ping in &mut pings {
            assert!(ping.wait(PATIENCE).expect("an end").success(), "{}", ping.log());
            assert!(ping.log().contains("500 received"), "{}", ping.log());
        }
    }
}

#[test]
fn it_takes_over_and_gives_back_under_load() {
    let hosts = Hosts::new();
    hosts.pinging(|| {
        let mut first = hosts.forward("--routes");
        let log = first.log();
        for line in [
            "east0: flags=<UP,RUNNING> mtu 1500",
            "       inet 10.1.0.1/24",
            "taking over east0: native XDP.",
            "taking over west0: native XDP.",
            "10.2.0.0/24                                           U        west0",
            "? (10.2.0.2) at ",
        ] {
            assert!(log.contains(line), "no '{line}' in:\n{log}");
        }
        std::thread::sleep(Duration::from_millis(100));
        first.terminate(PATIENCE).expect("an end");
        let log = first.log();
        assert!(log.contains("  forwarded  "), "{log}");
    });
    hosts.pinging(|| {
        let mut second = hosts.forward("");
        std::thread::sleep(Duration::from_millis(100));
        second.kill();
    });
    let shown = hosts.router.ok("ip link show east0").expect("ip");
    assert!(!shown.contains("xdp"), "{shown}");
    hosts.pinging(|| {});
    assert!(hosts.west.succeeds("true").expect("it is there"));
}

#[test]
fn what_it_cannot_do_it_says() {
    let hosts = Hosts::new();
    let butterfly = env!("CARGO_BIN_EXE_butterfly");
    let said = |command: &str| {
        let text = hosts
            .router
            .ok(&format!("{butterfly} forward {command} 2>&1; true"))
            .expect("a shell");
        text.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(
        said("nothing0"),
        "butterfly: interface nothing0: there is no such interface"
    );
    hosts.west.ok("ethtool -K eth0 gro off").expect("ethtool");
    let forward = hosts.forward("");
    assert!(
        forward
            .log()
            .contains("packets to west0 are left to the kernel: its driver takes no"),
        "{}",
        forward.log()
    );
    hosts.pinging(|| {});
    drop(forward);
    assert_eq!(said("lo"), "butterfly: interface lo: it is no Ethernet interface");
    hosts
        .router
        .ok("ip link add bridge0 type bridge && ip link set east0 master bridge0")
        .expect("a bridge");
    assert_eq!(
        said("east0"),
        "butterfly: interface east0: it belongs to the bridge bridge0, which has its packets"
    );
}
