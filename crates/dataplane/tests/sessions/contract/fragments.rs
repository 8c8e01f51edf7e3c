//! security-groups.md 8: fragments follow their first one.

use dataplane::DropReason::*;
use wire::build;

use super::words::*;
use crate::lab::Lab;

/// A datagram of 4000 bytes in three fragments.
pub fn datagram(a: Nic, b: Nic, family: Family, dport: u16, id: u32) -> Vec<Vec<u8>> {
    let payload: Vec<u8> = (0..4000u32).map(|n| n as u8).collect();
    let whole = ip(a, b, family).udp(7, dport).payload(&payload).build();
    build::fragments(&whole, 1400, id)
}

/// security-groups.md 8.
pub fn later_fragments_get_what_the_first_one_got(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(UDP, 53)]);
    for fragment in datagram(a, b, family, 53, 1) {
        lab.passes(a, b, fragment);
    }
    // The answer is fragmented as well.
    let answer = ip(b, a, family).udp(53, 7).payload(&[3; 3000]).build();
    for fragment in build::fragments(&answer, 1400, 1) {
        lab.passes(b, a, fragment);
    }
    // Also of a flow of which whole datagrams are as well.
    lab.keeps_passing(a, b, udp(a, b, family, 7, 53));
    for fragment in datagram(a, b, family, 53, 3) {
        lab.passes(a, b, fragment);
    }
    assert_eq!(lab.flows(), 1);
    let refused = datagram(a, b, family, 54, 2);
    lab.refuses(a, refused[0].clone(), NoIngressRule);
    lab.refuses(a, refused[1].clone(), FragmentOfDropped);
    lab.refuses(a, refused[2].clone(), FragmentOfDropped);
}

/// security-groups.md 8.
pub fn overlapping_fragments_lose_the_rest_of_the_datagram(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(UDP, 53)]);
    lab.keeps_passing(a, b, udp(a, b, family, 7, 53));
    let parts = datagram(a, b, family, 53, 1);
    lab.passes(a, b, parts[0].clone());
    lab.refuses(a, parts[0].clone(), FragmentOverlap);
    lab.refuses(a, parts[1].clone(), FragmentOverlap);
    // Another datagram is not harmed.
    lab.passes(a, b, datagram(a, b, family, 53, 2)[0].clone());
    // A piece cut differently, over bytes that were sent.
    let payload = vec![9; 4000];
    let whole = ip(a, b, family).udp(7, 53).payload(&payload).build();
    let shifted = build::fragments(&whole, 1000, 2);
    lab.refuses(a, shifted[1].clone(), FragmentOverlap);
}

/// security-groups.md 8.
pub fn a_first_fragment_holds_its_headers(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    lab.connect(a, b, family, 7, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 7, 80));
    let whole = ip(a, b, family).tcp(7, 80, ACK).payload(&[1; 64]).build();
    let parts = build::fragments(&whole, 8, 1);
    lab.refuses(a, parts[0].clone(), FragmentTiny);
}
