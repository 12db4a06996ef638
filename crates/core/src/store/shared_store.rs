//! What a store tells of itself that several nodes share, that may fail, and that may have parts.
//!
//! A life says whether counts may have been lost, beats who is there, slots what can be charged in one
//! step. What follows from all that is decided elsewhere.

use std::future::Future;

use super::failure::FailureCause;
use super::{Store, StoreError, StoreResult};
use crate::subject::Fingerprint;
use crate::units::Nanos;

/// A span in which a store kept every count. It ends when the store starts empty, is emptied, or
/// another takes over that may not have heard the last of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u64);

/// One of the nodes that share a store. Drawn when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

/// A sign of life of a node. It is forgotten when it is not renewed for a few seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Whose.
    pub node: NodeId,
    /// The life of the store into which the node has merged all it remembers.
    pub restored: Option<Epoch>,
}

/// How a store is, and who shares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// The present life.
    pub epoch: Epoch,
    /// The store's time.
    pub at: Nanos,
    /// The store has what the node saw before this moment, by the store's clock. Zero if that is not known.
    pub complete_until: Nanos,
    /// The latest beat of every node that lives.
    pub heartbeats: Vec<Heartbeat>,
}

/// What a store that is shared and may fail tells of itself.
pub trait Probe: Send + Sync {
    /// Leaves a beat and asks for all of them, in one round trip.
    fn heartbeat(
        &self,
        heartbeat: Heartbeat,
    ) -> impl Future<Output = StoreResult<StoreStatus>> + Send;

    /// The life that the latest answers came from, as far as it shows without asking: a connection
    /// that was made anew may have met another store.
    fn epoch(&self) -> Option<Epoch>;

    /// The slots that have come to this store, since this was last called, and may be incomplete: another store may have
    /// lost counters of them before they were moved.
    fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        Vec::new()
    }

    /// Why a call failed, as an operator needs to know it. It names no address, user or secret.
    fn failure_cause(&self, error: &StoreError) -> FailureCause {
        FailureCause::of(error)
    }

    /// The slot that a subject's counters are in, if they are in this store. A subject stays in its
    /// slot; slots may move from store to store. A call about a subject that is elsewhere fails, and the
    /// store knows it from then on.
    fn hash_slot(&self, _: Fingerprint) -> Option<HashSlot> {
        Some(HashSlot(0))
    }
}

/// Counters of one slot can be charged in one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HashSlot(pub u16);

/// One of the stores among which counters are divided. It is known by the same id to every node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u64);

/// Several stores that fail each on its own, among which counters are divided by subject.
pub trait Shards: Send + Sync {
    /// One of them.
    type Shard: Store + Probe + 'static;

    /// The part that a subject's counters are in, as far as is known: they may move.
    fn shard_of(&self, subject: Fingerprint) -> ShardId;

    /// A part, unless it is none any more.
    fn shard(&self, id: ShardId) -> Option<Self::Shard>;

    /// Every part there is, as far as is known: a part is met before anyone asks for what is in it.
    fn shard_ids(&self) -> Vec<ShardId>;
}
