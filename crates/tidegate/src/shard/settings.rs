//! The settings of a shared store's components, each with its reason.

use std::sync::Arc;

use tidegate_core::store::NodeId;
use tidegate_core::units::Nanos;

use crate::shard::call::failure_counts::FailureCounts;
use crate::shard::recovery::clock_watch::ClockTolerance;
use crate::stores::memory::DEFAULT_CAP;

/// How a node handles a store that is slow, down, or has lost counts.
#[derive(Clone, Debug)]
pub struct ResilienceSettings {
    /// How long a decision waits for the store where its rule sets no budget. Longer than nearly all pauses of a
    /// healthy store, and too short for a client to notice.
    pub budget: Nanos,
    /// How long an acquire or a reserve waits for the store where its rule sets no budget. Both are for long work,
    /// and a wrong decision lasts as long as the work.
    pub long_work_budget: Nanos,
    /// How long a call waits that follows a decision: a refund, a settle, a renew, a release. No request waits for
    /// it, and only the store knows the result.
    pub follow_up_budget: Nanos,
    /// The maximum number of calls in flight. Beyond it no call is sent: charges and peeks are decided as if their
    /// replies were late, all other calls as if the store were down. Bounds what a hang can pile up.
    pub max_in_flight: usize,
    /// Counts failures of the store. Clones of the settings share the counts.
    pub failures: Arc<FailureCounts>,
    /// When to stop calling the store.
    pub breaker: BreakerSettings,
    /// The interval between pings, plus or minus a tenth.
    pub ping_interval: Nanos,
    /// The interval while the node waits for other nodes to restore their counts.
    pub recovery_ping_interval: Nanos,
    /// What all nodes together admit while the store is down, in percent of each limit. Less than 100, because
    /// nodes that died are still counted and clocks differ.
    pub share_percent: u32,
    /// The number of nodes, if configured. The membership wins if it is larger.
    pub nodes: Option<u32>,
    /// The members as last known before a restart.
    pub members: Vec<NodeId>,
    /// The id that this node had before a restart. Without one it draws a random id.
    pub me: Option<NodeId>,
    /// The tolerated offset between the store's clock and this node's.
    pub clock_tolerance: ClockTolerance,
    /// Bounds the mirror, the write-back queue, the open permits and the local reservations: entries in each.
    pub max_mirrored: usize,
    /// Bounds the memory of the counters by which this node decides without the store, in bytes. At the cap new
    /// subjects share counters.
    pub memory_cap: u64,
    /// The longest wait for other nodes to restore their counts.
    pub recovery_timeout: Nanos,
    /// A push starts after a random time up to this, so that nodes do not all push at once.
    pub push_jitter: Nanos,
    /// How long pending units wait for a push while the store replies: a single late reply must not keep a subject
    /// away from its counter.
    pub push_delay: Nanos,
    /// The maximum number of counters in one batch of a push.
    pub push_batch: usize,
    /// The pause between batches.
    pub push_pause: Nanos,
    /// Remembered denials, counters with leases and counters with a lenient view at a time. The store decides for
    /// counters beyond it.
    pub max_ahead: usize,
    /// The longest time for which a denial is cached: a refund on another node may free capacity early.
    pub max_denial_age: Nanos,
}

/// When a breaker opens and closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerSettings {
    /// Errors in a row that open the breaker.
    pub consecutive_errors: u32,
    /// The breaker opens when at least this many calls within `window` ended and at least half of them failed.
    pub min_calls: u32,
    /// See `min_calls`.
    pub window: Nanos,
    /// The breaker opens when requests are in flight and no reply of any kind arrives for this long. Pauses of a
    /// healthy store (a fork, a slow command, a swapped page, a busy scheduler) stay below it.
    pub silence_timeout: Nanos,
    /// Good pings in a row that close the breaker after errors.
    pub good_pings: u32,
    /// The maximum to which `good_pings` grows.
    pub max_pings: u32,
    /// When the breaker opens again within this time after closing, it needs twice as many pings.
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
            memory_cap: DEFAULT_CAP,
            recovery_timeout: Nanos::from_secs(1),
            push_jitter: Nanos::from_millis(150),
            push_delay: Nanos::from_millis(10),
            push_batch: 500,
            push_pause: Nanos::from_millis(10),
            max_ahead: 32_768,
            max_denial_age: Nanos::from_secs(1),
        }
    }
}

/// The number of nodes to assume while neither the settings nor a complete membership give one.
pub(crate) const DEFAULT_NODES: u32 = 8;
