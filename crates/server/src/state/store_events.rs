//! Writes events of the shared store to the log and the metrics: one line per change.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
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

/// The cure for a full mirror.
const MIRROR_FULL: &str = "more counters are in use than this node remembers, and those with the least usage are forgotten: after a \
                     loss of the store their clients begin anew; find the client that sends so many keys, or see that the store \
                     keeps its data";

/// What it means to continue without the nodes that have not restored what they remember.
const TRUSTED_EARLY: &str = "the store is trusted again although some nodes have not restored what they remember; counts that only they \
                     saw last may be missing";

/// Receives the events of one store.
pub(crate) struct StoreObserver {
    pub(crate) series: SharedSeries,
    pub(crate) health: StoreHealth,
    failures: Arc<FailureCounts>,
    written_back: Mutex<WrittenBack>,
    /// Notified when the store has lost counts or the secret.
    pub(crate) loss_notify: Notify,
}

/// What was charged to the store after an outage and is not logged yet.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct WrittenBack {
    counters: usize,
    units: u64,
    /// As of the last look. Without an increase since, the write-back is over.
    units_before: u64,
}

impl WrittenBack {
    fn add(&mut self, counters: usize, units: u64) {
        self.counters += counters;
        self.units += units;
    }

    /// The counters and units of a write-back that is over.
    fn take_total(&mut self) -> Option<(usize, u64)> {
        let is_over = self.units > 0 && self.units == self.units_before;
        self.units_before = self.units;
        is_over.then(|| {
            let WrittenBack { counters, units, .. } = std::mem::take(self);
            (counters, units)
        })
    }
}

impl StoreObserver {
    pub(crate) fn new(failures: Arc<FailureCounts>) -> Self {
        let (series, health) = (SharedSeries::default(), StoreHealth::default());
        StoreObserver { series, health, failures, written_back: Mutex::default(), loss_notify: Notify::new() }
    }

    /// Logs what was written back, once nothing more follows.
    pub(crate) fn log_written_back(&self) {
        if let Some((counters, units)) = self.written_back.lock().take_total() {
            info!(counters, units, "charged what was admitted without the store");
        }
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
            StoreEvent::Exact if !self.series.is_exact() => {} // some counters have no server
            StoreEvent::Exact => info!("decisions are exact"),
            StoreEvent::LateWrittenBack { .. } => {} // counted, and too frequent for the log
            StoreEvent::WrittenBack { counters, units } => {
                self.written_back.lock().add(*counters, *units); // one event for each call
            }
            // One event for each call: the series counts them, and a line for each would fill the log.
            StoreEvent::Unconfirmed { .. } => {}
            StoreEvent::PendingDropped { units } if self.series.pending_dropped() == *units => {
                warn!(units, "{PENDING_DROPPED}"); // only the first time; the series counts the rest
            }
            StoreEvent::PendingDropped { .. } => {}
            StoreEvent::MirrorEvicted { counters } if self.series.mirror_evicted() == *counters => {
                warn!(counters, "{MIRROR_FULL}"); // only the first time; the series counts the rest
            }
            StoreEvent::MirrorEvicted { .. } => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    /// There was a line for every 32 counters.
    #[test]
    fn a_write_back_is_logged_once_with_its_total() {
        let mut written_back = WrittenBack::default();
        assert_eq!(written_back.take_total(), None);
        written_back.add(32, 40);
        assert_eq!(written_back.take_total(), None, "more may follow");
        written_back.add(8, 8);
        assert_eq!(written_back.take_total(), None);
        assert_eq!(written_back.take_total(), Some((40, 48)));
        assert_eq!(written_back.take_total(), None);
        written_back.add(1, 48);
        assert_eq!(written_back.take_total(), None);
        assert_eq!(written_back.take_total(), Some((1, 48)));
    }
}
