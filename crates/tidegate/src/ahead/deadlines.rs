//! When each bucket of the table is due: one of its leases is to be returned, or a view has expired.
//!
//! A pure table in the order of time. Invariant: the deadline of a bucket is never later than the time at which something
//! in it is due: use only postpones that time, and an event that advances it sets the deadline again. So only due buckets
//! are ever locked, however many have leases.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::units::Nanos;

/// Buckets by deadline.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Nanos, usize)>,
    by_bucket: BTreeMap<usize, Nanos>,
}

impl Deadlines {
    /// Replaces the deadline of a bucket; `None` if nothing in it will be due.
    pub(super) fn set(&mut self, bucket: usize, due: Option<Nanos>) {
        let before = match due {
            Some(due) => self.by_bucket.insert(bucket, due),
            None => self.by_bucket.remove(&bucket),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, bucket));
        }
        if let Some(due) = due {
            self.by_time.insert((due, bucket));
        }
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// The buckets that are due at `now`.
    pub(super) fn due(&self, now: Nanos) -> Vec<usize> {
        let due = self.by_time.iter().take_while(|(due, _)| *due <= now);
        due.map(|(_, bucket)| *bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    /// Every bucket was locked in every round, up to a thousand times a second.
    #[test]
    fn only_due_buckets_are_visited() {
        let mut deadlines = Deadlines::default();
        for bucket in 0..16_384 {
            deadlines.set(bucket, Some(AT(100 + bucket as u64)));
        }
        let mut visited = 0;
        for now in 0..1_000 {
            for bucket in deadlines.due(AT(now)) {
                assert!(100 + bucket as u64 <= now);
                deadlines.set(bucket, Some(AT(now + 50)));
                visited += 1;
            }
            let next = deadlines.next().expect("every bucket has a deadline");
            assert!(next > AT(now));
        }
        // Each of the 900 that came due in time, every 50 ms from then on.
        let want: u64 = (100..1_000).map(|first| 1 + (999 - first) / 50).sum();
        assert_eq!(visited, want);
    }

    #[test]
    fn a_bucket_has_one_deadline_and_can_be_removed() {
        let mut deadlines = Deadlines::default();
        deadlines.set(7, Some(AT(10)));
        deadlines.set(7, Some(AT(5)));
        deadlines.set(3, Some(AT(8)));
        assert_eq!(deadlines.due(AT(10)), [7, 3]);
        deadlines.set(7, None);
        assert_eq!((deadlines.due(AT(10)), deadlines.next()), (vec![3], Some(AT(8))));
        deadlines.set(3, None);
        assert_eq!(deadlines.next(), None);
    }
}
