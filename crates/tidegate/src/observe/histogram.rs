//! The duration of decisions, in fixed buckets.

use std::time::Duration;

use super::series::Counter;

/// Upper bounds: from the time of a memory store to a time that no caller should ever see.
const BOUNDS_NANOS: [u64; 16] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

/// A distribution of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One per bound and one for durations above all bounds; not cumulative.
    buckets: [Counter; BOUNDS_NANOS.len() + 1],
    sum_nanos: Counter,
}

impl Histogram {
    /// Adds one duration.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Few decisions take longer than the first bounds: a scan beats a binary search here.
        let bucket = BOUNDS_NANOS.iter().position(|&bound| nanos <= bound);
        self.buckets[bucket.unwrap_or(BOUNDS_NANOS.len())].inc();
        self.sum_nanos.add(nanos);
    }

    /// Each bound in seconds with the count at or below it, then the total.
    pub fn cumulative(&self) -> (impl Iterator<Item = (f64, u64)>, u64) {
        let counts: Vec<u64> = self.buckets.iter().map(Counter::get).collect();
        let total = counts.iter().sum();
        let bounds = BOUNDS_NANOS.iter().zip(counts);
        let running = bounds.scan(0, |sum, (&bound, count)| {
            *sum += count;
            Some((bound as f64 / 1e9, *sum))
        });
        (running, total)
    }

    /// The sum of all durations, in seconds.
    pub fn sum_secs(&self) -> f64 {
        self.sum_nanos.get() as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket_and_nothing_is_lost_above_the_last() {
        let histogram = Histogram::default();
        for micros in [1, 1, 3, 1_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let (bounds, total) = histogram.cumulative();
        let bounds: Vec<_> = bounds.collect();
        assert_eq!(bounds[..3], [(1e-6, 2), (2.5e-6, 2), (5e-6, 3)]);
        assert_eq!(bounds.last(), Some(&(0.1, 3)));
        assert_eq!(total, 4);
        assert!((histogram.sum_secs() - 1.000_005).abs() < 1e-9);
    }
}
