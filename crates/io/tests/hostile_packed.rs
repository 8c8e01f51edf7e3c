//! Packed rings that lie: as `hostile` does with split ones. Each case breaks one rule and says
//! what the port has to answer; afterwards the port is down and the neighbour has what it had.

mod common;

use butterfly_io::frame::{BATCH, FRAME_MAX};
use butterfly_io::guest_view::GuestView;
use butterfly_io::port::{PortError, TransmitError};
use butterfly_io::vhost::features::{INDIRECT_DESC, RING_PACKED};
use common::*;
use testkit::ring_driver::queue::{INDIRECT, NEXT, Queue, WRITE, packed_descriptor};
use testkit::ring_driver::{GUEST_BASE, GuestOptions, Shape};
use wire::offload::Offload;

const SIZE: u16 = 64;
const MEMORY: usize = 256 << 10;
const END: u64 = GUEST_BASE + MEMORY as u64;
/// Where the cases put their own buffers and tables: behind the rings, in the area for buffers to
/// transmit.
const SPARE: usize = 0x4000;
const BUFFER: u64 = GUEST_BASE + SPARE as u64;
const TABLE: u64 = BUFFER + 0x1000;

/// What a slot says that is available in the first lap.
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

fn options(receive_chains: usize) -> GuestOptions {
    GuestOptions {
        features: PLAIN | RING_PACKED,
        queue_size: SIZE,
        memory_len: MEMORY,
        receive_shape: Shape::cut(&[2048]),
        receive_chains,
        ..GuestOptions::default()
    }
}

/// Descriptors `(address, length, flags)` from slot 0 on, those of a table at [`TABLE`], and what
/// is to be said.
struct Case {
    message: &'static str,
    slots: Vec<(u64, u32, u16)>,
    table: Vec<(u64, u32, u16)>,
}

fn case(message: &'static str, slots: &[(u64, u32, u16)]) -> Case {
    with_table(message, slots, &[])
}

fn with_table(message: &'static str, slots: &[(u64, u32, u16)], table: &[(u64, u32, u16)]) -> Case {
    Case {
        message,
        slots: slots.to_vec(),
        table: table.to_vec(),
    }
}

impl Case {
    fn write(&self, queue: &Queue, memory: &GuestView) {
        for (at, &(addr, len, flags)) in self.table.iter().enumerate() {
            memory.write(
                SPARE + 0x1000 + 16 * at,
                &packed_descriptor(addr, len, 7, flags),
            );
        }
        for (slot, &(addr, len, flags)) in self.slots.iter().enumerate() {
            queue.write_descriptor(slot as u16, addr, len, flags | AVAIL, 7);
        }
    }
}

/// Rules that hold for both rings; `own` is the flag of descriptors that belong in the ring.
fn cases(own: u16) -> Vec<Case> {
    vec![
        case(
            "the chain of descriptor 0 has more than 64 descriptors",
            &[(BUFFER, 1, NEXT | own); 64],
        ),
        case(
            "the chain of descriptor 0 names 100 bytes at 0x0, not all guest memory",
            &[(0, 100, own)],
        ),
        case(
            "the chain of descriptor 0 names 100 bytes at 0x4003ff9d, not all guest memory",
            &[(END - 99, 100, own)],
        ),
        case(
            "the chain of descriptor 0 names 4096 bytes at 0xfffffffffffffff0, not all guest \
             memory",
            &[(u64::MAX - 15, 4096, own)],
        ),
        case(
            "the chain of descriptor 0 names 4 bytes at 0x10, not all guest memory",
            &[(BUFFER, 20, NEXT | own), (0x10, 4, own)],
        ),
        case(
            "the chain of descriptor 0 holds 11 bytes, less than the virtio-net header",
            &[(BUFFER, 11, own)],
        ),
        case(
            "the chain of descriptor 0 holds 0 bytes, less than the virtio-net header",
            &[(BUFFER, 0, own)],
        ),
        case(
            "the chain of descriptor 0 has an indirect table of 0 bytes, not 1 to 1024 descriptors \
             of 16",
            &[(TABLE, 0, INDIRECT)],
        ),
        case(
            "the chain of descriptor 0 has an indirect table of 24 bytes, not 1 to 1024 \
             descriptors of 16",
            &[(TABLE, 24, INDIRECT)],
        ),
        case(
            "the chain of descriptor 0 has an indirect table of 16400 bytes, not 1 to 1024 \
             descriptors of 16",
            &[(TABLE, 1025 * 16, INDIRECT)],
        ),
        case(
            "the chain of descriptor 0 names 32 bytes at 0x4003fff0, not all guest memory",
            &[(END - 16, 32, INDIRECT)],
        ),
        with_table(
            "the chain of descriptor 0 has an indirect table in an indirect table",
            &[(TABLE, 16, INDIRECT)],
            &[(TABLE, 16, INDIRECT)],
        ),
        case(
            "the chain of descriptor 0 has an indirect descriptor with a successor",
            &[(TABLE, 16, INDIRECT | NEXT), (BUFFER, 64, own)],
        ),
        with_table(
            "the chain of descriptor 0 has an indirect descriptor behind another one",
            &[(BUFFER, 14, NEXT | own), (TABLE, 16, INDIRECT)],
            &[(BUFFER, 2000, own)],
        ),
        with_table(
            "the chain of descriptor 0 names 5 bytes at 0x99, not all guest memory",
            &[(TABLE, 32, INDIRECT)],
            &[(BUFFER, 12, own), (0x99, 5, own)],
        ),
    ]
}

fn transmit_cases() -> Vec<Case> {
    vec![
        case(
            "the chain of descriptor 0 has flags 0x82 where a readable buffer belongs",
            &[(BUFFER, 64, WRITE)],
        ),
        case(
            "the chain of descriptor 0 has flags 0x82 where a readable buffer belongs",
            &[(BUFFER, 64, NEXT), (BUFFER, 64, WRITE)],
        ),
        case(
            "the chain of descriptor 0 holds more than 65612 bytes",
            &[(BUFFER, FRAME_MAX as u32 + 13, 0)],
        ),
        case(
            "the chain of descriptor 0 holds more than 65612 bytes",
            &[(BUFFER, 60_000, NEXT), (BUFFER, 60_000, 0)],
        ),
        // A chain that goes on into slots that were taken with it: two are pending.
        case("the chain of descriptor 2 has more than 62 descriptors", &{
            let mut slots = [(BUFFER, 100, NEXT); 64];
            (slots[0], slots[1]) = ((BUFFER, 100, 0), (BUFFER, 100, 0));
            slots
        }),
        // A bad chain behind good ones.
        case(
            "the chain of descriptor 2 names 9 bytes at 0x9, not all guest memory",
            &[(BUFFER, 100, 0), (BUFFER, 100, 0), (9, 9, 0)],
        ),
    ]
}

fn receive_cases() -> Vec<Case> {
    vec![
        case(
            "the chain of descriptor 0 has flags 0x80 where a writable buffer belongs",
            &[(BUFFER, 2048, 0)],
        ),
        case(
            "the chain of descriptor 0 has flags 0x80 where a writable buffer belongs",
            &[(BUFFER, 64, NEXT | WRITE), (BUFFER, 64, 0)],
        ),
        case(
            "the chain of descriptor 0 names 4294967295 bytes at 0x40004000, not all guest memory",
            &[(BUFFER, u32::MAX, WRITE)],
        ),
        case(
            "the chain of descriptor 1 names 2000 bytes at 0x8, not all guest memory",
            &[(BUFFER, 64, WRITE), (8, 2000, WRITE)],
        ),
        // A ring of empty buffers, which each frame would go through.
        with_table(
            "1012 bytes take more than 79 descriptors, up to the chain of descriptor 1",
            &{
                let mut slots = [(TABLE, 16 * 1024, INDIRECT); 64];
                slots[0] = (BUFFER, 12, WRITE);
                slots
            },
            &[(BUFFER, 0, WRITE); 1024],
        ),
    ]
}

fn broken(queue: &str, message: &str) -> PortError {
    PortError::Broken {
        what: format!("{queue}: {message}"),
    }
}

#[test]
fn a_guest_that_lies_in_the_packed_ring_it_transmits_on() {
    for case in cases(0).into_iter().chain(transmit_cases()) {
        let message = case.message;
        let mut pair = Pair::new(options(0), options(64));
        let memory = pair.from.memory().clone();
        case.write(&pair.from.transmitq, &memory);
        let before = (memory.bytes(0, MEMORY), pair.to.memory().bytes(0, MEMORY));
        let turn = pair.poll();
        assert_eq!(turn.error, Some(broken("transmitq", message)));
        assert_eq!(turn.sent, [], "{message}");
        let after = (memory.bytes(0, MEMORY), pair.to.memory().bytes(0, MEMORY));
        assert!(before == after, "{message}: memory");
        // Said once; then the port is down.
        assert_eq!(pair.poll(), Turn::default(), "{message}");
        assert!(!pair.from_port.is_up() && !pair.from_port.arm());
        assert!(pair.to_port.is_up());
    }
}

#[test]
fn a_guest_that_lies_in_the_packed_ring_it_receives_from() {
    for case in cases(WRITE).into_iter().chain(receive_cases()) {
        let message = case.message;
        let mut pair = Pair::new(options(0), options(0));
        let memory = pair.to.memory().clone();
        case.write(&pair.to.receiveq, &memory);
        let before = memory.bytes(0, MEMORY);
        pair.from
            .send(&pattern(1000), Offload::default(), &Shape::whole());
        pair.from
            .send(&pattern(60), Offload::default(), &Shape::whole());
        let turn = pair.turn();
        let down = [Err(TransmitError::Broken), Err(TransmitError::Down)];
        assert_eq!(turn.sent, down, "{message}");
        assert_eq!(turn.error, Some(broken("receiveq", message)));
        assert!(before == memory.bytes(0, MEMORY), "{message}: memory");
        // The sender is not concerned: its buffers came back, and it sends on.
        assert_eq!(pair.from.reclaim(), 2);
        assert!(pair.from_port.is_up() && !pair.to_port.is_up());
    }
}

#[test]
fn an_indirect_table_has_to_be_negotiated() {
    let without = GuestOptions {
        features: (PLAIN | RING_PACKED) & !INDIRECT_DESC,
        ..options(0)
    };
    let mut pair = Pair::new(without, options(64));
    let indirect = case("", &[(TABLE, 16, INDIRECT)]);
    indirect.write(&pair.from.transmitq, &pair.from.memory().clone());
    let message = "the chain of descriptor 0 is indirect, which was not negotiated";
    assert_eq!(pair.poll().error, Some(broken("transmitq", message)));
}

/// What we do not depend on may be anything: ids, and the flags of slots that follow in a chain.
#[test]
fn what_is_the_guests_own_affair_is_no_reason_to_stop() {
    let mut pair = Pair::new(options(0), options(64));
    let memory = pair.from.memory().clone();
    memory.fill(SPARE, 12, 0);
    let queue = &pair.from.transmitq;
    queue.write_descriptor(1, BUFFER + 12, 60, USED, 0xffff);
    queue.write_descriptor(0, BUFFER, 12, NEXT | AVAIL, 0x1234);
    assert_eq!(pair.poll(), Turn::ok(1));
    assert_eq!(pair.one().frame, memory.bytes(SPARE + 12, 60));
    // It came back at the first slot, by the last one's id. Its address is ours.
    let used = packed_descriptor(0, 0, 0xffff, AVAIL | USED);
    assert_eq!(memory.bytes(pair.from.transmitq.desc_at + 8, 8), used[8..]);
}

/// A slot is not the guest's before it came back, whatever its flags say.
#[test]
fn slots_are_not_taken_twice() {
    let mut pair = Pair::new(options(0), options(64));
    let memory = pair.from.memory().clone();
    memory.fill(SPARE, 12, 0);
    for slot in 0..SIZE {
        pair.from
            .transmitq
            .write_descriptor(slot, BUFFER, 72, AVAIL, slot);
    }
    // All of the ring is out in two batches, none has come back; the guest offers slot 0 again, for
    // the next lap.
    let mut batches: [_; 3] = std::array::from_fn(|_| butterfly_io::frame::Batch::new());
    for _ in 0..BATCH / 2 {
        batches[0].push_bytes(&[0; 60], Offload::default());
    }
    assert_eq!(pair.from_port.receive(&mut batches[0]), Ok(BATCH / 2));
    assert_eq!(
        pair.from_port.receive(&mut batches[1]),
        Ok(usize::from(SIZE) - BATCH / 2)
    );
    pair.from.transmitq.write_descriptor(0, BUFFER, 72, USED, 0);
    assert_eq!(pair.from_port.receive(&mut batches[2]), Ok(0));
    // They come back one after the other.
    let flags = |slot: usize| memory.word(pair.from.transmitq.desc_at + 16 * slot + 14);
    let used = AVAIL | USED;
    let order = std::sync::atomic::Ordering::Relaxed;
    pair.from_port.complete(&mut batches[0]);
    assert_eq!(
        [0, 31, 32, 63].map(|slot| flags(slot).load(order)),
        [used, used, AVAIL, AVAIL]
    );
    pair.from_port.complete(&mut batches[1]);
    assert_eq!([32, 63].map(|slot| flags(slot).load(order)), [used, used]);
    assert_eq!(pair.from_port.receive(&mut batches[2]), Ok(0));
}

/// One used entry for a batch is what IN_ORDER is for.
#[test]
fn a_batch_in_order_comes_back_with_one_entry() {
    use butterfly_io::vhost::features::IN_ORDER;
    for packed in [0, RING_PACKED] {
        let mut from = options(0);
        from.features = PLAIN | IN_ORDER | packed;
        let mut pair = Pair::new(from, options(64));
        for _ in 0..20 {
            pair.from
                .send(&pattern(60), Offload::default(), &Shape::whole());
        }
        assert_eq!(pair.turn(), Turn::ok(20));
        let memory = pair.from.memory();
        if packed != 0 {
            let flags = |slot: usize| memory.bytes(pair.from.transmitq.desc_at + 16 * slot + 12, 4);
            assert_eq!(flags(0)[2..], (AVAIL | USED).to_le_bytes());
            for slot in 1..20 {
                assert_eq!(
                    flags(slot)[2..],
                    AVAIL.to_le_bytes(),
                    "slot {slot} is as it was offered"
                );
            }
            assert_eq!(flags(0)[..2], flags(19)[..2], "the last one's id");
        } else {
            let entries = memory.bytes(pair.from.transmitq.used_at, 4 + 8 * 20);
            assert_eq!(entries[2..4], 20u16.to_le_bytes());
            assert_eq!(
                entries[4..12],
                [19, 0, 0, 0, 0, 0, 0, 0],
                "the last one's head"
            );
            assert!(
                entries[12..].iter().all(|&byte| byte == 0),
                "and nothing else"
            );
        }
        assert_eq!(pair.from.reclaim(), 20);
    }
}
