//! The numbers of the resilience parts, each with its reason.

use std::sync::Arc;

use tidegate_core::store::NodeId;
use tidegate_core::units::Nanos;

use super::clock_watch::ClockTolerance;
use super::failure_counts::FailureCounts;

/// How a node gets along without its store.
#[derive(Clone, Debug)]
pub struct ResilienceSettings {
    /// How long a decision waits for the store where its rule says nothing. Longer than the pauses of a
    /// healthy store nearly always are, and nothing a client would notice.
    pub budget: Nanos,
    /// How long a permit or a reservation waits for the store where its rule says nothing. Both are for long
    /// work, and a wrong answer lasts as long as that.
    pub long_work_budget: Nanos,
    /// How long a call waits that follows a decision: a refund, a settlement, a renewal, a release. No request
    /// is kept waiting, and only the store knows the answer.
    pub follow_up_budget: Nanos,
    /// Calls to the store in flight; beyond it the store counts as away. Bounds what a hang can pile
    /// up.
    pub max_in_flight: usize,
    /// Where failures of the store are counted. Clones of the settings count in the same place.
    pub failures: Arc<FailureCounts>,
    /// When to stop asking.
    pub breaker: BreakerSettings,
    /// How often the store is asked how it is, give or take a tenth.
    pub ping_interval: Nanos,
    /// The same while the node waits for the others after a loss.
    pub recovery_ping_interval: Nanos,
    /// What all nodes together admit while the store is away, in hundredths of each limit. Less than
    /// all of it, because nodes that died are still counted on and clocks differ.
    pub share_percent: u32,
    /// How many nodes there are, if someone said so. The list of beats wins if it is longer.
    pub nodes: Option<u32>,
    /// The list of nodes as last known, from before a restart.
    pub members: Vec<NodeId>,
    /// The id this node had then. Without one it draws its own.
    pub me: Option<NodeId>,
    /// How far the store's clock and this node's may be apart.
    pub clock_tolerance: ClockTolerance,
    /// Subjects whose last state is remembered, and subjects whose local spending is.
    pub max_mirrored: usize,
    /// The longest wait for other nodes to merge what they remember.
    pub recovery_timeout: Nanos,
    /// The start of pushing is spread over this, so that nodes do not all push at once.
    pub push_jitter: Nanos,
    /// How long local spending waits to be pushed while the store answers: a single late answer must
    /// not keep a subject away from its counter.
    pub push_delay: Nanos,
    /// Counters pushed at once, and how long to wait before the next batch.
    pub push_batch: usize,
    /// The pause between batches.
    pub push_pause: Nanos,
    /// Counters that are counted by hearsay at a time; more are simply decided by the store.
    pub max_views: usize,
    /// Counters of which units are drawn in advance at a time; more are simply decided by the store.
    pub max_leases: usize,
    /// Refusals remembered.
    pub max_denials: usize,
    /// The longest a refusal is remembered: capacity may come back early by a refund elsewhere.
    pub max_denial_age: Nanos,
}

/// When a breaker opens and closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerSettings {
    /// Errors in a row that open it.
    pub consecutive_errors: u32,
    /// Or half of this many calls and more within `window`.
    pub min_calls: u32,
    /// See `min_calls`.
    pub window: Nanos,
    /// Or requests in flight and no reply of any kind for so long. Pauses of a healthy store (a fork, a
    /// slow command, a swapped page, a scheduler that is busy elsewhere) stay below it.
    pub silence_timeout: Nanos,
    /// Good pings in a row that close it after errors.
    pub good_pings: u32,
    /// The maximum to which `good_pings` grows.
    pub max_pings: u32,
    /// Opening again this soon after closing doubles the pings that are needed.
    pub reopen_window: Nanos,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        BreakerSettings {
            consecutive_errors: 5,
            min_calls: 20,
            window: Nanos::from_secs(10),
            silence_timeout: Nanos::from_secs(1),
            good_pings: 3,
            max_pings: 24,
            reopen_window: Nanos::from_secs(10),
        }
    }
}

impl Default for ResilienceSettings {
    fn default() -> Self {
        ResilienceSettings {
            budget: Nanos::from_millis(25),
            long_work_budget: Nanos::from_millis(250),
            follow_up_budget: Nanos::from_secs(1),
            max_in_flight: 4_096,
            failures: Arc::default(),
            breaker: BreakerSettings::default(),
            ping_interval: Nanos::from_millis(200),
            recovery_ping_interval: Nanos::from_millis(20),
            share_percent: 80,
            nodes: None,
            members: Vec::new(),
            me: None,
            clock_tolerance: ClockTolerance::default(),
            max_mirrored: 100_000,
            recovery_timeout: Nanos::from_secs(1),
            push_jitter: Nanos::from_millis(150),
            push_delay: Nanos::from_millis(10),
            push_batch: 500,
            push_pause: Nanos::from_millis(10),
            max_views: 16_384,
            max_leases: 16_384,
            max_denials: 16_384,
            max_denial_age: Nanos::from_secs(1),
        }
    }
}

/// The number of nodes to reckon with when nobody said how many there are.
pub(super) const DEFAULT_NODES: u32 = 8;
