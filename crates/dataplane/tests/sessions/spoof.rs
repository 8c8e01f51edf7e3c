//! Who bypasses filtering sends in any name.

use std::net::IpAddr;

use dataplane::DropReason::*;
use wire::{Mac, build};

use crate::lab::*;

#[test]
fn who_bypasses_filtering_sends_from_any_mac_and_address_and_is_answered() {
    for (family, foreign) in [(Family::V4, "10.0.0.9"), (Family::V6, "2001:db8::9")] {
        let foreign: IpAddr = foreign.parse().unwrap();
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        let mac = Mac([2, 9, 9, 9, 9, 9]);
        let frame = build::frame(mac, b.mac)
            .ip(foreign, b.ip(family))
            .udp(1, 2)
            .build();
        lab.refuses(a, frame.clone(), MacSpoofed);
        lab.configure(a, |config| config.bypass = true);
        lab.passes(a, b, frame);
        // Where that machine is has been heard.
        let answer = build::frame(b.mac, mac).ip(b.ip(family), foreign).udp(2, 1);
        lab.passes(b, a, answer.build());
        // A NIC's own MAC stays where it is configured, whoever else sends from it.
        let c = lab.nic();
        lab.group_of(c, vec![allow_all_in(None)]);
        let stolen = build::frame(c.mac, b.mac)
            .ip(foreign, b.ip(family))
            .udp(3, 4);
        lab.passes(a, b, stolen.build());
        lab.passes(b, c, udp(b, c, family, 5, 6));
    }
}
