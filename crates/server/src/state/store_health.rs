//! Log lines about failures of the shared store.
//!
//! An outage lasts while the breaker is open, while a part of the store has no server, or while this node has not joined
//! the store: it reaches no server that serves, or the nodes there have another secret. The first line names the cause and the cure. During the
//! outage a line reports each change of the cause, and one line a minute counts the errors. The last line has the
//! duration.
//!
//! Invariant: the number of lines does not depend on the number of requests. Time and counts are injected; only
//! `log_report` writes.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, FailureKind};
use tracing::{info, warn};

use crate::store_condition::CurrentOutage;

/// How requests are decided without the store.
pub(super) const LOCAL_DECISION_NOTE: &str = "this node decides by its share of each limit";

/// The interval between two lines that only count.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);
/// How long every error must have another cause before the change is reported. One late ping is not a change.
const CAUSE_STABLE_TIME: Duration = Duration::from_secs(2);

/// The last reported health of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth(Mutex<OutageState>);

#[derive(Debug, Default)]
struct OutageState {
    breaker_is_open: bool,
    /// Why this node has not joined the store, if it has not.
    not_joined: Option<FailureCause>,
    /// Why some counters have no server, if so.
    unserved: Option<FailureCause>,
    outage: Option<StoreOutage>,
}

/// An outage in progress, and what of it was reported.
#[derive(Debug)]
struct StoreOutage {
    since: Instant,
    /// The last reported cause.
    cause: FailureCause,
    errors_before: u64,
    reported_at: Instant,
    /// Since when errors have had another cause.
    differs_since: Option<Instant>,
}

/// One line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoreReport {
    /// The store has begun to fail.
    Failed { cause: FailureCause },
    /// The store fails for another reason than before.
    CauseChanged { cause: FailureCause },
    /// The store still fails.
    StillFailing { cause: FailureCause, lasted: Duration, errors: u64 },
    /// The store replies again.
    Recovered { lasted: Duration, errors: u64 },
}

impl StoreHealth {
    /// The breaker opened. `errors` is the number of errors since the start of this process.
    pub(crate) fn opened(&self, now: Instant, cause: &FailureCause, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        health.breaker_is_open = true;
        health.begin(now, cause, errors)
    }

    pub(crate) fn closed(&self, now: Instant, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        health.breaker_is_open = false;
        health.end(now, errors)
    }

    /// This node tried to join the store and could not.
    pub(crate) fn not_joined(&self, now: Instant, cause: &FailureCause, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        health.not_joined = Some(cause.clone());
        health.begin(now, cause, errors)
    }

    /// This node has joined the store.
    pub(crate) fn joined(&self, now: Instant, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        health.not_joined = None;
        health.end(now, errors)
    }

    /// Whether some counters have no server, and why.
    pub(crate) fn set_unserved(&self, now: Instant, cause: Option<FailureCause>, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        let was = std::mem::replace(&mut health.unserved, cause.clone());
        match (was, cause) {
            (None, Some(cause)) => health.begin(now, &cause, errors),
            (Some(_), None) => health.end(now, errors),
            _ => None,
        }
    }

    /// Called at intervals. `last` is the cause of the last error. A node that has not joined has its own cause:
    /// its pings fail because it has not joined.
    pub(crate) fn tick(&self, now: Instant, last: Option<FailureCause>, errors: u64) -> Option<StoreReport> {
        let mut health = self.0.lock();
        let last = health.not_joined.clone().or_else(|| health.unserved.clone()).or(last);
        let outage = health.outage.as_mut()?;
        let since = |then| now.saturating_duration_since(then);
        let other = last.filter(|last| !is_same_cause(last, &outage.cause));
        let differs_since = other.as_ref().map(|_| outage.differs_since.unwrap_or(now));
        outage.differs_since = differs_since;
        let report = match other {
            Some(cause) if differs_since.is_some_and(|then| since(then) >= CAUSE_STABLE_TIME) => {
                outage.cause = cause.clone();
                StoreReport::CauseChanged { cause }
            }
            _ if since(outage.reported_at) >= COUNT_INTERVAL => StoreReport::StillFailing {
                cause: outage.cause.clone(),
                lasted: now.saturating_duration_since(outage.since),
                errors: errors.saturating_sub(outage.errors_before),
            },
            _ => return None,
        };
        outage.reported_at = now;
        Some(report)
    }

    /// The outage in progress, if there is one.
    pub(crate) fn outage(&self) -> Option<CurrentOutage> {
        let state = self.0.lock();
        let StoreOutage { since, cause, .. } = state.outage.as_ref()?;
        Some(CurrentOutage { since: *since, cause: cause.clone() })
    }
}

impl OutageState {
    /// The first line of an outage. None during an outage: then [`StoreHealth::tick`] reports another cause.
    fn begin(&mut self, now: Instant, cause: &FailureCause, errors: u64) -> Option<StoreReport> {
        if self.outage.is_some() {
            return None;
        }
        self.outage = Some(StoreOutage {
            since: now,
            cause: cause.clone(),
            errors_before: errors,
            reported_at: now,
            differs_since: None,
        });
        let cause = cause.clone();
        Some(StoreReport::Failed { cause })
    }

    fn end(&mut self, now: Instant, errors: u64) -> Option<StoreReport> {
        if self.breaker_is_open || self.not_joined.is_some() || self.unserved.is_some() {
            return None;
        }
        let outage = self.outage.take()?;
        Some(StoreReport::Recovered {
            lasted: now.saturating_duration_since(outage.since),
            errors: errors.saturating_sub(outage.errors_before),
        })
    }
}

/// The text may vary without being another cause, except for the kind `Other`.
fn is_same_cause(one: &FailureCause, other: &FailureCause) -> bool {
    one.kind == other.kind && (one.kind != FailureKind::Other || one.text == other.text)
}

/// Writes the line, if there is one.
pub(super) fn log_report(report: Option<StoreReport>) {
    match report {
        None => {}
        Some(StoreReport::Failed { cause }) => {
            warn!(kind = cause.kind.name(), "the store fails: {cause}; {LOCAL_DECISION_NOTE}");
        }
        Some(StoreReport::CauseChanged { cause }) => {
            warn!(kind = cause.kind.name(), "the store fails for another reason: {cause}");
        }
        Some(StoreReport::StillFailing { cause, lasted, errors }) => {
            warn!(kind = cause.kind.name(), seconds = lasted.as_secs(), errors, "the store still fails: {cause}");
        }
        Some(StoreReport::Recovered { lasted, errors }) => {
            info!(seconds = lasted.as_secs_f64(), errors, "the store replies again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(first, Some(StoreReport::Failed { cause: auth }));
        let last = health.closed(began + seconds(5), 32);
        let recovered = StoreReport::Recovered { lasted: seconds(5), errors: 25 };
        assert_eq!(last, Some(recovered));
        assert_eq!(health.tick(began + seconds(500), None, 32), None);
    }

    /// A server of a cluster replies to pings and may reject every call.
    #[test]
    fn an_outage_lasts_until_the_breaker_is_closed_and_the_node_has_joined() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        let clusterdown = cause(FailureKind::Clusterdown);
        let failed = StoreReport::Failed { cause: clusterdown.clone() };
        assert_eq!(health.not_joined(began, &clusterdown, 1), Some(failed));
        let again = health.not_joined(began + seconds(1), &clusterdown, 2);
        assert_eq!(again, None);
        let silent = cause(FailureKind::Silent);
        assert_eq!(health.opened(began + seconds(2), &silent, 3), None);
        assert_eq!(health.closed(began + seconds(3), 4), None);
        assert_eq!(health.outage().unwrap().since, began);
        let recovered = StoreReport::Recovered { lasted: seconds(4), errors: 4 };
        assert_eq!(health.joined(began + seconds(4), 5), Some(recovered));
        assert_eq!(health.joined(began + seconds(5), 5), None);
    }

    /// A store comes back with another secret. Pings fail while the node may not join, and their cause hid the real
    /// one.
    #[test]
    fn the_cause_of_not_joining_is_reported_over_that_of_pings() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        let ping = cause(FailureKind::Refused);
        health.opened(began, &ping, 0);
        let tries = |text, from: u64| {
            let join_failure = FailureCause::new(FailureKind::Other, text);
            let lines = (from..from + 10).filter_map(|second| {
                let now = began + seconds(second);
                assert_eq!(health.not_joined(now, &join_failure, second), None);
                health.tick(now, Some(ping.clone()), second)
            });
            lines.collect::<Vec<_>>()
        };
        for (text, from) in [("another secret", 1), ("no secret", 20)] {
            let cause = FailureCause::new(FailureKind::Other, text);
            let changed = StoreReport::CauseChanged { cause };
            assert_eq!(tries(text, from), [changed]);
        }
    }

    /// Hash slots without a primary were decided by the share with `exact` in every page and not a line in the log.
    #[test]
    fn counters_without_a_server_are_an_outage_whatever_the_breaker_does() {
        let (health, began) = (StoreHealth::default(), Instant::now());
        let unserved = || Some(cause(FailureKind::Clusterdown));
        let failed = StoreReport::Failed { cause: cause(FailureKind::Clusterdown) };
        assert_eq!(health.set_unserved(began, unserved(), 0), Some(failed));
        assert_eq!(health.set_unserved(began, unserved(), 0), None);
        assert_eq!(health.closed(began + seconds(1), 0), None, "a shard closed");
        let recovered = StoreReport::Recovered { lasted: seconds(2), errors: 0 };
        assert_eq!(health.set_unserved(began + seconds(2), None, 0), Some(recovered));
        assert_eq!(health.set_unserved(began + seconds(3), None, 0), None);
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
        let changed = StoreReport::CauseChanged { cause: loading.clone() };
        assert_eq!(lines.collect::<Vec<_>>(), [(42, changed)]);
    }
}
