//! Flows that are known: each packet is judged all the same, and nothing is known for longer than
//! it is true.

use crate::lab::{Lab, SMALL, adds, host, story};
use crate::ours::Ours;
use crate::packets::{from, to};
use butterfly_router::layout::Counter;
use rustix::thread::sched_getcpu;
use testkit::cpus;
use wire::build::Builder;

/// For each family a packet of the flow that is known here.
fn packets() -> [Builder; 2] {
    ["203.0.113.7", "2001:db8:f::7"].map(packet_to)
}

fn packet_to(dst: &str) -> Builder {
    to(dst).udp(1000, 2000).payload(b"again")
}

/// Each CPU knows flows of its own: this thread, which sends, is to stay where it is.
pub fn stay() {
    cpus::stay_on(&[sched_getcpu()]);
}

/// Whether the flow of a packet is known after it has come once.
fn is_known(lab: &mut Lab, ours: &Ours, packet: &Builder) -> bool {
    let frame = packet.build();
    adds(lab, ours, Counter::Known, &frame);
    adds(lab, ours, Counter::Known, &frame) == (1, Some(host(2, 2).0))
}

#[test]
fn each_cpu_forwards_by_flows_of_its_own() {
    let allowed = cpus::allowed();
    if allowed.len() < 2 {
        println!("skipped: this process may run on one CPU alone");
        return;
    }
    story("", async |_, mut lab| {
        let ours = Ours::start(&SMALL).await;
        for packet in packets() {
            let frame = packet.build();
            for known_before in [0, 1] {
                for cpu in &allowed {
                    // The packet is received where it is sent.
                    cpus::stay_on(&[*cpu]);
                    let came = adds(&mut lab, &ours, Counter::Known, &frame);
                    assert_eq!(came, (known_before, Some(host(2, 2).0)), "on CPU {cpu}");
                }
            }
        }
    });
}

#[test]
fn every_packet_of_a_known_flow_is_judged() {
    story("", async |_, mut lab| {
        stay();
        let ours = Ours::start(&SMALL).await;
        for packet in packets() {
            let first = adds(&mut lab, &ours, Counter::Known, &packet.build());
            assert_eq!(
                first,
                (0, Some(host(2, 2).0)),
                "the first packet is looked up"
            );
            let mut short = packet.build();
            short.pop();
            let mut elsewhere = packet.build();
            elsewhere[5] ^= 1;
            let rows = [
                (Counter::HopLimit, packet.clone().ttl(1).build()),
                (Counter::Malformed, short),
                (Counter::TooBig, packet.clone().payload(&[0; 1380]).build()),
                (Counter::NotToUs, elsewhere),
            ];
            for row in rows {
                stays_unknown(&mut lab, &ours, &packet, row);
            }
            // What fills a short frame up is cut, as on the long way.
            let length = packet.build().len();
            lab.east.send(&packet.clone().pad_to(length + 9).build());
            assert_eq!(lab.west.receive()[0].len(), length);
        }
        let [four, six] = packets();
        let mut spoilt = four.build();
        spoilt[24] ^= 1;
        let with_options = four.clone().ip_options(&[1, 1, 1, 0]).build();
        stays_unknown(&mut lab, &ours, &four, (Counter::Checksum, spoilt));
        stays_unknown(&mut lab, &ours, &four, (Counter::Options, with_options));
        let dst = "2001:db8:f::7".parse().expect("an address");
        for source in ["fe80::2", "ff02::2", "::1"] {
            let row = (Counter::Source, from(source, dst).udp(1000, 2000).build());
            stays_unknown(&mut lab, &ours, &six, row);
        }
        let hop_by_hop = to("2001:db8:f::7")
            .extension(0, &[1, 4, 0, 0, 0, 0])
            .udp(1000, 2000);
        stays_unknown(
            &mut lab,
            &ours,
            &six,
            (Counter::Options, hop_by_hop.build()),
        );
        let asks = to("2001:db8:f::7")
            .ttl(255)
            .protocol(58)
            .payload(&[135, 0, 0, 0, 0, 0, 0, 0]);
        stays_unknown(&mut lab, &ours, &six, (Counter::Asked, asks.build()));
    });
}

/// A packet like those of a known flow is left to the kernel for its own reason.
fn stays_unknown(
    lab: &mut Lab,
    ours: &Ours,
    packet: &Builder,
    (reason, frame): (Counter, Vec<u8>),
) {
    assert!(is_known(lab, ours, packet), "before {reason:?}");
    assert_eq!(adds(lab, ours, reason, &frame).0, 1, "{reason:?}");
    assert_eq!(adds(lab, ours, Counter::Known, &frame).0, 0, "{reason:?}");
}

#[test]
fn with_ipv6_the_destination_is_what_is_known() {
    story("", async |_, mut lab| {
        stay();
        let ours = Ours::start(&SMALL).await;
        let [_, packet] = packets();
        assert!(is_known(&mut lab, &ours, &packet));
        let known = |lab: &mut Lab, source: &str, dst: &str| {
            let dst = dst.parse().expect("an address");
            adds(
                lab,
                &ours,
                Counter::Known,
                &from(source, dst).udp(1, 2).build(),
            )
        };
        let goes = Some(host(2, 2).0);
        assert_eq!(
            known(&mut lab, "2001:db8:77::9", "2001:db8:f::7"),
            (1, goes)
        );
        // Every bit of it.
        for other in [
            "2001:db8:f::8",
            "2001:db8:f::1:0:0:7",
            "2001:db8:f:1::7",
            "2001:db8:f:100::7",
        ] {
            assert_eq!(
                known(&mut lab, "2001:db8:1::2", other),
                (0, goes),
                "{other}"
            );
        }
    });
}

#[test]
fn flows_are_known_as_long_as_what_they_were_decided_by() {
    let four = "203.0.113.7";
    let six = "2001:db8:f::7";
    let changes = [
        (
            four,
            "ip route replace 203.0.113.0/24 via 10.2.0.3",
            Some(host(2, 3).0),
        ),
        (four, "ip route del 203.0.113.0/24", None),
        (
            four,
            "ip neigh change 10.2.0.2 lladdr 02:00:00:00:02:77 dev west",
            Some(host(2, 0x77).0),
        ),
        // The way back to the sender is another one.
        (
            four,
            "sysctl -qw net.ipv4.conf.east.rp_filter=1; ip route add 10.1.0.2/32 via 10.2.0.5",
            None,
        ),
        (
            four,
            "nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; }; \
             add rule ip f c drop'",
            None,
        ),
        (four, "sysctl -qw net.ipv4.conf.east.forwarding=0", None),
        (four, "ip link set west down", None),
        (
            six,
            "ip route replace 2001:db8:f::/48 via 2001:db8:2::3",
            Some(host(2, 3).0),
        ),
        (six, "ip route del 2001:db8:f::/48", None),
        // One address within a network that is known.
        (
            six,
            "ip route add 2001:db8:f::7/128 via 2001:db8:2::3",
            Some(host(2, 3).0),
        ),
        (
            six,
            "ip neigh change 2001:db8:2::2 lladdr 02:00:00:00:02:77 dev west",
            Some(host(2, 0x77).0),
        ),
        (
            six,
            "nft 'add table ip6 f; add chain ip6 f c { type filter hook forward priority 0; }; \
             add rule ip6 f c drop'",
            None,
        ),
        (six, "sysctl -qw net.ipv6.conf.all.forwarding=0", None),
        (six, "ip link set west down", None),
    ];
    for (dst, change, goes) in changes {
        story("", async |namespace, mut lab| {
            stay();
            let mut ours = Ours::start(&SMALL).await;
            let packet = packet_to(dst);
            assert!(is_known(&mut lab, &ours, &packet));
            namespace.ok(change).expect("the change");
            let frame = packet.build();
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
fn what_more_than_addresses_choose_is_not_known_by_them() {
    let setup = "sysctl -qw net.ipv4.fib_multipath_hash_policy=1
        ip route replace 203.0.113.0/24 nexthop via 10.2.0.2 nexthop via 10.2.0.3
        ip -6 route replace 2001:db8:f::/48 nexthop via 2001:db8:2::2 nexthop via 2001:db8:2::3";
    story(setup, async |_, mut lab| {
        stay();
        let mut ours = Ours::start(&SMALL).await;
        let many = |each: fn(u16) -> Builder| (1..60).map(move |number| each(number).build());
        let by_ports = |port| to("203.0.113.7").udp(port, 2000);
        let by_sources = |last| {
            let dst = "2001:db8:f::7".parse().expect("an address");
            from(&format!("2001:db8:1::1:{last}"), dst).udp(1000, 2000)
        };
        for frames in [many(by_ports), many(by_sources)] {
            let mut ways = std::collections::BTreeSet::new();
            ours.until("spread", |ours| {
                for frame in frames.clone() {
                    ways.insert(adds(&mut lab, ours, Counter::Forwarded, &frame).1);
                }
                ways.len() == 2
            })
            .await;
        }
        for packet in packets() {
            // Until the policy was read, addresses chose.
            let frame = packet.build();
            ours.until("more than addresses", |ours| {
                adds(&mut lab, ours, Counter::Known, &frame).0 == 0
            })
            .await;
            assert_eq!(adds(&mut lab, &ours, Counter::Known, &frame).0, 0);
        }
    });
}

#[test]
fn where_no_flow_comes_again_the_flow_cache_pauses() {
    const LOOK: usize = 512;
    const REST: usize = 4096;
    let other: [fn(usize) -> Builder; 2] = [
        |flow| {
            let (source, last) = (2 + flow % 100, 8 + flow / 100);
            let dst = format!("203.0.113.{last}").parse().expect("an address");
            from(&format!("10.1.0.{source}"), dst).udp(1, 2)
        },
        |flow| to(&format!("2001:db8:f::1:{flow}")).udp(1, 2),
    ];
    for (packet, other) in packets().into_iter().zip(other) {
        story("", async |_, mut lab| {
            stay();
            let ours = Ours::start(&SMALL).await;
            assert!(is_known(&mut lab, &ours, &packet));
            for flow in 0..LOOK {
                lab.east.send(&other(flow).build());
                lab.west.receive();
            }
            let known = is_known(&mut lab, &ours, &packet);
            assert!(!known, "a look costs more than it saves");
            for _ in 0..REST {
                lab.east.send(&packet.build());
                lab.west.receive();
            }
            assert!(is_known(&mut lab, &ours, &packet), "it looks again");
        });
    }
}
