//! TCP by its state machine.

use dataplane::DropReason::*;
use dataplane::flow::FlowState;
use wire::parse::TcpFlags;

use crate::lab::*;

fn state(lab: &mut Lab) -> FlowState {
    lab.sim.flows(None)[0].state
}

/// security-groups.md 10.
#[test]
fn an_established_connection_may_be_idle_for_five_days() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.connect(a, b, family, 1, 80);
        assert_eq!(state(&mut lab), FlowState::Established);
        lab.wait(100_000);
        lab.passes(
            b,
            a,
            ip(b, a, family)
                .tcp(80, 1, ACK)
                .seq(1001)
                .ack(1001)
                .payload(b"x")
                .build(),
        );
        lab.wait(432_000);
        lab.refuses(b, ip(b, a, family).tcp(80, 1, ACK).build(), NoIngressRule);
    }
}

#[test]
fn flags_that_no_tcp_sends_are_dropped() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        let send = |flags| ip(a, b, family).tcp(1, 80, TcpFlags(flags)).build();
        for flags in [0x00, 0x03, 0x06, 0x01, 0x3f] {
            lab.refuses(a, send(flags), TcpBadFlags);
        }
        lab.connect(a, b, family, 1, 80);
        lab.refuses(a, send(0x03), TcpBadFlags);
    }
}

#[test]
fn what_cannot_be_in_a_state_is_dropped() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).build());
        // Data before the handshake, and an answer from the wrong side.
        lab.refuses(
            a,
            ip(a, b, family).tcp(1, 80, ACK).payload(b"x").build(),
            TcpBadState,
        );
        lab.refuses(a, ip(a, b, family).tcp(1, 80, SYN_ACK).build(), TcpBadState);
    }
}

/// security-groups.md 10.
#[test]
fn half_open_and_closing_connections_are_short() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).seq(1).build());
        lab.wait(119);
        assert_eq!(lab.flows(), 1);
        lab.wait(1);
        assert_eq!(lab.flows(), 0);

        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).seq(1).build());
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, SYN_ACK).seq(1).ack(2).build(),
        );
        lab.wait(59);
        assert_eq!(lab.flows(), 1);
        lab.wait(1);
        assert_eq!(lab.flows(), 0);

        lab.connect(a, b, family, 2, 80);
        lab.passes(
            a,
            b,
            ip(a, b, family)
                .tcp(2, 80, FIN_ACK)
                .seq(1001)
                .ack(1001)
                .build(),
        );
        assert_eq!(
            (state(&mut lab), lab.sim.flows(None)[0].timeout_secs),
            (FlowState::FinWait, 120)
        );
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 2, ACK).seq(1001).ack(1002).build(),
        );
        assert_eq!(
            (state(&mut lab), lab.sim.flows(None)[0].timeout_secs),
            (FlowState::CloseWait, 60)
        );
        lab.passes(
            b,
            a,
            ip(b, a, family)
                .tcp(80, 2, FIN_ACK)
                .seq(1001)
                .ack(1002)
                .build(),
        );
        assert_eq!(
            (state(&mut lab), lab.sim.flows(None)[0].timeout_secs),
            (FlowState::LastAck, 30)
        );
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(2, 80, ACK).seq(1002).ack(1002).build(),
        );
        assert_eq!(
            (state(&mut lab), lab.sim.flows(None)[0].timeout_secs),
            (FlowState::TimeWait, 120)
        );
        lab.wait(120);
        assert_eq!(lab.flows(), 0);
    }
}

#[test]
fn a_syn_over_a_finished_connection_is_a_new_decision() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, RST).seq(1001).build());
        assert_eq!(state(&mut lab), FlowState::Close);
        // From the other side it would have to be allowed at A.
        lab.refuses(b, ip(b, a, family).tcp(80, 1, SYN).build(), NoIngressRule);
        assert_eq!(lab.flows(), 0);
        lab.connect(a, b, family, 1, 80);
        lab.passes(b, a, ip(b, a, family).tcp(80, 1, RST).seq(1001).build());
        lab.connect(a, b, family, 1, 80);
        assert_eq!((state(&mut lab), lab.flows()), (FlowState::Established, 1));
    }
}

#[test]
fn a_reset_from_outside_the_window_ends_nothing() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.configure(a, |config| config.mtu = u16::MAX);
        lab.connect(a, b, family, 1, 80);
        let reset = |seq| ip(b, a, family).tcp(80, 1, RST).seq(seq).build();
        lab.passes(b, a, reset(900));
        lab.passes(b, a, reset(1001 + 70_000));
        assert_eq!(state(&mut lab), FlowState::Established);
        // A frame that stands for many segments counts with all of its payload.
        let large = ip(b, a, family)
            .tcp(80, 1, ACK)
            .seq(1001)
            .ack(1001)
            .payload(&vec![7; 60_000]);
        lab.passes(b, a, large.build());
        lab.passes(b, a, reset(61_001));
        assert_eq!(
            (state(&mut lab), lab.sim.flows(None)[0].timeout_secs),
            (FlowState::Close, 10)
        );
        lab.wait(10);
        assert_eq!(lab.flows(), 0);
    }
}

#[test]
fn a_refused_connection_is_over_with_the_reset() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).seq(77).build());
        let reset = |ack| ip(b, a, family).tcp(80, 1, TcpFlags(0x14)).ack(ack).build();
        lab.passes(b, a, reset(9));
        assert_eq!(state(&mut lab), FlowState::SynSent);
        lab.passes(b, a, reset(78));
        assert_eq!(state(&mut lab), FlowState::Close);
    }
}

#[test]
fn window_scaling_widens_what_a_reset_may_be() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
    let family = Family::V4;
    let scale = [3, 3, 7];
    lab.passes(
        a,
        b,
        ip(a, b, family)
            .tcp(1, 80, SYN)
            .seq(0)
            .tcp_options(&scale)
            .build(),
    );
    lab.passes(
        b,
        a,
        ip(b, a, family)
            .tcp(80, 1, SYN_ACK)
            .seq(0)
            .ack(1)
            .tcp_options(&scale)
            .build(),
    );
    lab.passes(
        a,
        b,
        ip(a, b, family)
            .tcp(1, 80, ACK)
            .seq(1)
            .ack(1)
            .window(1000)
            .build(),
    );
    lab.passes(b, a, ip(b, a, family).tcp(80, 1, RST).seq(128_002).build());
    assert_eq!(state(&mut lab), FlowState::Established);
    lab.passes(b, a, ip(b, a, family).tcp(80, 1, RST).seq(128_001).build());
    assert_eq!(state(&mut lab), FlowState::Close);
}

#[test]
fn both_ends_may_open_at_once() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, SYN).seq(1).build());
        lab.passes(b, a, ip(b, a, family).tcp(80, 1, SYN).seq(1).build());
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, SYN_ACK).seq(1).ack(2).build(),
        );
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, SYN_ACK).seq(1).ack(2).build(),
        );
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, ACK).seq(2).ack(2).build());
        assert_eq!(state(&mut lab), FlowState::Established);
    }
}
