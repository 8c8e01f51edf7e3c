//! Connections that a process has left in memory go on in the next one: each with its next packet,
//! however many there are, and all others in their turn.

use std::sync::Arc;
use std::time::Duration;

use dataplane::flow::{FlowInfo, FlowMemory, FlowState};
use dataplane::*;
use wire::Vni;

use crate::lab::*;

const MAX: u32 = 4096;

/// A pair whose second NIC takes TCP and UDP to port 80 and pings, with flows in memory.
fn pair(workers: usize) -> (Lab, Nic, Nic) {
    let memory = FlowMemory::new(MAX).unwrap();
    let mut lab = Lab::on(Simulation::in_memory(memory, workers));
    let rules = [(TCP, 80), (UDP, 80)].map(|(protocol, port)| allow_in(protocol, port));
    let (a, b) = lab.two(rules.to_vec());
    lab.settle();
    (lab, a, b)
}

/// What processes have left, the newest first, as the next one begins with it: who was who is now.
fn all_left(before: &[(&Lab, &[(Nic, Nic)])]) -> Arc<LeftFlows> {
    let switches: Vec<_> = before.iter().map(|(lab, _)| lab.sim.switch()).collect();
    let each = switches.iter().zip(before).map(|(switch, (_, who))| {
        let left = Left::open(switch.flow_memory().unwrap().descriptor()).unwrap();
        let successors = who.iter().map(|(was, is)| {
            let is = Successor {
                uid: is.uid,
                vni: Vni::new(0).unwrap(),
                is_elsewhere: false,
            };
            (was.uid, is)
        });
        (left, successors.collect())
    });
    let flows = LeftFlows::new(each.collect()).unwrap();
    Arc::new(flows.expect("an index that is known"))
}

fn left(before: &Lab, who: &[(Nic, Nic)]) -> Arc<LeftFlows> {
    all_left(&[(before, who)])
}

fn begin(lab: &mut Lab, left: &Arc<LeftFlows>) {
    let left = left.clone();
    lab.sim.ask(move |switch| switch.begin_left(&left)).unwrap();
}

/// Takes up all others; how many there were.
fn take_up(lab: &mut Lab, left: &Arc<LeftFlows>) -> usize {
    let (left, now) = (left.clone(), lab.sim.now());
    let taken = lab.sim.ask(move |switch| switch.take_up_left(&left, now));
    let (taken, untrue) = taken.unwrap();
    assert_eq!(untrue, 0);
    taken
}

/// Sends a frame while connections are being taken up, when nobody may try it before.
#[track_caller]
fn arrives(lab: &mut Lab, from: Nic, to: Nic, frame: Vec<u8>) {
    lab.send(from, frame.clone());
    assert_eq!(lab.received(to), [frame]);
}

/// The flows, without what only their age says.
fn told(lab: &mut Lab) -> Vec<FlowInfo> {
    let mut flows = lab.sim.flows(None);
    flows.sort_by_key(|flow| (flow.protocol, flow.initiator.port, flow.initiator.address));
    flows
}

#[test]
fn connections_go_on_with_their_next_packet() {
    for workers in [1, 2] {
        let (mut before, a, b) = pair(workers);
        for family in FAMILIES {
            before.connect(a, b, family, 1, 80);
            before.passes(a, b, udp(a, b, family, 2, 80));
            before.passes(b, a, udp(b, a, family, 80, 2));
        }
        let were = before.flows();
        // The next process calls them otherwise: which end has the smaller uid changes.
        let (mut lab, old_a, new_b) = pair(workers);
        let new_a = lab.replace(old_a);
        lab.settle();
        let left = left(&before, &[(a, new_a), (b, new_b)]);
        begin(&mut lab, &left);
        let (a, b) = (new_a, new_b);
        for family in FAMILIES {
            arrives(&mut lab, b, a, amid(b, a, family, 80, 1));
            arrives(&mut lab, a, b, amid(a, b, family, 1, 80));
            arrives(&mut lab, b, a, udp(b, a, family, 80, 2));
            // One that was never there.
            lab.send(b, udp(b, a, family, 80, 3));
            lab.silent();
        }
        assert_eq!(take_up(&mut lab, &left), were);
        let flows = told(&mut lab);
        assert_eq!(flows.len(), were);
        for flow in flows {
            let state = match flow.protocol {
                TCP => FlowState::Established,
                _ => FlowState::Stream,
            };
            assert_eq!((flow.state, flow.initiator.uid), (state, a.uid));
            assert!(flow.frames_out > 0 && flow.frames_in > 1, "{flow:?}");
        }
        // From now on nothing is looked for elsewhere.
        lab.refuses(b, udp(b, a, FAMILIES[0], 80, 3), DropReason::NoIngressRule);
    }
}

#[test]
fn all_others_are_taken_up_in_their_turn_and_once() {
    let (mut before, a, b) = pair(1);
    for port in 0..1000 {
        before.send(a, udp(a, b, FAMILIES[port % 2], port as u16 + 1, 80));
    }
    assert_eq!(before.flows(), 1000);
    before.received(b);
    let (mut lab, new_a, new_b) = pair(1);
    let left = left(&before, &[(a, new_a), (b, new_b)]);
    begin(&mut lab, &left);
    for port in [7, 8, 900] {
        let answer = udp(new_b, new_a, FAMILIES[port % 2], 80, port as u16 + 1);
        arrives(&mut lab, new_b, new_a, answer);
    }
    assert_eq!(take_up(&mut lab, &left), 1000);
    assert_eq!(lab.flows(), 1000);
}

/// A connection that goes on, ends and is forgotten before its turn comes stays forgotten.
#[test]
fn what_has_ended_meanwhile_does_not_come_again() {
    let (mut before, a, b) = pair(1);
    let family = FAMILIES[0];
    before.connect(a, b, family, 1, 80);
    before.connect(a, b, family, 2, 80);
    let (mut lab, new_a, new_b) = pair(1);
    let left = left(&before, &[(a, new_a), (b, new_b)]);
    begin(&mut lab, &left);
    arrives(&mut lab, new_a, new_b, amid(new_a, new_b, family, 1, 80));
    let reset = ip(new_a, new_b, family).tcp(1, 80, RST).seq(1001);
    arrives(&mut lab, new_a, new_b, reset.build());
    // Longer than one that was reset is kept, and not so long that the other is over.
    lab.wait(60);
    lab.send(new_b, amid(new_b, new_a, family, 80, 1));
    assert_eq!(lab.received(new_a).len(), 0, "it is known again");
    take_up(&mut lab, &left);
    let ports: Vec<_> = told(&mut lab)
        .iter()
        .map(|flow| flow.initiator.port)
        .collect();
    assert_eq!(ports, [2]);
}

/// Who was one end is not here any more: whoever has its addresses now has not its connections.
#[test]
fn nobody_else_has_them() {
    let (mut before, a, b) = pair(1);
    before.connect(a, b, FAMILIES[0], 1, 80);
    let (mut lab, new_a, new_b) = pair(1);
    let left = left(&before, &[(a, new_a)]);
    begin(&mut lab, &left);
    lab.send(new_a, amid(new_a, new_b, FAMILIES[0], 1, 80));
    assert_eq!(lab.received(new_b), Vec::<Vec<u8>>::new());
    assert_eq!((take_up(&mut lab, &left), lab.flows()), (0, 0));
}

/// Who asks for all of them is not told of some.
#[test]
fn who_asks_for_flows_waits() {
    let (mut before, a, b) = pair(1);
    before.connect(a, b, FAMILIES[0], 1, 80);
    let (mut lab, new_a, new_b) = pair(1);
    let left = left(&before, &[(a, new_a), (b, new_b)]);
    begin(&mut lab, &left);
    let switch = lab.sim.switch();
    let asked = std::thread::spawn(move || switch.flows(None).unwrap());
    for _ in 0..10 {
        lab.sim.run();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!asked.is_finished());
    take_up(&mut lab, &left);
    while !asked.is_finished() {
        lab.sim.run();
    }
    assert_eq!(asked.join().unwrap().len(), 1);
}

/// A process that has ended amid it leaves its own memory, and the one before: what has moved on
/// goes on from there, and nothing of the rest is lost.
#[test]
fn what_is_newer_goes_before_what_is_older() {
    let family = FAMILIES[0];
    let (mut oldest, a0, b0) = pair(1);
    oldest.connect(a0, b0, family, 1, 80);
    oldest.connect(a0, b0, family, 2, 80);
    let (mut older, a1, b1) = pair(1);
    let first = left(&oldest, &[(a0, a1), (b0, b1)]);
    begin(&mut older, &first);
    // More than the window that the oldest knows of: it would not pass there any more.
    let mut next = 1001;
    for _ in 0..80 {
        let data = ip(a1, b1, family).tcp(1, 80, ACK).seq(next).ack(1001);
        arrives(&mut older, a1, b1, data.payload(&[7; 1000]).build());
        next += 1000;
        let answer = ip(b1, a1, family).tcp(80, 1, ACK).seq(1001).ack(next);
        arrives(&mut older, b1, a1, answer.build());
    }
    let (mut lab, a2, b2) = pair(1);
    let both = all_left(&[
        (&older, &[(a1, a2), (b1, b2)]),
        (&oldest, &[(a0, a2), (b0, b2)]),
    ]);
    begin(&mut lab, &both);
    let data = ip(a2, b2, family).tcp(1, 80, ACK).seq(next).ack(1001);
    arrives(&mut lab, a2, b2, data.payload(&[7; 1000]).build());
    arrives(&mut lab, b2, a2, amid(b2, a2, family, 80, 2));
    assert_eq!((take_up(&mut lab, &both), lab.flows()), (2, 2));
}
