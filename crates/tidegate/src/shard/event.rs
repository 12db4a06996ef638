//! Events about the store, each published once per change and not per request, with two exceptions marked below.

use std::sync::Arc;

use tidegate_core::store::{Epoch, FailureCause};

use crate::shard::recovery::clock_watch::ClockEvent;

/// A change in the state of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEvent {
    /// The breaker opened: no calls are sent.
    BreakerOpened {
        /// Why.
        cause: FailureCause,
    },
    /// The breaker closed: calls are sent again.
    BreakerClosed,
    /// The store has lost counts, or another server took over. Decisions are local from now on.
    CountsLost,
    /// This node has restored its counts into the store.
    Restored {
        /// The epoch that they were merged into.
        epoch: Epoch,
        /// How many counters.
        counters: usize,
    },
    /// The store is trusted again although some nodes have not restored their counts within the second that they
    /// had. Counts that only these nodes know are lost as far as the others have charged as much in the meantime.
    TrustedEarly {
        /// How many nodes.
        missing: usize,
    },
    /// Decisions are exact again.
    Exact,
    /// Units that were admitted locally were charged to the store.
    WrittenBack {
        /// How many counters.
        counters: usize,
        /// How many units.
        units: u64,
    },
    /// A charge was sent and its reply was late, lost, an error, or of another epoch. The store may count these
    /// units in addition to their later write-back. Published for each call.
    Unconfirmed {
        /// How many units, over all counters of the charge.
        units: u64,
    },
    /// Units that were admitted while a reply was late were charged to the store.
    LateWrittenBack {
        /// How many units.
        units: u64,
    },
    /// Units were admitted that the store will never count, because the write-back queue is full. May be published
    /// for each call.
    PendingDropped {
        /// How many units.
        units: u64,
    },
    /// This node has forgotten counters that had not drained, because the mirror is full. After a loss of the store it
    /// cannot restore them, and an outage begins with its whole share of them.
    MirrorEvicted {
        /// How many counters.
        counters: u64,
    },
    /// The store cannot use one of its records. This node's share decides for its subject. Published at most once a
    /// minute.
    RecordRejected {
        /// Which record, and why.
        cause: FailureCause,
    },
    /// The offset between the store's clock and this node's changed its level, or one of the clocks was set.
    Clock(ClockEvent),
}

/// Receives events. It must neither block nor panic.
pub type Watcher = Arc<dyn Fn(StoreEvent) + Send + Sync>;
