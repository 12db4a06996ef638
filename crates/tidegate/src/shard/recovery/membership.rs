//! The membership: the nodes that share a store, as decisions need it.
//!
//! An immutable value, published whenever it changes. A decision reads it without a lock: during an outage all cores
//! decide locally, and none waits for another.

use tidegate_core::algorithms::Division;
use tidegate_core::store::{Epoch, NodeId};

use crate::runtime::mix;

/// The nodes at one moment, and the epoch of the store that they share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Membership {
    /// This node.
    pub(crate) me: NodeId,
    /// The listed nodes.
    pub(crate) members: Vec<NodeId>,
    /// How many nodes limits are divided among. It may be more than are listed.
    pub(crate) nodes: u32,
    /// Whether the list is complete, so that each node knows its rank.
    pub(crate) is_complete: bool,
    /// What all nodes together admit without the store, in percent of each limit.
    pub(crate) share_percent: u32,
    /// The store's epoch, as last known.
    pub(crate) epoch: Option<Epoch>,
}

impl Membership {
    /// This node's share of the limits of one counter. Units that cannot be divided go to nodes by rendezvous rank:
    /// each node computes its own rank, and each counter has a different order.
    pub(crate) fn division(&self, counter: u128) -> Division {
        Division { percent: self.share_percent, nodes: self.nodes, rank: self.rank(counter) }
    }

    fn rank(&self, counter: u128) -> Option<u32> {
        if !self.is_complete || !self.members.contains(&self.me) {
            return None;
        }
        let of_counter = mix(counter as u64 ^ (counter >> 64) as u64);
        let weight = |node: &NodeId| mix(node.0 ^ of_counter);
        let own = weight(&self.me);
        let ahead = self.members.iter().filter(|node| weight(node) > own);
        Some(u32::try_from(ahead.count()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(me: u64, members: &[u64], is_complete: bool) -> Membership {
        Membership {
            me: NodeId(me),
            members: members.iter().copied().map(NodeId).collect(),
            nodes: 4,
            is_complete,
            share_percent: 80,
            epoch: None,
        }
    }

    #[test]
    fn the_ranks_of_all_nodes_differ() {
        let all = [1, 2, 3, 4];
        for counter in 0..100 {
            let rank = |me| of(me, &all, true).division(counter).rank;
            let mut ranks = all.map(rank);
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3].map(Some));
        }
    }

    #[test]
    fn a_node_has_no_rank_in_an_incomplete_list_or_without_itself() {
        assert_eq!(of(1, &[1, 2], false).division(7).rank, None);
        assert_eq!(of(3, &[1, 2], true).division(7).rank, None);
        assert!(of(1, &[1, 2], true).division(7).rank.is_some());
    }
}
