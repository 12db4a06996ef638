//! The status of a store that several nodes share, that may fail, and that may have shards.
//!
//! An epoch shows whether counts may have been lost, heartbeats show the membership, hash slots show which counters
//! can be charged in one step. Other modules decide what follows.

use std::future::Future;

use super::failure::FailureCause;
use super::{Store, StoreError, StoreResult};
use crate::subject::Fingerprint;
use crate::units::Nanos;

/// A span in which a store kept every count. It ends when the store starts empty, is emptied, or another server takes
/// over that may lack the last writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u64);

/// One of the nodes that share a store. Random at the start of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

/// The heartbeat of a node. It expires when it is not renewed for a few seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The node that sends it.
    pub node: NodeId,
    /// The epoch of the store into which the node has merged all its counts.
    pub restored: Option<Epoch>,
}

/// The status and membership of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// The present epoch.
    pub epoch: Epoch,
    /// The store's time.
    pub at: Nanos,
    /// The store has all counts that the node saw before this moment, by the store's clock. Zero if unknown.
    pub complete_until: Nanos,
    /// The latest heartbeat of every live node.
    pub heartbeats: Vec<Heartbeat>,
}

/// The status of a store that is shared and may fail.
pub trait Probe: Send + Sync {
    /// Writes a heartbeat and reads all of them, in one round trip.
    fn heartbeat(&self, heartbeat: Heartbeat) -> impl Future<Output = StoreResult<StoreStatus>> + Send;

    /// The epoch of the latest replies, as far as it is known without a request: a new connection may have reached
    /// another store.
    fn epoch(&self) -> Option<Epoch>;

    /// Takes the hash slots that moved to this store since the last call and may be incomplete: another store may have
    /// lost counters of them before they were moved.
    fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        Vec::new()
    }

    /// Why a call failed, in terms for an operator. It names no address, user or secret.
    fn failure_cause(&self, error: &StoreError) -> FailureCause {
        FailureCause::of(error)
    }

    /// The hash slot of a subject's counters, if this store has it. A subject stays in its hash slot; hash slots may
    /// move from store to store. A call about a subject in another store fails, and the store knows it from then on.
    fn hash_slot(&self, _: Fingerprint) -> Option<HashSlot> {
        Some(HashSlot(0))
    }
}

/// A hash slot. Counters of one hash slot can be charged in one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HashSlot(pub u16);

/// One of the shards among which counters are divided. Every node knows it by the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u64);

/// Shards that fail independently, among which counters are divided by subject.
pub trait Shards: Send + Sync {
    /// A shard.
    type Shard: Store + Probe + 'static;

    /// The shard of a subject's counters, as far as known: they may move.
    fn shard_of(&self, subject: Fingerprint) -> ShardId;

    /// The shard with this id; `None` if it no longer exists.
    fn shard(&self, id: ShardId) -> Option<Self::Shard>;

    /// Every known shard, so that a node connects to a shard before it needs the shard's counters.
    fn shard_ids(&self) -> Vec<ShardId>;
}
