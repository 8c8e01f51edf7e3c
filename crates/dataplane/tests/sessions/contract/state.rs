//! security-groups.md 6 and 11: what is remembered of flows, and of how many.

use dataplane::DropReason::*;
use dataplane::UnknownTcp;
use wire::build;
use wire::parse::TcpFlags;

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 6.
pub fn an_answer_passes_whatever_the_other_directions_rules_say(lab: &mut Lab, family: Family) {
    // B may be asked at port 53 and may not send anything by itself.
    let (a, b) = lab.two(vec![allow_in(UDP, 53), allow_out(TCP, 1)]);
    lab.refuses(b, udp(b, a, family, 53, 1000), NoEgressRule);
    lab.refuses(a, udp(a, b, family, 1000, 54), NoIngressRule);
    lab.passes(a, b, udp(a, b, family, 1000, 53));
    lab.keeps_passing(b, a, udp(b, a, family, 53, 1000));
    lab.keeps_passing(a, b, udp(a, b, family, 1000, 53));
    lab.refuses(b, udp(b, a, family, 53, 1001), NoEgressRule);
    lab.refuses(b, udp(b, a, family, 54, 1000), NoEgressRule);
    assert_eq!(lab.flows(), 1);
}

/// security-groups.md 6.
pub fn any_other_protocol_is_known_by_addresses_and_number(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(Some(47))]);
    let gre = |from, to| ip(from, to, family).protocol(47).payload(&[0; 8]).build();
    lab.refuses(b, gre(b, a), NoIngressRule);
    lab.passes(a, b, gre(a, b));
    lab.passes(b, a, gre(b, a));
    let esp = ip(b, a, family).protocol(50).payload(&[0; 8]).build();
    lab.refuses(b, esp, NoIngressRule);
}

/// security-groups.md 6.
pub fn a_connection_begins_with_a_syn_and_both_directions_pass(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80)]);
    lab.refuses(a, ip(a, b, family).tcp(1, 80, ACK).build(), TcpNotSyn);
    lab.refuses(a, ip(a, b, family).tcp(1, 80, SYN_ACK).build(), TcpNotSyn);
    lab.refuses(a, ip(a, b, family).tcp(1, 81, SYN).build(), NoIngressRule);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(b, a, amid(b, a, family, 80, 1));
    assert_eq!(lab.flows(), 1);
    lab.refuses(b, ip(b, a, family).tcp(81, 1, ACK).build(), NoIngressRule);
    // Flags that no TCP sends, amid it too.
    for flags in [0x00, 0x03, 0x06, 0x01, 0x3f] {
        let frame = ip(a, b, family).tcp(1, 80, TcpFlags(flags)).build();
        lab.refuses(a, frame, TcpBadFlags);
    }
    lab.passes(b, a, amid(b, a, family, 80, 1));
}

/// security-groups.md 6.
pub fn a_reset_ends_a_connection(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80)]);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(b, a, amid(b, a, family, 80, 1));
    // From outside the window it ends nothing.
    let reset = |seq| ip(a, b, family).tcp(1, 80, RST).seq(seq).build();
    lab.passes(a, b, reset(1001 + (1 << 30)));
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.passes(a, b, reset(1001));
    // From the other side it would have to be allowed at A.
    lab.refuses(b, ip(b, a, family).tcp(80, 1, SYN).build(), NoIngressRule);
    assert_eq!(lab.flows(), 0);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(b, a, amid(b, a, family, 80, 1));
}

/// security-groups.md 6.
pub fn a_group_may_let_connections_begin_in_the_middle(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80)]);
    let picky = lab.group_of(b, vec![allow_in(TCP, 80)]);
    lab.refuses(a, ip(a, b, family).tcp(1, 80, ACK).build(), TcpNotSyn);
    lab.unknown_tcp(picky, UnknownTcp::Adopt);
    // A reset or a SYN-ACK of nothing begins nothing all the same.
    lab.refuses(a, ip(a, b, family).tcp(1, 80, RST).build(), TcpNotSyn);
    lab.refuses(a, ip(a, b, family).tcp(1, 80, SYN_ACK).build(), TcpNotSyn);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.keeps_passing(b, a, amid(b, a, family, 80, 1));
    assert_eq!(lab.flows(), 1);
}

/// security-groups.md 6.
pub fn tcp_amid_an_unknown_connection_is_answered_by_a_reset(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80)]);
    let group = lab.group_of(b, vec![allow_in(TCP, 80)]);
    lab.settle();
    let segment = |flags| ip(a, b, family).tcp(1, 80, flags).seq(5000).ack(7000);
    let reset = ip(b, a, family).dont_fragment().tcp(80, 1, RST);
    let reset = reset.seq(7000).window(0).build();
    for flags in [ACK, FIN_ACK, ACK | TcpFlags::PSH] {
        lab.resets(a, segment(flags).build(), reset.clone());
        let data = segment(flags).payload(b"data");
        lab.resets(a, data.build(), reset.clone());
    }
    assert_eq!(lab.flows(), 0);
    // What a rule refuses is not answered, nor is who says that it ends.
    let other_port = ip(a, b, family).tcp(1, 81, ACK).ack(7000).build();
    lab.refuses(a, other_port, NoIngressRule);
    lab.refuses(a, segment(RST).build(), TcpNotSyn);
    lab.unknown_tcp(group, UnknownTcp::Drop);
    lab.refuses(a, segment(ACK).build(), TcpNotSyn);
    // One that the kernel has forwarded, and that was cut.
    lab.unknown_tcp(group, UnknownTcp::Reset);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    lab.configure(b, |config| config.groups.clear());
    lab.refuses(a, amid(a, b, family, 1, 80), NoIngressRule);
    lab.configure(b, |config| config.groups.push(group));
    let reset = build::frame(b.mac, a.mac).ip(b.ip(family), a.ip(family));
    let reset = reset.dont_fragment().tcp(80, 1, RST).seq(1001).window(0);
    lab.resets(a, amid(a, b, family, 1, 80), reset.build());
}

/// security-groups.md 11.
pub fn a_nic_that_fills_its_share_loses_its_own_new_flows(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80), allow_in(UDP, 53)]);
    let c = lab.nic();
    let share = lab.share(a);
    for port in 1..share {
        lab.connect(a, b, family, port, 80);
    }
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    // What is half open goes first, what nobody has answered yet as well.
    let syn = |nic, port| {
        let frame = ip(nic, b, family).tcp(port, 80, SYN);
        frame.seq(1000).build()
    };
    lab.passes(a, b, syn(a, 100));
    lab.passes(a, b, syn(a, 101));
    let answer = ip(b, a, family).tcp(80, 100, SYN_ACK).seq(1000).ack(1001);
    lab.refuses(b, answer.build(), NoIngressRule);
    let answer = ip(b, a, family).tcp(80, 101, SYN_ACK).seq(1000).ack(1001);
    lab.passes(b, a, answer.build());
    lab.passes(a, b, amid(a, b, family, 101, 80));
    // All are connections now, and in use, by whomever: nothing goes for a new one.
    lab.refuses(a, syn(a, 102), FlowShareFull);
    lab.refuses(a, udp(a, b, family, 102, 53), FlowShareFull);
    lab.keeps_passing(b, a, amid(b, a, family, 80, 1));
    // Another has its own.
    lab.connect(c, b, family, 1, 80);
    lab.keeps_passing(c, b, amid(c, b, family, 1, 80));
    assert_eq!(lab.flows(), usize::from(share) + 1);
}
