//! Links that are down, and NICs that are announced to their network.

use dataplane::DropReason::*;
use dataplane::simulation::Simulation;
use wire::{Mac, build};

use crate::lab::*;

#[test]
fn nothing_passes_a_link_that_is_down_and_all_of_it_when_it_is_up_again() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
        lab.group_of(a, vec![allow_all_in(None)]);
        // Known flows of both directions, which take the short way; the second packet of each does.
        let (there, back) = (udp(a, b, family, 5, 6), udp(b, a, family, 7, 8));
        for _ in 0..3 {
            lab.passes(a, b, there.clone());
            lab.passes(b, a, back.clone());
        }
        for down in [b, a] {
            lab.configure(down, |config| config.link_down = true);
            for _ in 0..3 {
                lab.refuses(a, there.clone(), LinkDown);
                lab.refuses(b, back.clone(), LinkDown);
            }
            lab.refuses(a, build::arp_request(a.mac, a.v4, b.v4), LinkDown);
            lab.configure(down, |config| config.link_down = false);
            lab.passes(a, b, there.clone());
            lab.passes(b, a, back.clone());
        }
    }
}

#[test]
fn nics_that_bypass_filtering_have_links_too() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        for nic in [a, b] {
            lab.configure(nic, |config| config.bypass = true);
        }
        let frame = udp(a, b, family, 5, 6);
        lab.passes(a, b, frame.clone());
        lab.configure(b, |config| config.link_down = true);
        lab.refuses(a, frame.clone(), LinkDown);
        lab.refuses(b, udp(b, a, family, 5, 6), LinkDown);
        lab.configure(b, |config| config.link_down = false);
        lab.passes(a, b, frame);
    }
}

#[test]
fn a_broadcast_reaches_those_whose_link_is_up() {
    let mut lab = Lab::new();
    let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
    lab.configure(b, |config| config.link_down = true);
    let frame = build::arp_request(a.mac, a.v4, c.v4);
    let before = lab.drops();
    lab.send(a, frame.clone());
    assert_eq!(difference(&before, &lab.drops()), [(LinkDown, 1)]);
    assert_eq!(lab.received(c), [frame]);
    lab.silent();
}

#[test]
fn a_sniffer_whose_link_is_down_gets_no_copies() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let sniffer = lab.nic();
    lab.configure(sniffer, |config| {
        config.is_sniffer = true;
        config.link_down = true;
    });
    lab.configure(a, |config| config.sniffers = vec![sniffer.slot]);
    let frame = udp(a, b, FAMILIES[0], 5, 6);
    let before = lab.drops();
    lab.send(a, frame.clone());
    assert_eq!(difference(&before, &lab.drops()), [(LinkDown, 1)]);
    assert_eq!(lab.received(b), [frame]);
    lab.silent();
}

#[test]
fn an_announcement_reaches_all_others_of_the_network_whatever_the_rules_say() {
    announce(Lab::new());
}

#[test]
fn an_announcement_reaches_those_whose_queues_other_workers_have() {
    announce(Lab::on(Simulation::several(3)));
}

fn announce(mut lab: Lab) {
    let (a, b, bridge) = (lab.nic(), lab.nic(), lab.nic());
    let _elsewhere = lab.nic_in(1);
    let sniffer = lab.nic();
    lab.configure(sniffer, |config| config.is_sniffer = true);
    lab.configure(b, |config| config.sniffers = vec![sniffer.slot]);
    lab.configure(bridge, |config| config.learn_macs = true);
    let before = lab.drops();
    lab.sim.announce(a.slot);
    let frame = build::rarp_announcement(a.mac);
    assert_eq!(frame[..6], Mac::BROADCAST.0);
    for nic in [b, bridge, sniffer] {
        assert_eq!(lab.received(nic), std::slice::from_ref(&frame));
    }
    lab.silent();
    assert_eq!(difference(&before, &lab.drops()), []);

    lab.configure(b, |config| config.link_down = true);
    let before = lab.drops();
    lab.sim.announce(a.slot);
    assert_eq!(lab.received(bridge), [frame]);
    lab.silent();
    assert_eq!(
        difference(&before, &lab.drops()),
        [],
        "nobody's frame was lost"
    );

    // Nobody is announced whose link is down, who sends nothing, or who is not there.
    lab.sim.announce(b.slot);
    lab.sim.announce(sniffer.slot);
    lab.delete(a);
    lab.sim.announce(a.slot);
    lab.silent();
}
