//! What a node without its store tells about it, once per change and never per request.

use std::sync::Arc;

use tidegate_core::store::{Epoch, FailureCause};

use super::clock_watch::ClockEvent;

/// Something about the store changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEvent {
    /// The store is no longer called.
    BreakerOpened {
        /// Why.
        cause: FailureCause,
    },
    /// It is called again.
    BreakerClosed,
    /// The store has lost counts, or another took over. Decisions are local from here on.
    CountsLost,
    /// What this node remembers is in the store.
    Restored {
        /// The life it was merged into.
        epoch: Epoch,
        /// How many counters.
        counters: usize,
    },
    /// The store is trusted again although some nodes have not restored what they remember: they had a second.
    /// What only they remember is lost as far as the others have charged as much meanwhile.
    TrustedEarly {
        /// How many nodes.
        missing: usize,
    },
    /// Decisions are exact again.
    Exact,
    /// Local spending was charged to the store.
    WrittenBack {
        /// How many counters.
        counters: usize,
        /// How many units.
        units: u64,
    },
    /// A charge was sent and its reply was late, lost, an error, or of another epoch. The store may count
    /// these units beside what is charged for them later. Unlike the others this event comes for each call.
    Unconfirmed {
        /// How many units, of all counters of the charge.
        units: u64,
    },
    /// Units were charged to the store that had been admitted while its reply was late.
    LateWrittenBack {
        /// How many units.
        units: u64,
    },
    /// Units were admitted that the store will never count, because the table of pending charges is full. Like
    /// `Unconfirmed` this event may come for each call.
    PendingDropped {
        /// How many units.
        units: u64,
    },
    /// A record of the store cannot be used: its subject is decided by this node's share. Comes once a minute at
    /// most.
    RecordRejected {
        /// Which record, and why.
        cause: FailureCause,
    },
    /// The store's clock and this node's agree less or more than before, or one of them was set.
    Clock(ClockEvent),
}

/// Someone who wants to know. It must neither wait nor fail.
pub type Watcher = Arc<dyn Fn(StoreEvent) + Send + Sync>;
