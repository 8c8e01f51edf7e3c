//! Rings that lie. Each case breaks one rule and says what the port has to answer; afterwards the
//! port is down, the neighbour has what it had, and no byte outside the offender's own used ring
//! and buffers has changed.

mod common;

use butterfly_io::frame::FRAME_MAX;
use butterfly_io::port::{PortError, TransmitError};
use butterfly_io::vhost::features::INDIRECT_DESC;
use common::*;
use testkit::ring_driver::queue::{INDIRECT, NEXT, Queue, WRITE, descriptor};
use testkit::ring_driver::{GUEST_BASE, Guest, GuestOptions, Shape};
use wire::offload::Offload;

const SIZE: u16 = 64;
const MEMORY: usize = 256 << 10;
const END: u64 = GUEST_BASE + MEMORY as u64;
/// Where the cases put their own buffers and tables: behind the rings, in the area for buffers to
/// transmit.
const SPARE: usize = 0x4000;
const SPARE_ADDR: u64 = GUEST_BASE + SPARE as u64;

fn options(features: u64) -> GuestOptions {
    GuestOptions {
        features,
        queue_size: SIZE,
        memory_len: MEMORY,
        receive_shape: Shape::cut(&[2048]),
        // The cases write the receive ring themselves.
        receive_chains: 0,
        ..GuestOptions::default()
    }
}

/// One way to break a ring: what is done to it and what is to be said about it.
struct Case {
    name: &'static str,
    features: u64,
    write: fn(&mut Queue, &Guest2),
    message: &'static str,
}

/// What a case needs of the guest beside the queue that it writes.
struct Guest2<'a> {
    memory: &'a butterfly_io::guest_view::GuestView,
    /// The flag of descriptors that belong in this ring.
    flag: u16,
}

impl Guest2<'_> {
    /// An indirect table at `SPARE + 0x1000` and its address.
    fn table(&self, entries: &[(u64, u32, u16, u16)]) -> u64 {
        for (i, &(addr, len, flags, next)) in entries.iter().enumerate() {
            self.memory
                .write(SPARE + 0x1000 + 16 * i, &descriptor(addr, len, flags, next));
        }
        SPARE_ADDR + 0x1000
    }

    /// The same of as many buffers as a chain may have, each of `len` bytes.
    fn long_table(&self, len: u32) -> u64 {
        let mut entries: Vec<_> = (1..=1024)
            .map(|next| (SPARE_ADDR, len, NEXT | self.flag, next))
            .collect();
        entries[1023].2 = self.flag;
        self.table(&entries)
    }
}

fn offer(queue: &mut Queue, head: u16) {
    queue.push_available(head);
    queue.publish();
}

/// Rules that hold for both rings; `G` writes descriptors with the ring's own direction.
fn cases() -> Vec<Case> {
    macro_rules! case {
        ($name:literal, $message:literal, $write:expr) => {
            Case {
                name: $name,
                features: PLAIN,
                write: $write,
                message: $message,
            }
        };
    }
    let mut cases = vec![
        case!(
            "index jumps by size + 1",
            "available index 65 is more than 64 entries ahead of 0",
            |q, _| {
                q.write_available_index(65);
            }
        ),
        case!(
            "index goes back",
            "available index 65535 is more than 64 entries ahead of 0",
            |q, _| {
                q.write_available_index(65_535);
            }
        ),
        case!(
            "head is the table's size",
            "available descriptor 64 is outside a table of 64",
            |q, _| offer(q, 64)
        ),
        case!(
            "head is the largest number",
            "available descriptor 65535 is outside a table of 64",
            |q, _| {
                offer(q, 65_535);
            }
        ),
        case!(
            "next is outside",
            "the chain of descriptor 3 goes on at 64, outside a table of 64",
            |q, g| {
                q.write_descriptor(3, SPARE_ADDR, 4, NEXT | g.flag, 64);
                offer(q, 3);
            }
        ),
        case!(
            "a descriptor is its own successor",
            "the chain of descriptor 3 has more than 64 descriptors",
            |q, g| {
                q.write_descriptor(3, SPARE_ADDR, 1, NEXT | g.flag, 3);
                offer(q, 3);
            }
        ),
        case!(
            "a loop of empty descriptors",
            "the chain of descriptor 5 has more than 64 descriptors",
            |q, g| {
                q.write_descriptor(5, SPARE_ADDR, 0, NEXT | g.flag, 6);
                q.write_descriptor(6, SPARE_ADDR, 0, NEXT | g.flag, 5);
                offer(q, 5);
            }
        ),
        case!(
            "a buffer at address 0",
            "the chain of descriptor 0 names 100 bytes at 0x0, not all guest memory",
            |q, g| {
                q.write_descriptor(0, 0, 100, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "a buffer before the memory",
            "the chain of descriptor 0 names 100 bytes at 0x3fffffff, not all guest memory",
            |q, g| {
                q.write_descriptor(0, GUEST_BASE - 1, 100, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "a buffer that ends one byte behind",
            "the chain of descriptor 0 names 100 bytes at 0x4003ff9d, not all guest memory",
            |q, g| {
                q.write_descriptor(0, END - 99, 100, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "a buffer behind the memory",
            "the chain of descriptor 0 names 1 bytes at 0x40040000, not all guest memory",
            |q, g| {
                q.write_descriptor(0, END, 1, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "a buffer that wraps around the address space",
            "the chain of descriptor 0 names 4096 bytes at 0xfffffffffffffff0, not all guest \
             memory",
            |q, g| {
                q.write_descriptor(0, u64::MAX - 15, 4096, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "the VMM's address instead of the guest's",
            "the chain of descriptor 0 names 64 bytes at 0x7f1200004000, not all guest memory",
            |q, g| {
                q.write_descriptor(
                    0,
                    testkit::ring_driver::USER_BASE + SPARE as u64,
                    64,
                    g.flag,
                    0,
                );
                offer(q, 0);
            }
        ),
        case!(
            "a second descriptor outside",
            "the chain of descriptor 0 names 4 bytes at 0x10, not all guest memory",
            |q, g| {
                q.write_descriptor(0, SPARE_ADDR, 20, NEXT | g.flag, 1);
                q.write_descriptor(1, 0x10, 4, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "less than a header",
            "the chain of descriptor 0 holds 11 bytes, less than the virtio-net header",
            |q, g| {
                q.write_descriptor(0, SPARE_ADDR, 11, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "nothing",
            "the chain of descriptor 0 holds 0 bytes, less than the virtio-net header",
            |q, g| {
                q.write_descriptor(0, SPARE_ADDR, 0, g.flag, 0);
                offer(q, 0);
            }
        ),
        case!(
            "an indirect table of 0 bytes",
            "the chain of descriptor 2 has an indirect table of 0 bytes, not 1 to 1024 descriptors \
             of 16",
            |q, _| {
                q.write_descriptor(2, SPARE_ADDR, 0, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "an indirect table of one and a half descriptors",
            "the chain of descriptor 2 has an indirect table of 24 bytes, not 1 to 1024 \
             descriptors of 16",
            |q, _| {
                q.write_descriptor(2, SPARE_ADDR, 24, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "an indirect table beyond the limit",
            "the chain of descriptor 2 has an indirect table of 16400 bytes, not 1 to 1024 \
             descriptors of 16",
            |q, _| {
                q.write_descriptor(2, SPARE_ADDR, 1025 * 16, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "an indirect table that leaves the memory",
            "the chain of descriptor 2 names 32 bytes at 0x4003fff0, not all guest memory",
            |q, _| {
                q.write_descriptor(2, END - 16, 32, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "an indirect table nowhere",
            "the chain of descriptor 2 names 16 bytes at 0x1000, not all guest memory",
            |q, _| {
                q.write_descriptor(2, 0x1000, 16, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "a table in a table",
            "the chain of descriptor 2 has an indirect table in an indirect table",
            |q, g| {
                let table = g.table(&[(SPARE_ADDR + 0x1000, 16, INDIRECT, 0)]);
                q.write_descriptor(2, table, 16, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "a table with a successor",
            "the chain of descriptor 2 has an indirect descriptor with a successor",
            |q, g| {
                let table = g.table(&[(SPARE_ADDR, 64, g.flag, 0)]);
                q.write_descriptor(2, table, 16, INDIRECT | NEXT, 3);
                offer(q, 2);
            }
        ),
        case!(
            "next is outside its table",
            "the chain of descriptor 2 goes on at 2, outside a table of 2",
            |q, g| {
                let table = g.table(&[
                    (SPARE_ADDR, 4, NEXT | g.flag, 1),
                    (SPARE_ADDR, 4, NEXT | g.flag, 2),
                ]);
                q.write_descriptor(2, table, 32, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "a loop in a table",
            "the chain of descriptor 2 has more than 2 descriptors",
            |q, g| {
                let table = g.table(&[
                    (SPARE_ADDR, 1, NEXT | g.flag, 1),
                    (SPARE_ADDR, 1, NEXT | g.flag, 0),
                ]);
                q.write_descriptor(2, table, 32, INDIRECT, 0);
                offer(q, 2);
            }
        ),
        case!(
            "a buffer outside, from a table at an odd address",
            "the chain of descriptor 2 names 5 bytes at 0x99, not all guest memory",
            |q, g| {
                g.memory
                    .write(SPARE + 0x1003, &descriptor(0x99, 5, g.flag, 0));
                q.write_descriptor(2, SPARE_ADDR + 0x1003, 16, INDIRECT, 0);
                offer(q, 2);
            }
        ),
    ];
    cases.push(Case {
        name: "a table without negotiation",
        features: PLAIN & !INDIRECT_DESC,
        message: "the chain of descriptor 2 is indirect, which was not negotiated",
        write: |q, g| {
            let table = g.table(&[(SPARE_ADDR, 64, g.flag, 0)]);
            q.write_descriptor(2, table, 16, INDIRECT, 0);
            offer(q, 2);
        },
    });
    cases
}

fn transmit_cases() -> Vec<Case> {
    let case = |name, message, write| Case {
        name,
        features: PLAIN,
        write,
        message,
    };
    vec![
        case(
            "a writable buffer",
            "the chain of descriptor 0 has flags 0x2 where a readable buffer belongs",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 64, WRITE, 0);
                offer(q, 0);
            },
        ),
        case(
            "a writable buffer behind a readable one",
            "the chain of descriptor 0 has flags 0x2 where a readable buffer belongs",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 64, NEXT, 1);
                q.write_descriptor(1, SPARE_ADDR, 64, WRITE, 0);
                offer(q, 0);
            },
        ),
        case(
            "a frame one byte too long",
            "the chain of descriptor 0 holds more than 65612 bytes",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, FRAME_MAX as u32 + 13, 0, 0);
                offer(q, 0);
            },
        ),
        case(
            "4 GiB",
            "the chain of descriptor 0 holds more than 65612 bytes",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, u32::MAX, 0, 0);
                offer(q, 0);
            },
        ),
        case(
            "many long buffers",
            "the chain of descriptor 0 holds more than 65612 bytes",
            |q, _| {
                for i in 0..63 {
                    q.write_descriptor(i, SPARE_ADDR, 60_000, NEXT, i + 1);
                }
                q.write_descriptor(63, SPARE_ADDR, 60_000, 0, 0);
                offer(q, 0);
            },
        ),
        case(
            "a bad chain behind good ones",
            "available descriptor 77 is outside a table of 64",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 100, 0, 0);
                q.push_available(0);
                q.push_available(0);
                q.push_available(77);
                q.publish();
            },
        ),
    ]
}

fn receive_cases() -> Vec<Case> {
    let case = |name, message, write| Case {
        name,
        features: PLAIN,
        write,
        message,
    };
    vec![
        case(
            "a readable buffer",
            "the chain of descriptor 0 has flags 0x0 where a writable buffer belongs",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 2048, 0, 0);
                offer(q, 0);
            },
        ),
        case(
            "a readable buffer behind a writable one",
            "the chain of descriptor 0 has flags 0x0 where a writable buffer belongs",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 64, NEXT | WRITE, 1);
                q.write_descriptor(1, SPARE_ADDR, 64, 0, 0);
                offer(q, 0);
            },
        ),
        case(
            "4 GiB",
            "the chain of descriptor 0 names 4294967295 bytes at 0x40004000, not all guest memory",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, u32::MAX, WRITE, 0);
                offer(q, 0);
            },
        ),
        case(
            "a second merged buffer outside",
            "the chain of descriptor 1 names 2000 bytes at 0x8, not all guest memory",
            |q, _| {
                q.write_descriptor(0, SPARE_ADDR, 64, WRITE, 0);
                q.write_descriptor(1, 8, 2000, WRITE, 0);
                q.push_available(0);
                offer(q, 1);
            },
        ),
        case(
            "a ring of empty buffers, which each frame would go through",
            "1012 bytes take more than 79 descriptors, up to the chain of descriptor 1",
            |q, g| {
                let table = g.long_table(0);
                q.write_descriptor(0, SPARE_ADDR, 12, WRITE, 0);
                q.write_descriptor(1, table, 16 * 1024, INDIRECT, 0);
                q.push_available(0);
                for _ in 1..SIZE {
                    q.push_available(1);
                }
                q.publish();
            },
        ),
        case(
            "a ring of buffers of a byte each",
            "1012 bytes take more than 79 descriptors, up to the chain of descriptor 0",
            |q, g| {
                let table = g.long_table(1);
                q.write_descriptor(0, table, 16 * 1024, INDIRECT, 0);
                offer(q, 0);
            },
        ),
    ]
}

fn broken(queue: &str, message: &str) -> PortError {
    PortError::Broken {
        what: format!("{queue}: {message}"),
    }
}

#[test]
fn a_guest_that_lies_in_the_ring_it_transmits_on() {
    for case in cases().into_iter().chain(transmit_cases()) {
        let ordinary = GuestOptions {
            receive_chains: 64,
            ..options(PLAIN)
        };
        let mut pair = Pair::new(options(case.features), ordinary);
        let memory = pair.from.memory().clone();
        (case.write)(
            &mut pair.from.transmitq,
            &Guest2 {
                memory: &memory,
                flag: 0,
            },
        );
        let before = (memory.bytes(0, MEMORY), pair.to.memory().bytes(0, MEMORY));
        let turn = pair.poll();
        assert_eq!(
            turn.error,
            Some(broken("transmitq", case.message)),
            "{}",
            case.name
        );
        assert_eq!(turn.sent, [], "{}", case.name);
        assert!(
            before == (memory.bytes(0, MEMORY), pair.to.memory().bytes(0, MEMORY)),
            "{}: memory",
            case.name
        );

        // Said once; then the port is down, and nothing passes in either direction.
        assert_eq!(pair.poll(), Turn::default(), "{}", case.name);
        assert!(!pair.from_port.is_up() && !pair.from_port.arm());
        assert!(
            pair.from_port
                .info()
                .broken
                .is_some_and(|what| what.contains(case.message))
        );
        pair.to
            .send(&pattern(60), Offload::default(), &Shape::whole());
        pair.to.transmitq.publish();
        pair.to_port.receive(&mut pair.batch).unwrap();
        assert_eq!(
            pair.from_port.transmit(&pair.batch, 0),
            Err(TransmitError::Down),
            "{}",
            case.name
        );
        pair.to_port.complete(&mut pair.batch);
        assert!(pair.to_port.is_up());
    }
}

#[test]
fn a_guest_that_lies_in_the_ring_it_receives_from() {
    for case in cases().into_iter().chain(receive_cases()) {
        let mut pair = Pair::new(options(PLAIN), options(case.features));
        let memory = pair.to.memory().clone();
        (case.write)(
            &mut pair.to.receiveq,
            &Guest2 {
                memory: &memory,
                flag: WRITE,
            },
        );
        let before = memory.bytes(0, MEMORY);
        pair.from
            .send(&pattern(1000), Offload::default(), &Shape::whole());
        pair.from
            .send(&pattern(60), Offload::default(), &Shape::whole());
        let turn = pair.turn();
        assert_eq!(
            turn.sent,
            [Err(TransmitError::Broken), Err(TransmitError::Down)],
            "{}",
            case.name
        );
        assert_eq!(
            turn.error,
            Some(broken("receiveq", case.message)),
            "{}",
            case.name
        );
        // A used entry may have been written, behind the index: it is not the guest's yet.
        let ours = pair.to.receiveq.written_by_device();
        assert!(
            same_but(&before, &memory.bytes(0, MEMORY), &ours),
            "{}: memory",
            case.name
        );
        // The sender is not concerned: its buffers came back, and it sends on.
        assert_eq!(pair.from.reclaim(), 2);
        pair.from
            .send(&pattern(60), Offload::default(), &Shape::whole());
        assert_eq!(
            pair.turn(),
            Turn {
                sent: vec![Err(TransmitError::Down)],
                error: None
            }
        );
        assert!(pair.from_port.is_up() && !pair.to_port.is_up());
    }
}

#[test]
fn one_descriptor_in_every_available_entry_is_no_reason_to_stop() {
    // Allowed by no driver, harmless to us: each time it is a frame of its own.
    let ordinary = GuestOptions {
        receive_chains: 64,
        ..options(PLAIN)
    };
    let mut pair = Pair::new(options(PLAIN), ordinary);
    pair.from.memory().fill(SPARE, 12, 0);
    pair.from
        .transmitq
        .write_descriptor(9, SPARE_ADDR, 72, 0, 0);
    for _ in 0..32 {
        pair.from.transmitq.push_available(9);
    }
    assert_eq!(pair.turn(), Turn::ok(32));
    assert_eq!(pair.to.receive().len(), 32);
}

#[test]
fn the_index_may_run_ahead_by_the_whole_ring() {
    let to = GuestOptions {
        receive_chains: 64,
        receive_shape: Shape::cut(&[128]),
        ..options(PLAIN)
    };
    let mut pair = Pair::new(options(PLAIN), to);
    for _ in 0..SIZE {
        assert!(
            pair.from
                .send(&pattern(60), Offload::default(), &Shape::whole())
        );
    }
    assert_eq!(
        (pair.turn(), pair.poll(), pair.poll()),
        (Turn::ok(SIZE.into()), Turn::ok(0), Turn::ok(0))
    );
}

#[test]
fn a_buffer_that_is_sent_and_received_in_at_once_harms_only_its_owner() {
    // The guest sends to itself, and its receive buffer is its transmit buffer, shifted.
    let mut guest = Guest::new(options(PLAIN));
    let mut port = butterfly_io::port::Port::from(guest.port());
    guest.memory().fill(SPARE, 12, 0);
    guest.transmitq.write_descriptor(0, SPARE_ADDR, 2012, 0, 0);
    offer(&mut guest.transmitq, 0);
    guest
        .receiveq
        .write_descriptor(0, SPARE_ADDR + 100, 4096, WRITE, 0);
    offer(&mut guest.receiveq, 0);
    let mut batch = butterfly_io::frame::Batch::new();
    assert_eq!(port.receive(&mut batch), Ok(1));
    assert_eq!(port.transmit(&batch, 0), Ok(()));
    port.flush().unwrap();
    port.complete(&mut batch);
    assert_eq!(
        (guest.receiveq.used_index(), guest.transmitq.used_index()),
        (1, 1)
    );
}

/// A frame is judged on a copy: what the guest writes afterwards is not delivered in the head's
/// place.
#[test]
fn a_head_cannot_be_changed_after_it_was_copied() {
    let mut pair = Pair::new(
        options(PLAIN),
        GuestOptions {
            receive_chains: 4,
            ..options(PLAIN)
        },
    );
    pair.from
        .send(&pattern(1000), Offload::default(), &Shape::whole());
    pair.from.transmitq.publish();
    pair.from_port.receive(&mut pair.batch).unwrap();
    pair.from.memory().fill(0x2000, MEMORY - 0x2000, 0xee);
    pair.to_port.transmit(&pair.batch, 0).unwrap();
    pair.to_port.flush().unwrap();
    pair.from_port.complete(&mut pair.batch);
    let frame = pair.one().frame;
    assert_eq!(
        frame[..256],
        pattern(1000)[..256],
        "the head is what was judged"
    );
    assert_eq!(
        frame[256..],
        [0xee; 744],
        "the body is the sender's own affair"
    );
}

/// A guest that rewrites descriptors, entries and indices of both rings while they are read.
/// Nothing is promised to it but that the switch neither panics, nor hangs, nor leaves its memory.
#[test]
fn rings_that_change_while_they_are_read() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let guest = Guest::new(GuestOptions {
        receive_chains: 16,
        ..options(LINUX)
    });
    let stop = AtomicBool::new(false);
    let rings = [&guest.transmitq, &guest.receiveq].map(|q| (q.desc_at, q.avail_at));
    let memory = guest.memory().clone();
    let (mut turns, mut broken) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 0x9e37_79b9_7f4a_7c15u64;
            while !stop.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let random = (seed >> 33) as usize;
                let (desc, avail) = rings[random & 1];
                let entry = random >> 1 & 63;
                match random >> 8 & 3 {
                    // An index near the one that is there, forwards or back.
                    0 => {
                        let index = memory.word(avail + 2);
                        let step = (random >> 10 & 7) as u16;
                        index.store(
                            index
                                .load(Ordering::Relaxed)
                                .wrapping_add(step)
                                .wrapping_sub(2),
                            Ordering::Release,
                        );
                    }
                    1 => memory
                        .word(avail + 4 + 2 * entry)
                        .store((random >> 10 & 63) as u16, Ordering::Relaxed),
                    _ => {
                        let addr = SPARE_ADDR + (random >> 12 & 0xffff) as u64;
                        let flags =
                            (random >> 10 & 3) as u16 | if desc == rings[1].0 { WRITE } else { 0 };
                        let len = (random >> 16 & 0x3ff) as u32;
                        memory.write(
                            desc + 16 * entry,
                            &descriptor(addr, len, flags, (random >> 20 & 63) as u16),
                        );
                    }
                }
            }
        });
        let mut batch = butterfly_io::frame::Batch::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while (turns < 50_000 || broken < 20) && std::time::Instant::now() < deadline {
            let mut port = butterfly_io::port::Port::from(guest.port());
            for _ in 0..1000 {
                if !port.is_up() {
                    break;
                }
                turns += 1;
                let received = port.receive(&mut batch);
                for index in 0..batch.len() {
                    // To itself: both rings are under fire.
                    let _ = port.transmit(&batch, index);
                }
                let flushed = port.flush();
                port.complete(&mut batch);
                broken += usize::from(received.is_err() || flushed.is_err());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        broken >= 20,
        "{broken} of {turns} turns found something broken"
    );
}
