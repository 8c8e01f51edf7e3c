//! security-groups.md 1 to 6 and 12: rules, peers, defaults, state.

use dataplane::DropReason::*;
use dataplane::flow::FlowState;
use dataplane::ruleset::{Direction, Peer};
use dataplane::{AddressSet, GroupIdx, RuleSlot};

use crate::lab::*;
use wire::build;

/// security-groups.md 4.
#[test]
fn nothing_comes_in_and_own_addresses_go_out_by_default() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        lab.refuses(a, udp(a, b, family, 1000, 53), NoIngressRule);
        lab.group_of(b, vec![allow_all_in(None)]);
        lab.passes(a, b, udp(a, b, family, 1000, 53));

        lab.configure(a, |config| config.anti_spoof = false);
        let foreign = match family {
            Family::V4 => "10.9.9.9",
            Family::V6 => "2001:db8:9::9",
        };
        let foreign: std::net::IpAddr = foreign.parse().unwrap();
        let frame = build::frame(a.mac, b.mac).ip(foreign, b.ip(family));
        lab.refuses(a, frame.clone().udp(1, 2).build(), ForeignSource);

        // An egress rule is for whatever source; without one, who bypasses filtering needs none.
        let group = lab.group_of(a, vec![allow_out(UDP, 2)]);
        lab.passes(a, b, frame.clone().udp(1, 2).build());
        lab.refuses(a, frame.clone().udp(1, 3).build(), NoEgressRule);
        lab.set_rules(group, vec![]);
        lab.refuses(a, frame.clone().udp(1, 2).build(), ForeignSource);
        lab.configure(a, |config| config.bypass = true);
        lab.passes(a, b, frame.udp(1, 2).build());
    }
}

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

/// security-groups.md 6.
#[test]
fn an_answer_passes_whatever_the_other_directions_rules_say() {
    for family in FAMILIES {
        // B may be asked at port 53 and may not send anything by itself.
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53), allow_out(TCP, 1)]);
        lab.refuses(b, udp(b, a, family, 53, 1000), NoEgressRule);
        lab.refuses(a, udp(a, b, family, 1000, 54), NoIngressRule);
        lab.passes(a, b, udp(a, b, family, 1000, 53));
        lab.passes(b, a, udp(b, a, family, 53, 1000));
        lab.refuses(b, udp(b, a, family, 53, 1001), NoEgressRule);

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

/// security-groups.md 4.
#[test]
fn an_egress_rule_of_any_group_ends_the_default() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP)), allow_all_in(Some(TCP))]);
        lab.group_of(a, vec![]);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.group_of(a, vec![allow_out(UDP, 53)]);
        lab.passes(a, b, udp(a, b, family, 2, 53));
        lab.refuses(a, udp(a, b, family, 3, 54), NoEgressRule);
        lab.refuses(a, ip(a, b, family).tcp(3, 53, SYN).build(), NoEgressRule);
    }
}

/// security-groups.md 1 and 3.
#[test]
fn rules_of_all_groups_add_up_and_a_missing_group_allows_nothing() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let first = lab.group_of(b, vec![allow_in(UDP, 1)]);
        lab.group_of(b, vec![allow_in(UDP, 2)]);
        lab.configure(b, |config| config.groups.push(GroupIdx(77)));
        lab.passes(a, b, udp(a, b, family, 9, 1));
        lab.passes(a, b, udp(a, b, family, 9, 2));
        lab.refuses(a, udp(a, b, family, 9, 3), NoIngressRule);
        lab.delete_group(first);
        lab.refuses(a, udp(a, b, family, 8, 1), NoIngressRule);
        lab.passes(a, b, udp(a, b, family, 8, 2));
        // It returns, and works again.
        lab.set_rules(first, vec![allow_in(UDP, 1)]);
        lab.passes(a, b, udp(a, b, family, 8, 1));
    }
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

/// security-groups.md 3.
#[test]
fn a_nic_that_names_a_missing_group_sends_only_what_other_groups_allow() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let echo = || ip(a, b, family).echo_request(7, 1).build();
        let group = lab.group_of(a, vec![]);
        lab.passes(a, b, udp(a, b, family, 1, 53));
        lab.passes(a, b, echo());
        // Deleted: new flows and those that are there stop at once.
        lab.delete_group(group);
        lab.refuses(a, udp(a, b, family, 1, 53), NoEgressRule);
        lab.refuses(a, echo(), NoEgressRule);
        // It may still answer what may come in by another group, and use the network as it is told
        // to.
        lab.group_of(a, vec![allow_in(UDP, 7)]);
        lab.passes(b, a, udp(b, a, family, 9, 7));
        lab.passes(a, b, udp(a, b, family, 7, 9));
        let who = match family {
            Family::V4 => build::arp_request(a.mac, a.v4, b.v4),
            Family::V6 => build::neighbour_solicitation(a.mac, a.v6, b.v6),
        };
        lab.passes(a, b, who);
        // Another group's egress rule allows what it says, also between two NICs that would allow
        // everything.
        lab.group_of(b, vec![allow_all_out(None)]);
        lab.refuses(a, udp(a, b, family, 2, 53), NoEgressRule);
        lab.group_of(a, vec![allow_out(UDP, 53)]);
        lab.passes(a, b, udp(a, b, family, 2, 53));
        lab.refuses(a, udp(a, b, family, 2, 54), NoEgressRule);
        // It is there again, and without egress rules; the other group's is still one.
        lab.set_rules(group, vec![]);
        lab.refuses(a, udp(a, b, family, 2, 54), NoEgressRule);
        // A NIC that is added before its group, as after a restart.
        let c = lab.nic();
        lab.configure(c, |config| config.groups.push(GroupIdx(77)));
        lab.refuses(c, udp(c, b, family, 2, 53), NoEgressRule);
        lab.configure(c, |config| config.groups.clear());
        lab.passes(c, b, udp(c, b, family, 2, 53));
    }
}

#[test]
fn a_group_stands_for_its_members() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        let clients = lab.group(vec![]);
        let rule = rule(Direction::Ingress, Some(UDP), 53..=53, Peer::Group(clients));
        lab.group_of(c, vec![rule]);
        let members = |nic: Nic| -> AddressSet { [nic.ip(family)].into_iter().collect() };
        lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);
        lab.change_group(clients, |group| group.members = members(a));
        lab.passes(a, c, udp(a, c, family, 1, 53));
        lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
        lab.change_group(clients, |group| group.members = members(b));
        lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);
        lab.passes(b, c, udp(b, c, family, 1, 53));
        lab.delete_group(clients);
        lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
    }
}

/// security-groups.md 3.
#[test]
fn a_network_is_one_family_and_its_prefix() {
    let net = |text: &str| Peer::Net(text.parse().unwrap());
    for (family, own, other) in [
        (Family::V4, "10.0.0.0/31", "::/0"),
        (Family::V6, "2001:db8::/127", "0.0.0.0/0"),
    ] {
        let mut lab = Lab::new();
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        let allow = |peer| vec![rule(Direction::Ingress, None, 0..=u16::MAX, peer)];
        let group = lab.group_of(c, allow(net(own)));
        // 10.0.0.1 is in the /31 of 10.0.0.0, 10.0.0.2 is not.
        lab.passes(a, c, udp(a, c, family, 1, 53));
        lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
        lab.set_rules(group, allow(net(other)));
        lab.refuses(a, udp(a, c, family, 2, 53), NoIngressRule);
    }
}

/// security-groups.md 2.
#[test]
fn icmp_rules_mean_icmpv6_too_and_name_types_and_codes() {
    for (family, echo) in [(Family::V4, 8u16), (Family::V6, 128)] {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(ICMP, echo << 8)]);
        let ping = |id| {
            ip(a, b, family)
                .echo_request(id, 1)
                .payload(b"ping")
                .build()
        };
        let pong = |id| ip(b, a, family).echo_reply(id, 1).payload(b"ping").build();
        lab.passes(a, b, ping(7));
        lab.passes(b, a, pong(7));
        // The answer to a question that nobody asked: A takes nothing.
        lab.refuses(b, pong(8), NoIngressRule);
        // B's own question with the id of A's.
        lab.refuses(
            b,
            ip(b, a, family).echo_request(7, 1).build(),
            NoIngressRule,
        );
        let other = ip(a, b, family).icmp(echo as u8, 1, 7 << 16).build();
        lab.refuses(a, other, NoIngressRule);
    }
}

/// security-groups.md 6.
#[test]
fn any_other_protocol_is_known_by_addresses_and_number() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(47))]);
        let gre = |from, to| ip(from, to, family).protocol(47).payload(&[0; 8]).build();
        lab.refuses(b, gre(b, a), NoIngressRule);
        lab.passes(a, b, gre(a, b));
        lab.passes(b, a, gre(b, a));
        let esp = ip(b, a, family).protocol(50).payload(&[0; 8]).build();
        lab.refuses(b, esp, NoIngressRule);
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

/// security-groups.md 12.
#[test]
fn what_both_sides_allow_altogether_takes_no_state() {
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

        // One side less open, and it is remembered: TCP has to begin.
        lab.configure(a, |config| config.groups.clear());
        lab.refuses(a, ip(a, b, family).tcp(1, 2, ACK).build(), TcpNotSyn);
        lab.passes(a, b, udp(a, b, family, 1, 2));
        assert_eq!(lab.flows(), 1);
        // A group that drains has to remember.
        lab.configure(a, |config| config.groups.push(open));
        lab.change_group(open, |group| group.drain = true);
        lab.passes(a, b, udp(a, b, family, 5, 6));
        assert_eq!(lab.flows(), 2);
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
