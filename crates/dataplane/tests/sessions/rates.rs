//! What a NIC may send and be sent in a second: by bits, packets, new connections and floods.

use std::sync::Arc;
use std::time::Duration;

use dataplane::DropReason::*;
use dataplane::limits::{Limit, Limits, Meters};
use dataplane::{PortConfig, RuleSlot, Simulation};
use wire::Mac;
use wire::build;
use wire::offload::{Gso, Offload, PartialChecksum};

use crate::lab::*;

fn limit(rate: u64, burst: u64) -> Option<Limit> {
    Some(Limit { rate, burst })
}

fn egress(limits: Limits) -> impl Fn(&mut PortConfig) {
    move |config| config.meters = Meters::new(limits, Limits::default()).map(Arc::new)
}

fn ingress(limits: Limits) -> impl Fn(&mut PortConfig) {
    move |config| config.meters = Meters::new(Limits::default(), limits).map(Arc::new)
}

/// Two open NICs.
fn open() -> (Lab, Nic, Nic) {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let group = lab.group(vec![allow_all_in(None)]);
    lab.configure(a, |config| config.groups.push(group));
    (lab, a, b)
}

/// Has NIC `from` send frames without a pause and gives how many came in the first ten milliseconds
/// and in how many turns of a second after that; nothing is lost.
fn in_a_second(
    lab: &mut Lab,
    from: Nic,
    to: Nic,
    frame: &[u8],
    offload: Offload,
) -> (usize, usize) {
    lab.peer(from).set_capacity(3000);
    lab.peer(to).set_capacity(3000);
    for _ in 0..3000 {
        lab.queue(from, frame.to_vec(), offload);
    }
    lab.sim.run();
    lab.sim.advance(Duration::from_millis(10));
    let burst = lab.received(to).len();
    lab.sim.advance(Duration::from_secs(1));
    let steady = lab.received(to).len();
    assert_eq!(lab.sim.port(from.slot).drops_from.iter().sum::<u64>(), 0);
    (burst, steady)
}

#[test]
fn what_a_nic_sends_beyond_its_bits_waits_in_its_ring() {
    let (mut lab, a, b) = open();
    let frame = ip(a, b, Family::V4).udp(1, 2).payload(&[7; 958]).build();
    assert_eq!(frame.len(), 1000);
    // 1,000 frames a second, and 20 at once.
    let bits = limit(8_000_000, 20_000);
    lab.configure(
        a,
        egress(Limits {
            bits,
            ..Limits::default()
        }),
    );
    let (burst, steady) = in_a_second(&mut lab, a, b, &frame, Offload::default());
    assert!((30..=31).contains(&burst), "{burst}");
    assert!((998..=1001).contains(&steady), "{steady}");
    let (times, ns) = lab.meters(a).egress.held();
    assert!(times > 100 && ns > 100_000_000, "{times} {ns}");

    // Others go on meanwhile.
    lab.passes(b, a, udp(b, a, Family::V4, 1, 2));
    // A higher limit is in force at once, and none as well.
    let bits = limit(80_000_000, 1000);
    lab.configure(
        a,
        egress(Limits {
            bits,
            ..Limits::default()
        }),
    );
    lab.sim.run();
    lab.sim.advance(Duration::from_millis(10));
    let more = lab.received(b).len();
    assert!((99..=103).contains(&more), "{more}");
    lab.configure(a, |config| config.meters = None);
    lab.sim.run();
    let all = burst + steady + more + lab.received(b).len();
    assert_eq!(all, 3000, "nothing was lost");
}

#[test]
fn what_a_nic_sends_beyond_its_packets_waits_too() {
    let (mut lab, a, b) = open();
    let packets = limit(500, 5);
    lab.configure(
        a,
        egress(Limits {
            packets,
            ..Limits::default()
        }),
    );
    let frame = udp(a, b, Family::V6, 1, 2);
    let (burst, steady) = in_a_second(&mut lab, a, b, &frame, Offload::default());
    assert!((10..=11).contains(&burst), "{burst}");
    assert!((499..=501).contains(&steady), "{steady}");
}

/// A frame that is to be cut is charged as its segments are, headers included, and one larger than
/// the burst passes and is paid for.
#[test]
fn a_large_frame_is_charged_as_its_segments() {
    let (mut lab, a, b) = open();
    let frame = ip(a, b, Family::V4)
        .tcp(1, 2, ACK)
        .payload(&[7; 10_000])
        .build();
    let header = frame.len() - 10_000;
    let offload = Offload {
        gso: Gso::Tcp4,
        gso_size: 1000,
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 16,
        }),
        ..Offload::default()
    };
    lab.peer(b).accept(io::port::Accepts::ALL);
    let bits = limit(8 * 10 * (1000 + header as u64), 1);
    lab.configure(
        a,
        egress(Limits {
            bits,
            ..Limits::default()
        }),
    );
    for _ in 0..50 {
        lab.queue(a, frame.clone(), offload);
    }
    let before = lab.drops();
    lab.sim.run();
    lab.sim.advance(Duration::from_millis(20_500));
    assert_eq!(difference(&before, &lab.drops()), []);
    assert_eq!(lab.received(b).len(), 21, "one a second, the first at once");
    let packets = limit(20, 1);
    lab.configure(
        a,
        egress(Limits {
            packets,
            ..Limits::default()
        }),
    );
    lab.sim.run();
    lab.sim.advance(Duration::from_millis(10_250));
    assert_eq!(lab.received(b).len(), 21, "two a second, the first at once");
}

#[test]
fn what_a_nic_is_sent_far_beyond_its_limits_is_dropped() {
    for family in FAMILIES {
        let (mut lab, a, b) = open();
        let frame = udp(a, b, family, 1, 2);
        let len = frame.len() as u64;
        let bits = limit(8 * len, 3 * len);
        lab.configure(
            b,
            ingress(Limits {
                bits,
                ..Limits::default()
            }),
        );
        for _ in 0..3 {
            lab.passes(a, b, frame.clone());
        }
        // A part of a token is enough, and comes with the next nanosecond.
        lab.send(a, frame.clone());
        lab.silent();
        lab.sim.advance(Duration::from_millis(1));
        assert_eq!(lab.received(b), std::slice::from_ref(&frame));
        // The next one would wait for a second.
        lab.refuses(a, frame.clone(), BitLimit);
        assert_eq!(lab.sim.port(b.slot).drops(BitLimit), (0, 1));
        lab.wait(1);
        // Of one batch, those that there are tokens for.
        for _ in 0..4 {
            lab.queue(a, frame.clone(), Offload::default());
        }
        lab.sim.run();
        assert_eq!(lab.received(b).len(), 1);
        assert_eq!(lab.sim.port(b.slot).drops(BitLimit), (0, 4));
        // The other direction has no limit, nor has another NIC.
        (0..9).for_each(|_| lab.passes(b, a, udp(b, a, family, 2, 1)));

        let packets = limit(1, 2);
        lab.configure(
            b,
            ingress(Limits {
                packets,
                ..Limits::default()
            }),
        );
        lab.passes(a, b, frame.clone());
        lab.passes(a, b, frame.clone());
        lab.send(a, frame.clone());
        lab.sim.advance(Duration::from_millis(1));
        assert_eq!(lab.received(b), std::slice::from_ref(&frame));
        lab.refuses(a, frame, PacketLimit);
    }
}

/// Frames of 1,000 bytes that say which they are.
fn numbered(from: Nic, to: Nic, numbers: std::ops::Range<u16>) -> Vec<Vec<u8>> {
    let frame = |number: u16| {
        let mut payload = [7; 958];
        payload[..2].copy_from_slice(&number.to_be_bytes());
        ip(from, to, Family::V4).udp(1, 2).payload(&payload).build()
    };
    numbers.map(frame).collect()
}

/// NIC `b` may be sent 1,000 frames of 1,000 bytes a second and 20 at once.
fn with_bits_in(lab: &mut Lab, b: Nic) {
    let bits = limit(8_000_000, 20_000);
    lab.configure(
        b,
        ingress(Limits {
            bits,
            ..Limits::default()
        }),
    );
}

fn send_all(lab: &mut Lab, from: Nic, frames: &[Vec<u8>]) {
    for frame in frames {
        lab.queue(from, frame.clone(), Offload::default());
    }
    lab.sim.run();
}

/// What is beyond the burst waits, 32 KiB of it here, and goes on at the limit's rate, unchanged
/// and in its order; what comes meanwhile goes behind it, and what is more is dropped.
#[test]
fn a_little_of_what_a_nic_is_sent_beyond_its_limits_waits() {
    let (mut lab, a, b) = open();
    with_bits_in(&mut lab, b);
    lab.peer(a).set_capacity(3000);
    lab.peer(b).set_capacity(3000);
    let frames = numbered(a, b, 0..100);
    send_all(&mut lab, a, &frames);
    let mut arrived = lab.received(b);
    assert_eq!(arrived.len(), 20, "the burst");
    assert_eq!(lab.sim.port(b.slot).drops(BitLimit), (0, 48));
    lab.sim.advance(Duration::from_millis(10));
    let ten = lab.received(b);
    assert!((10..=11).contains(&ten.len()), "{}", ten.len());
    arrived.extend(ten);
    let later = numbered(a, b, 100..105);
    send_all(&mut lab, a, &later);
    lab.sim.advance(Duration::from_millis(100));
    arrived.extend(lab.received(b));
    let expected = frames[..52].iter().chain(&later);
    assert!(arrived.iter().eq(expected), "{} frames", arrived.len());
    assert_eq!(lab.sim.port(b.slot).drops(BitLimit), (0, 48));
    // Whoever sends all the time is held to the rate.
    let mut passed = 0;
    for _ in 0..1000 {
        send_all(&mut lab, a, &numbered(a, b, 0..3));
        lab.sim.advance(Duration::from_millis(1));
        passed += lab.received(b).len();
    }
    assert!((1000..=1022).contains(&passed), "{passed}");
}

/// No frame that was judged before a change is delivered after it: what waits goes first, be it
/// beyond the limit, which is paid for afterwards.
#[test]
fn what_waits_is_sent_before_another_configuration_is_in_force() {
    let (mut lab, a, b) = open();
    with_bits_in(&mut lab, b);
    lab.peer(a).set_capacity(3000);
    lab.peer(b).set_capacity(3000);
    let frames = numbered(a, b, 0..40);
    send_all(&mut lab, a, &frames);
    assert_eq!(lab.received(b).len(), 20);
    lab.publish();
    assert_eq!(lab.received(b), frames[20..], "at once");
    lab.silent();
    // Twenty are owed: the next one comes after those would have.
    send_all(&mut lab, a, &frames[..1]);
    lab.sim.advance(Duration::from_millis(19));
    assert_eq!(lab.received(b).len(), 0);
    lab.sim.advance(Duration::from_millis(3));
    assert_eq!(lab.received(b).len(), 1);
    // However often the configuration changes, no more is owed than waits: two queues a second.
    let mut passed = 0;
    for _ in 0..1000 {
        send_all(&mut lab, a, &frames);
        lab.publish();
        lab.sim.advance(Duration::from_millis(1));
        passed += lab.received(b).len();
    }
    assert!((1000..=1100).contains(&passed), "{passed}");
}

/// What waits for a NIC that is gone is not delivered to the next one in its place, and what waits
/// for one whose link goes down is dropped for that.
#[test]
fn what_waits_for_a_nic_goes_to_nobody_else() {
    let (mut lab, a, b) = open();
    with_bits_in(&mut lab, b);
    let frames = numbered(a, b, 0..40);
    send_all(&mut lab, a, &frames);
    assert_eq!(lab.received(b).len(), 20);
    let next = lab.replace(b);
    lab.sim.advance(Duration::from_secs(1));
    assert_eq!(lab.received(next).len(), 0);

    send_all(&mut lab, a, &frames);
    assert_eq!(lab.received(next).len(), 20);
    lab.configure(next, |config| config.link_down = true);
    lab.sim.advance(Duration::from_secs(1));
    assert_eq!(lab.received(next).len(), 0);
    assert_eq!(lab.sim.port(next.slot).drops(LinkDown), (0, 20));
    // A limit that is taken away holds nothing back.
    lab.configure(next, |config| config.link_down = false);
    send_all(&mut lab, a, &frames);
    lab.received(next);
    lab.configure(next, |config| config.meters = None);
    assert_eq!(lab.received(next).len(), 20);
    lab.silent();
}

#[test]
fn connections_a_second_are_limited_where_they_begin_and_where_they_end() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let syn = |from: Nic, to, port| ip(from, to, family).tcp(port, 80, SYN).seq(1).build();
        let c = lab.nic();
        let connections = limit(1, 2);
        let limits = Limits {
            connections,
            ..Limits::default()
        };
        lab.configure(a, egress(limits));
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, syn(a, b, 2));
        lab.refuses(a, syn(a, b, 3), ConnectionLimit);
        assert_eq!(lab.sim.port(a.slot).drops(ConnectionLimit), (1, 0));
        // Those that are there go on, and others may begin.
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001).build(),
        );
        lab.passes(c, b, syn(c, b, 1));
        lab.wait(1);
        lab.passes(a, b, syn(a, b, 3));
        lab.refuses(a, syn(a, b, 4), ConnectionLimit);

        lab.configure(a, |config| config.meters = None);
        lab.configure(b, ingress(limits));
        lab.passes(c, b, syn(c, b, 2));
        lab.passes(a, b, syn(a, b, 4));
        lab.refuses(c, syn(c, b, 3), ConnectionLimit);
        assert_eq!(lab.sim.port(b.slot).drops(ConnectionLimit), (0, 1));
        // What the rules refuse is no connection.
        lab.wait(1);
        for port in 10..20 {
            let closed = ip(c, b, family).tcp(port, 81, SYN).build();
            lab.refuses(c, closed, NoIngressRule);
        }
        lab.passes(c, b, syn(c, b, 3));
    }
}

/// Who may begin no more itself takes nothing of what others may begin with the receiver.
#[test]
fn connections_that_their_sender_may_not_begin_cost_the_receiver_nothing() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let c = lab.nic();
        let limits = |burst| Limits {
            connections: limit(1, burst),
            ..Limits::default()
        };
        lab.configure(a, egress(limits(2)));
        lab.configure(b, ingress(limits(5)));
        let syn = |from, port| ip(from, b, family).tcp(port, 80, SYN).seq(1).build();
        for port in 1..=50 {
            lab.queue(a, syn(a, port), Offload::default());
        }
        lab.sim.run();
        assert_eq!(lab.received(b).len(), 2);
        for port in 1..=50 {
            lab.queue(c, syn(c, port), Offload::default());
        }
        lab.sim.run();
        assert_eq!(lab.received(b).len(), 3);
        let refused = [a, b].map(|nic| lab.sim.port(nic.slot).drops(ConnectionLimit));
        assert_eq!(refused, [(48, 0), (0, 47)]);
    }
}

/// The first packets of several flows in one batch take the fast path, and each asks the limits: of
/// the receiver first, since what that does not take was not begun.
#[test]
fn connections_of_one_batch_are_counted_one_by_one() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let limits = |burst| Limits {
            connections: limit(1, burst),
            ..Limits::default()
        };
        let syn = |port| ip(a, b, family).tcp(port, 80, SYN).seq(1).build();
        let closed = ip(a, b, family).tcp(9, 81, SYN).seq(1).build();
        let send = |lab: &mut Lab, frames: &[Vec<u8>]| {
            for frame in frames {
                lab.queue(a, frame.clone(), Offload::default());
            }
            lab.sim.run();
            lab.received(b)
        };
        let counted = |lab: &Lab| {
            let [from, to] = [a, b].map(|nic| lab.sim.port(nic.slot).drops(ConnectionLimit));
            (from, to)
        };

        // What is said again is no other connection, and what the rules refuse is none.
        lab.configure(a, egress(limits(2)));
        let batch = [syn(1), closed, syn(1), syn(2), syn(3), syn(1), syn(4)];
        let passed = send(&mut lab, &batch);
        assert_eq!(passed, [syn(1), syn(1), syn(2), syn(1)]);
        assert_eq!(counted(&lab), ((2, 0), (0, 0)));
        assert_eq!(lab.sim.port(b.slot).drops(NoIngressRule), (0, 1));
        assert_eq!((lab.flows(), lab.sim.rule(RuleSlot(0)).flows), (2, 2));

        // The receiver takes one, and what it refuses costs the sender nothing.
        lab.configure(a, egress(limits(3)));
        lab.configure(b, ingress(limits(1)));
        assert_eq!(send(&mut lab, &[syn(5), syn(6), syn(7)]), [syn(5)]);
        assert_eq!(counted(&lab), ((2, 0), (0, 2)));
        lab.configure(b, |config| config.meters = None);
        assert_eq!(send(&mut lab, &[syn(6), syn(7), syn(8)]), [syn(6), syn(7)]);
        assert_eq!(counted(&lab), ((3, 0), (0, 2)));

        // A connection that is over, and its ports used again: that is another one.
        let reset = ip(a, b, family).tcp(5, 80, RST).seq(2).build();
        lab.passes(a, b, reset);
        assert_eq!(send(&mut lab, &[syn(5)]), [] as [Vec<u8>; 0]);
        lab.wait(1);
        assert_eq!(send(&mut lab, &[syn(5), syn(5)]), [syn(5), syn(5)]);
        assert_eq!(counted(&lab), ((4, 0), (0, 2)));
    }
}

/// Between two NICs that allow everything no flow is remembered, unless one counts them.
#[test]
fn open_nics_count_their_connections_and_keep_those_they_had() {
    for family in FAMILIES {
        let (mut lab, a, b) = open();
        let amid = ip(a, b, family).tcp(1, 80, ACK).seq(5).ack(7).build();
        lab.passes(a, b, amid.clone());
        assert_eq!(lab.flows(), 0);
        let connections = limit(1, 2);
        lab.configure(
            a,
            egress(Limits {
                connections,
                ..Limits::default()
            }),
        );
        lab.passes(a, b, amid.clone());
        lab.passes(a, b, udp(a, b, family, 1, 2));
        assert_eq!(lab.flows(), 2);
        lab.refuses(a, udp(a, b, family, 2, 2), ConnectionLimit);
        lab.passes(a, b, amid);
        lab.passes(b, a, udp(b, a, family, 2, 1));
    }
}

#[test]
fn floods_a_second_are_limited_where_they_begin_and_where_they_end() {
    let (mut lab, a, b) = open();
    let c = lab.nic();
    let learner = lab.nic();
    lab.configure(learner, |config| config.learn_macs = true);
    let group = lab.group(vec![allow_all_in(None)]);
    for nic in [c, learner] {
        lab.configure(nic, |config| config.groups.push(group));
    }
    let to = |mac| {
        let frame = build::frame(a.mac, mac).ip(a.v4, b.v4);
        frame.udp(1, 2).build()
    };
    let (shout, unknown) = (to(Mac::BROADCAST), to(Mac([2, 9, 9, 9, 9, 9])));
    let floods = limit(1, 2);
    let limits = Limits {
        floods,
        ..Limits::default()
    };
    lab.configure(a, egress(limits));
    lab.passes_to(a, &[b, c, learner], shout.clone());
    lab.passes(a, learner, unknown.clone());
    lab.refuses(a, shout.clone(), FloodLimit);
    lab.refuses(a, unknown.clone(), FloodLimit);
    assert_eq!(lab.sim.port(a.slot).drops(FloodLimit), (2, 0));
    lab.passes(a, b, udp(a, b, Family::V4, 1, 2));

    lab.configure(a, |config| config.meters = None);
    lab.configure(c, ingress(limits));
    lab.passes_to(a, &[b, c, learner], shout.clone());
    lab.passes_to(a, &[b, c, learner], shout.clone());
    lab.send(a, shout);
    let arrived = [b, c, learner].map(|nic| lab.received(nic).len());
    assert_eq!(arrived, [1, 0, 1]);
    assert_eq!(lab.sim.port(c.slot).drops(FloodLimit), (0, 1));
    lab.passes(a, c, udp(a, c, Family::V4, 1, 2));
}

#[test]
fn a_flood_that_is_to_be_cut_is_as_many_packets() {
    let (mut lab, a, b) = open();
    let c = lab.nic();
    let group = lab.group(vec![allow_all_in(None)]);
    lab.configure(c, |config| config.groups.push(group));
    let frame = build::frame(a.mac, Mac::BROADCAST).ip(a.v4, b.v4).udp(1, 2);
    let (frame, offload) = frame.payload(&[7; 2500]).gso(1000).build_with_offload();
    let arrived = |lab: &mut Lab| {
        for _ in 0..3 {
            lab.send_with(a, frame.clone(), offload);
        }
        [b, c].map(|nic| lab.received(nic).len())
    };
    // A frame takes three, and the second one more than there are.
    let limits = Limits {
        floods: limit(1, 4),
        ..Limits::default()
    };
    lab.configure(a, egress(limits));
    assert_eq!(arrived(&mut lab), [6, 6]);
    assert_eq!(lab.sim.port(a.slot).drops(FloodLimit), (1, 0));
    lab.configure(a, |config| config.meters = None);
    lab.configure(c, ingress(limits));
    assert_eq!(arrived(&mut lab), [9, 6]);
    assert_eq!(lab.sim.port(c.slot).drops(FloodLimit), (0, 1));
}

/// One bucket for all queues, whichever workers have them; and frames that another worker writes
/// are charged as well.
#[test]
fn queues_at_several_workers_share_a_limit() {
    let mut lab = Lab::on(Simulation::several(2));
    let (a, b) = (lab.nic(), lab.nic());
    let group = lab.group(vec![allow_all_in(None)]);
    for nic in [a, b] {
        lab.configure(nic, |config| config.groups.push(group));
    }
    let second = lab.sim.attach(dataplane::QueueId {
        slot: a.slot,
        pair: 1,
    });
    let second_queue = dataplane::QueueId {
        slot: a.slot,
        pair: 1,
    };
    assert!(lab.sim.move_queue(second_queue, 1));
    let packets = limit(100, 1);
    lab.configure(
        a,
        egress(Limits {
            packets,
            ..Limits::default()
        }),
    );
    for _ in 0..300 {
        lab.queue(a, udp(a, b, Family::V4, 1, 2), Offload::default());
        assert!(second.send(udp(a, b, Family::V4, 3, 4), Offload::default()));
    }
    lab.sim.run();
    lab.sim.advance(Duration::from_secs(1));
    let passed = lab.received(b).len();
    assert!((100..=102).contains(&passed), "{passed}");

    lab.configure(a, |config| config.meters = None);
    let packets = limit(1, 50);
    lab.configure(
        b,
        ingress(Limits {
            packets,
            ..Limits::default()
        }),
    );
    lab.sim.run();
    assert_eq!(lab.received(b).len(), 50);
    // One waits with each worker.
    let dropped = lab.sim.port(b.slot).drops(PacketLimit).1;
    assert_eq!(dropped, 600 - passed as u64 - 52);
    lab.sim.advance(Duration::from_secs(2));
    assert_eq!(lab.received(b).len(), 2);
}
