//! security-groups.md 7: ICMP errors belong to the flow that they quote.

use std::net::IpAddr;

use dataplane::DropReason::*;
use wire::build;

use crate::lab::*;

/// `reporter` tells `to` about a frame that `to` has sent: destination unreachable (or
/// fragmentation needed and packet too big), quoting `len` bytes from the IP header.
fn error(
    reporter: Nic,
    from: IpAddr,
    to: Nic,
    family: Family,
    about: &[u8],
    len: usize,
) -> Vec<u8> {
    let (kind, code) = match family {
        Family::V4 => (3, 4),
        Family::V6 => (2, 0),
    };
    let quote = &about[14..about.len().min(14 + len)];
    let frame = build::frame(reporter.mac, to.mac).ip(from, to.ip(family));
    frame.icmp(kind, code, 1400).payload(quote).build()
}

/// security-groups.md 7.
#[test]
fn an_error_about_a_tracked_flow_passes_without_a_rule() {
    for family in FAMILIES {
        let header = if family == Family::V4 { 20 } else { 40 };
        let (mut lab, a, b) = Lab::pair(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
        lab.group_of(a, vec![allow_out(TCP, 80), allow_out(UDP, 53)]);
        let data = ip(a, b, family)
            .tcp(1, 80, ACK)
            .seq(1001)
            .ack(1001)
            .payload(&[1; 1400])
            .build();
        let report = |len| error(b, b.ip(family), a, family, &data, len);
        lab.refuses(b, report(header + 8), NoIngressRule);
        lab.connect(a, b, family, 1, 80);
        lab.passes(a, b, data.clone());
        lab.passes(b, a, report(header + 8));
        lab.passes(b, a, report(1400));
        // About what B has sent, for B.
        let answer = ip(b, a, family)
            .tcp(80, 1, ACK)
            .seq(1001)
            .ack(1001)
            .payload(&[1; 1400])
            .build();
        lab.passes(a, b, error(a, a.ip(family), b, family, &answer, header + 8));
        // Too short a quote, another port, a quote that the receiver did not send.
        lab.refuses(b, report(header + 4), NoIngressRule);
        let other = ip(a, b, family).tcp(2, 80, ACK).build();
        lab.refuses(
            b,
            error(b, b.ip(family), a, family, &other, 60),
            NoIngressRule,
        );
        lab.refuses(
            b,
            error(b, b.ip(family), a, family, &answer, 60),
            NoIngressRule,
        );
    }
}

#[test]
fn a_router_in_between_may_report_from_any_port_and_address() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let router = lab.nic();
        lab.configure(router, |config| config.anti_spoof = false);
        lab.group_of(router, vec![allow_all_out(None)]);
        let sent = udp(a, b, family, 1, 53);
        let hop: IpAddr = match family {
            Family::V4 => "192.0.2.1".parse().unwrap(),
            Family::V6 => "2001:db8:ffff::1".parse().unwrap(),
        };
        let report = error(router, hop, a, family, &sent, 60);
        lab.refuses(router, report.clone(), NoIngressRule);
        lab.passes(a, b, sent);
        lab.passes(router, a, report.clone());
        // It does not keep the flow alive, and ends with it.
        lab.wait(29);
        lab.passes(router, a, report.clone());
        lab.wait(1);
        lab.refuses(router, report, NoIngressRule);
    }
}

#[test]
fn an_error_about_a_flow_that_was_cut_is_cut_too() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(UDP, 53)]);
        let sent = udp(a, b, family, 1, 53);
        lab.passes(a, b, sent.clone());
        lab.set_rules(group, vec![]);
        lab.refuses(
            b,
            error(b, b.ip(family), a, family, &sent, 60),
            NoIngressRule,
        );
        assert_eq!(lab.flows(), 0);
    }
}

/// security-groups.md 7.
#[test]
fn errors_about_echos_are_matched_and_others_need_a_rule() {
    for (family, unreachable) in [(Family::V4, 3u16 << 8 | 4), (Family::V6, 2 << 8)] {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(ICMP, 8 << 8), allow_in(ICMP, 128 << 8)]);
        let ping = ip(a, b, family)
            .echo_request(7, 1)
            .payload(&[0; 32])
            .build();
        lab.passes(a, b, ping.clone());
        lab.passes(b, a, error(b, b.ip(family), a, family, &ping, 60));
        let other = ip(a, b, family)
            .echo_request(8, 1)
            .payload(&[0; 32])
            .build();
        let report = error(b, b.ip(family), a, family, &other, 60);
        lab.refuses(b, report.clone(), NoIngressRule);
        lab.group_of(a, vec![allow_in(ICMP, unreachable)]);
        lab.passes(b, a, report);
        assert_eq!(lab.flows(), 1, "an error is no flow");
    }
}
