//! Port ranges: an interval tree, each different range once, whose copies share what they have in
//! common.
//!
//! The tree is a treap: sorted by where ranges start, and a heap by a number that is mixed from the
//! range, which keeps it some twice as deep as a balanced one. A change copies the nodes above what
//! it changes.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use super::GroupMembers;
use super::peers::PeerSet;
use crate::ids::RuleSlot;

/// The ranges of one protocol.
#[derive(Clone, Default)]
pub(super) struct Ranges {
    root: Link,
}

type Link = Option<Arc<Node>>;

#[derive(Clone)]
struct Node {
    low: u16,
    high: u16,
    /// The largest `high` of the subtree.
    highest: u16,
    peers: PeerSet,
    left: Link,
    right: Link,
}

impl Ranges {
    /// Changes the peers of a range, which is in the tree as long as it has any.
    pub(super) fn alter(&mut self, low: u16, high: u16, change: impl FnOnce(&mut PeerSet)) {
        alter(&mut self.root, (low, high), change);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// A rule of a range with `selector` in it that allows `address`. The cost grows with the
    /// logarithm of the number of ranges, and with how many of them the selector is in.
    pub(super) fn find(
        &self,
        selector: u16,
        address: &IpAddr,
        groups: &(impl GroupMembers + ?Sized),
        looked: &mut u64,
    ) -> Option<RuleSlot> {
        search(&self.root, selector, address, groups, looked)
    }
}

fn search(
    link: &Link,
    selector: u16,
    address: &IpAddr,
    groups: &(impl GroupMembers + ?Sized),
    looked: &mut u64,
) -> Option<RuleSlot> {
    let node = link.as_ref()?;
    *looked += 1;
    if node.highest < selector {
        return None;
    }
    let left = search(&node.left, selector, address, groups, looked);
    if left.is_some() || node.low > selector {
        return left;
    }
    if node.high >= selector {
        let here = node.peers.find(address, groups, looked);
        if here.is_some() {
            return here;
        }
    }
    search(&node.right, selector, address, groups, looked)
}

impl Node {
    fn new((low, high): (u16, u16)) -> Node {
        Node {
            low,
            high,
            highest: high,
            peers: PeerSet::default(),
            left: None,
            right: None,
        }
    }

    fn key(&self) -> (u16, u16) {
        (self.low, self.high)
    }

    /// Whose parent has a larger one; no two ranges have the same.
    fn priority(&self) -> u32 {
        // Two rounds of a bijection of 32 bits (Murmur3's finaliser).
        let mut mixed = u32::from(self.low) << 16 | u32::from(self.high);
        mixed = (mixed ^ mixed >> 16).wrapping_mul(0x85eb_ca6b);
        mixed = (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35);
        mixed ^ mixed >> 16
    }

    fn measure(&mut self) {
        let below = |link: &Link| link.as_ref().map_or(0, |node| node.highest);
        self.highest = self.high.max(below(&self.left)).max(below(&self.right));
    }
}

fn alter(link: &mut Link, key: (u16, u16), change: impl FnOnce(&mut PeerSet)) {
    let Some(found) = link else {
        let mut node = Node::new(key);
        change(&mut node.peers);
        if !node.peers.is_empty() {
            *link = Some(Arc::new(node));
        }
        return;
    };
    let node = Arc::make_mut(found);
    match key.cmp(&node.key()) {
        Ordering::Equal => {
            change(&mut node.peers);
            if node.peers.is_empty() {
                *link = joined(node.left.take(), node.right.take());
            }
            return;
        }
        Ordering::Less => {
            alter(&mut node.left, key, change);
            let parent = node.priority();
            if let Some(mut left) = rising(&mut node.left, parent) {
                let top = Arc::make_mut(&mut left);
                node.left = top.right.take();
                node.measure();
                top.right = link.take();
                top.measure();
                *link = Some(left);
                return;
            }
        }
        Ordering::Greater => {
            alter(&mut node.right, key, change);
            let parent = node.priority();
            if let Some(mut right) = rising(&mut node.right, parent) {
                let top = Arc::make_mut(&mut right);
                node.right = top.left.take();
                node.measure();
                top.left = link.take();
                top.measure();
                *link = Some(right);
                return;
            }
        }
    }
    node.measure();
}

/// Takes a child away that belongs above its parent.
fn rising(child: &mut Link, parent: u32) -> Link {
    child.take_if(|child| child.priority() > parent)
}

/// The tree of two of which all of the one is before all of the other.
fn joined(left: Link, right: Link) -> Link {
    let (mut left, mut right) = match (left, right) {
        (Some(left), Some(right)) => (left, right),
        (one, other) => return one.or(other),
    };
    if left.priority() > right.priority() {
        let top = Arc::make_mut(&mut left);
        top.right = joined(top.right.take(), Some(right));
        top.measure();
        Some(left)
    } else {
        let top = Arc::make_mut(&mut right);
        top.left = joined(Some(left), top.left.take());
        top.measure();
        Some(right)
    }
}
