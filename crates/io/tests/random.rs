//! Random chains carry whole frames; random garbage in the rings breaks nothing but the port it is
//! in.

mod common;

use butterfly_io::port::{PortError, TransmitError};
use common::*;
use proptest::prelude::*;
use testkit::ring_driver::queue::{descriptor, packed_descriptor};
use testkit::ring_driver::{GUEST_BASE, GuestOptions, Shape};
use wire::offload::Offload;

fn shape() -> impl Strategy<Value = Shape> {
    let parts = prop::collection::vec(prop_oneof![0usize..20, 0usize..300, 0usize..5000], 0..18);
    (parts, prop::option::of(0usize..18)).prop_map(|(parts, from)| {
        let from = from.map(|from| from.min(parts.len()));
        Shape {
            parts,
            indirect_from: from,
        }
    })
}

fn receive_shape() -> impl Strategy<Value = Shape> {
    let parts = prop::collection::vec(1usize..3000, 1..12);
    (parts, prop::option::of(0usize..12)).prop_map(|(mut parts, from)| {
        // A header has to fit in the first chain, and no frame is to be written in more pieces than
        // `io::vhost::limits::scatter_max` says.
        parts.push(12);
        parts.push(64 * (parts.len() + 1));
        let from = from.map(|from| from.min(parts.len() - 1));
        Shape {
            parts,
            indirect_from: from,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn frames_round_trip_through_random_chains(
        frames in prop::collection::vec((14usize..=65_600, shape()), 1..6),
        receive_shape in receive_shape(),
        start_index: u16,
        second_region in prop::option::of(1usize..1000),
        kind in kinds(),
    ) {
        with_kind(kind, || {
        let from = GuestOptions { start_index, memory_len: 4 << 20, ..GuestOptions::default() };
        let to = GuestOptions {
            receive_shape,
            second_region: second_region.map(|page| page * 4096),
            start_index: start_index.wrapping_mul(3),
            ..from.clone()
        };
        let mut pair = Pair::new(from, to);
        for (len, shape) in frames {
            let frame = pattern(len);
            let used = pair.to.receiveq.used_index();
            prop_assert!(pair.from.send(&frame, Offload::default(), &shape));
            prop_assert_eq!(pair.turn().error, None);
            prop_assert_eq!(pair.from.reclaim(), 1);
            let got = pair.to.receive();
            // The receiver may have less room than the frame needs; what it gets is whole.
            prop_assert!(got.len() <= 1);
            if let Some(got) = got.first() {
                prop_assert!(got.frame == frame);
            } else {
                prop_assert_eq!(pair.to.receiveq.used_index(), used, "no part of it was given \
                                                                      back");
            }
        }
        Ok(())
        })?;
    }
}

/// Garbage that is close enough to sense to get past the first check.
#[derive(Clone, Debug)]
struct Garbage {
    descriptors: Vec<(u64, u32, u16, u16)>,
    table: Vec<(u64, u32, u16, u16)>,
    heads: Vec<u16>,
    ahead: u16,
}

const SIZE: u16 = 16;
const MEMORY: usize = 64 << 10;
const TABLE: usize = 0x3000;

/// `low` is the lowest offset in the memory that most buffers have.
fn garbage(low: usize) -> impl Strategy<Value = Garbage> {
    let addr = prop_oneof![
        4 => (low as u64..MEMORY as u64).prop_map(|at| GUEST_BASE + at),
        2 => Just(GUEST_BASE + TABLE as u64),
        1 => (0u64..64).prop_map(|near| GUEST_BASE + MEMORY as u64 - 32 + near),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 0u32..3000, 1 => (0u32..20).prop_map(|n| n * 16), 1 => any::<u32>()];
    let flags = prop_oneof![4 => 0u16..4, 2 => 0u16..8, 1 => any::<u16>()];
    let next = prop_oneof![6 => 0u16..SIZE, 1 => any::<u16>()];
    let descriptor = (addr, len, flags, next);
    let heads = prop::collection::vec(
        prop_oneof![9 => 0u16..SIZE, 1 => any::<u16>()],
        SIZE as usize,
    );
    (
        prop::collection::vec(descriptor.clone(), SIZE as usize),
        prop::collection::vec(descriptor, 16),
        heads,
        prop_oneof![9 => 0u16..=SIZE, 1 => any::<u16>()],
    )
        .prop_map(|(descriptors, table, heads, ahead)| Garbage {
            descriptors,
            table,
            heads,
            ahead,
        })
}

fn write(guest: &mut testkit::ring_driver::Guest, receive: bool, garbage: &Garbage) {
    let packed = guest.receiveq.is_packed();
    for (i, &(addr, len, flags, next)) in garbage.table.iter().enumerate() {
        let bytes = if packed {
            packed_descriptor(addr, len, next, flags)
        } else {
            descriptor(addr, len, flags, next)
        };
        guest.memory().write(TABLE + 16 * i, &bytes);
    }
    let queue = if receive {
        &mut guest.receiveq
    } else {
        &mut guest.transmitq
    };
    for (i, &(addr, len, flags, next)) in garbage.descriptors.iter().enumerate() {
        queue.write_descriptor(i as u16, addr, len, flags, next);
    }
    for &head in &garbage.heads {
        queue.push_available(head);
    }
    queue.write_available_index(garbage.ahead);
}

fn options() -> GuestOptions {
    GuestOptions {
        features: LINUX,
        queue_size: SIZE,
        memory_len: MEMORY,
        receive_chains: 0,
        ..GuestOptions::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Nothing panics or hangs, an error is a broken protocol, and the neighbour's memory outside
    /// its own receive buffers is untouched.
    #[test]
    fn garbage_to_transmit_stays_with_its_guest(garbage in garbage(0), kind in kinds()) {
        with_kind(kind, || {
        let to = GuestOptions { receive_chains: 16, receive_shape: Shape::cut(&[1024]),
            ..options() };
        let mut pair = Pair::new(options(), to);
        write(&mut pair.from, false, &garbage);
        let end = pair.to.receiveq.used_at;
        let rings = pair.to.memory().bytes(0, end);
        let ours = pair.to.receiveq.written_by_device();
        let ours: Vec<_> = ours.into_iter().filter(|range| range.start < end).collect();
        for _ in 0..3 {
            let turn = pair.poll();
            if let Some(error) = turn.error {
                let PortError::Broken { what } = error;
                prop_assert!(what.starts_with("transmitq: "), "{}", what);
            }
            for sent in turn.sent {
                prop_assert!(!matches!(sent, Err(TransmitError::Down | TransmitError::Broken)));
            }
        }
        prop_assert!(same_but(&rings, &pair.to.memory().bytes(0, end), &ours));
        prop_assert!(pair.to_port.is_up());
        pair.to.receive();
        Ok(())
        })?;
    }

    /// Whatever the ring that the guest receives from says, its own memory changes only where it
    /// said so.
    #[test]
    fn garbage_to_receive_in_stays_with_its_guest(
        garbage in garbage(0x4000), len in 14usize..4000, kind in kinds(),
    ) {
        with_kind(kind, || {
        let from = GuestOptions { receive_chains: 0, memory_len: 256 << 10, ..options() };
        let mut pair = Pair::new(from, options());
        write(&mut pair.to, true, &garbage);
        let before = pair.to.memory().bytes(0, MEMORY);
        for _ in 0..4 {
            pair.from.send(&pattern(len), Offload::default(), &Shape::cut(&[12, 100]));
        }
        let mut error = None;
        for _ in 0..3 {
            error = error.or(pair.turn().error);
            pair.from.reclaim();
        }
        if let Some(PortError::Broken { what }) = error {
            prop_assert!(what.starts_with("receiveq: "), "{}", what);
        }
        prop_assert!(pair.from_port.is_up());
        // Every byte that changed lies in a writable buffer that the guest named, or in its used
        // ring. A guest that let a frame be written over its own table named what the frame says:
        // there is nothing to compare with.
        let after = pair.to.memory().bytes(0, MEMORY);
        let table = TABLE..TABLE + 16 * garbage.table.len();
        if before[table.clone()] != after[table] {
            return Ok(());
        }
        let ours = pair.to.receiveq.written_by_device();
        let named = |at: usize| {
            let addr = GUEST_BASE + at as u64;
            garbage.descriptors.iter().chain(&garbage.table).any(|&(start, len, flags, _)| {
                flags & 2 != 0 && addr.wrapping_sub(start) < u64::from(len)
            })
        };
        for at in (0..MEMORY).filter(|&at| before[at] != after[at]) {
            prop_assert!(ours.iter().any(|range| range.contains(&at))
                || named(at), "byte {:#x}", at);
        }
        Ok(())
        })?;
    }
}
