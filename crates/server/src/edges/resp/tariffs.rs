//! The limits that a connection has brought lately, compiled. Most bring the same one every time.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Unfit};
use tidegate_core::units::Nanos;

/// As many as a client with a few kinds of limits uses in turn; each takes some 200 bytes.
const KEPT: usize = 4;
/// The longest period, in seconds: 292 years, what nanoseconds with a sign can tell.
const LONGEST_PERIOD: u64 = i64::MAX as u64 / 1_000_000_000;

/// A rate as a command writes it: a bucket of `capacity` units that fills at `count` per `period_secs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rate {
    pub(super) capacity: u64,
    pub(super) count: u64,
    pub(super) period_secs: u64,
}

/// Rates and the limits made of them.
#[derive(Default)]
pub(super) struct Tariffs {
    known: Vec<(Rate, Limit)>,
    next: usize,
}

impl Tariffs {
    /// Where the limit of `rate` is, if it is known.
    #[inline]
    pub(super) fn find(&self, rate: Rate) -> Option<usize> {
        self.known.iter().position(|(known, _)| *known == rate)
    }

    /// Makes the limit of `rate`, perhaps in the place of another, and says where it is.
    pub(super) fn learn(&mut self, rate: Rate, precision: Precision) -> Result<usize, Unfit> {
        let limit = compile(rate, precision)?;
        if self.known.len() < KEPT {
            self.known.push((rate, limit));
            return Ok(self.known.len() - 1);
        }
        let place = self.next;
        self.next = (place + 1) % KEPT;
        self.known[place] = (rate, limit);
        Ok(place)
    }

    /// The limit at a place that was found or learnt.
    pub(super) fn limit(&self, place: usize) -> &Limit {
        &self.known[place].1
    }
}

fn compile(rate: Rate, precision: Precision) -> Result<Limit, Unfit> {
    if rate.period_secs > LONGEST_PERIOD {
        return Err(Unfit::Inexact);
    }
    let period = Nanos::from_secs(rate.period_secs);
    let spec = Spec::new(Algorithm::TokenBucket, rate.count, period).burst(rate.capacity);
    Limit::compile(&spec, precision)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(capacity: u64) -> Rate {
        Rate {
            capacity,
            count: 30,
            period_secs: 60,
        }
    }

    #[test]
    fn the_last_few_are_kept() {
        let mut tariffs = Tariffs::default();
        for capacity in 1..=6 {
            let place = tariffs.learn(rate(capacity), Precision::Memory).unwrap();
            assert_eq!(tariffs.find(rate(capacity)), Some(place));
            assert_eq!(tariffs.limit(place).capacity(), capacity);
        }
        let kept = (1..=6).filter(|capacity| tariffs.find(rate(*capacity)).is_some());
        assert_eq!(kept.collect::<Vec<_>>(), [3, 4, 5, 6]);
    }

    #[test]
    fn what_a_store_cannot_count_exactly_is_refused() {
        let mut tariffs = Tariffs::default();
        let long = Rate {
            period_secs: LONGEST_PERIOD + 1,
            ..rate(1)
        };
        let large = rate(1 << 62);
        let fine_in_memory = Rate {
            capacity: 1 << 35,
            count: 7,
            period_secs: 86_400,
        };
        for rate in [long, large] {
            assert_eq!(tariffs.learn(rate, Precision::Memory), Err(Unfit::Inexact));
        }
        assert!(tariffs.learn(fine_in_memory, Precision::Memory).is_ok());
        let in_a_script = tariffs.learn(fine_in_memory, Precision::Script);
        assert_eq!(in_a_script, Err(Unfit::Inexact));
    }
}
