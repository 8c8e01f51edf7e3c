//! The nodes of a trie as a tree: which prefixes end in each, which nodes are below it, and which
//! are to be written. Where they are written is the trie's.

use std::collections::HashMap;

use super::{Shape, slot};
use crate::blocks::Block;
use crate::node::Layout;
use crate::runs::Own;

/// What the block of a node is made from.
#[derive(Debug)]
pub(super) struct Node {
    pub parent: Option<u32>,
    /// The slot of the parent, or of the root, that it is below.
    pub slot: u32,
    /// Bits before its own.
    pub from: u8,
    pub prefixes: Vec<Own>,
    /// By slot.
    pub children: Vec<(u16, u32)>,
    /// What its head says.
    pub value: u32,
    pub written: Option<(Block, Layout)>,
    /// The word that leads to it.
    pub place: Option<usize>,
    pub dirty: bool,
}

/// All nodes, by number.
#[derive(Debug)]
pub(super) struct Tree {
    shape: Shape,
    /// By slot of the root.
    below: HashMap<u32, u32>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<u32>,
    /// Nodes that are to be written.
    dirty: Vec<u32>,
}

impl Tree {
    pub fn new(shape: Shape) -> Tree {
        Tree {
            shape,
            below: HashMap::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            dirty: Vec::new(),
        }
    }

    pub fn node(&mut self, id: u32) -> &mut Node {
        // An id is in the tree, or in `dirty` after a check, only while its node is there.
        self.nodes[id as usize]
            .as_mut()
            .expect("a node of the tree")
    }

    pub fn node_ref(&self, id: u32) -> &Node {
        // As in [`node`](Self::node).
        self.nodes[id as usize]
            .as_ref()
            .expect("a node of the tree")
    }

    /// The node below a slot of the root.
    pub fn under_root(&self, at: u32) -> Option<u32> {
        self.below.get(&at).copied()
    }

    /// A prefix as the node says it in which it ends.
    pub fn own(&self, bits: u128, len: u8, value: u32) -> Own {
        let beyond = len - self.shape.root_bits - 1;
        let from = self.shape.root_bits + beyond / self.shape.width * self.shape.width;
        Own {
            first: slot(bits, from, self.shape.width) as u16,
            len: len - from,
            value,
        }
    }

    /// The node in which a prefix ends, made with those before it where they are not there.
    pub fn reach(&mut self, bits: u128, len: u8) -> u32 {
        let mut from = self.shape.root_bits;
        let at = slot(bits, 0, from);
        let mut id = match self.under_root(at) {
            Some(id) => id,
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

    /// Gives up a node if it says nothing any more, and those above it that said only where it was:
    /// they are handed back, the lowest first.
    pub fn prune(&mut self, id: u32) -> Vec<Node> {
        let (mut gone, mut next) = (Vec::new(), Some(id));
        while let Some(id) = next {
            let node = &mut self.nodes[id as usize];
            let Some(node) =
                node.take_if(|node| node.prefixes.is_empty() && node.children.is_empty())
            else {
                break;
            };
            self.vacant.push(id);
            match node.parent {
                Some(parent) => {
                    self.node(parent).children.retain(|(_, child)| *child != id);
                    self.mark(parent);
                }
                None => {
                    self.below.remove(&node.slot);
                }
            }
            next = node.parent;
            gone.push(node);
        }
        gone
    }

    /// This one is to be written.
    pub fn mark(&mut self, id: u32) {
        if !std::mem::replace(&mut self.node(id).dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Those that are to be written. The lowest are last: what leads to a node is written after it.
    pub fn take_dirty(&mut self) -> Vec<u32> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| {
            self.nodes[*id as usize]
                .as_ref()
                .is_some_and(|node| node.dirty)
        });
        dirty.sort_by_key(|id| (self.node_ref(*id).from, *id));
        dirty.dedup();
        dirty
    }

    /// Those that could not be.
    pub fn put_back(&mut self, dirty: Vec<u32>) {
        self.dirty = dirty;
    }
}
