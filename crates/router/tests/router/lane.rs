//! Flows that are known: each packet is judged all the same, and nothing is known for longer than it is true.

use crate::lab::{Lab, SMALL, adds, host, story};
use crate::ours::Ours;
use crate::packets::{from, to};
use butterfly_router::layout::Counter;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use wire::build::Builder;

/// A packet of the flow that is known here.
fn packet() -> Builder {
    to("203.0.113.7").udp(1000, 2000).payload(b"again")
}

/// Each CPU knows flows of its own: this thread, which sends, is to stay where it is.
fn stay() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).expect("the CPU that this runs on");
}

/// Whether the flow is known after its first packet.
fn is_known(lab: &mut Lab, ours: &Ours) -> bool {
    let frame = packet().build();
    adds(lab, ours, Counter::Known, &frame);
    adds(lab, ours, Counter::Known, &frame) == (1, Some(host(2, 2).0))
}

#[test]
fn every_packet_of_a_known_flow_is_judged() {
    story("", async |_, mut lab| {
        stay();
        let ours = Ours::start(&SMALL).await;
        let first = adds(&mut lab, &ours, Counter::Known, &packet().build());
        assert_eq!(first, (0, Some(host(2, 2).0)), "the first packet is looked up");
        let spoilt = |at: usize| {
            let mut frame = packet().build();
            frame[at] ^= 1;
            frame
        };
        let rows = [
            (Counter::HopLimit, packet().ttl(1).build()),
            (Counter::Checksum, spoilt(24)),
            (Counter::Malformed, {
                let mut frame = packet().build();
                frame.pop();
                frame
            }),
            (Counter::TooBig, packet().payload(&[0; 1380]).build()),
            (Counter::NotToUs, spoilt(5)),
            (Counter::Options, packet().ip_options(&[1, 1, 1, 0]).build()),
        ];
        for (reason, frame) in rows {
            assert!(is_known(&mut lab, &ours), "before {reason:?}");
            assert_eq!(adds(&mut lab, &ours, reason, &frame).0, 1, "{reason:?}");
            let known = adds(&mut lab, &ours, Counter::Known, &frame).0;
            assert_eq!(known, 0, "{reason:?}");
        }
        // What fills a short frame up is cut, as on the long way.
        lab.east.send(&packet().pad_to(60).build());
        assert_eq!(lab.west.receive()[0].len(), packet().build().len());
    });
}

#[test]
fn flows_are_known_as_long_as_what_they_were_decided_by() {
    let changes = [
        ("ip route replace 203.0.113.0/24 via 10.2.0.3", Some(host(2, 3).0)),
        ("ip route del 203.0.113.0/24", None),
        (
            "ip neigh change 10.2.0.2 lladdr 02:00:00:00:02:77 dev west",
            Some(host(2, 0x77).0),
        ),
        // The way back to the sender is another one.
        (
            "sysctl -qw net.ipv4.conf.east.rp_filter=1; ip route add 10.1.0.2/32 via 10.2.0.5",
            None,
        ),
        (
            "nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; }; add rule ip f c drop'",
            None,
        ),
        ("sysctl -qw net.ipv4.conf.east.forwarding=0", None),
        ("ip link set west down", None),
    ];
    for (change, goes) in changes {
        story("", async |namespace, mut lab| {
            stay();
            let mut ours = Ours::start(&SMALL).await;
            assert!(is_known(&mut lab, &ours));
            namespace.ok(change).expect("the change");
            let frame = packet().build();
            ours.until(change, |ours| {
                let (by_us, to) = adds(&mut lab, ours, Counter::Forwarded, &frame);
                to == goes && (by_us == 1) == goes.is_some()
            })
            .await;
            let known = adds(&mut lab, &ours, Counter::Known, &frame).0;
            assert_eq!(known == 1, goes.is_some(), "{change}");
        });
    }
}

#[test]
fn what_ports_choose_is_not_known_by_addresses() {
    let setup = "sysctl -qw net.ipv4.fib_multipath_hash_policy=1
        ip route replace 203.0.113.0/24 nexthop via 10.2.0.2 nexthop via 10.2.0.3";
    story(setup, async |_, mut lab| {
        stay();
        let mut ours = Ours::start(&SMALL).await;
        let mut ways = std::collections::BTreeSet::new();
        ours.until("spread by ports", |ours| {
            for port in 1..60 {
                let frame = to("203.0.113.7").udp(port, 2000).build();
                ways.insert(adds(&mut lab, ours, Counter::Forwarded, &frame).1);
            }
            ways.len() == 2
        })
        .await;
        // Until the policy was read, addresses chose.
        let frame = packet().build();
        ours.until("ports alone", |ours| {
            adds(&mut lab, ours, Counter::Known, &frame).0 == 0
        })
        .await;
        assert_eq!(adds(&mut lab, &ours, Counter::Known, &frame).0, 0);
    });
}

#[test]
fn where_no_flow_comes_again_the_lane_pauses() {
    const LOOK: usize = 512;
    const REST: usize = 4096;
    story("", async |_, mut lab| {
        stay();
        let ours = Ours::start(&SMALL).await;
        assert!(is_known(&mut lab, &ours));
        for flow in 0..LOOK {
            let (source, last) = (2 + flow % 100, 8 + flow / 100);
            let dst = format!("203.0.113.{last}").parse().expect("an address");
            lab.east
                .send(&from(&format!("10.1.0.{source}"), dst).udp(1, 2).build());
            lab.west.receive();
        }
        assert!(!is_known(&mut lab, &ours), "a look costs more than it saves");
        for _ in 0..REST {
            lab.east.send(&packet().build());
            lab.west.receive();
        }
        assert!(is_known(&mut lab, &ours), "it looks again");
    });
}
