//! How often a store failed, by kind, and why it failed last.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, FailureKind};

/// Counts of failures. Calls, pings and attempts to join are counted alike.
#[derive(Debug, Default)]
pub struct FailureCounts {
    by_kind: [AtomicU64; FailureKind::ALL.len()],
    last: Mutex<Option<FailureCause>>,
}

impl FailureCounts {
    /// A call, a ping or an attempt to join failed.
    pub fn record(&self, cause: &FailureCause) {
        self.by_kind[cause.kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock();
        if last.as_ref() != Some(cause) {
            *last = Some(cause.clone());
        }
    }

    /// How many failures of this kind there were.
    pub fn of(&self, kind: FailureKind) -> u64 {
        self.by_kind[kind as usize].load(Ordering::Relaxed)
    }

    /// How many failures there were.
    pub fn total(&self) -> u64 {
        FailureKind::ALL.iter().map(|kind| self.of(*kind)).sum()
    }

    /// Why the last one failed.
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

    /// The counts are in the order of `ALL`.
    #[test]
    fn every_kind_has_a_place_of_its_own() {
        for (place, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{kind}");
        }
    }
}
