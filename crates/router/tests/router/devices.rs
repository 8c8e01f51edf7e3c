//! VLANs and bonds against the kernel's own. Where this machine's kernel has neither they run in a
//! guest: `another_kernel.rs`.

use crate::cables::{Cables, NATIVE, PLAIN, TC, can_make, has_tc};
use crate::lab::{SMALL, adds, host, story_over};
use crate::oracle::compare_over;
use crate::ours::Ours;
use crate::packets::to;
use butterfly_router::acl::List;
use butterfly_router::layout::Counter;
use testkit::netns::Namespace;
use xdp::Mode;

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
    modes: NATIVE,
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
        until ip link show east | grep -q LOWER_UP && ip link show west | grep -q LOWER_UP
        do sleep 0.05; done",
    modes: NATIVE,
};

/// In the drivers, and where packets are the kernel's buffers and their outer tags beside them.
fn compare(cables: &Cables, setup: &'static str, seed: u64) {
    for modes in [NATIVE, TC] {
        if modes == TC && !has_tc() {
            return;
        }
        let cables = Cables { modes, ..*cables };
        compare_over(&cables, setup, seed, PACKETS, LEAST);
    }
}

#[test]
fn a_tag_is_put_on() {
    let cables = Cables {
        east: &["east"],
        east_tag: &[],
        setup: "ip link add link cable-w name west type vlan id 6 protocol 802.1ad && \
                ip link set west up",
        ..VLANS
    };
    if can_make("vlan") {
        let rules = "ip rule add pref 100 from 10.1.0.3 table 77; \
                     ip route add 203.0.113.0/24 via 10.2.0.4 table 77";
        compare(&cables, rules, 12);
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
        compare(&cables, "sysctl -qw net.ipv4.conf.east.rp_filter=1", 13);
    }
}

/// A VLAN within a VLAN in the east (802.1ad), one tag in the west and then none.
#[test]
fn a_vlan_within_a_vlan() {
    let inner = |outer: &'static str, west: &'static str| Cables {
        east_tag: &[0x88, 0xa8, 0, 10, 0x81, 0, 0, 20],
        west_tag: if west.is_empty() { &[] } else { VLANS.west_tag },
        west: if west.is_empty() {
            &["west"]
        } else {
            VLANS.west
        },
        setup: outer,
        ..VLANS
    };
    if !can_make("vlan") {
        return;
    }
    let one = inner(
        "ip link add link cable-e name service type vlan id 10 protocol 802.1ad &&
         ip link set service up
        ip link add link service name east type vlan id 20 && ip link set east up
        ip link add link cable-w name west type vlan id 6 protocol 802.1ad && ip link set west up",
        "west",
    );
    compare(&one, "", 16);
    let none = inner(
        "ip link add link cable-e name service type vlan id 10 protocol 802.1ad &&
         ip link set service up
        ip link add link service name east type vlan id 20 && ip link set east up",
        "",
    );
    compare(&none, "", 17);
}

/// Two tags are put on where a packet had none.
#[test]
fn two_tags_are_put_on() {
    let cables = Cables {
        east: &["east"],
        east_tag: &[],
        west_tag: &[0x81, 0, 0, 10, 0x81, 0, 0, 20],
        setup: "ip link add link cable-w name service type vlan id 10 && ip link set service up
        ip link add link service name west type vlan id 20 && ip link set west up",
        ..VLANS
    };
    if can_make("vlan") {
        compare(&cables, "", 18);
    }
}

/// What is to the address of a VLAN's device is the VLAN's for the kernel, too, and a priority tag
/// on either side of the VLAN's own is nothing to it: the access list judges both.
#[test]
fn a_list_judges_all_that_comes_by_a_vlan() {
    if !can_make("vlan") {
        return;
    }
    let cables = Cables {
        west: &["west"],
        west_tag: &[],
        setup: "ip link add link cable-e name east type vlan id 5
            ip link set east address 02:00:00:00:00:aa up",
        ..VLANS
    };
    story_over(&cables, "", async |_: &Namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let list = List::parse("default allow\ndeny proto udp to any port 9");
        let list = list.expect("a list");
        ours.service.router.set_acl(Some(list)).expect("a list");
        let mut out = |before: &[u8], behind: &[u8], port| {
            let frame = to("203.0.113.7").udp(1, port).build();
            let tagged = [before, &[0x81, 0, 0, 5], behind].concat();
            let frame = [&frame[..12], &tagged, &frame[12..]].concat();
            lab.east.send_as_it_is(&frame, 0);
            lab.west.receive().len()
        };
        let priority: &[u8] = &[0x81, 0, 0, 0];
        for (before, behind) in [(&[][..], &[][..]), (priority, &[]), (&[], priority)] {
            let passed = (out(before, behind, 8), out(before, behind, 9));
            assert_eq!(passed, (1, 0), "{before:?} {behind:?}");
        }
        assert_eq!(ours.count(Counter::Denied), 3);
    });
}

/// Of packets that may hide their tags it is not known which interface they are of: they are the
/// kernel's, and no list judges them, which is said.
#[test]
fn a_list_is_not_applied_where_tags_may_be_hidden() {
    if !can_make("vlan") {
        return;
    }
    let setup = "ip link add near type veth peer name far
        ip link add link near name inner type vlan id 5
        for link in near far inner; do ip link set $link up; done";
    story_over(&PLAIN, setup, async |_: &Namespace, _| {
        let modes = [Some(Mode::Generic); 2];
        let mut ours = Ours::start_on(["near", "inner"], modes, &SMALL).await;
        let said = |ours: &Ours| {
            let mut notes = ours.notes();
            notes.retain(|note| note.starts_with("the access list"));
            notes
        };
        assert_eq!(said(&ours), Vec::<String>::new());
        let list = List::parse("default deny").expect("a list");
        ours.service.router.set_acl(Some(list)).expect("it fits");
        assert_eq!(
            said(&ours),
            [
                "the access list is not applied to what comes in by near: VLAN tags of its packets \
              may be hidden"
            ]
        );
    });
}

/// By a VLAN whose tags tell priorities the kernel alone sends.
#[test]
fn tags_that_tell_priorities_are_the_kernel_s() {
    if !can_make("vlan") {
        return;
    }
    story_over(&VLANS, "", async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let mut tags = || {
            lab.east.send(&frame);
            let out = lab.west.receive();
            out.into_iter()
                .map(|frame| frame[12..16].to_vec())
                .collect()
        };
        let mut ours = Ours::start(&SMALL).await;
        // The wire takes the tag off that it knows.
        let plain: Vec<Vec<u8>> = tags();
        assert_eq!(
            (plain[0][..2].to_vec(), ours.count(Counter::Forwarded)),
            (vec![8, 0], 1)
        );
        namespace
            .ok("ip link set west type vlan egress 0:5")
            .expect("a map");
        let note = "packets to west are left to the kernel: its tags tell their priorities \
                    (egress-qos-map)";
        ours.until("the map", |ours| ours.notes().contains(&note.to_owned()))
            .await;
        assert_eq!(tags(), [[0x88, 0xa8, 0xa0, 6]]);
        assert_eq!(ours.count(Counter::Elsewhere), 1);
    });
}

/// What comes by a VLAN that is down the kernel drops.
#[test]
fn a_vlan_that_is_down() {
    if !can_make("vlan") {
        return;
    }
    story_over(&VLANS, "", async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let mut arrive = || {
            lab.east.send(&frame);
            lab.west.receive().len()
        };
        let mut ours = Ours::start(&SMALL).await;
        assert_eq!((arrive(), ours.count(Counter::Forwarded)), (1, 1));
        namespace.ok("ip link set east down").expect("down");
        ours.until("note", |ours| {
            ours.notes()
                .contains(&"nothing is forwarded from east: it is down".to_owned())
        })
        .await;
        assert_eq!((arrive(), ours.count(Counter::Forwarded)), (0, 1));
        drop(ours);
        assert_eq!(arrive(), 0, "as the kernel");
    });
}

/// What has the packets of another device handed to it has them as the kernel's buffers: an address
/// of its own on the eastern cable, and a bridge that the western one is a port of.
#[test]
fn a_macvlan_and_a_bridge() {
    let cables = Cables {
        east: &["cable-e"],
        west: &["cable-w"],
        setup: "ip link set cable-e address 02:00:00:00:00:1e
            ip link add link cable-e name east address 02:00:00:00:00:0e type macvlan mode private
            ip link add west address 02:00:00:00:00:0f type bridge mcast_snooping 0
            ip link set cable-w master west; ip link set east up; ip link set west up",
        modes: TC,
        ..PLAIN
    };
    if !can_make("macvlan") || !has_tc() {
        return;
    }
    compare_over(&cables, "", 20, PACKETS, LEAST);
    let back = Cables {
        east: &["cable-w"],
        west: &["cable-e"],
        setup: "ip link set cable-e address 02:00:00:00:00:1f
            ip link add link cable-e name west address 02:00:00:00:00:0f type macvlan mode private
            ip link add east address 02:00:00:00:00:0e type bridge mcast_snooping 0
            ip link set cable-w master east; ip link set east up; ip link set west up",
        ..cables
    };
    compare_over(&back, "", 21, PACKETS, LEAST);
}

/// An interface that is given to another one while it is the router's: its packets are that one's,
/// until it is freed.
#[test]
fn an_interface_that_is_given_away_comes_back() {
    for (kind, modes) in [
        ("bridge", NATIVE),
        ("bridge", TC),
        ("vrf", NATIVE),
        ("vrf", TC),
    ] {
        if can_make(kind) && (modes == NATIVE || has_tc()) {
            give_away_and_take_back(kind, modes);
        }
    }
}

fn give_away_and_take_back(kind: &str, modes: [Mode; 2]) {
    // The VRF's table leads elsewhere than main does.
    let setup = match kind {
        "vrf" => {
            "ip link add other type vrf table 10 && ip link set other up
            ip route add 203.0.113.0/24 via 10.2.0.3 dev west table 10"
        }
        _ => "ip link add other type bridge mcast_snooping 0 && ip link set other up",
    };
    let cables = Cables { modes, ..PLAIN };
    story_over(&cables, setup, async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let change = |what: &str| {
            namespace
                .ok(&format!("ip link set east {what}"))
                .expect("ip")
        };
        change("master other");
        lab.east.send(&frame);
        let theirs = lab.west.receive();
        let theirs = theirs
            .first()
            .map(|frame| [0, 1, 2, 3, 4, 5].map(|at| frame[at]));
        change("nomaster");
        let mut ours = Ours::start_over(&cables, &SMALL).await;
        let main = (1, Some(host(2, 2).0));
        ours.until("way", |ours| {
            adds(&mut lab, ours, Counter::Forwarded, &frame) == main
        })
        .await;
        change("master other");
        let why = format!("it belongs to the {kind} other, which has its packets");
        ours.until("trouble", |ours| {
            ours.service.router.trouble_of("east").as_ref() == Some(&why)
        })
        .await;
        ours.until("link", |ours| {
            ours.notes().contains(&format!("east: {why}"))
        })
        .await;
        let other = adds(&mut lab, &ours, Counter::Forwarded, &frame);
        assert_eq!(other, (0, theirs), "the kernel's, by the {kind}");
        let list = List::parse("default deny").expect("a list");
        ours.service.router.set_acl(Some(list)).expect("it fits");
        let note = format!("the access list is not applied to what comes in by east: {why}");
        assert!(ours.notes().contains(&note), "{:?}", ours.notes());
        ours.service.router.set_acl(None).expect("no list");

        change("nomaster");
        ours.until("way back", |ours| {
            ours.service.router.trouble_of("east").is_none()
                && adds(&mut lab, ours, Counter::Forwarded, &frame) == main
        })
        .await;
    });
}

/// VLAN 5 on a bond with a backup, and VLAN 6 (802.1ad) on one without.
const VLANS_ON_BONDS: Cables = Cables {
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
        until ip link show east | grep -q LOWER_UP && ip link show west | grep -q LOWER_UP
        do sleep 0.05; done",
    ..BONDS
};

#[test]
fn vlans_on_bonds() {
    if can_make("bond") && can_make("vlan") {
        compare(&VLANS_ON_BONDS, "", 15);
    }
}

/// The bond in the east has the program behind its ports' drivers: on each port, since the bond
/// itself would see no tag.
#[test]
fn vlans_on_bonds_in_generic_mode() {
    let cables = Cables {
        modes: [Mode::Generic, Mode::Native],
        ..VLANS_ON_BONDS
    };
    if can_make("bond") && can_make("vlan") {
        compare_over(&cables, "", 19, PACKETS, LEAST);
    }
}

/// A bond in generic mode: a VLAN's packets are never taken for the bond's own, and ports come and
/// go.
#[test]
fn a_bond_in_generic_mode() {
    if !(can_make("bond") && can_make("vlan")) {
        return;
    }
    let cables = Cables {
        modes: [Mode::Generic, Mode::Native],
        ..BONDS
    };
    let setup = "ip link add link east name inner type vlan id 7 && ip link set inner up
        sysctl -qw net.ipv4.conf.inner.forwarding=0";
    story_over(&cables, setup, async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        let mut arrive = |port| {
            [&frame, &tagged].map(|frame| {
                lab.east.send_by(port, frame);
                lab.west.receive().len()
            })
        };
        assert_eq!([arrive(0), arrive(1)], [[1, 0], [0, 0]], "the kernel's own");
        let mut ours = Ours::start_over(&cables, &SMALL).await;
        let report = ours.report();
        let modes = report.interfaces.iter().map(|one| one.mode.as_str());
        assert_eq!(modes.collect::<Vec<_>>(), ["generic", "native"]);
        assert_eq!([arrive(0), arrive(1)], [[1, 0], [0, 0]], "ours");
        assert_eq!(ours.count(Counter::Forwarded), 1, "and not the tagged one");

        namespace
            .ok("ip link set cable-e0 nomaster")
            .expect("a port leaves");
        let program = |port: &str| {
            let link = namespace.ok(&format!("ip link show {port}")).expect("ip");
            link.contains("xdp")
        };
        ours.until("port less", |_| !program("cable-e0")).await;
        assert_eq!(arrive(1), [1, 0], "by the other one");
        namespace
            .ok("ip link set cable-e0 down; ip link set cable-e0 master east
                 ip link set cable-e0 up
                until ip -d link show cable-e0 | grep -q 'mii_status UP'; do sleep 0.05; done
                ip link set east type bond active_slave cable-e0")
            .expect("it comes back");
        let index = namespace.ifindex("cable-e0").expect("its index");
        ours.until("port", |ours| {
            program("cable-e0") && !ours.service.router.snapshot().links[&index].held_back
        })
        .await;
        assert_eq!(
            [arrive(0), arrive(1)],
            [[1, 0], [0, 0]],
            "by the first again"
        );
        assert_eq!(ours.count(Counter::Forwarded), 3);
        drop(ours);
        assert!(!program("cable-e0") && !program("cable-e1"), "given back");
        assert_eq!([arrive(0), arrive(1)], [[1, 0], [0, 0]]);
    });
}

/// What a port brings that the bond holds back, the kernel drops: so does the router, also when it
/// is another port's turn. A port that is not in its bond is not forwarded from.
#[test]
fn a_bond_s_ports() {
    if !(can_make("bond") && can_make("vlan")) {
        return;
    }
    let setup = "ip link add link east name inner type vlan id 7
         ip link add link inner name innermost type vlan id 8
        ip link add link innermost name fourth type vlan id 9";
    story_over(&BONDS, setup, async |namespace: &Namespace, mut lab| {
        let frame = to("203.0.113.7").udp(1, 2).payload(b"hello").build();
        let mut arrive = |port| {
            lab.east.send_by(port, &frame);
            lab.west.receive().len()
        };
        assert_eq!([arrive(0), arrive(1)], [1, 0], "the kernel's own");
        let mut ours = Ours::start(&SMALL).await;
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
            refusal("fourth").await,
            "interface fourth: it is a VLAN within two others: two tags are what is forwarded here"
        );
        drop(ours);
        assert_eq!([arrive(0), arrive(1)], [0, 1], "given back");
    });
}
