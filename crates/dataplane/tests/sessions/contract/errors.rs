//! security-groups.md 7: ICMP errors belong to the flow that they quote.

use std::net::IpAddr;

use dataplane::DropReason::*;
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// `reporter` tells `to` about a frame that `to` has sent: destination unreachable (or
/// fragmentation needed and packet too big), quoting `len` bytes from the IP header.
pub fn error(
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
pub fn an_error_about_a_tracked_flow_passes_without_a_rule(lab: &mut Lab, family: Family) {
    let header = if family == Family::V4 { 20 } else { 40 };
    let (a, b) = lab.two(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
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
    lab.keeps_passing(a, b, data.clone());
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

/// security-groups.md 7.
pub fn errors_about_echos_are_matched_and_others_need_a_rule(lab: &mut Lab, family: Family) {
    let unreachable = match family {
        Family::V4 => 3u16 << 8 | 4,
        Family::V6 => 2 << 8,
    };
    let (a, b) = lab.two(vec![allow_in(ICMP, 8 << 8), allow_in(ICMP, 128 << 8)]);
    let echo = |id| {
        let frame = ip(a, b, family).echo_request(id, 1);
        frame.payload(&[0; 32]).build()
    };
    lab.passes(a, b, echo(7));
    lab.passes(b, a, error(b, b.ip(family), a, family, &echo(7), 60));
    let report = error(b, b.ip(family), a, family, &echo(8), 60);
    lab.refuses(b, report.clone(), NoIngressRule);
    lab.group_of(a, vec![allow_in(ICMP, unreachable)]);
    lab.passes(b, a, report);
    assert_eq!(lab.flows(), 1, "an error is no flow");
}
