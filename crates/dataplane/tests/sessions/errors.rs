//! ICMP errors: from whom they may come, and for how long.

use std::net::IpAddr;

use dataplane::DropReason::*;

use crate::contract::errors::error;
use crate::lab::*;

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
