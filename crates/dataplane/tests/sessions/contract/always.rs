//! security-groups.md 13 and 15: what passes always, never, and unfiltered.

use std::net::Ipv6Addr;

use dataplane::DropReason::*;
use wire::Mac;
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 13.
pub fn arp_and_neighbour_discovery_pass_without_a_rule(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    if family == Family::V4 {
        lab.passes(a, b, build::arp_request(a.mac, a.v4, b.v4));
        lab.passes(b, a, build::arp_reply(b.mac, b.v4, a.mac, a.v4));
        return;
    }
    lab.passes(a, b, build::neighbour_solicitation(a.mac, a.v6, b.v6));
    lab.passes(
        b,
        a,
        build::neighbour_advertisement(b.mac, b.v6, a.mac, a.v6),
    );
    lab.passes(
        a,
        b,
        build::neighbour_solicitation(a.mac, Ipv6Addr::UNSPECIFIED, a.v6),
    );
    let solicitation = build::frame(a.mac, Mac([0x33, 0x33, 0, 0, 0, 2]))
        .ip(a.mac.link_local(), "ff02::2".parse::<Ipv6Addr>().unwrap())
        .ttl(255)
        .icmp(133, 0, 0);
    lab.passes(a, b, solicitation.build());
    assert_eq!(lab.flows(), 0);
}

/// security-groups.md 13.
pub fn router_advertisements_and_redirects_need_permission(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(Some(ICMP))]);
    let told = match family {
        Family::V6 => {
            let body = [b.v6.octets(), a.v6.octets()].concat();
            let redirect = build::frame(a.mac, b.mac)
                .ip(a.mac.link_local(), b.v6)
                .ttl(255)
                .icmp(137, 0, 0);
            let redirect = redirect.payload(&body).build();
            [build::router_advertisement(a.mac), redirect]
        }
        Family::V4 => [9, 5].map(|kind| {
            let told = ip(a, b, family).icmp(kind, 0, 0x0a00_0009);
            told.payload(&udp(b, a, family, 1, 2)[14..]).build()
        }),
    };
    for frame in &told {
        lab.refuses(a, frame.clone(), RouterAdvertisement);
    }
    lab.configure(a, |config| config.allow_router_advertisements = true);
    for frame in told {
        lab.passes(a, b, frame);
    }
}

/// security-groups.md 13.
pub fn dhcp_clients_ask_and_only_servers_answer(lab: &mut Lab, family: Family) {
    let (a, b) = (lab.nic(), lab.nic());
    let asks = |n, id| match family {
        Family::V4 => build::dhcp_request(a.mac, n, id),
        Family::V6 => build::dhcpv6_request(a.mac, n, id),
    };
    let answer = match family {
        Family::V4 => build::dhcp_answer(b.mac, b.v4, a.mac, a.v4, 2, 77),
        Family::V6 => build::dhcpv6_answer(b.mac, a.mac, a.mac.link_local(), 2, 77),
    };
    lab.passes(a, b, asks(1, 77));
    lab.refuses(b, answer.clone(), DhcpServer);
    lab.configure(b, |config| config.allow_dhcp_server = true);
    lab.passes(b, a, answer);
    // An egress rule does not take it away.
    lab.group_of(a, vec![allow_out(TCP, 1)]);
    lab.passes(a, b, asks(3, 78));
    assert_eq!(lab.flows(), 0);
}

/// security-groups.md 15.
pub fn a_nic_that_bypasses_filtering_is_not_filtered(lab: &mut Lab, family: Family) {
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    for nic in [a, b] {
        lab.configure(nic, |config| config.bypass = true);
    }
    let foreign = build::frame(a.mac, b.mac).ip(c.ip(family), b.ip(family));
    lab.passes(a, b, foreign.udp(1, 2).build());
    lab.passes(a, b, ip(a, b, family).tcp(1, 2, ACK).build());
    let unknown = |to: Nic| {
        let frame = build::frame(a.mac, to.mac).ethertype(0x88b5);
        frame.payload(&[1; 46]).build()
    };
    lab.passes(a, b, unknown(b));
    let tagged = build::frame(a.mac, b.mac).tag(5);
    let tagged = tagged.ip(a.ip(family), b.ip(family)).udp(1, 2);
    lab.passes(a, b, tagged.build());
    // From any MAC.
    let other_mac = build::frame(c.mac, b.mac).ip(a.ip(family), b.ip(family));
    lab.passes(a, b, other_mac.udp(3, 4).build());
    // Its side alone: C's rules hold, and other types need both.
    lab.refuses(a, udp(a, c, family, 1, 2), NoIngressRule);
    lab.refuses(a, unknown(c), Ethertype);
    // What C began is answered: C keeps state.
    lab.keeps_passing(c, a, udp(c, a, family, 1, 2));
    lab.keeps_passing(a, c, udp(a, c, family, 2, 1));
}

/// security-groups.md 15.
pub fn a_sniffer_gets_copies_and_sends_nothing(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(UDP, 53)]);
    let asked = udp(a, b, family, 1, 53);
    // Nor does it miss anything of a flow that was going on without it.
    lab.keeps_passing(a, b, asked.clone());
    let sniffer = lab.nic();
    lab.sniffs(sniffer, a);
    lab.passes_to(a, &[b, sniffer], asked);
    lab.passes_to(b, &[a, sniffer], udp(b, a, family, 53, 1));
    // What A is not delivered is not seen.
    lab.refuses(b, udp(b, a, family, 9, 9), NoIngressRule);
    lab.refuses(sniffer, udp(sniffer, a, family, 1, 2), SnifferSends);
    // A broadcast of B's is not for it, but as A's copy: once.
    let broadcast = match family {
        Family::V4 => build::arp_request(b.mac, b.v4, a.v4),
        Family::V6 => build::neighbour_solicitation(b.mac, b.v6, a.v6),
    };
    lab.passes_to(b, &[a, sniffer], broadcast);
}
