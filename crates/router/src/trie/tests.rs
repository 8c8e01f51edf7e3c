//! The trie against a map of prefixes, at every edge of every prefix.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

/// Few bits at a time, so that every edge is near; and nodes large enough for an index.
const SHAPES: [Shape; 2] = [
    Shape {
        root_bits: 4,
        width: 3,
    },
    Shape {
        root_bits: 2,
        width: 7,
    },
];

fn trie(shape: Shape, lines: usize) -> Trie {
    let words = (0..lines * LINE).map(|_| AtomicU32::new(0)).collect();
    Trie::new(Words::Memory(words), shape, lines)
}

fn mask(bits: u128, len: u8) -> u128 {
    if len == 0 {
        0
    } else {
        bits >> (128 - len) << (128 - len)
    }
}

fn parent(map: &BTreeMap<(u128, u8), u32>, bits: u128, len: u8) -> (u32, u8) {
    let found = (0..len)
        .rev()
        .find_map(|len| Some((*map.get(&(mask(bits, len), len))?, len)));
    found.unwrap_or((0, 0))
}

/// The first and last addresses of all prefixes, and their neighbours: where answers change.
fn edges(map: &BTreeMap<(u128, u8), u32>) -> Vec<u128> {
    let both = map.keys().flat_map(|(bits, len)| {
        let last = bits | u128::MAX.checked_shr(u32::from(*len)).unwrap_or(0);
        [bits.wrapping_sub(1), *bits, last, last.wrapping_add(1)]
    });
    both.chain([0, u128::MAX]).collect()
}

proptest! {
    #[test]
    fn it_says_what_the_longest_prefix_says(
        shape in 0..SHAPES.len(),
        steps in prop::collection::vec((any::<u16>(), 0u8..=16, 1u32..9, any::<bool>()), 1..120),
    ) {
        let shape = SHAPES[shape];
        let longest = shape.root_bits + 2 * shape.width;
        let mut trie = trie(shape, 4096);
        let mut map = BTreeMap::new();
        for (address, len, value, flush) in steps {
            let len = len.min(longest);
            // Near each other, half of the time.
            let address = if value % 2 == 0 { address & 0xf0ff } else { address };
            // Beyond 8 and beyond 16 bits now and then.
            let value = match value {
                7 => 300,
                8 => 1 << 20,
                small => small,
            };
            let bits = mask(u128::from(address) << 112, len);
            let key = (bits, len);
            if map.get(&key).is_some_and(|had| *had == value) {
                map.remove(&key);
                let (value, owner) = parent(&map, bits, len);
                trie.remove(bits, len, value, owner);
            } else if map.insert(key, value).is_some() {
                trie.change(bits, len, value);
            } else {
                trie.insert(bits, len, value);
            }
            if !flush {
                continue;
            }
            prop_assert_eq!(trie.flush(), Ok(()));
            trie.rest();
            for probe in edges(&map) {
                let (expected, _) = parent(&map, probe, 128);
                prop_assert_eq!(trie.lookup(probe), expected, "address {:#x}", probe);
            }
        }
        for (bits, len) in map.keys().rev().copied().collect::<Vec<_>>() {
            map.remove(&(bits, len));
            let (value, owner) = parent(&map, bits, len);
            trie.remove(bits, len, value, owner);
        }
        prop_assert_eq!(trie.flush(), Ok(()));
        prop_assert_eq!(trie.usage().0, shape.root_lines(), "all blocks are given back");
        prop_assert!(edges(&map).iter().all(|probe| trie.lookup(*probe) == 0));
    }
}

#[test]
fn a_full_trie_says_so_and_recovers() {
    let shape = SHAPES[0];
    let mut trie = trie(shape, shape.root_lines() + 2);
    trie.insert(0, 0, 7);
    trie.insert(1 << 120, 8, 1);
    trie.flush().expect("two lines");
    trie.insert(3 << 122, 6, 2);
    assert_eq!(trie.flush(), Err(Full));
    assert_eq!(
        (trie.lookup(3 << 122), trie.lookup(1 << 120)),
        (7, 1),
        "as it was"
    );
    trie.remove(1 << 120, 8, 7, 0);
    assert_eq!(
        trie.flush(),
        Err(Full),
        "a reader may still be in the blocks"
    );
    trie.rest();
    trie.rest();
    trie.flush().expect("they are free again");
    assert_eq!((trie.lookup(3 << 122), trie.lookup(1 << 120)), (2, 7));
}
