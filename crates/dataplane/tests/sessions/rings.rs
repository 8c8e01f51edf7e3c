//! Guests that are rings in shared memory: what a port in memory cannot do.

use std::time::Duration;

use dataplane::DropReason::*;
use io::port::Port;
use io::vhost::features;
use io::vhost::port::{PortParts, VhostPort};
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use wire::offload::Offload;

use crate::lab::*;

#[test]
fn frames_cross_between_rings_under_the_rules() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let (mut guest_a, mut guest_b) = (
            Guest::new(GuestOptions::default()),
            Guest::new(GuestOptions::default()),
        );
        lab.sim.attach_port(a.slot, guest_a.port().into());
        lab.sim.attach_port(b.slot, guest_b.port().into());
        let asked = udp(a, b, family, 1, 53);
        guest_a.send(&asked, Offload::default(), &Shape::whole());
        guest_a.send(
            &udp(a, b, family, 1, 54),
            Offload::default(),
            &Shape::whole(),
        );
        guest_a.transmitq.publish();
        assert_eq!(lab.sim.run(), 2);
        let arrived: Vec<_> = guest_b
            .receive()
            .into_iter()
            .map(|received| received.frame)
            .collect();
        assert_eq!(arrived, [asked]);
        assert_eq!(guest_a.reclaim(), 2);
        let answer = udp(b, a, family, 53, 1);
        guest_b.send(&answer, Offload::default(), &Shape::whole());
        guest_b.transmitq.publish();
        lab.sim.run();
        assert_eq!(guest_a.receive()[0].frame, answer);
    }
}

#[test]
fn a_ring_that_is_turned_off_gives_back_what_is_in_it_and_sends_none_of_it() {
    for packed in [0, features::RING_PACKED] {
        let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
        let mut guest = Guest::new(GuestOptions {
            features: GuestOptions::default().features | packed,
            ..GuestOptions::default()
        });
        lab.sim.attach_port(a.slot, guest.port().into());
        let mut say = |lab: &mut Lab, count| {
            for _ in 0..count {
                guest.send(
                    &udp(a, b, Family::V4, 1, 53),
                    Offload::default(),
                    &Shape::whole(),
                );
            }
            guest.transmitq.publish();
            lab.sim.run();
            guest.reclaim()
        };
        assert_eq!(say(&mut lab, 1), 1);
        assert_eq!(lab.received(b).len(), 1);
        // What a session does: the port is taken back, and another is made of its parts.
        let Some(Port::Vhost(port)) = lab.sim.take(a.slot) else {
            panic!("another port")
        };
        let off = VhostPort::new(PortParts {
            receiveq: None,
            transmitq_off: true,
            ..port.into_parts()
        });
        let off = Port::from(off);
        assert!(!off.is_up());
        lab.sim.attach_port(a.slot, off);
        let before = lab.drops();
        assert_eq!(say(&mut lab, 3), 3);
        assert_eq!(difference(&before, &lab.drops()), [(RingOff, 3)]);
        lab.silent();
    }
}

#[test]
fn a_frame_larger_than_the_guests_buffers_is_dropped() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let mut guest = Guest::new(GuestOptions {
        // Without merged buffers a frame has to fit into one.
        features: features::VERSION_1,
        receive_shape: Shape::cut(&[200]),
        ..GuestOptions::default()
    });
    lab.sim.attach_port(b.slot, guest.port().into());
    let large = ip(a, b, Family::V4).udp(1, 53).payload(&[7; 400]).build();
    lab.refuses(a, large, BufferTooSmall);
    let small = udp(a, b, Family::V4, 1, 53);
    lab.send(a, small.clone());
    assert_eq!(guest.receive()[0].frame, small);
}

#[test]
fn a_guest_that_breaks_its_ring_loses_its_port_alone() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let guest = Guest::new(GuestOptions::default());
    lab.sim.attach_port(b.slot, guest.port().into());
    // More buffers than the ring has.
    guest.receiveq.write_available_index(9999);
    lab.refuses(a, udp(a, b, Family::V4, 1, 53), TargetBroken);
    lab.refuses(a, udp(a, b, Family::V4, 1, 53), TargetDown);
    let c = lab.nic();
    lab.group_of(c, vec![allow_in(UDP, 53)]);
    lab.passes(a, c, udp(a, c, Family::V4, 1, 53));
}

#[test]
fn a_quiet_guest_is_not_polled_and_is_heard_when_it_kicks() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let mut guest = Guest::new(GuestOptions::default());
    lab.sim.attach_port(a.slot, guest.port().into());
    let mut say = |lab: &mut Lab, port: u16| {
        let frame = udp(a, b, Family::V4, port, 53);
        guest.send(&frame, Offload::default(), &Shape::whole());
        let kicked = guest.transmitq.publish();
        // A daemon that is busy with other ports only takes turns and never sleeps.
        let heard = lab.sim.turn().frames == 1;
        guest.reclaim();
        (kicked, heard)
    };
    // Just attached: polled, and asked not to kick.
    assert_eq!(say(&mut lab, 1), (false, true));
    lab.sim.let_pass(Duration::from_micros(900));
    assert_eq!(say(&mut lab, 2), (false, true));
    // Quiet for a millisecond: the next turn parks it.
    lab.sim.let_pass(Duration::from_millis(1));
    assert_eq!(lab.sim.turn().frames, 0);
    // It has to kick now, is heard with the next look at the poller, and polled again from then on.
    assert_eq!(say(&mut lab, 3), (true, true));
    assert_eq!(say(&mut lab, 4), (false, true));
}
