//! A trie of 32-bit words that a program reads while we change it. Holds no routes: only which
//! value each prefix has.
//!
//! The root is an array over the first `root_bits` bits. Below, a node covers `width` bits more,
//! and is the sorted runs of addresses that have one answer, few of them in each line or under each
//! entry of an index (`node.rs`; DXR does much the same for IPv4: Zec, Rizzo and Mikuc, 2012). What
//! a lookup costs is reads that miss the caches, some 150 ns each where a million routes are used
//! at random: IPv4 has one, IPv6 one in a node of a usual site; the roots, of 256 KiB, stay near.
//!
//! A node says only what the prefixes that end in it say; its head has what its slot has without
//! them. So a change of a short prefix changes a node's heads, a store each, and one of a prefix in
//! a node writes that node anew, into another block, to which one store leads. Every word leads
//! from one right answer to the next, and nothing wrong is ever to be read. Changes of nodes are
//! collected until [`Trie::flush`]: a flood of routes writes each node once a flush.

mod tree;
mod words;

use std::sync::atomic::Ordering;

use crate::blocks::{Blocks, Full};
use crate::layout::CHILD;
use crate::node::{self, LINE, Layout};
use crate::runs;
use tree::{Node, Tree};

pub use words::Words;

/// How wide the levels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits of the root.
    pub root_bits: u8,
    /// Bits of each level below, 16 at the most.
    pub width: u8,
}

impl Shape {
    /// Twice 16 bits: the root stays in the near caches.
    pub const V4: Shape = Shape {
        root_bits: 16,
        width: 16,
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
    /// By slot of the root: the length of the prefix whose value it has.
    owner: Vec<u8>,
    tree: Tree,
}

impl Trie {
    /// An empty trie in `lines` lines of 64 bytes, the root's among them, over words that are all
    /// zero.
    pub fn new(words: Words, shape: Shape, lines: usize) -> Self {
        assert!(
            lines >= shape.root_lines() && lines * LINE == words.all().len(),
            "the map's size"
        );
        Trie {
            blocks: Blocks::new(shape.root_lines() as u32, lines as u32),
            owner: vec![0; 1 << shape.root_bits],
            tree: Tree::new(shape),
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
        let id = self.tree.reach(bits, len);
        let own = self.tree.own(bits, len, value);
        let prefixes = &mut self.tree.node(id).prefixes;
        let at = prefixes.partition_point(|other| (other.first, other.len) < (own.first, own.len));
        prefixes.insert(at, own);
        self.tree.mark(id);
    }

    /// Gives a prefix that is there another value.
    pub fn change(&mut self, bits: u128, len: u8, value: u32) {
        if len <= self.shape.root_bits {
            return self.paint(bits, len, |owner| owner == len, value, len);
        }
        let id = self.tree.reach(bits, len);
        let own = self.tree.own(bits, len, value);
        let prefixes = &mut self.tree.node(id).prefixes;
        if let Ok(at) =
            prefixes.binary_search_by_key(&(own.first, own.len), |other| (other.first, other.len))
        {
            prefixes[at] = own;
        }
        self.tree.mark(id);
    }

    /// Removes a prefix; its addresses get what the next shorter one has, which the caller knows: 0
    /// and length 0 if there is none.
    pub fn remove(&mut self, bits: u128, len: u8, value: u32, owner: u8) {
        if len <= self.shape.root_bits {
            return self.paint(bits, len, |had| had == len, value, owner);
        }
        let id = self.tree.reach(bits, len);
        let own = self.tree.own(bits, len, 0);
        self.tree
            .node(id)
            .prefixes
            .retain(|other| (other.first, other.len) != (own.first, own.len));
        self.tree.mark(id);
        for Node {
            place,
            written,
            value,
            ..
        } in self.tree.prune(id)
        {
            if let (Some(place), Some((block, _))) = (place, written) {
                self.words.write(place, value);
                self.blocks.give(block);
            }
        }
    }

    /// Writes the nodes that have changed. If there is no room, those that are not written go on as
    /// they were, until it is called again with better success.
    pub fn flush(&mut self) -> Result<(), Full> {
        let mut dirty = self.tree.take_dirty();
        while let Some(id) = dirty.pop() {
            if self.write(id).is_err() {
                dirty.push(id);
                self.tree.put_back(dirty);
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

    /// To be called now and then, when every reader has left: blocks that were given up before the
    /// last call are used again.
    pub fn rest(&mut self) {
        self.blocks.rest();
    }

    /// Lines in use, and how many there are.
    pub fn usage(&self) -> (usize, usize) {
        (self.shape.root_lines() + self.blocks.used(), self.lines)
    }

    /// All words, of a trie in memory of our own.
    pub fn into_words(self) -> Vec<u32> {
        let words = self.words.all().iter();
        words.map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Writes a node into a block of its own, whose children are written, and leads to it.
    fn write(&mut self, id: u32) -> Result<(), Full> {
        let width = self.shape.width;
        let mut node = self.tree.node_ref(id);
        if let (None, None, Some(place)) = (node.parent, node.written, node.place) {
            // Until now the root's own word said it.
            let value = self.words.read(place);
            self.tree.node(id).value = value;
            node = self.tree.node_ref(id);
        }
        let child = |(slot, child): &(u16, u32)| {
            let written = self.tree.node_ref(*child).written;
            let (block, layout) = written.expect("those below are written first");
            (*slot, layout.entry(block.line))
        };
        let children: Vec<(u16, u32)> = node.children.iter().map(child).collect();
        let (runs, covers) = runs::runs(&node.prefixes, &children, width);
        let layout = Layout::of(&runs, width);
        let (words, places) = layout.draw(node.value, &runs, width);
        let order = words.len().div_ceil(LINE).next_power_of_two().ilog2() as u8;
        let block = self.blocks.take(order)?;
        let first = block.line as usize * LINE;
        for (at, word) in words.iter().enumerate() {
            self.words.write(first + at, *word);
        }
        let below: Vec<u32> = self
            .tree
            .node_ref(id)
            .children
            .iter()
            .map(|(_, child)| *child)
            .collect();
        for ((child, cover), place) in below.into_iter().zip(covers).zip(places) {
            self.set_value(child, cover);
            self.tree.node(child).place = Some(first + place);
        }
        let node = self.tree.node(id);
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
        let node = self.tree.node(id);
        node.value = value;
        let Some((block, layout)) = node.written else {
            return;
        };
        for at in layout.heads() {
            let at = block.line as usize * LINE + at;
            self.words
                .write(at, node::with_value(self.words.read(at), value));
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
            let id = if below {
                self.tree.under_root(at as u32)
            } else {
                None
            };
            match id {
                None => self.words.write(at, value),
                Some(id) => self.set_value(id, value),
            }
        }
    }
}

/// `width` bits of an address from bit `from` on, the highest being 0.
fn slot(bits: u128, from: u8, width: u8) -> u32 {
    ((bits << from) >> (128 - u32::from(width))) as u32
}

#[cfg(test)]
mod tests;
