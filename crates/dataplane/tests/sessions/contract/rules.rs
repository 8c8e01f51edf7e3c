//! security-groups.md 1 to 4 and 12: rules, peers, defaults.

use dataplane::DropReason::*;
use dataplane::GroupIdx;
use dataplane::ruleset::{Direction, Peer};
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 4.
pub fn nothing_comes_in_and_own_addresses_go_out_by_default(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    lab.refuses(a, udp(a, b, family, 1000, 53), NoIngressRule);
    lab.group_of(b, vec![allow_all_in(None)]);
    lab.keeps_passing(a, b, udp(a, b, family, 1000, 53));

    lab.configure(a, |config| config.anti_spoof = false);
    let frame = build::frame(a.mac, b.mac).ip(foreign(family), b.ip(family));
    lab.refuses(a, frame.clone().udp(1, 2).build(), ForeignSource);

    // An egress rule is for whatever source; without one, who bypasses filtering needs none.
    let group = lab.group_of(a, vec![allow_out(UDP, 2)]);
    lab.keeps_passing(a, b, frame.clone().udp(1, 2).build());
    lab.refuses(a, frame.clone().udp(1, 3).build(), NoEgressRule);
    lab.set_rules(group, vec![]);
    lab.refuses(a, frame.clone().udp(1, 2).build(), ForeignSource);
    lab.configure(a, |config| config.bypass = true);
    lab.passes(a, b, frame.udp(1, 2).build());
}

/// security-groups.md 2.
pub fn a_rule_is_a_direction_a_protocol_and_a_range_of_ports(lab: &mut Lab, family: Family) {
    let range = |protocol| rule(Direction::Ingress, Some(protocol), 1000..=2000, Peer::Any);
    let (a, b) = lab.two(vec![range(UDP)]);
    for (port, passes) in [
        (999, false),
        (1000, true),
        (1500, true),
        (2000, true),
        (2001, false),
    ] {
        match passes {
            true => lab.passes(a, b, udp(a, b, family, 7, port)),
            false => lab.refuses(a, udp(a, b, family, 7, port), NoIngressRule),
        }
        let syn = ip(a, b, family).tcp(7, port, SYN).build();
        lab.refuses(a, syn, NoIngressRule);
    }
    lab.keeps_passing(a, b, udp(a, b, family, 7, 1500));
    // The other direction is another rule's.
    lab.refuses(b, udp(b, a, family, 7, 1500), NoIngressRule);
    lab.group_of(b, vec![range(TCP)]);
    lab.connect(a, b, family, 7, 2000);
    lab.keeps_passing(a, b, amid(a, b, family, 7, 2000));
}

/// security-groups.md 2.
pub fn icmp_rules_mean_icmpv6_too_and_name_types_and_codes(lab: &mut Lab, family: Family) {
    let echo: u16 = match family {
        Family::V4 => 8,
        Family::V6 => 128,
    };
    let (a, b) = lab.two(vec![allow_in(ICMP, echo << 8)]);
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

/// security-groups.md 4.
pub fn an_egress_rule_of_any_group_ends_the_default(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(Some(UDP)), allow_all_in(Some(TCP))]);
    lab.group_of(a, vec![]);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.group_of(a, vec![allow_out(UDP, 53)]);
    lab.passes(a, b, udp(a, b, family, 2, 53));
    lab.refuses(a, udp(a, b, family, 3, 54), NoEgressRule);
    lab.refuses(a, ip(a, b, family).tcp(3, 53, SYN).build(), NoEgressRule);
}

/// security-groups.md 1 and 3.
pub fn rules_of_all_groups_add_up_and_a_missing_group_allows_nothing(
    lab: &mut Lab,
    family: Family,
) {
    let (a, b) = (lab.nic(), lab.nic());
    let first = lab.group_of(b, vec![allow_in(UDP, 1)]);
    lab.group_of(b, vec![allow_in(UDP, 2)]);
    lab.configure(b, |config| config.groups.push(GroupIdx(77)));
    lab.keeps_passing(a, b, udp(a, b, family, 9, 1));
    lab.keeps_passing(a, b, udp(a, b, family, 9, 2));
    lab.refuses(a, udp(a, b, family, 9, 3), NoIngressRule);
    lab.delete_group(first);
    lab.refuses(a, udp(a, b, family, 9, 1), NoIngressRule);
    lab.passes(a, b, udp(a, b, family, 9, 2));
    // It returns, and works again.
    lab.set_rules(first, vec![allow_in(UDP, 1)]);
    lab.passes(a, b, udp(a, b, family, 8, 1));
}

/// security-groups.md 3 and 4.
pub fn a_nic_that_names_a_missing_group_sends_only_what_other_groups_allow(
    lab: &mut Lab,
    family: Family,
) {
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    let echo = || ip(a, b, family).echo_request(7, 1).build();
    let group = lab.group_of(a, vec![]);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
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

/// security-groups.md 3.
pub fn a_group_stands_for_its_members(lab: &mut Lab, family: Family) {
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    let clients = lab.group(vec![]);
    let rule = rule(Direction::Ingress, Some(UDP), 53..=53, Peer::Group(clients));
    lab.group_of(c, vec![rule]);
    lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);
    lab.set_members(clients, &[a.ip(family)]);
    lab.keeps_passing(a, c, udp(a, c, family, 1, 53));
    lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
    lab.set_members(clients, &[b.ip(family)]);
    lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);
    lab.keeps_passing(b, c, udp(b, c, family, 1, 53));
    lab.delete_group(clients);
    lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
}

/// security-groups.md 3.
pub fn a_network_is_one_family_and_its_prefix(lab: &mut Lab, family: Family) {
    let net = |text: &str| Peer::Net(text.parse().unwrap());
    let (own, other) = match family {
        Family::V4 => ("10.0.0.0/31", "::/0"),
        Family::V6 => ("2001:db8::/127", "0.0.0.0/0"),
    };
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    let allow = |peer| vec![rule(Direction::Ingress, None, 0..=u16::MAX, peer)];
    let group = lab.group_of(c, allow(net(own)));
    // 10.0.0.1 is in the /31 of 10.0.0.0, 10.0.0.2 is not.
    lab.keeps_passing(a, c, udp(a, c, family, 1, 53));
    lab.refuses(b, udp(b, c, family, 1, 53), NoIngressRule);
    lab.set_rules(group, allow(net(other)));
    lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);
}

/// security-groups.md 12.
pub fn what_both_sides_allow_altogether_takes_no_state(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    let open = lab.group(vec![allow_all_in(None)]);
    for nic in [a, b] {
        lab.configure(nic, |config| config.groups.push(open));
    }
    lab.passes(a, b, ip(a, b, family).tcp(1, 2, ACK).build());
    lab.passes(b, a, udp(b, a, family, 1, 2));
    assert_eq!(lab.flows(), 0);

    // One side less open, and it is remembered: TCP has to begin.
    lab.configure(a, |config| config.groups.clear());
    lab.refuses(a, ip(a, b, family).tcp(1, 2, ACK).build(), TcpNotSyn);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 2));
    assert_eq!(lab.flows(), 1);
    // A group that drains has to remember.
    lab.configure(a, |config| config.groups.push(open));
    lab.drain(open);
    lab.passes(a, b, udp(a, b, family, 5, 6));
    assert_eq!(lab.flows(), 2);
}
