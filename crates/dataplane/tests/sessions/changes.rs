//! security-groups.md 5 and 9: a change is in force at once, and what it does to flows that are
//! there.

use dataplane::DropReason::*;
use dataplane::RuleSlot;
use dataplane::flow::FlowState;

use crate::lab::*;

#[test]
fn the_responders_next_packet_is_cut_as_well_and_judged_as_its_own() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.set_rules(group, vec![]);
        lab.refuses(b, udp(b, a, family, 53, 1), NoIngressRule);
        lab.group_of(a, vec![allow_all_in(Some(TCP))]);
        // A would let B in, but not in the middle.
        lab.refuses(
            b,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).build(),
            TcpNotSyn,
        );
        assert_eq!(lab.flows(), 0);
    }
}

#[test]
fn a_flow_that_another_rule_allows_goes_on_and_counts_there() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(TCP, 80)]);
        lab.connect(a, b, family, 1, 80);
        lab.set_rules(group, vec![allow_in(UDP, 1), allow_all_in(Some(TCP))]);
        lab.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build(),
        );
        assert_eq!(lab.sim.rule(RuleSlot(1)).flows, 1);
        assert_eq!(lab.sim.flows(None)[0].ingress_rule, Some(RuleSlot(1)));
    }
}

/// security-groups.md 9.
#[test]
fn a_draining_groups_flows_live_until_they_close_or_time_out() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        lab.change_group(group, |group| group.drain = true);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.set_rules(group, vec![]);
        let counted = lab.sim.rule(RuleSlot(0));
        lab.passes(
            a,
            b,
            ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001).build(),
        );
        lab.passes(b, a, udp(b, a, family, 53, 1));
        assert_eq!(
            lab.sim.rule(RuleSlot(0)),
            counted,
            "the slot may be another rule's by now"
        );
        // Also when the group is gone altogether, and over several changes.
        lab.delete_group(group);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.refuses(a, udp(a, b, family, 2, 53), NoIngressRule);
        lab.refuses(a, ip(a, b, family).tcp(2, 80, SYN).build(), NoIngressRule);
        lab.wait(180);
        lab.refuses(a, udp(a, b, family, 1, 53), NoIngressRule);
        lab.passes(a, b, ip(a, b, family).tcp(1, 80, RST).seq(1001).build());
        assert_eq!(lab.sim.flows(None)[0].state, FlowState::Close);
        lab.wait(10);
        lab.refuses(a, ip(a, b, family).tcp(1, 80, ACK).build(), NoIngressRule);
    }
}

#[test]
fn each_side_drains_by_itself() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let out = lab.group_of(a, vec![allow_out(UDP, 53)]);
        let into = lab.group_of(b, vec![allow_in(UDP, 53)]);
        lab.change_group(into, |group| group.drain = true);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        // A's group cuts, whatever B's does.
        lab.set_rules(out, vec![allow_out(UDP, 1)]);
        lab.refuses(a, udp(a, b, family, 1, 53), NoEgressRule);
        assert_eq!(lab.flows(), 0);
    }
}

#[test]
fn a_nic_that_is_gone_takes_its_flows_with_it() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        lab.group_of(b, vec![allow_in(UDP, 53)]);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        let a2 = lab.replace(a);
        assert_eq!(lab.flows(), 0, "those it had begun go at once");
        lab.refuses(b, udp(b, a2, family, 53, 1), NoIngressRule);

        lab.passes(a2, b, udp(a2, b, family, 1, 53));
        let b2 = lab.replace(b);
        lab.wait(10);
        assert_eq!(lab.flows(), 0, "those it had answered are swept");
        lab.refuses(b2, udp(b2, a2, family, 53, 1), NoIngressRule);
        lab.delete(a2);
        lab.refuses(b2, udp(b2, a2, family, 53, 1), NoDestination);
    }
}

#[test]
fn a_removed_flow_begins_anew_or_not_at_all() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, ip(a, b, family).udp(2, 53).build());
        let flows = lab.sim.flows(None);
        assert_eq!(flows.len(), 2);
        assert!(flows.iter().all(|flow| flow.is_current));
        assert_eq!(lab.sim.remove_flows(&flows), 2);
        assert_eq!(lab.sim.remove_flows(&flows), 0, "they are gone");
        assert_eq!(lab.sim.flows(None), []);
        // An answer needs its flow, TCP its beginning; a datagram that is allowed is another one.
        lab.refuses(b, ip(b, a, family).udp(53, 2).build(), NoIngressRule);
        let ack = ip(a, b, family).tcp(1, 80, ACK).seq(1).ack(1).build();
        lab.refuses(a, ack, TcpNotSyn);
        lab.passes(a, b, ip(a, b, family).udp(2, 53).build());
        lab.connect(a, b, family, 1, 80);
        assert_eq!(lab.sim.flows(None).len(), 2);
    }
}

#[test]
fn exported_flows_go_on_after_an_import() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![
            allow_in(TCP, 80),
            allow_in(ICMP, 8 << 8),
            allow_in(ICMP, 128 << 8),
        ]);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, ip(a, b, family).echo_request(9, 1).build());
        let flows = lab.sim.flows(Some(a.uid));
        assert_eq!(flows.len(), 2);
        assert_eq!(lab.sim.import_flows(flows.clone()), 0, "they are there");
        assert_eq!(lab.sim.flows(Some(dataplane::PortUid(1))), []);

        let (mut other, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
        assert_eq!(other.sim.import_flows(flows.clone()), 2);
        let imported = other.sim.flows(None);
        assert_eq!(imported.len(), 2);
        for flow in &imported {
            let before = flows.iter().find(|f| f.protocol == flow.protocol).unwrap();
            let expected = dataplane::flow::FlowInfo {
                is_current: false,
                egress_rule: None,
                ingress_rule: None,
                ..before.clone()
            };
            assert_eq!(*flow, expected);
        }
        other.passes(
            b,
            a,
            ip(b, a, family).tcp(80, 1, ACK).seq(1001).ack(1001).build(),
        );
        // No rule here allows the echo: it is judged anew.
        other.refuses(b, ip(b, a, family).echo_reply(9, 1).build(), NoIngressRule);
        other.passes(b, a, ip(b, a, family).tcp(80, 1, RST).seq(1001).build());
        assert_eq!(other.sim.flows(None)[0].state, FlowState::Close);
    }
}
