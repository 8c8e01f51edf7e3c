//! Rules that say nothing of a packet and are all looked at before that is known: what a turn does
//! of it, and who waits.

use std::time::Duration;

use dataplane::DropReason::*;
use dataplane::overlay::Overlay;
use dataplane::ruleset::{Direction, Peer, RuleSpec};
use dataplane::{PortSlot, PortUid, Simulation};
use io::frame::BATCH;
use io::trace::Direction::Outbound;
use io::trace::capture::Wanted;
use wire::offload::Offload;
use wire::vxlan::Ends;
use wire::{Mac, build};

use crate::captures::{ALL, begin_with, dear_filter};
use crate::lab::*;
use crate::wire_lab::*;

/// What is looked for of one packet in 6,000 places, and not there: a turn's looks are used up by
/// eleven such questions.
const DEAR: u16 = 4000;
const A_TURN: std::ops::RangeInclusive<u64> = 8..=14;

pub fn dear(direction: Direction) -> Vec<RuleSpec> {
    let nets = ["192.0.2.1/32", "2001:db8:9::1/128"].map(|net| net.parse().unwrap());
    let range = |n: u16| {
        let net = Peer::Net(nets[usize::from(n % 2)]);
        rule(direction, Some(UDP), n..=60_000, net)
    };
    (1..=DEAR).map(range).collect()
}

/// Frames of different questions.
pub fn many(frame: impl Fn(u16) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..BATCH as u16).map(|n| frame(7000 + n)).collect()
}

fn queue(lab: &mut Lab, from: Nic, frames: &[Vec<u8>]) {
    for frame in frames {
        lab.queue(from, frame.clone(), Offload::default());
    }
}

fn to_all(from: Nic, family: Family) -> Vec<Vec<u8>> {
    let shout = |port| {
        let frame = build::frame(from.mac, Mac::BROADCAST);
        let frame = frame.ip(from.ip(family), foreign(family));
        frame.udp(1, port).build()
    };
    many(shout)
}

fn lost(lab: &Lab, nic: Nic, reason: dataplane::DropReason) -> u64 {
    let counters = lab.sim.port(nic.slot);
    counters.drops_from[reason as usize] + counters.drops_to[reason as usize]
}

#[test]
fn what_may_not_leave_is_asked_once_however_many_are_to_get_it() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let flooder = lab.nic();
        lab.group_of(flooder, dear(Direction::Egress));
        let open = lab.group(vec![allow_all_in(None)]);
        for _ in 0..20 {
            let nic = lab.nic();
            lab.configure(nic, |config| config.groups = vec![open]);
        }
        queue(&mut lab, flooder, &to_all(flooder, family));
        lab.sim.turn();
        let refused = lost(&lab, flooder, NoEgressRule);
        assert!(A_TURN.contains(&refused), "{refused} in a turn");
        lab.sim.run();
        assert_eq!(lost(&lab, flooder, NoEgressRule), BATCH as u64);
        assert_eq!(lost(&lab, flooder, RuleLookups), 0);
        lab.silent();
    }
}

#[test]
fn a_group_is_asked_once_however_many_of_it_are_to_get_a_frame() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let flooder = lab.nic();
        let group = lab.group(dear(Direction::Ingress));
        let crowd: Vec<Nic> = (0..20).map(|_| lab.nic()).collect();
        for &nic in &crowd {
            lab.configure(nic, |config| config.groups = vec![group]);
        }
        queue(&mut lab, flooder, &to_all(flooder, family));
        lab.sim.turn();
        for &nic in &crowd {
            let refused = lost(&lab, nic, NoIngressRule);
            assert!(A_TURN.contains(&refused), "{refused} in a turn");
        }
        lab.sim.run();
        for &nic in &crowd {
            assert_eq!(lost(&lab, nic, NoIngressRule), BATCH as u64);
        }
        assert_eq!(lost(&lab, flooder, RuleLookups), 0);
        lab.silent();
    }
}

/// What the answer to a question was is not what it is under other rules.
#[test]
fn what_waits_is_judged_by_the_rules_that_are_in_force_then() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(dear(Direction::Ingress));
        let group = dataplane::GroupIdx(0);
        let frames = many(|port| udp(a, b, family, 1, port));
        queue(&mut lab, a, &frames);
        lab.sim.turn();
        let refused = lost(&lab, b, NoIngressRule);
        assert!(A_TURN.contains(&refused), "{refused} in a turn");
        lab.silent();
        lab.set_rules(group, vec![allow_all_in(Some(UDP))]);
        lab.sim.run();
        assert_eq!(lost(&lab, b, NoIngressRule), refused);
        assert_eq!(lab.received(b), frames[refused as usize..]);
        assert_eq!(lab.flows() as u64, BATCH as u64 - refused);
        // And the other way round.
        queue(&mut lab, a, &frames);
        lab.set_rules(group, dear(Direction::Ingress));
        lab.sim.run();
        assert_eq!(lab.received(b), [[0u8; 0]; 0]);
        assert_eq!(lost(&lab, b, NoIngressRule), refused + BATCH as u64);
    }
}

#[test]
fn who_has_got_a_frame_for_many_does_not_get_it_again() {
    for family in FAMILIES {
        for changes in [false, true] {
            let mut lab = Lab::new();
            let [flooder, free, other] = [(); 3].map(|()| lab.nic());
            lab.configure(free, |config| config.bypass = true);
            let last = rule(Direction::Ingress, None, 7000..=8000, Peer::Any);
            let mut rules = dear(Direction::Ingress);
            rules.push(last.clone());
            let group = lab.group_of(other, rules);
            let frames = to_all(flooder, family);
            queue(&mut lab, flooder, &frames);
            lab.sim.turn();
            assert_eq!(lab.received(free), frames);
            let mut received = lab.received(other);
            assert!(A_TURN.contains(&(received.len() as u64)), "{received:?}");
            if changes {
                lab.set_rules(group, vec![last]);
            }
            lab.sim.run();
            received.extend(lab.received(other));
            assert_eq!(received, frames);
            assert_eq!(lab.received(free), [[0u8; 0]; 0]);
            assert!(lab.drops().iter().all(|count| *count == 0));
        }
    }
}

/// The rules have changed, and allow it still.
#[test]
fn flows_that_are_dear_to_decide_again_go_on_some_in_a_turn() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
        let frames = many(|port| udp(a, b, family, 1, port));
        queue(&mut lab, a, &frames);
        lab.sim.run();
        assert_eq!(lab.received(b), frames);
        let mut rules = dear(Direction::Ingress);
        rules.push(rule(Direction::Ingress, None, 7000..=8000, Peer::Any));
        lab.set_rules(dataplane::GroupIdx(0), rules);
        queue(&mut lab, a, &frames);
        lab.sim.sleep_of(0);
        lab.sim.turn();
        let mut received = lab.received(b);
        assert!(
            A_TURN.contains(&(received.len() as u64)),
            "{}",
            received.len()
        );
        lab.sim.run();
        received.extend(lab.received(b));
        assert_eq!(received, frames);
        assert_eq!(lab.flows(), BATCH);
        assert!(lab.drops().iter().all(|count| *count == 0));
    }
}

#[test]
fn beside_who_has_used_a_turn_up_others_begin_connections() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let [flooder, own, c, d] = [(); 4].map(|()| lab.nic());
        lab.group_of(own, dear(Direction::Ingress));
        lab.group_of(d, vec![allow_all_in(Some(UDP))]);
        queue(
            &mut lab,
            flooder,
            &many(|n| udp(flooder, own, family, 1, n)),
        );
        for first in 100..115 {
            // No more than is its own part of a turn.
            let begins: Vec<_> = (1..=4).map(|n| udp(c, d, family, first, n)).collect();
            queue(&mut lab, c, &begins);
            lab.sim.turn();
            assert_eq!(lab.received(d), begins);
        }
        // It has waited as long as what it has had was worth.
        let refused = lost(&lab, own, NoIngressRule);
        assert!(A_TURN.contains(&refused), "{refused} in 15 turns");
        lab.sim.run();
        assert_eq!(lost(&lab, own, NoIngressRule), BATCH as u64);
    }
}

/// Its VMM may take the ring away as soon as its frames wait.
#[test]
fn who_has_taken_its_ring_away_pays_for_what_waits() {
    let mut lab = Lab::new();
    let [flooder, own, c, d] = [(); 4].map(|()| lab.nic());
    lab.group_of(own, dear(Direction::Ingress));
    lab.group_of(d, vec![allow_all_in(Some(UDP))]);
    let frames = many(|n| udp(flooder, own, Family::V4, 1, n));
    queue(&mut lab, flooder, &frames);
    for first in 100..115 {
        let begin = |n| udp(c, d, Family::V4, first, n);
        let begins: Vec<_> = (1..=4).map(begin).collect();
        queue(&mut lab, c, &begins);
        lab.sim.turn();
        assert_eq!(lab.received(d), begins);
        assert_eq!(lab.sim.take(flooder.slot).is_some(), first == 100);
    }
    let refused = lost(&lab, own, NoIngressRule);
    assert!(A_TURN.contains(&refused), "{refused} in 15 turns");
    lab.sim.run();
    assert_eq!(lost(&lab, own, NoIngressRule), BATCH as u64);
}

#[test]
fn what_captures_take_of_frames_that_wait_is_not_for_the_next_one_to_pay() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let [flooder, own] = [(); 2].map(|()| lab.nic());
    lab.group_of(own, dear(Direction::Ingress));
    let place = (own.slot, own.uid);
    let (_capture, _frames) = begin_with(&mut lab.sim, &[place], dear_filter());
    let frames = many(|n| udp(flooder, own, Family::V4, 1, n));
    queue(&mut lab, flooder, &frames);
    // Alone it does not wait: another of its frames is judged in the next turn.
    lab.sim.turn();
    let before = lost(&lab, own, NoIngressRule);
    let turns = 8;
    for _ in 0..turns * BATCH {
        lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
    }
    for _ in 0..turns {
        lab.sim.turn();
    }
    let refused = lost(&lab, own, NoIngressRule);
    assert!(refused > before, "none was judged");
    let heard = lab.sim.port(c.slot).rx_frames;
    assert_eq!(heard, (turns * BATCH) as u64);
}

/// A host that is flooded to waits for its next hop, and another one gets the frame.
#[test]
fn a_frame_that_waits_is_captured_once_where_another_host_has_got_it() {
    for family in FAMILIES {
        let mut host = Host::new();
        host.learn();
        let (flooder, own) = (host.lab.nic(), host.lab.nic());
        host.lab.group_of(own, dear(Direction::Ingress));
        host.set_paths(vec![(host_ip(3), vec![hop()])]);
        let place = (flooder.slot, flooder.uid);
        let wanted = Wanted {
            direction: Some(Outbound),
            ..ALL
        };
        let (_capture, seen) = begin_with(&mut host.lab.sim, &[place], wanted);
        queue(&mut host.lab, flooder, &to_all(flooder, family));
        host.lab.sim.turn();
        assert_eq!(host.sent().len(), BATCH);
        host.lab.sim.run();
        assert_eq!(lost(&host.lab, own, NoIngressRule), BATCH as u64);
        assert_eq!(seen.try_iter().count(), BATCH);
    }
}

#[test]
fn a_queue_whose_frames_wait_stays_and_what_ends_with_its_worker_is_counted() {
    let mut lab = Lab::on(Simulation::several(2));
    let (a, b) = lab.two(dear(Direction::Ingress));
    let frames = many(|port| udp(a, b, Family::V4, 1, port));
    let moves_after = |lab: &mut Lab| {
        let worker = lab.sim.worker_of(a.slot).unwrap();
        queue(lab, a, &frames);
        lab.sim.sleep_of(worker);
        lab.sim.turn_of(worker);
        (worker, lab.sim.move_queue(a.slot, 1 - worker))
    };
    let (worker, moved) = moves_after(&mut lab);
    assert!(!moved);
    lab.sim.run();
    assert_eq!(lost(&lab, b, NoIngressRule), BATCH as u64);
    assert!(lab.sim.move_queue(a.slot, 1 - worker));
    // That its frames were dear is forgotten.
    lab.wait(2);
    let (worker, moved) = moves_after(&mut lab);
    assert!(!moved);
    lab.sim.stop(worker);
    let (refused, ended) = (lost(&lab, b, NoIngressRule), lost(&lab, a, RuleLookups));
    assert!(ended > 0);
    assert_eq!(refused + ended, 2 * BATCH as u64);
}

/// From the wire nothing waits: what begins no connection for a network whose rules are dear is
/// dropped, and nobody else's.
#[test]
fn a_network_that_is_dear_to_ask_leaves_the_wire_to_others() {
    for family in FAMILIES {
        let mut host = Host::new();
        host.learn();
        let other = host.lab.overlays[0].clone();
        host.lab.overlays[1] = other.map(|overlay| Overlay {
            uid: PortUid(51),
            ..overlay
        });
        let (a, b) = (host.lab.nic(), host.lab.nic_in(1));
        host.lab.group_of(a, dear(Direction::Ingress));
        host.lab.group_of(b, vec![allow_all_in(Some(UDP))]);
        let far = machine(20, host_ip(2));
        let ends = Ends::new(far.at, HERE).unwrap();
        let to = |nic, vni, sport, dport| {
            let datagram = udp(far.nic, nic, family, sport, dport);
            arriving(ends, vni, &datagram, 0)
        };
        // That a few frames came now and then, by which turns are shorter, is forgotten.
        host.lab.sim.let_pass(Duration::from_millis(2));
        let half = BATCH as u16 / 2;
        let turns = 15;
        for turn in 0..turns {
            for port in 0..half {
                for frame in [
                    to(a, 0, 100 + turn, 7000 + port),
                    to(b, 1, 100 + turn, 7000 + port),
                ] {
                    assert!(host.wire.send(frame, Offload::default()));
                }
            }
            host.lab.sim.turn();
            let received = host.lab.received(b).len();
            assert_eq!(received, usize::from(half), "in turn {turn}");
        }
        let heard = host.lab.sim.port(PortSlot::uplink(0)).rx_frames;
        assert_eq!(heard, u64::from(turns) * BATCH as u64);
        let (refused, dropped) = (
            lost(&host.lab, a, NoIngressRule),
            lost(&host.lab, a, RuleLookups),
        );
        assert!(A_TURN.contains(&refused), "{refused} in {turns} turns");
        assert_eq!(refused + dropped, u64::from(turns * half));
        assert_eq!(lost(&host.lab, b, RuleLookups), 0);
        // It pays turn by turn.
        for _ in 0..100 {
            host.lab.sim.turn();
        }
        host.arrive(to(a, 0, 200, 7000));
        assert_eq!(lost(&host.lab, a, NoIngressRule), refused + 1);
        host.lab.silent();
    }
}

/// The rules have changed, and allow them still, while the network owes for what others send it.
#[test]
fn flows_from_the_wire_go_on_while_their_network_owes() {
    for family in FAMILIES {
        let mut host = Host::new();
        host.learn();
        let a = host.lab.nic();
        let group = host.lab.group_of(a, vec![allow_all_in(Some(UDP))]);
        let far = machine(20, host_ip(2));
        let ends = Ends::new(far.at, HERE).unwrap();
        let to = |sport, dport| udp(far.nic, a, family, sport, dport);
        let flows: Vec<_> = (0..20).map(|n| to(1, 7000 + n)).collect();
        for frame in &flows {
            host.arrive(arriving(ends, 0, frame, 0));
        }
        assert_eq!(host.lab.received(a), flows);
        let mut rules = dear(Direction::Ingress);
        rules.push(rule(Direction::Ingress, None, 7000..=7100, Peer::Any));
        host.lab.set_rules(group, rules);
        host.lab.sim.let_pass(Duration::from_millis(2));
        for n in 0..BATCH as u16 {
            let frame = arriving(ends, 0, &to(2, 8000 + n), 0);
            assert!(host.wire.send(frame, Offload::default()));
        }
        host.lab.sim.turn();
        assert!(lost(&host.lab, a, RuleLookups) > 0, "it owes");
        let before = host.lab.drops();
        for frame in &flows {
            let arriving = arriving(ends, 0, frame, 0);
            assert!(host.wire.send(arriving, Offload::default()));
            host.lab.sim.turn();
            assert_eq!(host.lab.received(a), std::slice::from_ref(frame));
        }
        assert_eq!(host.lab.drops(), before);
        // It owes still.
        let before = lost(&host.lab, a, RuleLookups);
        host.arrive(arriving(ends, 0, &to(3, 8000), 0));
        assert_eq!(lost(&host.lab, a, RuleLookups), before + 1);
    }
}
