//! A process is killed, and the next one goes on where it was in each packed ring, which nothing
//! but the ring says.
//!
//! Two guests talk through two ports. After every step, and at every store at which a process could
//! be killed while it gives chains back, another device looks at the very rings.

mod common;

use butterfly_io::port::QueueInfo;
use butterfly_io::vhost::features::{IN_ORDER, RING_PACKED};
use butterfly_io::vhost::queue::{Begin, Queue as Device, QueueParts};
use common::*;
use proptest::prelude::*;
use std::sync::Arc;
use testkit::ring_driver::queue::Queue;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use wire::offload::Offload;

const USED: u16 = 1 << 15 | 1 << 7;

/// One of the frames of a step: its length, how its chain is cut.
type Sent = (usize, Shape);

fn sent() -> impl Strategy<Value = Sent> {
    let shape = prop_oneof![
        3 => Just(Shape::whole()),
        3 => prop::collection::vec(1usize..200, 1..4).prop_map(|parts| Shape::cut(&parts)),
        1 => Just(Shape::cut(&[12, 30]).indirect(0)),
    ];
    (60usize..1500, shape)
}

/// How large both rings are, what is sent at each step, and how many chains to receive in are
/// offered after it.
#[derive(Clone, Debug)]
struct Story {
    size: u16,
    in_order: bool,
    parts: Vec<usize>,
    steps: Vec<(Vec<Sent>, usize)>,
}

fn story() -> impl Strategy<Value = Story> {
    let size = prop_oneof![Just(8u16), Just(16), Just(21), 5u16..70];
    let parts = prop_oneof![
        Just(vec![2048]),
        Just(vec![256]),
        Just(vec![100, 300, 1200])
    ];
    let steps = prop::collection::vec((prop::collection::vec(sent(), 0..12), 0usize..20), 1..40);
    (size, any::<bool>(), parts, steps).prop_map(|(size, in_order, parts, steps)| Story {
        size,
        in_order,
        parts,
        steps,
    })
}

/// What another process finds.
fn found(guest: &Guest, queue: &Queue) -> u16 {
    let memory = butterfly_io::guest_memory::GuestMemory::new(guest.regions()).unwrap();
    let mut setup = guest.setup(queue, &Arc::new(memory));
    (setup.kick, setup.call) = (None, None);
    // What the VMM says is wrong, and not asked for.
    setup.begin = Begin::AsItWas { told: 3 };
    let QueueParts { last_avail, .. } = Device::new(setup).unwrap().into_parts();
    last_avail
}

fn bits(slot: u16, wrap: bool) -> u16 {
    slot | u16::from(wrap) << 15
}

fn next(state: &QueueInfo) -> u16 {
    bits(state.next_avail, state.avail_wrap)
}

fn ring(guest: &Guest, queue: &Queue) -> Vec<u8> {
    guest
        .memory()
        .bytes(queue.desc_at, 16 * usize::from(queue.size))
}

fn flags(ring: &[u8], slot: u16) -> u16 {
    let at = 16 * usize::from(slot) + 14;
    u16::from_le_bytes([ring[at], ring[at + 1]])
}

/// Half a descriptor, by its offset in the ring: its address, or its length, id and flags.
type Word = usize;

/// The words that are written to give chains back, in the order in which they are written: of each
/// chain its notes and then its used descriptor, of the first chain last. Beside each how many
/// chains have been touched then, counted from the second on.
fn words(size: u16, given_back: &[u16], end: u16) -> Vec<(Word, usize)> {
    let mut words = Vec::new();
    let first = (0..given_back.len()).take(1);
    for number in (1..given_back.len()).chain(first) {
        let slot = given_back[number];
        let behind = given_back.get(number + 1).copied().unwrap_or(end);
        let last = (behind + size - 1) % size;
        let at = |slot: u16| 16 * usize::from(slot);
        let touched = if number == 0 {
            given_back.len()
        } else {
            number + 1
        };
        words.extend([at(slot), at(last), at(slot) + 8].map(|word| (word, touched)));
    }
    words
}

/// Chains are given back by `publish`. Every state of the ring between before and after is shown to
/// another process.
fn killed_while_publishing(
    guest: &Guest,
    queue: &Queue,
    before: &[u8],
    from: &QueueInfo,
    to: &QueueInfo,
) -> Result<(), TestCaseError> {
    let after = ring(guest, queue);
    let size = queue.size;
    let slots = (0..size).map(|ahead| (from.used_index + ahead) % size);
    let given_back: Vec<u16> = slots
        .filter(|&slot| flags(before, slot) & USED != flags(&after, slot) & USED)
        .collect();
    // Where the device is when so many of them are given back.
    let place = |touched: usize| match given_back.get(touched) {
        Some(&slot) => bits(slot, from.used_wrap != (slot < from.used_index)),
        None => bits(to.used_index, to.used_wrap),
    };
    let mut torn = before.to_vec();
    let mut touched = 0;
    for (word, chains) in words(size, &given_back, to.used_index) {
        let word = word..word + 8;
        if torn[word.clone()] != after[word.clone()] {
            torn[word.clone()].copy_from_slice(&after[word]);
            touched = chains;
        }
        guest.memory().write(queue.desc_at, &torn);
        if torn == after {
            break;
        }
        prop_assert_eq!(
            found(guest, queue),
            place(touched),
            "{} of {:?}",
            touched,
            given_back
        );
        // What was begun is finished, with empty chains, and the rest is as it was.
        let mut expected = before.to_vec();
        for &slot in &given_back[..touched] {
            let at = 16 * usize::from(slot);
            expected[at + 8..at + 12].fill(0);
            expected[at + 12..at + 14].copy_from_slice(&after[at + 12..at + 14]);
            let flags = flags(&after, slot) & USED;
            expected[at + 14..at + 16].copy_from_slice(&flags.to_le_bytes());
        }
        let finished = ring(guest, queue);
        let meant = |ring: &[u8]| {
            ring.chunks(16)
                .map(|slot| slot[8..].to_vec())
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(
            meant(&finished),
            meant(&expected),
            "{} of {:?}",
            touched,
            given_back
        );
        // The next process can be killed too.
        prop_assert_eq!(found(guest, queue), place(touched));
    }
    guest.memory().write(queue.desc_at, &after);
    Ok(())
}

fn run(story: &Story) -> Result<(), TestCaseError> {
    let features = LINUX | RING_PACKED | if story.in_order { IN_ORDER } else { 0 };
    let from = GuestOptions {
        features,
        queue_size: story.size,
        memory_len: 1 << 20,
        receive_chains: 0,
        ..GuestOptions::default()
    };
    let to = GuestOptions {
        receive_chains: usize::from(story.size),
        receive_shape: Shape::cut(&story.parts),
        ..from.clone()
    };
    let mut pair = Pair::new(from, to);
    pair.to.refill_at_once = false;
    for (sent, refill) in &story.steps {
        for (len, shape) in sent {
            pair.from.send(&pattern(*len), Offload::default(), shape);
        }
        pair.from.transmitq.publish();
        pair.to.refill_some(*refill);
        pair.from_port.receive(&mut pair.batch).unwrap();
        for index in 0..pair.batch.len() {
            let _ = pair.to_port.transmit(&pair.batch, index);
        }

        let state = |pair: &Pair| pair.to_port.info().receiveq.unwrap();
        let (before, was) = (ring(&pair.to, &pair.to.receiveq), state(&pair));
        pair.to_port.flush().unwrap();
        killed_while_publishing(&pair.to, &pair.to.receiveq, &before, &was, &state(&pair))?;

        let state = |pair: &Pair| pair.from_port.info().transmitq.unwrap();
        let (before, was) = (ring(&pair.from, &pair.from.transmitq), state(&pair));
        let Pair {
            from_port, batch, ..
        } = &mut pair;
        from_port.complete(batch);
        killed_while_publishing(
            &pair.from,
            &pair.from.transmitq,
            &before,
            &was,
            &state(&pair),
        )?;

        pair.from.reclaim();
        pair.to.receive();
        let places = [
            (
                &pair.from,
                &pair.from.transmitq,
                pair.from_port.info().transmitq,
            ),
            (&pair.to, &pair.to.receiveq, pair.to_port.info().receiveq),
        ];
        for (guest, queue, state) in places {
            prop_assert_eq!(found(guest, queue), next(&state.unwrap()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_next_process_goes_on_where_the_last_one_was(story in story()) {
        run(&story)?;
    }

    /// Whatever is in a ring, a place in it is found, and nothing but the ring is touched.
    #[test]
    fn a_ring_of_garbage_has_a_place_too(
        size in 4u16..40,
        content in prop::collection::vec(
            (any::<u64>(), prop_oneof![any::<u64>(), Just(0)], 0u16..4), 40),
    ) {
        let options = GuestOptions {
            features: LINUX | RING_PACKED,
            queue_size: size,
            memory_len: 64 << 10,
            receive_chains: 0,
            ..GuestOptions::default()
        };
        let guest = Guest::new(options);
        let queue = &guest.transmitq;
        for (slot, &(addr, rest, kind)) in content.iter().enumerate().take(size.into()) {
            // What looks like a note, with flags of all four kinds.
            let addr = match addr & 1 {
                0 => addr,
                _ => 0xb077_e7f1 << 32 | (addr >> 32) & 0x003f_003f,
            };
            let flags = [0, 1 << 7, 1 << 15, USED][usize::from(kind)] | (rest >> 48) as u16 & 7;
            queue.write_descriptor(slot as u16, addr, rest as u32, flags, (rest >> 32) as u16);
        }
        let before = guest.memory().bytes(0, 64 << 10);
        let at = found(&guest, queue);
        prop_assert!(at & 0x7fff < size || at == 3);
        let after = guest.memory().bytes(0, 64 << 10);
        prop_assert!(same_but(&before, &after, &queue.written_by_device()));
    }
}
