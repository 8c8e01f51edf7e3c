//! security-groups.md 5 and 9: a change is in force at once, and what it does to flows that are
//! there.

use dataplane::DropReason::*;
use dataplane::ruleset::{Direction, Peer};
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 5 and 9.
pub fn a_rule_taken_away_cuts_its_flows_at_once(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    let group = lab.group_of(b, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
    lab.connect(a, b, family, 1, 80);
    let (there, back) = (amid(a, b, family, 1, 80), amid(b, a, family, 80, 1));
    lab.keeps_passing(a, b, there.clone());
    lab.keeps_passing(b, a, back.clone());
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.set_rules(group, vec![allow_in(UDP, 53)]);
    lab.refuses(a, there.clone(), NoIngressRule);
    lab.refuses(b, back, NoIngressRule);
    lab.passes(a, b, udp(a, b, family, 1, 53));
    // The rule returns: the connection was cut and does not.
    lab.set_rules(group, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
    lab.refuses(a, there, TcpNotSyn);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
}

/// security-groups.md 9.
pub fn a_draining_groups_flows_live_on(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    let group = lab.group_of(b, vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
    lab.drain(group);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.set_rules(group, vec![]);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(b, a, udp(b, a, family, 53, 1));
    // Also when the group is gone altogether, and over several changes.
    lab.delete_group(group);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.refuses(a, udp(a, b, family, 2, 53), NoIngressRule);
    lab.refuses(a, ip(a, b, family).tcp(2, 80, SYN).build(), NoIngressRule);
    lab.passes(a, b, amid(a, b, family, 1, 80));
    // Until it closes.
    lab.passes(a, b, ip(a, b, family).tcp(1, 80, RST).seq(1001).build());
    lab.refuses(a, ip(a, b, family).tcp(1, 80, SYN).build(), NoIngressRule);
}

/// security-groups.md 4 and 9.
pub fn what_a_draining_group_let_out_lives_on(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![
        allow_in(TCP, 80),
        allow_in(UDP, 53),
        allow_in(UDP, 54),
    ]);
    let group = lab.group_of(a, vec![allow_out(TCP, 80), allow_out(UDP, 53)]);
    lab.drain(group);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.set_rules(group, vec![allow_out(UDP, 54)]);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    // Nor does it end when A names a group that is gone, of which it may begin nothing.
    lab.delete_group(group);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(a, b, udp(a, b, family, 1, 53));
    lab.keeps_passing(b, a, udp(b, a, family, 53, 1));
    lab.refuses(a, udp(a, b, family, 2, 53), NoEgressRule);
    lab.refuses(a, udp(a, b, family, 2, 54), NoEgressRule);
    lab.refuses(a, ip(a, b, family).tcp(2, 80, SYN).build(), NoEgressRule);
    lab.passes(a, b, ip(a, b, family).tcp(1, 80, RST).seq(1001).build());
    lab.refuses(a, ip(a, b, family).tcp(1, 80, SYN).build(), NoEgressRule);
}

/// security-groups.md 3 and 5.
pub fn members_and_addresses_move_while_flows_run(lab: &mut Lab, family: Family) {
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    let clients = lab.group(vec![]);
    let peer = Peer::Group(clients);
    lab.group_of(c, vec![rule(Direction::Ingress, Some(UDP), 53..=53, peer)]);
    lab.set_members(clients, &[a.ip(family)]);
    lab.keeps_passing(a, c, udp(a, c, family, 1, 53));
    lab.set_members(clients, &[]);
    lab.refuses(a, udp(a, c, family, 1, 53), NoIngressRule);

    // A's address goes over to B: A's flows of it are cut, and B may use it.
    lab.set_members(clients, &[a.ip(family)]);
    lab.keeps_passing(a, c, udp(a, c, family, 1, 53));
    let moved = a.ip(family);
    lab.configure(a, |config| {
        config.addresses.retain(|address| *address != moved)
    });
    lab.configure(b, |config| config.addresses.push(moved));
    lab.refuses(c, udp(c, a, family, 53, 1), NoIngressRule);
    let from_b = build::frame(b.mac, c.mac)
        .ip(moved, c.ip(family))
        .udp(1, 53)
        .build();
    lab.keeps_passing(b, c, from_b);
    lab.refuses(a, udp(a, c, family, 1, 53), IpSpoofed);
}

/// security-groups.md 5: the group's members and rules are still there.
pub fn a_nic_that_is_gone_is_reached_no_more(lab: &mut Lab, family: Family) {
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    lab.group_of(b, vec![allow_in(UDP, 53)]);
    for nic in [a, c] {
        lab.keeps_passing(nic, b, udp(nic, b, family, 1, 53));
        lab.keeps_passing(b, nic, udp(b, nic, family, 53, 1));
    }
    lab.delete(a);
    lab.refuses(b, udp(b, a, family, 53, 1), NoDestination);
    lab.passes(b, c, udp(b, c, family, 53, 1));
}

/// security-groups.md 5. Two groups swap their rules in one change: what one of both allows before
/// and after never stops, and what neither allows never passes.
pub fn no_packet_sees_half_of_a_change(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    let one = lab.group_of(b, vec![allow_in(UDP, 1)]);
    let two = lab.group_of(b, vec![allow_in(UDP, 2)]);
    let (good, bad) = (udp(a, b, family, 9, 1), udp(a, b, family, 9, 3));
    lab.keeps_passing(a, b, good.clone());
    for round in 0..10 {
        let pair = || [good.clone(), bad.clone()];
        let frames = (0..30).flat_map(|_| pair()).collect();
        let (first, second) = if round % 2 == 0 { (2, 1) } else { (1, 2) };
        let swap = [
            (one, vec![allow_in(UDP, first)]),
            (two, vec![allow_in(UDP, second)]),
        ];
        let arrived = lab.change_amid(a, b, frames, &swap);
        assert_eq!(arrived, vec![good.clone(); 30], "round {round}");
    }
}
