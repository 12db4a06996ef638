//! The last limits of a connection, compiled. Most connections use the same limit every time.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, SpecError};
use tidegate_core::units::Nanos;

/// As many as a client with a few kinds of limits uses in turn. Each takes some 200 bytes.
const CAPACITY: usize = 4;
/// Maximum period, in seconds: 292 years, the range of signed nanoseconds.
const MAX_PERIOD_SECS: u64 = i64::MAX as u64 / 1_000_000_000;

/// A rate as in a command: a bucket of `capacity` units that fills at `count` per `period_secs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThrottleRate {
    pub(super) capacity: u64,
    pub(super) count: u64,
    pub(super) period_secs: u64,
}

/// Rates and the limits compiled from them.
#[derive(Default)]
pub(super) struct LimitCache {
    entries: Vec<(ThrottleRate, Limit)>,
    next: usize,
}

impl LimitCache {
    /// The index of the limit of `rate`, if it is cached.
    #[inline]
    pub(super) fn find(&self, rate: ThrottleRate) -> Option<usize> {
        self.entries.iter().position(|(known, _)| *known == rate)
    }

    /// Compiles and inserts the limit of `rate`, perhaps in the place of another, and returns its index.
    pub(super) fn insert(&mut self, rate: ThrottleRate, precision: Precision) -> Result<usize, SpecError> {
        let limit = compile(rate, precision)?;
        if self.entries.len() < CAPACITY {
            self.entries.push((rate, limit));
            return Ok(self.entries.len() - 1);
        }
        let index = self.next;
        self.next = (index + 1) % CAPACITY;
        self.entries[index] = (rate, limit);
        Ok(index)
    }

    /// The limit at an index from `find` or `insert`.
    pub(super) fn limit(&self, index: usize) -> &Limit {
        &self.entries[index].1
    }
}

fn compile(rate: ThrottleRate, precision: Precision) -> Result<Limit, SpecError> {
    if rate.period_secs > MAX_PERIOD_SECS {
        return Err(SpecError::Inexact);
    }
    let period = Nanos::from_secs(rate.period_secs);
    let spec = Spec::new(Algorithm::TokenBucket, rate.count, period).burst(rate.capacity);
    Limit::compile(&spec, precision)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(capacity: u64) -> ThrottleRate {
        ThrottleRate { capacity, count: 30, period_secs: 60 }
    }

    #[test]
    fn the_last_few_limits_are_cached() {
        let mut cache = LimitCache::default();
        for capacity in 1..=6 {
            let index = cache.insert(rate(capacity), Precision::Memory).unwrap();
            assert_eq!(cache.find(rate(capacity)), Some(index));
            assert_eq!(cache.limit(index).capacity(), capacity);
        }
        let cached = (1..=6).filter(|capacity| cache.find(rate(*capacity)).is_some());
        assert_eq!(cached.collect::<Vec<_>>(), [3, 4, 5, 6]);
    }

    #[test]
    fn a_rate_that_a_store_cannot_count_exactly_is_rejected() {
        let mut cache = LimitCache::default();
        let long = ThrottleRate { period_secs: MAX_PERIOD_SECS + 1, ..rate(1) };
        let large = rate(1 << 62);
        let fine_in_memory = ThrottleRate { capacity: 1 << 35, count: 7, period_secs: 86_400 };
        for rate in [long, large] {
            assert_eq!(cache.insert(rate, Precision::Memory), Err(SpecError::Inexact));
        }
        assert!(cache.insert(fine_in_memory, Precision::Memory).is_ok());
        let in_a_script = cache.insert(fine_in_memory, Precision::Double);
        assert_eq!(in_a_script, Err(SpecError::Inexact));
    }
}
