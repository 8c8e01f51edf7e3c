//! Packets handed to the other end of a veth at once (`bpf_redirect_peer`): only where nothing is
//! between the two ends that they would miss.
//!
use crate::capture::Capture;
use crate::sockets::{all, hosts, routed};
use crate::whole::mac;
use butterfly_router::layout::Counter;
use testkit::cable::is_chatter;
use testkit::routed_hosts::{RoutedHosts, WEST};

const PINGS: usize = 20;

/// Whether packets to the west miss its device, whose packet sockets see what it sends; in both
/// families alike.
fn at_once(hosts: &RoutedHosts) -> bool {
    let near = mac(&hosts.router, "west0");
    let capture = Capture::new(&hosts.router);
    for address in WEST {
        let ping = format!("ping -q -i 0.01 -c {PINGS} {address}");
        hosts.east.ok(&ping).expect("all are answered");
    }
    let mut seen = capture.frames();
    seen.retain(|frame| !is_chatter(frame) && frame[6..12] == near);
    match seen.len() {
        0 => true,
        more if more == 2 * PINGS => false,
        // The router looked meanwhile.
        _ => at_once(hosts),
    }
}

/// The router is told of nothing that happens at the far end; it looks once a second.
fn until(hosts: &RoutedHosts, wanted: bool) {
    for _ in 0..20 {
        if at_once(hosts) == wanted {
            return;
        }
    }
    panic!("at once: {}", !wanted);
}

#[test]
fn a_queue_a_filter_and_a_program_miss_nothing() {
    let hosts = hosts();
    let far = |command: &str| hosts.west.ok(command).expect("the far end");
    let near = |command: &str| hosts.router.ok(command).expect("the near end");
    let report = routed(&hosts, [None, None], || {
        until(&hosts, true);
        near("tc qdisc add dev west0 root pfifo");
        until(&hosts, false);
        near("tc qdisc del dev west0 root");
        until(&hosts, true);
        far("ethtool -K eth0 gro on");
        until(&hosts, false);
        far("ethtool -K eth0 gro off");
        until(&hosts, true);
        // Another MAC address: neighbours have to be found anew, and those found are the far end.
        far("ip link set eth0 address 02:00:00:00:00:77");
        near("ip neigh flush dev west0");
        hosts.first_answers().expect("it has another address");
        until(&hosts, true);
    });
    assert!(all(&report, Counter::Forwarded) > 0);
    assert_eq!(
        all(&report, Counter::Forwarded),
        all(&report, Counter::Sent)
    );
}

/// What is for somebody behind the other end, a container's bridge say, is not the other end's own.
#[test]
fn who_is_behind_the_other_end_is_reached_by_the_device() {
    let hosts = hosts();
    let bridge =
        "ip addr flush dev eth0 && ip link add br0 type bridge && ip link set eth0 master br0 &&
        ip link set br0 address 02:00:00:00:00:88 up && ip addr add 10.2.0.2/24 dev br0 &&
        ip addr add 2001:db8:2::2/64 dev br0 nodad && ip route replace default via 10.2.0.1 &&
        ip -6 route replace default via 2001:db8:2::1";
    hosts.west.ok(bridge).expect("a bridge");
    hosts.router.ok("ip neigh flush dev west0").expect("ip");
    hosts.first_answers().expect("the bridge answers");
    routed(&hosts, [None, None], || {
        assert!(!at_once(&hosts), "the bridge has another MAC address");
    });
}
