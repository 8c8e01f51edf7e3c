//! Rules, peers and what is remembered: what of it takes a clock or a look inside.

use dataplane::DropReason::*;
use dataplane::RuleSlot;
use dataplane::flow::FlowState;

use crate::lab::*;
use wire::build;

/// What docs and `.proto` say of a NIC that was given no address.
#[test]
fn a_nic_without_addresses_sends_no_ip_but_from_its_link_local_address() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        lab.configure(a, |config| config.addresses.clear());
        let frame = udp(a, b, family, 1, 2);
        lab.refuses(a, frame.clone(), IpSpoofed);
        lab.configure(a, |config| config.anti_spoof = false);
        lab.refuses(a, frame.clone(), ForeignSource);
        lab.passes_to(a, &[b], build::arp_request(a.mac, a.v4, b.v4));
        let link_local = build::frame(a.mac, b.mac).ip(a.mac.link_local(), b.v6);
        lab.passes(a, b, link_local.udp(1, 2).build());
        lab.group_of(a, vec![allow_all_out(None)]);
        lab.passes(a, b, frame);
    }
}

#[test]
fn a_flow_is_listed_with_its_ends_its_counts_and_its_rules() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53), allow_out(TCP, 1)]);
        lab.passes(a, b, udp(a, b, family, 1000, 53));
        lab.passes(b, a, udp(b, a, family, 53, 1000));
        let flows = lab.sim.flows(None);
        assert_eq!(flows.len(), 1);
        let flow = &flows[0];
        assert_eq!((flow.initiator.uid, flow.responder.uid), (a.uid, b.uid));
        assert_eq!(
            (flow.initiator.address, flow.initiator.port),
            (a.ip(family), 1000)
        );
        assert_eq!(
            (flow.responder.address, flow.responder.port),
            (b.ip(family), 53)
        );
        assert_eq!(
            (flow.frames_out, flow.frames_in, flow.state),
            (1, 1, FlowState::Stream)
        );
        assert_eq!(
            (flow.egress_rule, flow.ingress_rule),
            (None, Some(RuleSlot(0)))
        );
    }
}

/// security-groups.md 10.
#[test]
fn any_other_protocol_has_ten_minutes() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(47))]);
        let gre = |from, to| ip(from, to, family).protocol(47).payload(&[0; 8]).build();
        lab.passes(a, b, gre(a, b));
        lab.wait(599);
        lab.passes(b, a, gre(b, a));
        lab.wait(600);
        lab.refuses(b, gre(b, a), NoIngressRule);
    }
}

#[test]
fn sctp_associations_begin_with_init() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(SCTP, 5000)]);
        let chunk = |from, to, s, d, tag, kind| {
            ip(from, to, family)
                .sctp(s, d, tag, kind)
                .payload(&[0; 16])
                .build()
        };
        lab.refuses(a, chunk(a, b, 6000, 5000, 5, 0), SctpNotInit);
        lab.passes(a, b, chunk(a, b, 6000, 5000, 0, 1));
        lab.passes(b, a, chunk(b, a, 5000, 6000, 11, 2));
        lab.passes(a, b, chunk(a, b, 6000, 5000, 22, 10));
        assert_eq!(lab.sim.flows(None)[0].state, FlowState::Opening);
        lab.passes(b, a, chunk(b, a, 5000, 6000, 11, 11));
        assert_eq!(lab.sim.flows(None)[0].state, FlowState::Established);
        // An abort with somebody else's tag ends nothing; one with the right tag does.
        lab.passes(a, b, chunk(a, b, 6000, 5000, 99, 6));
        assert_eq!(lab.sim.flows(None)[0].state, FlowState::Established);
        lab.passes(a, b, chunk(a, b, 6000, 5000, 22, 6));
        assert_eq!(lab.sim.flows(None)[0].state, FlowState::Close);
        lab.wait(10);
        lab.refuses(b, chunk(b, a, 5000, 6000, 11, 0), NoIngressRule);
    }
}

#[test]
fn what_takes_no_state_is_counted_by_its_rule() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let open = lab.group(vec![allow_all_in(None)]);
        for nic in [a, b] {
            lab.configure(nic, |config| config.groups.push(open));
        }
        lab.passes(a, b, ip(a, b, family).tcp(1, 2, ACK).build());
        lab.passes(b, a, udp(b, a, family, 1, 2));
        assert_eq!(lab.flows(), 0);
        assert_eq!(lab.sim.rule(RuleSlot(0)).frames, 2);
    }
}

#[test]
fn rules_count_flows_frames_and_bytes_of_both_directions() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 1), allow_in(UDP, 2)]);
    let frame = udp(a, b, Family::V4, 9, 2);
    let len = frame.len() as u64;
    lab.passes(a, b, frame.clone());
    lab.passes(a, b, frame);
    lab.passes(b, a, udp(b, a, Family::V4, 2, 9));
    let counted = lab.sim.rule(RuleSlot(1));
    assert_eq!(
        (counted.flows, counted.frames, counted.bytes),
        (1, 3, 3 * len)
    );
    assert_eq!(lab.sim.rule(RuleSlot(0)), Default::default());
    let counted = lab.sim.port(a.slot);
    assert_eq!((counted.rx_frames, counted.rx_bytes), (2, 2 * len));
    assert_eq!((counted.tx_frames, counted.tx_bytes), (1, len));
}

/// security-groups.md 10.
#[test]
fn udp_of_one_way_and_of_both_has_its_timeouts() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.wait(29);
        lab.passes(b, a, udp(b, a, family, 53, 1));
        lab.wait(179);
        lab.passes(b, a, udp(b, a, family, 53, 1));
        lab.wait(180);
        lab.refuses(b, udp(b, a, family, 53, 1), NoIngressRule);
        lab.passes(a, b, udp(a, b, family, 2, 53));
        lab.wait(30);
        lab.refuses(b, udp(b, a, family, 53, 2), NoIngressRule);

        // The shorter of what the two NICs want.
        lab.configure(a, |config| config.timeouts.udp_secs = 60);
        lab.configure(b, |config| config.timeouts.udp_secs = 40);
        lab.passes(a, b, udp(a, b, family, 3, 53));
        assert_eq!(lab.sim.flows(None)[0].timeout_secs, 40);
        lab.wait(39);
        lab.passes(b, a, udp(b, a, family, 53, 3));
    }
}

#[test]
fn two_packets_of_a_new_flow_in_one_batch_are_one_flow() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80)]);
    let frames = [
        ip(a, b, Family::V4).tcp(1, 80, SYN).seq(5).build(),
        ip(a, b, Family::V4).tcp(1, 80, SYN).seq(5).build(),
        udp(a, b, Family::V4, 1, 1),
    ];
    for frame in &frames {
        lab.queue(a, frame.clone(), Default::default());
    }
    assert_eq!(lab.sim.run(), 3);
    assert_eq!(lab.received(b), frames[..2]);
    assert_eq!((lab.flows(), lab.sim.rule(RuleSlot(0)).flows), (1, 1));
}

/// security-groups.md 9: of a connection that a group allowed which is not there nothing passes; it
/// goes on when the group is back and allows it still, and has no reset meanwhile.
#[test]
fn connections_wait_for_a_group_that_is_not_there() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(TCP, 80)]);
        // What a's other groups take does not begin a connection amid the one that waits.
        let senders = lab.group_of(a, vec![allow_in(TCP, 1)]);
        lab.connect(a, b, family, 1, 80);
        let amid = |from, to, sport, dport| ip(from, to, family).tcp(sport, dport, ACK).build();
        for (gone, rules, reasons) in [
            (group, allow_in(TCP, 80), [NoIngressRule, NoEgressRule]),
            (senders, allow_in(TCP, 1), [NoEgressRule, NoIngressRule]),
        ] {
            lab.delete_group(gone);
            for _ in 0..2 {
                lab.refuses(a, amid(a, b, 1, 80), reasons[0]);
                lab.refuses(b, amid(b, a, 80, 1), reasons[1]);
            }
            assert_eq!(lab.flows(), 1);
            lab.set_rules(gone, vec![rules]);
            lab.passes(a, b, amid(a, b, 1, 80));
            lab.passes(b, a, amid(b, a, 80, 1));
        }
        // Back without that rule, it ends; and so it does when one begins in its place.
        lab.delete_group(group);
        lab.set_rules(group, vec![allow_in(TCP, 81)]);
        lab.refuses(a, amid(a, b, 1, 80), NoIngressRule);
        assert_eq!(lab.flows(), 0);
        let more = lab.group_of(a, vec![]);
        lab.connect(a, b, family, 1, 81);
        lab.delete_group(more);
        lab.refuses(a, amid(a, b, 1, 81), NoEgressRule);
        lab.passes(b, a, ip(b, a, family).tcp(81, 1, SYN).build());
        assert_eq!(lab.flows(), 1);
    }
}
