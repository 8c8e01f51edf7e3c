//! A trie of 32-bit words that a program reads while we change it. Holds no routes: only which value each prefix has.
//!
//! The root is an array over the first `root_bits` bits. Below, a node covers `width` bits more, and is the sorted runs of
//! addresses that have one answer, few of them in each line or under each entry of an index (`node.rs`; DXR does much the
//! same for IPv4: Zec, Rizzo and Mikuc, 2012). What a lookup costs is reads that miss the caches, some 150 ns each where a million
//! routes are used at random: IPv4 has one for nearly all addresses, IPv6 one in a node of a usual site.
//!
//! A node says only what the prefixes that end in it say; its head has what its slot has without them. So a change of a
//! short prefix changes a node's heads, a store each, and one of a prefix in a node writes that node anew, into another
//! block, to which one store leads. Every word leads from one right answer to the next, and nothing wrong is ever
//! to be read. Changes of nodes are collected until [`Trie::flush`]: a flood of routes writes each node once a flush.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use io::bpf_array::BpfArray;

use crate::blocks::{Block, Blocks, Full};
use crate::layout::CHILD;
use crate::node::{self, LINE, Layout, Own};

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

    fn read(&self, word: usize) -> u32 {
        self.all()[word].load(Ordering::Relaxed)
    }

    /// After all that was written before.
    fn write(&self, word: usize, value: u32) {
        self.all()[word].store(value, Ordering::Release);
    }
}

/// How wide the levels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits of the root.
    pub root_bits: u8,
    /// Bits of each level below, 16 at the most.
    pub width: u8,
}

impl Shape {
    /// 24 and 8 bits (Gupta, Lin and McKeown, 1998): one read for nearly all, of 64 MiB.
    pub const V4: Shape = Shape {
        root_bits: 24,
        width: 8,
    };
    /// Four times 16 bits: registries give out /32 and sites have /48.
    pub const V6: Shape = Shape {
        root_bits: 16,
        width: 16,
    };

    /// Lines that the root takes.
    pub fn root_lines(self) -> usize {
        (1usize << self.root_bits).div_ceil(LINE)
    }
}

/// The trie. Prefixes are the highest bits of a `u128`, IPv4's as well.
#[derive(Debug)]
pub struct Trie {
    words: Words,
    shape: Shape,
    lines: usize,
    blocks: Blocks,
    /// By slot of the root: the length of the prefix whose value it has, and the node below.
    owner: Vec<u8>,
    below: HashMap<u32, u32>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<u32>,
    /// Nodes that are to be written.
    dirty: Vec<u32>,
}

/// What the block of a node is made from.
#[derive(Debug)]
struct Node {
    parent: Option<u32>,
    /// Of the parent's slots, or the root's.
    slot: u32,
    /// Bits before its own.
    from: u8,
    prefixes: Vec<Own>,
    /// By slot.
    children: Vec<(u16, u32)>,
    /// What its head says.
    value: u32,
    written: Option<(Block, Layout)>,
    /// The word that leads to it.
    place: Option<usize>,
    dirty: bool,
}

impl Trie {
    /// An empty trie in `lines` lines of 64 bytes, the root's among them, over words that are all zero.
    pub fn new(words: Words, shape: Shape, lines: usize) -> Self {
        assert!(
            lines >= shape.root_lines() && lines * LINE == words.all().len(),
            "the map's size"
        );
        Trie {
            blocks: Blocks::new(shape.root_lines() as u32, lines as u32),
            owner: vec![0; 1 << shape.root_bits],
            below: HashMap::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            dirty: Vec::new(),
            words,
            shape,
            lines,
        }
    }

    /// Gives a prefix that was not there its value, not zero.
    pub fn insert(&mut self, bits: u128, len: u8, value: u32) {
        if len <= self.shape.root_bits {
            return self.paint(bits, len, |owner| owner <= len, value, len);
        }
        let id = self.reach(bits, len);
        let own = self.own(bits, len, value);
        let prefixes = &mut self.node(id).prefixes;
        let at = prefixes.partition_point(|other| (other.first, other.len) < (own.first, own.len));
        prefixes.insert(at, own);
        self.mark(id);
    }

    /// Gives a prefix that is there another value.
    pub fn change(&mut self, bits: u128, len: u8, value: u32) {
        if len <= self.shape.root_bits {
            return self.paint(bits, len, |owner| owner == len, value, len);
        }
        let id = self.reach(bits, len);
        let own = self.own(bits, len, value);
        let prefixes = &mut self.node(id).prefixes;
        if let Ok(at) = prefixes.binary_search_by_key(&(own.first, own.len), |other| (other.first, other.len))
        {
            prefixes[at] = own;
        }
        self.mark(id);
    }

    /// Removes a prefix; its addresses get what the next shorter one has, which the caller knows: 0 and length 0 if
    /// there is none.
    pub fn remove(&mut self, bits: u128, len: u8, value: u32, owner: u8) {
        if len <= self.shape.root_bits {
            return self.paint(bits, len, |had| had == len, value, owner);
        }
        let id = self.reach(bits, len);
        let own = self.own(bits, len, 0);
        self.node(id)
            .prefixes
            .retain(|other| (other.first, other.len) != (own.first, own.len));
        self.mark(id);
        self.prune(id);
    }

    /// Writes the nodes that have changed. If there is no room, those that are not written go on as they were, until it is
    /// called again with better success.
    pub fn flush(&mut self) -> Result<(), Full> {
        // Those below first: what leads to a node is written when it is.
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| self.nodes[*id as usize].as_ref().is_some_and(|node| node.dirty));
        dirty.sort_by_key(|id| (self.node_ref(*id).from, *id));
        dirty.dedup();
        while let Some(id) = dirty.pop() {
            if self.write(id).is_err() {
                dirty.push(id);
                self.dirty = dirty;
                return Err(Full);
            }
        }
        Ok(())
    }

    /// The value of an address, as a program finds it.
    pub fn lookup(&self, bits: u128) -> u32 {
        let (mut from, width) = (self.shape.root_bits, self.shape.width);
        let mut entry = self.words.read(slot(bits, 0, from) as usize);
        let mut best = 0;
        while entry & CHILD != 0 {
            let first = node::line_of(entry) as usize * LINE;
            let word = |at| self.words.read(first + at);
            let (found, head) = node::look(word, entry, slot(bits, from, width), width);
            if head != 0 {
                best = head;
            }
            entry = found;
            from += width;
        }
        if entry == 0 { best } else { entry }
    }

    /// To be called now and then, when every reader has left: blocks that were given up before the last call are used
    /// again.
    pub fn rest(&mut self) {
        self.blocks.rest();
    }

    /// Lines in use, and how many there are.
    pub fn usage(&self) -> (usize, usize) {
        (self.shape.root_lines() + self.blocks.used(), self.lines)
    }

    fn node(&mut self, id: u32) -> &mut Node {
        // An id is in the tree, or in `dirty` after a check, only while its node is there.
        self.nodes[id as usize].as_mut().expect("a node of the tree")
    }

    fn node_ref(&self, id: u32) -> &Node {
        // As above.
        self.nodes[id as usize].as_ref().expect("a node of the tree")
    }

    fn mark(&mut self, id: u32) {
        if !std::mem::replace(&mut self.node(id).dirty, true) {
            self.dirty.push(id);
        }
    }

    /// A prefix as the node says it in which it ends.
    fn own(&self, bits: u128, len: u8, value: u32) -> Own {
        let beyond = len - self.shape.root_bits - 1;
        let from = self.shape.root_bits + beyond / self.shape.width * self.shape.width;
        Own {
            first: slot(bits, from, self.shape.width) as u16,
            len: len - from,
            value,
        }
    }

    /// The node in which a prefix ends, made with those before it where they are not there.
    fn reach(&mut self, bits: u128, len: u8) -> u32 {
        let mut from = self.shape.root_bits;
        let at = slot(bits, 0, from);
        let mut id = match self.below.get(&at) {
            Some(id) => *id,
            None => {
                let id = self.add(None, at, from);
                self.node(id).place = Some(at as usize);
                self.below.insert(at, id);
                id
            }
        };
        while len > from + self.shape.width {
            let at = slot(bits, from, self.shape.width);
            from += self.shape.width;
            let children = &self.node_ref(id).children;
            id = match children.binary_search_by_key(&(at as u16), |(slot, _)| *slot) {
                Ok(found) => children[found].1,
                Err(place) => {
                    let child = self.add(Some(id), at, from);
                    self.node(id).children.insert(place, (at as u16, child));
                    self.mark(id);
                    child
                }
            };
        }
        id
    }

    fn add(&mut self, parent: Option<u32>, slot: u32, from: u8) -> u32 {
        let node = Node {
            parent,
            slot,
            from,
            prefixes: Vec::new(),
            children: Vec::new(),
            value: 0,
            written: None,
            place: None,
            dirty: false,
        };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() as u32 - 1
        });
        self.nodes[id as usize] = Some(node);
        self.mark(id);
        id
    }

    /// Gives up a node that says nothing any more, and those above it that said only where it was.
    fn prune(&mut self, id: u32) {
        let node = self.node_ref(id);
        if !node.prefixes.is_empty() || !node.children.is_empty() {
            return;
        }
        let (parent, at, value) = (node.parent, node.slot, node.value);
        let (place, written) = (node.place, node.written);
        self.nodes[id as usize] = None;
        self.vacant.push(id);
        if let (Some(place), Some((block, _))) = (place, written) {
            self.words.write(place, value);
            self.blocks.give(block);
        }
        let Some(parent) = parent else {
            self.below.remove(&at);
            return;
        };
        self.node(parent).children.retain(|(_, child)| *child != id);
        self.mark(parent);
        self.prune(parent);
    }

    /// Writes a node into a block of its own, whose children are written, and leads to it.
    fn write(&mut self, id: u32) -> Result<(), Full> {
        let width = self.shape.width;
        let mut node = self.node_ref(id);
        if let (None, None, Some(place)) = (node.parent, node.written, node.place) {
            // Until now the root's own word said it.
            let value = self.words.read(place);
            self.node(id).value = value;
            node = self.node_ref(id);
        }
        let child = |(slot, child): &(u16, u32)| {
            let written = self.node_ref(*child).written;
            let (block, layout) = written.expect("those below are written first");
            (*slot, layout.entry(block.line))
        };
        let children: Vec<(u16, u32)> = node.children.iter().map(child).collect();
        let (runs, covers) = node::runs(&node.prefixes, &children, width);
        let layout = Layout::of(&runs, width);
        let (words, places) = layout.draw(node.value, &runs, width);
        let order = words.len().div_ceil(LINE).next_power_of_two().ilog2() as u8;
        let block = self.blocks.take(order)?;
        let first = block.line as usize * LINE;
        for (at, word) in words.iter().enumerate() {
            self.words.write(first + at, *word);
        }
        let below: Vec<u32> = self
            .node_ref(id)
            .children
            .iter()
            .map(|(_, child)| *child)
            .collect();
        for ((child, cover), place) in below.into_iter().zip(covers).zip(places) {
            self.set_value(child, cover);
            self.node(child).place = Some(first + place);
        }
        let node = self.node(id);
        node.dirty = false;
        let (old, place) = (node.written.replace((block, layout)), node.place);
        // What is not led to yet has a parent that is written next.
        if let Some(place) = place {
            self.words.write(place, layout.entry(block.line));
        }
        if let Some((old, _)) = old {
            self.blocks.give(old);
        }
        Ok(())
    }

    fn set_value(&mut self, id: u32, value: u32) {
        let node = self.node(id);
        node.value = value;
        let Some((block, layout)) = node.written else {
            return;
        };
        for at in layout.heads() {
            let at = block.line as usize * LINE + at;
            self.words.write(at, node::with_value(self.words.read(at), value));
        }
    }

    /// Gives the root's slots of a prefix whose owner is `whose` a new value and owner.
    fn paint(&mut self, bits: u128, len: u8, whose: impl Fn(u8) -> bool, value: u32, owner: u8) {
        let first = slot(bits, 0, self.shape.root_bits) as usize;
        for at in first..first + (1 << (self.shape.root_bits - len)) {
            if !whose(self.owner[at]) {
                continue;
            }
            self.owner[at] = owner;
            let below = self.words.read(at) & CHILD != 0;
            let id = if below { self.below.get(&(at as u32)) } else { None };
            match id {
                None => self.words.write(at, value),
                Some(id) => self.set_value(*id, value),
            }
        }
    }
}

/// `width` bits of an address from bit `from` on, the highest being 0.
fn slot(bits: u128, from: u8, width: u8) -> u32 {
    ((bits << from) >> (128 - u32::from(width))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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
                // Beyond 16 bits now and then.
                let value = if value == 8 { 1 << 20 } else { value };
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
        assert_eq!(trie.flush(), Err(Full), "a reader may still be in the blocks");
        trie.rest();
        trie.rest();
        trie.flush().expect("they are free again");
        assert_eq!((trie.lookup(3 << 122), trie.lookup(1 << 120)), (2, 7));
    }
}
