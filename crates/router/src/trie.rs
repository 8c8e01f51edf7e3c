//! A multibit trie of 32-bit words that a program reads while we change it. Holds no routes: only which value each
//! address has now, and the length of the prefix it has it from.
//!
//! The root covers `root_bits` bits, each level below `stride` more; a prefix that ends within a level is painted over
//! all entries it covers and that no longer prefix owns (controlled prefix expansion: Srinivasan and Varghese, 1998). So an entry changes with
//! one store, from one right value to the next, and nothing wrong is ever to be read. A node is filled before it is
//! linked; one that is unlinked rests until [`Trie::rest`] has been called twice, since a reader may be in it.

use std::sync::atomic::{AtomicU32, Ordering};

use io::bpf_array::BpfArray;

use crate::layout::CHILD;

/// Where the words are.
#[derive(Debug)]
pub enum Words {
    /// In the kernel, where the program reads them.
    Kernel(BpfArray),
    /// Here, for tests and for calculations.
    Memory(Vec<AtomicU32>),
}

impl Words {
    fn all(&self) -> &[AtomicU32] {
        match self {
            Words::Kernel(array) => array.words(),
            Words::Memory(words) => words,
        }
    }
}

/// How wide the levels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits of the root.
    pub root_bits: u8,
    /// Bits of each level below.
    pub stride: u8,
}

impl Shape {
    /// Two levels: 24 and 8 bits (Gupta, Lin and McKeown, 1998).
    pub const V4: Shape = Shape {
        root_bits: 24,
        stride: 8,
    };
    /// 16 bits and then nibbles, whose nodes are a cache line; IPv6's prefixes end at nibbles as a rule.
    pub const V6: Shape = Shape {
        root_bits: 16,
        stride: 4,
    };

    /// Words of a node.
    pub fn node_words(self) -> usize {
        1 << self.stride
    }

    /// Nodes that the root takes.
    pub fn root_nodes(self) -> usize {
        1 << (self.root_bits - self.stride)
    }
}

/// No node is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The trie. Prefixes are the highest bits of a `u128`, IPv4's as well.
#[derive(Debug)]
pub struct Trie {
    words: Words,
    shape: Shape,
    /// By word: the length of the prefix whose value it has.
    owner: Vec<u8>,
    /// By node: prefixes that end in it or below.
    below: Vec<u32>,
    free: Vec<u32>,
    resting: [Vec<u32>; 2],
    /// Nodes from here on have never been used.
    unused: usize,
    nodes: usize,
}

impl Trie {
    /// An empty trie of `nodes` nodes, the root's among them, over words that are all zero.
    pub fn new(words: Words, shape: Shape, nodes: usize) -> Self {
        assert!(
            nodes >= shape.root_nodes() && nodes * shape.node_words() == words.all().len(),
            "the map's size"
        );
        Trie {
            owner: vec![0; nodes * shape.node_words()],
            below: vec![0; nodes],
            free: Vec::new(),
            resting: Default::default(),
            unused: shape.root_nodes(),
            nodes,
            words,
            shape,
        }
    }

    /// Gives a prefix that was not there its value.
    pub fn insert(&mut self, bits: u128, len: u8, value: u32) -> Result<(), Full> {
        let levels = usize::from(
            len.saturating_sub(self.shape.root_bits)
                .div_ceil(self.shape.stride),
        );
        if self.free.len() + (self.nodes - self.unused) < levels {
            return Err(Full);
        }
        self.descend(bits, len, 1);
        self.paint(bits, len, |owner| owner <= len, value, len);
        Ok(())
    }

    /// Gives a prefix that is there another value.
    pub fn change(&mut self, bits: u128, len: u8, value: u32) {
        self.paint(bits, len, |owner| owner == len, value, len);
    }

    /// Removes a prefix; its addresses get what the next shorter one has: 0 and length 0 if there is none.
    pub fn remove(&mut self, bits: u128, len: u8, value: u32, owner: u8) {
        self.paint(bits, len, |had| had == len, value, owner);
        self.descend(bits, len, -1);
    }

    /// The value of an address.
    pub fn lookup(&self, bits: u128) -> u32 {
        let mut depth = self.shape.root_bits;
        let mut word = slot(bits, 0, depth);
        loop {
            let entry = self.words.all()[word].load(Ordering::Relaxed);
            if entry & CHILD == 0 {
                return entry;
            }
            word = self.first_word(entry) + slot(bits, depth, self.shape.stride);
            depth += self.shape.stride;
        }
    }

    /// To be called now and then, when every reader has left: nodes that were unlinked before the last call are used again.
    pub fn rest(&mut self) {
        self.free.append(&mut self.resting[1]);
        self.resting.swap(0, 1);
    }

    /// Nodes in use, and how many there are.
    pub fn usage(&self) -> (usize, usize) {
        let idle = self.free.len() + self.resting[0].len() + self.resting[1].len();
        (self.unused - idle, self.nodes)
    }

    fn first_word(&self, entry: u32) -> usize {
        (entry & !CHILD) as usize * self.shape.node_words()
    }

    /// Makes, or gives up, the nodes on the way to a prefix, and counts it in them.
    fn descend(&mut self, bits: u128, len: u8, by: i32) {
        let mut depth = self.shape.root_bits;
        let mut word = slot(bits, 0, depth);
        // Where the way leaves what others use too, once nobody else is left below.
        let mut abandoned = None;
        let mut last = 0;
        while len > depth {
            let entry = self.words.all()[word].load(Ordering::Relaxed);
            let node = if entry & CHILD != 0 {
                entry & !CHILD
            } else {
                self.grow(word, entry)
            };
            let below = &mut self.below[node as usize];
            *below = below.wrapping_add_signed(by);
            if *below == 0 {
                abandoned.get_or_insert(word);
                self.resting[0].push(node);
            }
            last = node as usize * self.shape.node_words();
            word = last + slot(bits, depth, self.shape.stride);
            depth += self.shape.stride;
        }
        if let Some(word) = abandoned {
            // All that was below has one value by now.
            self.owner[word] = self.owner[last];
            let value = self.words.all()[last].load(Ordering::Relaxed);
            self.words.all()[word].store(value, Ordering::Release);
        }
    }

    /// A new node in the place of a value that it has everywhere.
    fn grow(&mut self, word: usize, value: u32) -> u32 {
        let node = self.free.pop().unwrap_or_else(|| {
            self.unused += 1;
            self.unused as u32 - 1
        });
        let first = node as usize * self.shape.node_words();
        let last = first + self.shape.node_words();
        for entry in &self.words.all()[first..last] {
            entry.store(value, Ordering::Relaxed);
        }
        let owner = self.owner[word];
        self.owner[first..last].fill(owner);
        self.below[node as usize] = 0;
        self.words.all()[word].store(CHILD | node, Ordering::Release);
        node
    }

    /// Gives all entries of a prefix whose owner is `whose` a new value and owner. The nodes on the way are there.
    fn paint(&mut self, bits: u128, len: u8, whose: impl Fn(u8) -> bool + Copy, value: u32, owner: u8) {
        let (mut depth, mut first, mut from, mut width) = (0, 0, 0, self.shape.root_bits);
        while len > depth + width {
            let word = first + slot(bits, from, width);
            let entry = self.words.all()[word].load(Ordering::Relaxed);
            first = self.first_word(entry);
            depth += width;
            (from, width) = (depth, self.shape.stride);
        }
        // The prefix ends within this level.
        let word = first + slot(bits, from, width);
        let covered = 1usize << (depth + width - len);
        self.paint_words(word & !(covered - 1), covered, whose, value, owner);
    }

    fn paint_words(
        &mut self,
        first: usize,
        count: usize,
        whose: impl Fn(u8) -> bool + Copy,
        value: u32,
        owner: u8,
    ) {
        for word in first..first + count {
            let entry = self.words.all()[word].load(Ordering::Relaxed);
            if entry & CHILD != 0 {
                self.paint_words(
                    self.first_word(entry),
                    self.shape.node_words(),
                    whose,
                    value,
                    owner,
                );
            } else if whose(self.owner[word]) {
                self.owner[word] = owner;
                self.words.all()[word].store(value, Ordering::Release);
            }
        }
    }
}

/// `width` bits of an address from bit `from` on, the highest being 0.
fn slot(bits: u128, from: u8, width: u8) -> usize {
    ((bits << from) >> (128 - u32::from(width))) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Two bits and then one at a time: every edge is near.
    const SMALL: Shape = Shape {
        root_bits: 4,
        stride: 2,
    };

    fn trie(nodes: usize) -> Trie {
        let words = (0..nodes * SMALL.node_words())
            .map(|_| AtomicU32::new(0))
            .collect();
        Trie::new(Words::Memory(words), SMALL, nodes)
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

    proptest! {
        #[test]
        fn it_says_what_the_longest_prefix_says(steps in prop::collection::vec((any::<u16>(), 0u8..=10, 1u32..9), 1..80)) {
            let mut trie = trie(200);
            let mut map = BTreeMap::new();
            for (address, len, value) in steps {
                let bits = mask(u128::from(address) << 112, len);
                let key = (bits, len);
                if map.get(&key).is_some_and(|had| *had == value) {
                    map.remove(&key);
                    let (value, owner) = parent(&map, bits, len);
                    trie.remove(bits, len, value, owner);
                } else if map.insert(key, value).is_some() {
                    trie.change(bits, len, value);
                } else {
                    trie.insert(bits, len, value).expect("room");
                }
                trie.rest();
                for probe in 0..1024u128 {
                    let bits = probe << 118;
                    let (expected, _) = parent(&map, bits, 11);
                    prop_assert_eq!(trie.lookup(bits), expected, "address {:#x}", probe);
                }
            }
            for (bits, len) in map.keys().rev().copied().collect::<Vec<_>>() {
                map.remove(&(bits, len));
                let (value, owner) = parent(&map, bits, len);
                trie.remove(bits, len, value, owner);
            }
            prop_assert_eq!(trie.usage().0, SMALL.root_nodes(), "all nodes are given back");
        }
    }

    #[test]
    fn a_full_trie_says_so_and_stays_as_it_was() {
        let mut trie = trie(SMALL.root_nodes() + 2);
        trie.insert(0, 0, 7).expect("no node needed");
        trie.insert(1 << 120, 8, 1).expect("two nodes");
        assert_eq!(trie.insert(3 << 124, 5, 2), Err(Full));
        assert_eq!((trie.lookup(3 << 124), trie.lookup(1 << 120)), (7, 1));
        trie.remove(1 << 120, 8, 7, 0);
        assert_eq!(
            trie.insert(3 << 124, 5, 2),
            Err(Full),
            "a reader may still be in the nodes"
        );
        trie.rest();
        trie.rest();
        trie.insert(3 << 124, 5, 2).expect("they are free again");
        assert_eq!((trie.lookup(3 << 124), trie.lookup(1 << 120)), (2, 7));
    }
}
