//! Writes events of the shared store to the log and the metrics: one line per change.

use std::sync::Arc;
use std::time::Instant;

use tidegate::observe::SharedSeries;
use tidegate::resilience::{ClockEvent, ClockLevel, FailureCounts, StoreEvent};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::state::store_health::{StoreHealth, log_report};

/// The cure for clocks that disagree.
const CLOCKS_APART: &str = "the store's clock and this node's are apart; decisions follow the store's, \
                     dates in headers and logs are off; see that both follow one source of time";

/// The cure for a full table of pending charges.
const PENDING_DROPPED: &str = "the table of pending charges is full, and charges of further keys are dropped: limits of these \
                       keys admit too much until their windows end; find the client that sends so many keys";

/// What it means to continue without the nodes that have not restored what they remember.
/// The cure for a full mirror.
const MIRROR_FULL: &str = "more counters are in use than this node remembers, and those with the least usage are forgotten: after a \
                     loss of the store their clients begin anew; find the client that sends so many keys, or see that the store \
                     keeps its data";

const TRUSTED_EARLY: &str = "the store is trusted again although some nodes have not restored what they remember; counts that only they \
                     saw last may be missing";

/// Receives the events of one store.
pub(crate) struct StoreObserver {
    pub(crate) series: SharedSeries,
    pub(crate) health: StoreHealth,
    failures: Arc<FailureCounts>,
    /// Notified when the store has lost counts or the secret.
    pub(crate) loss_notify: Notify,
}

impl StoreObserver {
    pub(crate) fn new(failures: Arc<FailureCounts>) -> Self {
        let (series, health) = (SharedSeries::default(), StoreHealth::default());
        StoreObserver { series, health, failures, loss_notify: Notify::new() }
    }

    /// Counts an event and logs it.
    pub(crate) fn on_event(&self, event: &StoreEvent) {
        self.series.record(event);
        let (now, errors) = (Instant::now(), self.failures.total());
        match event {
            StoreEvent::BreakerOpened { cause } => log_report(self.health.opened(now, cause, errors)),
            StoreEvent::BreakerClosed => log_report(self.health.closed(now, errors)),
            StoreEvent::CountsLost => {
                warn!("the store has lost counts, or another took over; restoring them");
                self.loss_notify.notify_one();
            }
            StoreEvent::Restored { counters, .. } => {
                info!(counters, "restored what this node remembers")
            }
            StoreEvent::TrustedEarly { missing } => warn!(missing, "{TRUSTED_EARLY}"),
            StoreEvent::Exact => info!("decisions are exact"),
            StoreEvent::LateWrittenBack { .. } => {} // counted, and too frequent for the log
            StoreEvent::WrittenBack { counters, units } => {
                info!(counters, units, "charged what was admitted without the store");
            }
            // One event for each call: the series counts them, and a line for each would fill the log.
            StoreEvent::Unconfirmed { .. } => {}
            StoreEvent::PendingDropped { units } if self.series.pending_dropped() == *units => {
                warn!(units, "{PENDING_DROPPED}"); // only the first time; the series counts the rest
            }
            StoreEvent::PendingDropped { .. } => {}
            StoreEvent::RecordRejected { cause } => warn!(
                "a record of the store cannot be used: {}; its client is decided by this node's share",
                cause.text
            ),
            StoreEvent::Clock(change) => log_clock(*change),
        }
    }
}

fn log_clock(change: ClockEvent) {
    let (level, offset) = match change {
        ClockEvent::Level { level, offset } => (level, offset),
        ClockEvent::Jumped { by } => {
            let moved_ms = millis(by);
            warn!(moved_ms, "the store's clock or this node's was set");
            return;
        }
    };
    let (offset_ms, error_ms) = (millis(offset.nanos), offset.error.millis_up());
    match level {
        ClockLevel::Fine => info!(offset_ms, error_ms, "the store's clock and this node's agree"),
        ClockLevel::Warn => warn!(offset_ms, error_ms, "{CLOCKS_APART}"),
        ClockLevel::Alarm => error!(offset_ms, error_ms, "{CLOCKS_APART}"),
    }
}

fn millis(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}
            StoreEvent::MirrorEvicted { counters } if self.series.mirror_evicted() == *counters => {
                warn!(counters, "{MIRROR_FULL}"); // only the first time; the series counts the rest
            }
            StoreEvent::MirrorEvicted { .. } => {}
