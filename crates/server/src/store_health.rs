//! The log lines about failures of the shared store.
//!
//! The first line of an outage names the cause and the cure. While the outage lasts, a line names another
//! cause when the cause changes, and one line a minute counts the errors. The last line says how long it
//! was. So the number of lines does not depend on the number of requests. Time and counts are injected;
//! only `StoreReport::log` writes.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::store::FailureCause;
use tracing::{info, warn};

use crate::counters::LOCAL;

/// The pause between two lines that only count.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// How long every error must have another cause before that is reported. One late ping is no news.
const CAUSE_STABLE: Duration = Duration::from_secs(2);

/// What was reported of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth(Mutex<Option<StoreOutage>>);

/// An outage that lasts.
#[derive(Clone, Debug)]
pub(crate) struct StoreOutage {
    /// When it began.
    pub(crate) since: Instant,
    /// Why, as was reported last.
    pub(crate) cause: FailureCause,
    errors_before: u64,
    reported_at: Instant,
    /// Since when errors have another cause.
    differs_since: Option<Instant>,
}

/// One line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoreReport {
    /// The store fails from now on.
    Failed { cause: FailureCause },
    /// It fails for another reason than before.
    CauseChanged { cause: FailureCause },
    /// It goes on failing.
    StillFailing {
        cause: FailureCause,
        lasted: Duration,
        errors: u64,
    },
    /// It replies again.
    Recovered { lasted: Duration, errors: u64 },
}

impl StoreHealth {
    /// The breaker opened. `errors` is how many there were since the start of this process.
    pub(crate) fn opened(&self, now: Instant, cause: &FailureCause, errors: u64) -> StoreReport {
        *self.0.lock() = Some(StoreOutage {
            since: now,
            cause: cause.clone(),
            errors_before: errors,
            reported_at: now,
            differs_since: None,
        });
        StoreReport::Failed {
            cause: cause.clone(),
        }
    }

    /// The breaker closed.
    pub(crate) fn closed(&self, now: Instant, errors: u64) -> Option<StoreReport> {
        let outage = self.0.lock().take()?;
        Some(StoreReport::Recovered {
            lasted: now.saturating_duration_since(outage.since),
            errors: errors.saturating_sub(outage.errors_before),
        })
    }

    /// Time passes. `last` is the cause of the last error.
    pub(crate) fn tick(
        &self,
        now: Instant,
        last: Option<FailureCause>,
        errors: u64,
    ) -> Option<StoreReport> {
        let mut outage = self.0.lock();
        let outage = outage.as_mut()?;
        let since = |then| now.saturating_duration_since(then);
        let other = last.filter(|last| last.kind != outage.cause.kind);
        let differs_since = other.as_ref().map(|_| outage.differs_since.unwrap_or(now));
        outage.differs_since = differs_since;
        let report = match other {
            Some(cause) if differs_since.is_some_and(|then| since(then) >= CAUSE_STABLE) => {
                outage.cause = cause.clone();
                StoreReport::CauseChanged { cause }
            }
            _ if since(outage.reported_at) >= COUNT_EVERY => StoreReport::StillFailing {
                cause: outage.cause.clone(),
                lasted: now.saturating_duration_since(outage.since),
                errors: errors.saturating_sub(outage.errors_before),
            },
            _ => return None,
        };
        outage.reported_at = now;
        Some(report)
    }

    /// The outage, if there is one.
    pub(crate) fn outage(&self) -> Option<StoreOutage> {
        self.0.lock().clone()
    }
}

impl StoreReport {
    /// Writes the line.
    pub(crate) fn log(&self) {
        match self {
            StoreReport::Failed { cause } => {
                let kind = cause.kind.name();
                warn!(kind, "the store fails: {cause}; {LOCAL}");
            }
            StoreReport::CauseChanged { cause } => {
                let kind = cause.kind.name();
                warn!(kind, "the store fails for another reason: {cause}");
            }
            StoreReport::StillFailing {
                cause,
                lasted,
                errors,
            } => {
                let (kind, seconds) = (cause.kind.name(), lasted.as_secs());
                warn!(kind, seconds, errors, "the store still fails: {cause}");
            }
            StoreReport::Recovered { lasted, errors } => {
                let seconds = lasted.as_secs_f64();
                info!(seconds, errors, "the store answers again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::store::FailureKind;

    fn cause(kind: FailureKind) -> FailureCause {
        FailureCause::new(kind, kind.name())
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_line_names_the_cause_and_the_last_counts() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        assert_eq!(health.closed(began, 7), None, "there was no outage");
        let auth = cause(FailureKind::Auth);
        let first = health.opened(began, &auth, 7);
        assert_eq!(first, StoreReport::Failed { cause: auth });
        let last = health.closed(began + seconds(5), 32);
        let recovered = StoreReport::Recovered {
            lasted: seconds(5),
            errors: 25,
        };
        assert_eq!(last, Some(recovered));
        assert_eq!(health.tick(began + seconds(500), None, 32), None);
    }

    /// An outage of an hour is 60 lines, not one for each of its errors.
    #[test]
    fn an_outage_that_goes_on_is_counted_once_a_minute() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        let refused = cause(FailureKind::Refused);
        health.opened(began, &refused, 0);
        let mut lines = Vec::new();
        for second in 1..=180 {
            let now = began + seconds(second);
            lines.extend(health.tick(now, Some(refused.clone()), second * 5));
        }
        let still = |minutes: u64| StoreReport::StillFailing {
            cause: refused.clone(),
            lasted: seconds(60 * minutes),
            errors: 300 * minutes,
        };
        assert_eq!(lines, [still(1), still(2), still(3)]);
    }

    #[test]
    fn another_cause_is_reported_once_it_is_stable_and_one_late_ping_is_not() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        health.opened(began, &cause(FailureKind::Refused), 0);
        let at = |second| began + seconds(second);
        for second in 1..39 {
            let kind = [FailureKind::Timeout, FailureKind::Refused][usize::from(second % 2 == 0)];
            assert_eq!(health.tick(at(second), Some(cause(kind)), second), None);
        }
        let loading = cause(FailureKind::Loading);
        let lines = (40..50).filter_map(|second| {
            let report = health.tick(at(second), Some(loading.clone()), second)?;
            Some((second, report))
        });
        let changed = StoreReport::CauseChanged {
            cause: loading.clone(),
        };
        assert_eq!(lines.collect::<Vec<_>>(), [(42, changed)]);
    }
}
