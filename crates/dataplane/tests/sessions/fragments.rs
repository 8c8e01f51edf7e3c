//! Fragments follow their first one: what of it takes a clock or a look inside.

use dataplane::DropReason::*;
use wire::build;

use crate::contract::errors::error;
use crate::contract::fragments::datagram;
use crate::lab::*;

#[test]
fn a_datagram_that_is_whole_is_forgotten() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        for fragment in datagram(a, b, family, 53, 1) {
            lab.passes(a, b, fragment);
        }
        assert_eq!(
            lab.sim.load().datagrams,
            0,
            "it was whole, and is forgotten"
        );
        assert_eq!(lab.sim.flows(None)[0].frames_out, 3);
    }
}

/// An error that quotes much may be fragmented: what a later fragment holds is no quote.
#[test]
fn an_error_about_a_flow_passes_with_all_its_fragments() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let sent = |sport, fill: &[u8]| {
            let packet = ip(a, b, family).udp(sport, 53);
            packet.payload(fill).build()
        };
        lab.passes(a, b, sent(1, &[1; 1400]));
        let report = |about: &[u8], id| {
            let whole = error(b, b.ip(family), a, family, about, 1400);
            build::fragments(&whole, 512, id)
        };
        for fragment in report(&sent(1, &[1; 1400]), 1) {
            lab.passes(b, a, fragment);
        }
        // Whatever the later ones hold: also where they look as if they quoted another packet.
        let quote = &sent(1, b"hello")[14..];
        let filled: Vec<u8> = quote.iter().copied().cycle().take(1400).collect();
        let refused = report(&sent(2, &filled), 2);
        assert!(refused.len() > 2);
        lab.refuses(b, refused[0].clone(), NoIngressRule);
        for later in &refused[1..] {
            lab.refuses(b, later.clone(), FragmentOfDropped);
        }
    }
}

#[test]
fn fragments_that_come_early_wait_for_the_first() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let parts = datagram(a, b, family, 53, 1);
        let before = lab.drops();
        lab.send(a, parts[2].clone());
        lab.send(a, parts[1].clone());
        lab.silent();
        assert_eq!(lab.sim.load().held_fragments, 2);
        lab.send(a, parts[0].clone());
        let mut arrived = lab.received(b);
        assert_eq!(arrived.remove(0), parts[0]);
        arrived.sort();
        let mut expected = parts[1..].to_vec();
        expected.sort();
        assert_eq!(arrived, expected);
        assert_eq!(difference(&before, &lab.drops()), []);
        assert_eq!(
            (lab.sim.load().held_fragments, lab.sim.load().datagrams),
            (0, 0)
        );
        // Counted once each.
        assert_eq!(lab.sim.port(a.slot).rx_frames, 3);
    }
}

#[test]
fn the_first_one_refused_takes_those_that_wait_with_it() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let parts = datagram(a, b, family, 54, 1);
        let before = lab.drops();
        for part in [1, 0, 2] {
            lab.send(a, parts[part].clone());
        }
        assert_eq!(
            difference(&before, &lab.drops()),
            [(NoIngressRule, 1), (FragmentOfDropped, 2)]
        );
        lab.silent();
    }
}

#[test]
fn the_first_one_has_a_second_to_come() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let before = lab.drops();
        lab.send(a, datagram(a, b, family, 53, 1)[1].clone());
        lab.wait(1);
        assert_eq!(
            difference(&before, &lab.drops()),
            [(FragmentWithoutFirst, 1)]
        );
        assert_eq!(lab.sim.load().held_fragments, 0);
        // More than are held back for one NIC are dropped at once.
        for id in 10..42 {
            lab.send(a, datagram(a, b, family, 53, id)[1].clone());
        }
        assert_eq!(lab.sim.load().held_fragments, 32);
        lab.refuses(
            a,
            datagram(a, b, family, 53, 99)[1].clone(),
            FragmentWithoutFirst,
        );
        lab.wait(1);
        assert_eq!(lab.sim.load().held_fragments, 0);
        lab.silent();
    }
}

#[test]
fn the_first_one_is_remembered_for_thirty_seconds() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let parts = datagram(a, b, family, 53, 1);
        lab.passes(a, b, parts[0].clone());
        lab.wait(29);
        lab.passes(a, b, parts[1].clone());
        lab.wait(1);
        assert_eq!(lab.sim.load().datagrams, 0);
        let before = lab.drops();
        lab.send(a, parts[2].clone());
        lab.wait(2);
        assert_eq!(
            difference(&before, &lab.drops()),
            [(FragmentWithoutFirst, 1)]
        );
    }
}

#[test]
fn extension_headers_in_the_first_fragment_count() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let whole = ip(a, b, Family::V6)
        .extension(60, &[1, 4])
        .udp(7, 53)
        .payload(&[4; 3000])
        .build();
    for fragment in build::fragments(&whole, 1400, 5) {
        lab.passes(a, b, fragment);
    }
    assert_eq!(lab.sim.load().datagrams, 0, "the pieces join");
}

#[test]
fn the_table_is_bounded_for_each_nic() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let c = lab.nic();
        // An eighth of 256.
        for id in 0..32 {
            lab.passes(a, b, datagram(a, b, family, 53, id)[0].clone());
        }
        lab.refuses(
            a,
            datagram(a, b, family, 53, 99)[0].clone(),
            FragmentTableFull,
        );
        lab.passes(c, b, datagram(c, b, family, 53, 99)[0].clone());
        lab.wait(30);
        lab.passes(a, b, datagram(a, b, family, 53, 99)[0].clone());
    }
}

#[test]
fn a_change_of_rules_reaches_datagrams_on_their_way() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let group = lab.group_of(b, vec![allow_in(UDP, 53)]);
        let parts = datagram(a, b, family, 53, 1);
        lab.passes(a, b, parts[0].clone());
        lab.set_rules(group, vec![]);
        lab.refuses(a, parts[1].clone(), NoIngressRule);
    }
}

#[test]
fn a_bypassing_senders_fragments_are_judged_for_those_that_are_filtered() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let c = lab.nic();
        for nic in [a, c] {
            lab.configure(nic, |config| config.bypass = true);
        }
        for fragment in datagram(a, b, family, 53, 1) {
            lab.passes(a, b, fragment);
        }
        // To another one that bypasses they pass as they come.
        for fragment in datagram(a, c, family, 53, 2).into_iter().rev() {
            lab.passes(a, c, fragment);
        }
        lab.refuses(a, datagram(a, b, family, 53, 3)[1].clone(), NoIngressRule);
    }
}
