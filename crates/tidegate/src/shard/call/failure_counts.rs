//! Counts failures of a store by kind, and keeps the last cause.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, FailureKind};

/// Failures of calls, of pings and of attempts to join, counted alike.
#[derive(Debug, Default)]
pub struct FailureCounts {
    by_kind: [AtomicU64; FailureKind::ALL.len()],
    last: Mutex<Option<FailureCause>>,
}

impl FailureCounts {
    /// Records the failure of a call, a ping or an attempt to join.
    pub fn record(&self, cause: &FailureCause) {
        self.by_kind[cause.kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock();
        if last.as_ref() != Some(cause) {
            *last = Some(cause.clone());
        }
    }

    /// The number of failures of this kind.
    pub fn of(&self, kind: FailureKind) -> u64 {
        self.by_kind[kind as usize].load(Ordering::Relaxed)
    }

    /// The number of failures of all kinds.
    pub fn total(&self) -> u64 {
        FailureKind::ALL.iter().map(|kind| self.of(*kind)).sum()
    }

    /// The cause of the last failure.
    pub fn last(&self) -> Option<FailureCause> {
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_kind_and_the_last_cause_is_known() {
        let counts = FailureCounts::default();
        assert_eq!(counts.last(), None);
        for (kind, text) in [
            (FailureKind::Refused, "connection refused"),
            (FailureKind::Other, "no server"),
            (FailureKind::Refused, "connection reset"),
        ] {
            counts.record(&FailureCause::new(kind, text));
        }
        assert_eq!(counts.of(FailureKind::Refused), 2);
        assert_eq!(counts.of(FailureKind::Other), 1);
        assert_eq!(counts.of(FailureKind::Auth), 0);
        assert_eq!(counts.total(), 3);
        assert_eq!(counts.last().unwrap().text.as_ref(), "connection reset");
    }

    /// `record` indexes the counts by the discriminant, so `ALL` must be in that order.
    #[test]
    fn every_kind_has_its_own_index() {
        for (index, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{kind}");
        }
    }
}
