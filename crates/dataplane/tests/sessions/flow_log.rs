//! What is told of connections: each once when it begins and once when it ends, and what was
//! refused in one sum.

use dataplane::DropReason;
use dataplane::flow::{FlowEnd, FlowEvent, FlowEvents, FlowNews, FlowState};

use crate::lab::Family::V4;
use crate::lab::*;

fn told(events: &FlowEvents) -> Vec<FlowEvent> {
    let mut told = Vec::new();
    events.take(&mut told);
    told
}

fn end(event: &FlowEvent) -> (FlowEnd, FlowState, [u64; 2], [u8; 2]) {
    match event.news {
        FlowNews::Ended {
            why,
            state,
            frames,
            tcp_flags,
            ..
        } => (why, state, frames, tcp_flags),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_is_told_when_it_begins_and_when_it_is_closed() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let events = lab.sim.log_flows().unwrap();
        lab.connect(a, b, family, 1, 80);
        let begun = told(&events);
        assert_eq!(begun.len(), 1);
        let flow = &lab.sim.flows(None)[0];
        assert_eq!(begun[0].news, FlowNews::Began);
        assert_eq!(
            (begun[0].initiator, begun[0].responder),
            (flow.initiator, flow.responder)
        );
        assert_eq!(begun[0].rules, [flow.egress_rule, flow.ingress_rule]);
        assert!(begun[0].rules[1].is_some());
        // Amid it nothing is told, and what passes is in its end.
        let tcp = |from, to, sport, dport, flags, seq, ack| {
            let frame = ip(from, to, family).tcp(sport, dport, flags);
            frame.seq(seq).ack(ack).build()
        };
        let before = flow.frames_out;
        for _ in 0..10 {
            lab.passes(a, b, tcp(a, b, 1, 80, ACK, 1001, 1001));
        }
        assert_eq!(told(&events), []);
        lab.passes(b, a, tcp(b, a, 80, 1, RST, 1001, 1001));
        let ended = told(&events);
        assert_eq!(ended.len(), 1);
        let (why, state, frames, flags) = end(&ended[0]);
        assert_eq!((why, state), (FlowEnd::Closed, FlowState::Close));
        assert_eq!(frames[0], before + 10);
        assert_eq!(flags, [0x12, 0x16], "SYN and ACK, and of the other RST");
        // Its entry goes later, and nothing more is told.
        let flows = lab.sim.flows(None);
        assert_eq!(lab.sim.remove_flows(&flows), 1);
        assert_eq!(told(&events), []);
        assert_eq!(events.lost(), 0);
    }
}

#[test]
fn why_a_connection_is_over_is_told() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53), allow_in(UDP, 54)]);
    let events = lab.sim.log_flows().unwrap();
    let send = |lab: &mut Lab, port| lab.passes(a, b, udp(a, b, V4, 1, port));
    send(&mut lab, 53);
    let flows = lab.sim.flows(None);
    lab.sim.remove_flows(&flows);
    let news: Vec<_> = told(&events).iter().map(|event| event.news).collect();
    assert_eq!(news.len(), 2);
    assert_eq!(
        end(&FlowEvent {
            news: news[1],
            ..sample()
        })
        .0,
        FlowEnd::Killed
    );
    // Nobody is told of what came before it was asked for, but of its end.
    send(&mut lab, 54);
    let events = lab.sim.log_flows().unwrap();
    lab.wait(600);
    lab.passes(a, b, udp(a, b, V4, 1, 53));
    let ended = told(&events);
    let idle = ended.iter().find(|event| event.responder.port == 54);
    assert_eq!(end(idle.expect("54 is over")).0, FlowEnd::Idle);
}

fn sample() -> FlowEvent {
    let end = dataplane::flow::Party {
        uid: dataplane::PortUid(1),
        address: [10, 0, 0, 1].into(),
        port: 1,
    };
    FlowEvent {
        unix_ns: 0,
        protocol: 17,
        initiator: end,
        responder: end,
        rules: [None; 2],
        news: FlowNews::Began,
    }
}

#[test]
fn refusals_of_a_second_are_one_sum() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
    let events = lab.sim.log_flows().unwrap();
    for sport in 0..20 {
        lab.refuses(a, udp(a, b, V4, sport, 53), DropReason::NoIngressRule);
    }
    assert_eq!(told(&events), [], "not yet");
    lab.wait(2);
    let denied = told(&events);
    assert_eq!(denied.len(), 1);
    let FlowNews::Denied { reason, frames, .. } = denied[0].news else {
        panic!("{denied:?}");
    };
    assert_eq!((reason, frames), (DropReason::NoIngressRule, 20));
    assert_eq!(
        (denied[0].initiator.port, denied[0].responder.port),
        (0, 53)
    );
}
