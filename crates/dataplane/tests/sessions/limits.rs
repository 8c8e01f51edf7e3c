//! security-groups.md 11: the table is bounded, and a NIC that fills its share loses its own.

use dataplane::DropReason::*;
use dataplane::{Simulation, WorkerConfig};

use crate::lab::*;

fn small(max_flows: u32) -> Simulation {
    Simulation::new(WorkerConfig {
        max_flows,
        max_fragments: 16,
        max_learned_macs: 16,
        seed: 7,
        on_broken: Box::new(|_, _| {}),
    })
}

/// security-groups.md 11.
#[test]
fn a_nics_oldest_half_open_flow_goes_first() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        lab.configure(a, |config| config.flow_share = 3);
        lab.connect(a, b, family, 1, 80);
        let syn = |port| ip(a, b, family).tcp(port, 80, SYN).seq(1).build();
        lab.passes(a, b, syn(2));
        lab.passes(a, b, udp(a, b, family, 3, 53));
        lab.passes(a, b, syn(4));
        assert_eq!((lab.flows(), lab.sim.load().flows_evicted), (3, 1));
        // The one from port 2 is gone; the connection and the others are not.
        lab.refuses(
            b,
            ip(b, a, family).tcp(80, 2, SYN_ACK).seq(1).ack(2).build(),
            NoIngressRule,
        );
        lab.passes(b, a, udp(b, a, family, 53, 3));
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build(),
        );
    }
}

#[test]
fn settled_flows_in_use_are_kept_and_idle_ones_are_not() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let c = lab.nic();
        lab.configure(a, |config| config.flow_share = 2);
        lab.connect(a, b, family, 1, 80);
        lab.connect(a, b, family, 2, 80);
        let syn = |port| ip(a, b, family).tcp(port, 80, SYN).seq(1).build();
        lab.refuses(a, syn(3), FlowShareFull);
        // Nobody else's share.
        lab.connect(c, b, family, 1, 80);
        lab.wait(60);
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001).build(),
        );
        lab.passes(a, b, syn(3));
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build(),
        );
        lab.refuses(b, ip(b, a, family).tcp(80, 2, ACK).build(), NoIngressRule);
    }
}

/// security-groups.md 11.
#[test]
fn a_full_table_costs_nobody_a_flow_but_who_asks() {
    for family in FAMILIES {
        let mut lab = Lab::on(small(4));
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        lab.group_of(b, vec![allow_in(UDP, 53), allow_in(TCP, 80)]);
        for port in 1..=4 {
            lab.passes(a, b, udp(a, b, family, port, 53));
        }
        lab.refuses(c, udp(c, b, family, 1, 53), FlowTableFull);
        // A gives up its own.
        lab.passes(a, b, udp(a, b, family, 5, 53));
        assert_eq!(lab.flows(), 4);
        lab.wait(30);
        lab.passes(c, b, udp(c, b, family, 1, 53));
    }
}

#[test]
fn thousands_of_flows_come_and_go() {
    let mut lab = Lab::on(small(3000));
    let (a, b) = (lab.nic(), lab.nic());
    lab.group_of(b, vec![allow_all_in(Some(UDP))]);
    lab.configure(a, |config| config.flow_share = 3000);
    for round in 0..3 {
        for port in 0..3000 {
            lab.send(a, udp(a, b, Family::V6, port, round));
        }
        assert_eq!(lab.received(b).len(), 1024, "as many as its queue holds");
        assert_eq!(lab.flows(), 3000);
        let some = lab.sim.flows(Some(b.uid));
        assert!(some.iter().all(|flow| flow.responder.port == round));
    }
    lab.wait(45);
    assert_eq!(lab.sim.load().flows, 0, "swept");
}
