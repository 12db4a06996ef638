//! Events of the shared store, as they reach the log and the metrics: one line per change.

use std::sync::Arc;
use std::time::Instant;

use tidegate::observe::SharedSeries;
use tidegate::resilience::{ClockNews, Event, FailureCounts, Level};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::store_health::{StoreHealth, StoreReport};

/// What clocks that disagree call for.
const APART: &str = "the store's clock and this node's are apart; decisions follow the store's, \
                     dates in headers and logs are off; see that both follow one source of time";

/// What a full table of pending charges calls for.
const DROPPED: &str = "the table of pending charges is full, and charges of further keys are dropped: limits of these \
                       keys admit too much until their windows end; see who sends so many keys";

/// What it means to go on without nodes that have not put back what they remember.
const EARLY: &str = "the store is trusted again although some nodes have not put back what they remember; what only they \
                     have seen last may not be counted";

/// Receives the events of one store.
pub(crate) struct StoreObserver {
    pub(crate) series: Arc<SharedSeries>,
    pub(crate) health: Arc<StoreHealth>,
    pub(crate) failures: Arc<FailureCounts>,
    /// Notified when the store has lost counts.
    pub(crate) lost: Arc<Notify>,
}

impl StoreObserver {
    /// Counts an event and writes its line.
    pub(crate) fn notice(&self, event: &Event) {
        self.series.notice(event);
        let (now, errors) = (Instant::now(), self.failures.total());
        match event {
            Event::BreakerOpened { cause } => log(self.health.opened(now, cause, errors)),
            Event::BreakerClosed => log(self.health.closed(now, errors)),
            Event::Lost => {
                warn!("the store has lost counts, or another took over; putting them back");
                self.lost.notify_one();
            }
            Event::Seeded { counters, .. } => info!(counters, "put back what this node remembers"),
            Event::TrustedEarly { missing } => warn!(missing, "{EARLY}"),
            Event::Exact => info!("decisions are exact"),
            Event::LatePushed { .. } => {} // counted, and too frequent for the log
            Event::Pushed { counters, units } => {
                info!(
                    counters,
                    units, "charged what was admitted without the store"
                );
            }
            // One for each call: the series counts them, and a line for each would fill the log.
            Event::Unconfirmed { .. } => {}
            Event::PendingDropped { units } if self.series.pending_dropped() == *units => {
                warn!(units, "{DROPPED}"); // the first ones; the series counts on
            }
            Event::PendingDropped { .. } => {}
            Event::RecordRefused { cause } => warn!(
                "a record of the store cannot be used: {}; its client is decided by this node's share",
                cause.text
            ),
            Event::Clock(news) => log_clock(*news),
        }
    }
}

fn log(report: Option<StoreReport>) {
    if let Some(report) = report {
        report.log();
    }
}

fn log_clock(news: ClockNews) {
    let (level, offset) = match news {
        ClockNews::Level { level, offset } => (level, offset),
        ClockNews::Jumped { by } => {
            let moved_ms = millis(by);
            warn!(moved_ms, "the store's clock or this node's was set");
            return;
        }
    };
    let (offset_ms, error_ms) = (millis(offset.nanos), offset.error.millis_up());
    match level {
        Level::Fine => info!(
            offset_ms,
            error_ms, "the store's clock and this node's agree"
        ),
        Level::Warn => warn!(offset_ms, error_ms, "{APART}"),
        Level::Alarm => error!(offset_ms, error_ms, "{APART}"),
    }
}

fn millis(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}
