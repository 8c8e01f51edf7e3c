//! VLANs and bonds against the kernel's own. Where this machine's kernel has neither they run in a guest:
//! `another_kernel.rs`.

use crate::cables::{Cables, can_make};
use crate::lab::{Ours, story_over};
use crate::oracle::compare_over;
use crate::packets::to;
use butterfly_router::layout::Counter;
use testkit::netns::Namespace;

/// A guest without KVM needs milliseconds for each.
const PACKETS: usize = 400;
const LEAST: u64 = 100;

const VLANS: Cables = Cables {
    east: &["cable-e"],
    west: &["cable-w"],
    east_tag: &[0x81, 0, 0, 5],
    west_tag: &[0x88, 0xa8, 0, 6],
    setup: "ip link add link cable-e name east type vlan id 5 && ip link set east up
        ip link add link cable-w name west type vlan id 6 protocol 802.1ad && ip link set west up",
};

const BONDS: Cables = Cables {
    east: &["cable-e0", "cable-e1"],
    west: &["cable-w0", "cable-w1"],
    east_tag: &[],
    west_tag: &[],
    setup: "ip link add east type bond mode active-backup miimon 50
        ip link add west type bond mode balance-xor xmit_hash_policy layer3+4 miimon 50
        for port in e0 e1 w0 w1; do ip link set cable-$port down; done
        for port in e0 e1; do ip link set cable-$port master east; done
        for port in w0 w1; do ip link set cable-$port master west; done
        ip link set east type bond active_slave cable-e0
        ip link set east up; ip link set west up
        until ip link show east | grep -q LOWER_UP && ip link show west | grep -q LOWER_UP; do sleep 0.05; done",
};

#[test]
fn a_tag_is_put_on() {
    let cables = Cables {
        east: &["east"],
        east_tag: &[],
        setup: "ip link add link cable-w name west type vlan id 6 protocol 802.1ad && ip link set west up",
        ..VLANS
    };
    if can_make("vlan") {
        let rules =
            "ip rule add pref 100 from 10.1.0.3 table 77; ip route add 203.0.113.0/24 via 10.2.0.4 table 77";
        compare_over(&cables, rules, 12, PACKETS, LEAST);
    }
}

#[test]
fn a_tag_is_taken_off() {
    let cables = Cables {
        west: &["west"],
        west_tag: &[],
        setup: "ip link add link cable-e name east type vlan id 5 && ip link set east up",
        ..VLANS
    };
    if can_make("vlan") {
        compare_over(
            &cables,
            "sysctl -qw net.ipv4.conf.east.rp_filter=1",
            13,
            PACKETS,
            LEAST,
        );
    }
}

#[test]
fn vlans_on_bonds() {
    let cables = Cables {
        east_tag: VLANS.east_tag,
        west_tag: VLANS.west_tag,
        setup: "ip link add bond-e type bond mode active-backup
            ip link add bond-w type bond mode balance-xor
            for port in e0 e1 w0 w1; do ip link set cable-$port down; done
            for port in e0 e1; do ip link set cable-$port master bond-e; done
            for port in w0 w1; do ip link set cable-$port master bond-w; done
            ip link set bond-e type bond active_slave cable-e0
            ip link set bond-e up; ip link set bond-w up
            ip link add link bond-e name east type vlan id 5 && ip link set east up
            ip link add link bond-w name west type vlan id 6 protocol 802.1ad && ip link set west up
            until ip link show east | grep -q LOWER_UP && ip link show west | grep -q LOWER_UP; do sleep 0.05; done",
        ..BONDS
    };
    if can_make("bond") && can_make("vlan") {
        compare_over(&cables, "", 15, PACKETS, LEAST);
    }
}

/// What a port brings that the bond holds back, the kernel drops: so does the router, also when it is another port's turn. A
/// port alone is nobody's to forward from.
#[test]
fn a_bond_s_ports() {
    if !(can_make("bond") && can_make("vlan")) {
        return;
    }
    let setup = "ip link add link east name inner type vlan id 7; ip link add link inner name innermost type vlan id 8";
    story_over(&BONDS, setup, async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let mut arrive = |port| {
            lab.east.send_by(port, &frame);
            lab.west.receive().len()
        };
        assert_eq!([arrive(0), arrive(1)], [1, 0], "the kernel's own");
        let mut ours = Ours::start().await;
        assert_eq!([arrive(0), arrive(1)], [1, 0], "ours");
        assert_eq!(ours.count(Counter::Forwarded), 1);
        namespace
            .ok("ip link set east type bond active_slave cable-e1")
            .expect("the other port's turn");
        let index = namespace.ifindex("cable-e0").expect("its index");
        ours.until("change", |ours| {
            ours.service.router.snapshot().links[&index].held_back
        })
        .await;
        assert_eq!([arrive(0), arrive(1)], [0, 1], "ours, the other way round");
        assert_eq!(ours.count(Counter::Forwarded), 2);
        let mut refusal = async |name| {
            let refused = ours.service.add(name, &mut ours.attached, None).await;
            refused.expect_err("not this one").to_string()
        };
        assert_eq!(
            refusal("cable-e0").await,
            "interface cable-e0: it belongs to the bond east, which has its packets: name the bond"
        );
        assert_eq!(
            refusal("innermost").await,
            "interface innermost: it is a VLAN within a VLAN: one tag is what is forwarded here"
        );
        drop(ours);
        assert_eq!([arrive(0), arrive(1)], [0, 1], "given back");
    });
}
