//! Port ranges: an interval tree in an array, each different range once.

use std::net::IpAddr;

use super::GroupMembers;
use super::peers::PeerSet;
use crate::ids::RuleSlot;

/// The ranges of one protocol. Sorted by where they start; the middle of a part is the root of its
/// subtree.
#[derive(Clone, Default)]
pub(super) struct Ranges {
    nodes: Vec<Node>,
}

#[derive(Clone)]
struct Node {
    low: u16,
    high: u16,
    /// The largest `high` of the subtree.
    highest: u16,
    peers: PeerSet,
}

impl Ranges {
    /// The peers of a range while the set is built. Keeps the nodes sorted.
    pub(super) fn peers(&mut self, low: u16, high: u16) -> &mut PeerSet {
        let found = self
            .nodes
            .binary_search_by_key(&(low, high), |node| (node.low, node.high));
        let index = found.unwrap_or_else(|index| {
            let node = Node {
                low,
                high,
                highest: high,
                peers: PeerSet::default(),
            };
            self.nodes.insert(index, node);
            index
        });
        &mut self.nodes[index].peers
    }

    /// Makes the tree, after the last range was added.
    pub(super) fn finish(&mut self) {
        fn fill(nodes: &mut [Node]) -> u16 {
            if nodes.is_empty() {
                return 0;
            }
            let middle = nodes.len() / 2;
            let below = fill(&mut nodes[..middle]).max(fill(&mut nodes[middle + 1..]));
            nodes[middle].highest = below.max(nodes[middle].high);
            nodes[middle].highest
        }
        fill(&mut self.nodes);
    }

    /// A rule of a range with `selector` in it that allows `address`. The cost grows with the
    /// logarithm of the number of ranges, and with how many of them the selector is in.
    pub(super) fn find(
        &self,
        selector: u16,
        address: &IpAddr,
        groups: &(impl GroupMembers + ?Sized),
    ) -> Option<RuleSlot> {
        fn search(
            nodes: &[Node],
            selector: u16,
            address: &IpAddr,
            groups: &(impl GroupMembers + ?Sized),
        ) -> Option<RuleSlot> {
            let middle = nodes.len() / 2;
            let node = nodes.get(middle)?;
            if node.highest < selector {
                return None;
            }
            let left = search(&nodes[..middle], selector, address, groups);
            if left.is_some() || node.low > selector {
                return left;
            }
            if node.high >= selector {
                let here = node.peers.find(address, groups);
                if here.is_some() {
                    return here;
                }
            }
            search(&nodes[middle + 1..], selector, address, groups)
        }
        search(&self.nodes, selector, address, groups)
    }
}
