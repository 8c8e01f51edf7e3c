//! Who wakes whom, and how often: both sides stay silent while the other polls, and nobody sleeps
//! through work.

mod common;

use std::time::Duration;

use butterfly_io::frame::Batch;
use butterfly_io::vhost::features::EVENT_IDX;
use butterfly_io::vhost::queue::QueueSetup;
use common::*;
use sys::poll::Poller;
use testkit::ring_driver::Shape;
use wire::offload::Offload;

fn send(pair: &mut Pair, frames: usize) {
    for _ in 0..frames {
        assert!(
            pair.from
                .send(&pattern(60), Offload::default(), &Shape::whole())
        );
        pair.from.transmitq.publish();
    }
}

fn turn(pair: &mut Pair) {
    pair.poll();
    pair.from.reclaim();
    pair.to.receive();
}

every_ring! {
    fn a_polling_switch_is_never_kicked_not_even_after_a_refill() {
        for features in [PLAIN, PLAIN & !EVENT_IDX] {
            let mut pair = Pair::with_features(features, features);
            // The guest kicked when it first filled its ring, before the switch was there to say
            // that it polls.
            assert_eq!(pair.to.receiveq.kicks(), 1);
            for _ in 0..300 {
                send(&mut pair, 8);
                turn(&mut pair);
            }
            assert_eq!((pair.from.transmitq.kicks(), pair.to.receiveq.kicks()), (0, 1));
        }
    }
}

every_ring! {
    fn an_armed_switch_is_kicked_once_and_the_kick_is_readable() {
        for features in [PLAIN, PLAIN & !EVENT_IDX] {
            let mut pair = Pair::with_features(features, features);
            for round in 1..=5 {
                assert!(!pair.from_port.arm(), "nothing is there yet");
                pair.from.send(&pattern(60), Offload::default(), &Shape::whole());
                assert!(pair.from.transmitq.publish(), "the guest kicks");
                let mut count = [0; 8];
                let fd = pair.from_port.kick_fd().expect("a kick descriptor");
                assert_eq!(rustix::io::read(fd, &mut count), Ok(8));
                assert_eq!(u64::from_ne_bytes(count), 1);
                pair.from_port.disarm();
                // With EVENT_IDX the request to notify is used up; with the flag it is withdrawn.
                send(&mut pair, 3);
                assert_eq!(pair.from.transmitq.kicks(), round);
                turn(&mut pair);
            }
        }
    }
}

every_ring! {
    fn work_that_came_before_the_switch_was_armed_keeps_it_awake() {
        for features in [PLAIN, PLAIN & !EVENT_IDX] {
            let mut pair = Pair::with_features(features, features);
            send(&mut pair, 1);
            assert!(pair.from_port.arm());
            assert_eq!(pair.from.transmitq.kicks(), 0);
            // More comes while we are armed and looking: at most one kick, and the work is seen.
            send(&mut pair, 1);
            pair.from_port.disarm();
            assert_eq!(pair.poll(), Turn::ok(2));
            assert!(!pair.from_port.arm());
        }
    }
}

every_ring! {
    fn a_ring_without_a_kick_descriptor_is_polled() {
        use butterfly_io::port::Port;
        use butterfly_io::vhost::port::VhostPort;
        use butterfly_io::vhost::queue::Queue;
        let pair = Pair::with_features(PLAIN, PLAIN);
        let Port::Vhost(port) = pair.from_port else {
            unreachable!("made from a VhostPort")
        };
        let mut parts = port.into_parts();
        let setup = pair.from.setup(&pair.from.transmitq, &parts.memory);
        parts.transmitq = Some(Queue::new(QueueSetup { kick: None, ..setup }).unwrap());
        // And one ring is enough to be up.
        parts.receiveq = None;
        let mut port = Port::from(VhostPort::new(parts));
        assert!(port.is_up() && port.arm() && port.kick_fd().is_none());
    }
}

every_ring! {
    fn a_guest_is_interrupted_once_a_flush_and_only_if_it_asks() {
        for features in [PLAIN, PLAIN & !EVENT_IDX] {
            let mut pair = Pair::with_features(features, features);
            // The first time the guest's suppression is not trusted: a driver that slept before we
            // came must wake.
            send(&mut pair, 1);
            turn(&mut pair);
            let (sent, received) = (pair.from.transmitq.calls(), pair.to.receiveq.calls());
            assert_eq!((sent, received), (1, 1));
            for _ in 0..50 {
                send(&mut pair, 8);
                turn(&mut pair);
            }
            assert_eq!(
                (pair.from.transmitq.calls(), pair.to.receiveq.calls()),
                (1, 1),
                "both poll"
            );
            for round in 1..=5 {
                pair.to.receiveq.want_interrupts(true);
                send(&mut pair, 8);
                pair.poll();
                assert_eq!(
                    pair.to.receiveq.calls(),
                    received + round,
                    "eight frames, one interrupt"
                );
                pair.from.reclaim();
                pair.to.receive();
                pair.to.receiveq.want_interrupts(false);
            }
            pair.from.transmitq.want_interrupts(true);
            send(&mut pair, 8);
            turn(&mut pair);
            assert_eq!(pair.from.transmitq.calls(), sent + 1);
        }
    }
}

every_ring! {
    fn an_event_index_further_on_is_waited_for() {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        send(&mut pair, 1);
        turn(&mut pair);
        let calls = pair.to.receiveq.calls();
        // The guest wants to hear of the entry behind the next ten.
        pair.to.receiveq.want_interrupt_after(10);
        for sent in 1..=15 {
            send(&mut pair, 1);
            turn(&mut pair);
            let expected = calls + u64::from(sent > 10);
            assert_eq!(pair.to.receiveq.calls(), expected, "after {sent} frames");
        }
    }
}

every_ring! {
    /// The race that `arm` exists for: a guest that publishes just before, during or after it.
    /// Whatever the moment, either the switch sees the work or the guest sees that it is to notify.
    fn no_wakeup_is_lost_between_two_threads() {
        for features in [PLAIN, PLAIN & !EVENT_IDX] {
            let mut pair = Pair::with_features(features, features);
            let mut port = pair.from_port;
            const FRAMES: usize = 20_000;
            let switch = std::thread::spawn(move || {
                let mut batch = Batch::new();
                let mut poller = Poller::new().unwrap();
                port.add_to(&poller, 7).expect("a kick descriptor").unwrap();
                let (mut seen, mut slept) = (0, 0);
                while seen < FRAMES {
                    if port.arm() {
                        port.disarm();
                    } else {
                        let ready = poller.wait(Some(Duration::from_secs(20))).expect("epoll");
                        assert_eq!(
                            ready.collect::<Vec<_>>(),
                            [7],
                            "slept for 20 s after {seen} frames: {:?}",
                            port.info()
                        );
                        slept += 1;
                        port.kicked();
                        port.disarm();
                    }
                    seen += port.receive(&mut batch).unwrap();
                    port.complete(&mut batch);
                }
                slept
            });
            for _ in 0..FRAMES {
                while !pair.from.send(&[1; 60], Offload::default(), &Shape::whole()) {
                    pair.from.reclaim();
                    std::thread::yield_now();
                }
                pair.from.transmitq.publish();
                pair.from.reclaim();
            }
            assert!(switch.join().unwrap() > 0, "the switch slept at least once");
        }
    }
}

every_ring! {
    /// A VMM keeps descriptors of the same eventfds: it makes them block again, and fills those
    /// that we raise. Nobody waits for it, and its guest's neighbours are served.
    fn descriptors_that_block_are_not_waited_for() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let mut bad = Pair::with_features(PLAIN & !EVENT_IDX, PLAIN & !EVENT_IDX);
        let mut good = Pair::with_features(PLAIN, PLAIN);
        for guest in [&mut bad.from, &mut bad.to] {
            for queue in [&mut guest.transmitq, &mut guest.receiveq] {
                queue.want_interrupts(true);
                queue.calls();
                for fd in [queue.kick_fd(), queue.call_fd()] {
                    fcntl_setfl(&fd, fcntl_getfl(&fd).unwrap() - OFlags::NONBLOCK).unwrap();
                }
                rustix::io::write(queue.call_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
            }
        }
        let (done, wait) = std::sync::mpsc::channel();
        let kind = kind();
        std::thread::spawn(move || {
            with_kind(kind, || {
                for _ in 0..200 {
                    // Armed, kicked by nobody, and reported all the same.
                    bad.from_port.arm();
                    bad.from_port.kicked();
                    bad.from_port.disarm();
                    send(&mut bad, 4);
                    bad.poll();
                    bad.from.reclaim();
                    bad.to.receive();
                    send(&mut good, 4);
                    assert_eq!(good.poll(), Turn::ok(4));
                    assert_eq!((good.from.reclaim(), good.to.receive().len()), (4, 4));
                }
                let calls = bad.from_port.info().calls + bad.to_port.info().calls;
                let _ = done.send(calls);
            })
        });
        let calls = wait
            .recv_timeout(std::time::Duration::from_secs(60))
            .expect("two hundred turns, without waiting for a descriptor");
        assert_eq!(calls, 400, "a call for each batch that came back or arrived");
    }
}
