//! First contact: frames for a host whose next hop is not known yet wait for it, some and not for
//! long, and are sent by it as if they had come then.

use dataplane::DropReason::*;
use dataplane::overlay::{Flood, HostIdx};
use dataplane::ruleset::Direction;
use dataplane::underlay::Hop;
use dataplane::{Simulation, Trace, WorkerConfig};
use io::trace::Folder;
use wire::parse::TcpFlags;
use wire::{Mac, build};

use crate::lab::*;
use crate::rule_lookups::{dear, many};
use crate::traces::{count, finished};
use crate::wire_lab::*;

/// How long a frame waits, seconds.
const WAIT: u64 = 3;
/// Frames of one NIC that wait with one worker at most.
const WAITING_MAX: usize = 128;

/// And of one network.
const NETWORK_MAX: usize = 256;

/// A host that has not spoken to anybody, and a machine at host 2.
fn strangers() -> (Host, Nic, Far) {
    strangers_on(Simulation::default())
}

fn strangers_on(sim: Simulation) -> (Host, Nic, Far) {
    let mut host = Host::on(sim);
    let a = host.lab.nic();
    let b = host.far(20, 2);
    host.set_paths(vec![]);
    (host, a, b)
}

impl Host {
    /// The NIC's frames reach nobody yet, and none is lost.
    #[track_caller]
    fn waits(&mut self, from: Nic, frames: &[Vec<u8>]) {
        let before = self.lab.drops();
        for frame in frames {
            self.lab.queue(from, frame.clone(), Default::default());
        }
        self.lab.sim.run();
        assert_eq!(difference(&before, &self.lab.drops()), []);
        assert_eq!(self.sent(), [[0u8; 0]; 0]);
    }

    fn waiting(&mut self) -> u64 {
        self.lab
            .sim
            .loads()
            .iter()
            .map(|load| load.waiting_frames)
            .sum()
    }
}

/// A connection's first segments.
fn opening(a: Nic, b: Nic, family: Family, sport: u16) -> Vec<u8> {
    ip(a, b, family).tcp(sport, 80, SYN).seq(1000).build()
}

#[test]
fn the_first_frames_wait_and_are_sent_in_their_order() {
    for workers in [1, 2] {
        let (mut host, a, b) = strangers_on(Simulation::several(workers));
        // With two workers, from one to the other's uplink.
        host.lab.sim.move_queue(a.slot, workers - 1);
        let frames: Vec<_> = FAMILIES
            .into_iter()
            .flat_map(|family| {
                let large = ip(a, b.nic, family).udp(1, 2).payload(&[7; 1200]);
                [opening(a, b.nic, family, 1), large.build()]
            })
            .collect();
        host.waits(a, &frames);
        assert_eq!(host.lab.sim.switch().take_wanted(), [b.at]);
        assert_eq!(host.waiting(), 4);
        // Whatever else becomes known says nothing of this one.
        host.set_paths(vec![(host_ip(3), vec![hop()])]);
        assert_eq!(host.sent(), [[0u8; 0]; 0]);
        host.set_paths(vec![(b.at, vec![hop()])]);
        host.lab.sim.run();
        let expected: Vec<_> = frames.iter().map(|inner| outbound(b.at, inner)).collect();
        assert_eq!(host.sent(), expected);
        assert_eq!(host.waiting(), 0);
        let waited: u64 = host
            .lab
            .sim
            .loads()
            .iter()
            .map(|load| load.waited_frames)
            .sum();
        assert_eq!(waited, 4);
        // The answer is of a flow that is known.
        let answer = ip(b.nic, a, Family::V4)
            .tcp(80, 1, SYN_ACK)
            .seq(9)
            .ack(1001);
        host.enters(b.at, a, answer.build());
        host.lab.wait(2 * WAIT);
        assert_eq!(host.sent(), [[0u8; 0]; 0], "once");
    }
}

#[test]
fn who_does_not_answer_is_waited_for_a_while_and_who_cannot_be_reached_is_not() {
    let (mut host, a, b) = strangers();
    host.waits(a, &[udp(a, b.nic, Family::V4, 1, 2)]);
    let before = host.lab.drops();
    host.lab.wait(WAIT - 1);
    assert_eq!(
        (difference(&before, &host.lab.drops()), host.waiting()),
        (vec![], 1)
    );
    host.lab.wait(2);
    assert_eq!(
        difference(&before, &host.lab.drops()),
        [(NextHopTimeout, 1)],
        "counted for its sender"
    );
    assert_eq!(host.waiting(), 0);
    // The next one waits anew, until it is known that there is no route.
    host.waits(a, &[udp(a, b.nic, Family::V4, 1, 2)]);
    let before = host.lab.drops();
    host.set_paths(vec![(b.at, vec![])]);
    assert_eq!(difference(&before, &host.lab.drops()), [(NoNextHop, 1)]);
    host.lab
        .refuses(a, udp(a, b.nic, Family::V4, 1, 2), NoNextHop);
    assert_eq!(host.waiting(), 0);
}

#[test]
fn a_flood_goes_to_whom_it_can_and_to_each_of_the_others_later_once() {
    let (mut host, a, _) = strangers();
    let c = host.lab.nic();
    host.lab.group_of(c, vec![allow_all_in(None)]);
    host.learn();
    let all = build::frame(a.mac, Mac::BROADCAST).ip(a.v4, [255, 255, 255, 255]);
    let all = all.udp(1, 2).build();
    let unknown = build::frame(a.mac, Mac([2, 0xcc, 0, 0, 0, 1])).ip(a.v4, [10, 0, 0, 99]);
    let unknown = unknown.udp(1, 2).build();
    host.set_paths(vec![(host_ip(2), vec![hop()])]);
    host.lab.passes(a, c, all.clone());
    host.lab.passes_to(a, &[], unknown.clone());
    assert_eq!(
        host.sent(),
        [outbound(host_ip(2), &all), outbound(host_ip(2), &unknown)]
    );
    // It is not for the NIC here a second time, whatever has changed in the meantime.
    host.configure(|overlay| overlay.any_host = false);
    host.set_paths([2, 3].map(|n| (host_ip(n), vec![hop()])).into());
    assert_eq!(
        host.sent(),
        [outbound(host_ip(3), &all), outbound(host_ip(3), &unknown)]
    );
    host.lab.silent();
    // One host that never answers: the others have had it.
    host.set_paths(vec![(host_ip(2), vec![hop()])]);
    host.lab.passes(a, c, all.clone());
    assert_eq!(host.sent(), [outbound(host_ip(2), &all)]);
    let before = host.lab.drops();
    host.lab.wait(WAIT + 1);
    assert_eq!(
        difference(&before, &host.lab.drops()),
        [(NextHopTimeout, 1)]
    );
    // A group whose way is found later.
    let group = [230, 0, 0, 0].into();
    host.configure(|overlay| overlay.flood = Flood::Group(group));
    host.lab.passes(a, c, all.clone());
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
    host.set_paths(vec![(group, vec![hop()])]);
    assert_eq!(host.sent(), [outbound(group, &all)]);
}

/// Another NIC's batch has used up what may be looked for in rules.
#[test]
fn what_is_sent_late_is_judged_beside_who_is_dear() {
    for family in FAMILIES {
        let (mut host, a, b) = strangers();
        let rules = host.lab.group_of(a, vec![allow_out(UDP, 2)]);
        let [flooder, own] = [(); 2].map(|()| host.lab.nic());
        host.lab.group_of(own, dear(Direction::Ingress));
        let frames = [1, 3].map(|sport| udp(a, b.nic, family, sport, 2));
        host.waits(a, &frames);
        let other = vec![allow_out(UDP, 2), allow_out(TCP, 80)];
        host.lab.set_rules(rules, other);
        for frame in many(|port| udp(flooder, own, family, 1, port)) {
            host.lab.queue(flooder, frame, Default::default());
        }
        host.lab.sim.sleep_of(0);
        host.lab.sim.turn();
        let before = host.lab.drops();
        assert!(host.lab.sim.port(own.slot).drops_to[NoIngressRule as usize] > 0);
        host.set_paths(vec![(b.at, vec![hop()])]);
        assert_eq!(difference(&before, &host.lab.drops()), []);
        assert_eq!(host.sent(), frames.map(|inner| outbound(b.at, &inner)));
    }
}

#[test]
fn what_is_sent_late_is_judged_by_what_is_in_force_then() {
    for family in FAMILIES {
        let (mut host, a, b) = strangers();
        let rules = host
            .lab
            .group_of(a, vec![allow_out(UDP, 2), allow_out(TCP, 80)]);
        let reset = ip(a, b.nic, family).tcp(1, 80, RST).seq(1001).build();
        host.waits(
            a,
            &[
                udp(a, b.nic, family, 1, 2),
                opening(a, b.nic, family, 1),
                reset.clone(),
            ],
        );
        host.lab.set_rules(rules, vec![allow_out(TCP, 80)]);
        let before = host.lab.drops();
        host.set_paths(vec![(b.at, vec![hop()])]);
        assert_eq!(
            host.sent()[..1],
            [outbound(b.at, &opening(a, b.nic, family, 1))]
        );
        let lost = difference(&before, &host.lab.drops());
        assert!(lost.contains(&(NoEgressRule, 1)), "{lost:?}");

        // Its machine moves to this host meanwhile, and then away to a third one.
        host.set_paths(vec![]);
        host.waits(a, &[opening(a, b.nic, family, 2)]);
        host.configure(|overlay| {
            overlay.bindings.insert(b.nic.mac, HostIdx(1));
        });
        host.set_paths([2, 3].map(|n| (host_ip(n), vec![hop()])).into());
        assert_eq!(
            host.sent(),
            [outbound(host_ip(3), &opening(a, b.nic, family, 2))]
        );

        // Its sender goes, and another NIC has its place.
        host.set_paths(vec![]);
        host.waits(a, &[opening(a, b.nic, family, 3)]);
        host.lab.replace(a);
        let before = host.lab.drops();
        host.set_paths([2, 3].map(|n| (host_ip(n), vec![hop()])).into());
        assert_eq!(
            (host.sent(), difference(&before, &host.lab.drops())),
            (vec![], vec![])
        );
    }
}

/// The answer to a port that is closed may be all that a host ever sends to another one.
#[test]
fn a_reset_that_has_waited_is_sent() {
    let (mut host, a, b) = strangers();
    host.lab.group_of(a, vec![allow_all_in(None)]);
    host.enters(b.at, a, opening(b.nic, a, Family::V4, 5));
    let reset = ip(a, b.nic, Family::V4)
        .tcp(80, 5, TcpFlags(0x14))
        .seq(0)
        .ack(1001)
        .build();
    host.waits(a, std::slice::from_ref(&reset));
    host.set_paths(vec![(b.at, vec![hop()])]);
    assert_eq!(host.sent(), [outbound(b.at, &reset)]);
}

#[test]
fn what_waits_is_bounded_for_each_nic() {
    let (mut host, a, b) = strangers();
    let c = host.lab.nic();
    let packet = |port| udp(a, b.nic, Family::V4, 1, 1000 + port);
    let frames: Vec<_> = (0..WAITING_MAX as u16).map(packet).collect();
    frames.chunks(32).for_each(|some| host.waits(a, some));
    host.lab.refuses(a, packet(999), NextHopQueueFull);
    // Another one has room, and large frames take more of it.
    host.waits(c, &[udp(c, b.nic, Family::V4, 1, 2)]);
    host.set_paths(vec![(b.at, vec![hop()])]);
    assert_eq!(host.sent().len(), WAITING_MAX + 1);
    host.set_paths(vec![]);
    let large = ip(a, b.nic, Family::V4).udp(1, 80);
    let (frame, offload) = large.payload(&[7; 60_000]).gso(1000).build_with_offload();
    let before = host.lab.drops();
    for _ in 0..20 {
        host.lab.send_with(a, frame.clone(), offload);
    }
    let [(NextHopQueueFull, lost)] = difference(&before, &host.lab.drops())[..] else {
        panic!("{:?}", difference(&before, &host.lab.drops()));
    };
    assert_eq!(20 - lost, (512 << 10) / 60_042, "half a mebibyte");
}

#[test]
fn what_waits_is_bounded_for_each_network_and_who_finds_no_room_is_looked_for() {
    let (mut host, a, b) = strangers();
    let others = [(); 2].map(|()| host.lab.nic());
    let far = machine(21, host_ip(3)).nic;
    host.configure(|overlay| {
        overlay.bindings.insert(far.mac, HostIdx(1));
    });
    let packet = |from, port| udp(from, b.nic, Family::V4, 1, 1000 + port);
    for nic in [a, others[0]] {
        let frames = (0..WAITING_MAX as u16).map(|port| packet(nic, port));
        let frames: Vec<_> = frames.collect();
        frames.chunks(32).for_each(|some| host.waits(nic, some));
    }
    assert_eq!(host.waiting(), NETWORK_MAX as u64);
    assert_eq!(host.lab.sim.switch().take_wanted(), [b.at]);
    // Nothing of its own waits yet, and its network has its share already.
    let late = udp(others[1], far, Family::V4, 1, 2);
    host.lab.refuses(others[1], late, NextHopQueueFull);
    assert_eq!(
        host.lab.sim.switch().take_wanted(),
        [host_ip(3)],
        "the next one finds it known"
    );
    // Another tenant's waits.
    let other = host.lab.nic_in(1);
    let overlay = host.lab.overlays[0].clone();
    host.lab.overlays[1] = overlay;
    host.lab.publish();
    host.waits(other, &[packet(other, 1)]);
    assert_eq!(host.waiting(), NETWORK_MAX as u64 + 1);
}

#[test]
fn what_turns_out_too_large_goes_back_to_its_sender() {
    let (mut host, a, b) = strangers();
    let packet = ip(a, b.nic, Family::V4)
        .udp(1, 2)
        .payload(&[7; 1400])
        .build();
    host.waits(a, std::slice::from_ref(&packet));
    let before = host.lab.drops();
    host.set_paths(vec![(b.at, vec![Hop { mtu: 1400, ..hop() }])]);
    assert_eq!(difference(&before, &host.lab.drops()), [(MtuExceeded, 1)]);
    let told = host.lab.received(a);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0][34..36], [3, 4], "fragmentation needed");
}

#[test]
fn fragments_wait_with_their_first_one() {
    let (mut host, a, b) = strangers();
    let whole = ip(a, b.nic, Family::V4)
        .udp(1, 2)
        .payload(&[7; 2000])
        .build();
    let parts = build::fragments(&whole, 1000, 7);
    host.waits(a, &parts);
    host.set_paths(vec![(b.at, vec![hop()])]);
    let expected: Vec<_> = parts.iter().map(|part| outbound(b.at, part)).collect();
    assert_eq!(host.sent(), expected);

    // They are judged anew, the first one by the rules and the others like it, and are no second
    // pieces in their own places: the last one comes later.
    let (early, last) = parts.split_at(parts.len() - 1);
    for (allowed, passed) in [(2, parts.len()), (3, 0)] {
        let (mut host, a, b) = strangers();
        let rules = host.lab.group_of(a, vec![allow_out(UDP, 2)]);
        host.waits(a, early);
        host.lab.set_rules(rules, vec![allow_out(UDP, allowed)]);
        let before = host.lab.drops();
        host.set_paths(vec![(b.at, vec![hop()])]);
        host.lab.send(a, last[0].clone());
        assert_eq!(host.sent(), expected[..passed]);
        let lost = (parts.len() - passed) as u64;
        let lost = [(NoEgressRule, lost)].into_iter().filter(|(_, n)| *n > 0);
        assert!(difference(&before, &host.lab.drops()).into_iter().eq(lost));
    }
}

#[test]
fn who_is_heard_of_is_looked_for_before_anybody_answers() {
    let (mut host, a, _) = strangers();
    host.lab.group_of(a, vec![allow_all_in(None)]);
    host.learn();
    let far = machine(30, host_ip(9));
    let switch = host.lab.sim.switch();
    for _ in 0..2 {
        host.enters(far.at, a, udp(far.nic, a, Family::V4, 1, 2));
    }
    assert_eq!(
        (switch.take_wanted(), switch.take_wanted()),
        (vec![far.at], vec![])
    );
    // Who is bound is a host, and told of anyway.
    host.waits(a, &[udp(a, far.nic, Family::V4, 2, 1)]);
    host.set_paths(vec![(far.at, vec![hop()])]);
    assert_eq!(
        host.sent(),
        [outbound(far.at, &udp(a, far.nic, Family::V4, 2, 1))]
    );
}

/// Anybody who can reach us may send from anywhere: it is not looked for all of that.
#[test]
fn of_who_is_only_heard_of_not_too_many_are_looked_for() {
    let (mut host, a, _) = strangers_on(Simulation::new(WorkerConfig {
        max_flows: 4096,
        max_fragments: 256,
        max_learned_macs: 1024,
        seed: 1,
        on_broken: Box::new(|_, _| {}),
    }));
    host.lab.group_of(a, vec![allow_all_in(None)]);
    host.learn();
    let heard = |host: &mut Host, mac: u8, at: u8| {
        let far = machine(mac, host_ip(at));
        host.enters(far.at, a, udp(far.nic, a, Family::V4, 1, 2));
    };
    // One machine that is somewhere else each time.
    (10..200).for_each(|at| heard(&mut host, 9, at));
    assert_eq!(host.lab.sim.switch().take_wanted(), [host_ip(10)]);
    for secs in 0..2 {
        host.lab.wait(1);
        let some = 30 + secs * 80..110 + secs * 80;
        some.for_each(|n| heard(&mut host, n, n));
        assert_eq!(host.lab.sim.switch().take_wanted().len(), 64);
    }
    // Whom a guest answers is.
    let far = machine(189, host_ip(189));
    host.waits(a, &[udp(a, far.nic, Family::V4, 2, 1)]);
    assert_eq!(host.lab.sim.switch().take_wanted(), [far.at]);
}

#[test]
fn a_guest_that_has_moved_here_is_announced_to_hosts_that_are_found_later() {
    let (mut host, a, _) = strangers();
    host.learn();
    host.lab.sim.announce(a.slot);
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
    host.set_paths([2, 3].map(|n| (host_ip(n), vec![hop()])).into());
    let expected = [2, 3].map(|n| outbound(host_ip(n), &build::rarp_announcement(a.mac)));
    assert_eq!(host.sent(), expected);

    // It is not the guest's, and not judged as if it were when something has changed meanwhile. A
    // host that is not of the network any more is not told.
    host.set_paths(vec![]);
    host.lab.sim.announce(a.slot);
    host.configure(|overlay| overlay.flood = Flood::Hosts([HostIdx(1)].into()));
    let before = host.lab.drops();
    host.set_paths([2, 3].map(|n| (host_ip(n), vec![hop()])).into());
    assert_eq!(host.sent(), expected[1..]);
    assert_eq!(difference(&before, &host.lab.drops()), []);

    // Nor is anybody told of a NIC that has lost its link meanwhile.
    host.set_paths(vec![]);
    host.lab.sim.announce(a.slot);
    host.lab.configure(a, |config| config.link_down = true);
    host.set_paths(vec![(host_ip(3), vec![hop()])]);
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
    assert_eq!(difference(&before, &host.lab.drops()), []);
}

#[test]
fn a_trace_has_a_frame_that_has_waited_once() {
    let folder = tempfile::tempdir().unwrap();
    let (mut host, a, b) = strangers();
    let path = folder.path().join("a.pcapng");
    let trace = Trace::open(&Folder::new(folder.path(), None), &path, "a").unwrap();
    host.lab
        .configure(a, |config| config.trace = Some(trace.clone()));
    host.waits(a, &[udp(a, b.nic, Family::V4, 1, 2)]);
    host.set_paths(vec![(b.at, vec![hop()])]);
    assert_eq!(host.sent().len(), 1);
    host.set_paths(vec![]);
    host.waits(a, &[udp(a, b.nic, Family::V4, 1, 3)]);
    host.lab.wait(WAIT + 1);
    host.lab.configure(a, |config| config.trace = None);
    drop((trace, host));
    let file = finished(&path, b"dropped: next_hop_timeout");
    let frames = [2, 3].map(|port| count(&file, &udp(a, b.nic, Family::V4, 1, port)));
    assert_eq!((frames, count(&file, b"dropped:")), ([1, 1], 1));
}
