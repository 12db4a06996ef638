//! Token bucket, leaky bucket, leaky queue: in any interval `D` at most `B + D * L / W`.
//!
//! That sentence is the whole oracle. A cost fits when no interval that ends now would exceed it.

use tidegate_core::units::{Nanos, Tick};

use super::{LimitOracle, OracleAdmission, nanos, newest, shift, ticks, units};
use crate::case::LimitCase;

pub(super) struct BucketOracle {
    count: i128,
    window: i128,
    burst: i128,
    /// The maximum delay of a queue.
    max_delay: Option<i128>,
    tick: Tick,
    list: Vec<OracleAdmission>,
}

impl BucketOracle {
    pub(super) fn new(case: &LimitCase) -> Self {
        let tick = case.limit.tick();
        BucketOracle {
            count: case.spec.count.into(),
            window: ticks(tick, case.spec.window.length()),
            burst: case.spec.burst.unwrap_or(case.spec.count).into(),
            max_delay: None,
            tick,
            list: Vec::new(),
        }
    }

    pub(super) fn queue(case: &LimitCase) -> Self {
        let level = BucketOracle::new(case);
        let max_delay = case.spec.max_delay;
        let max_delay = max_delay.map_or(i128::MAX, |max| ticks(level.tick, max));
        BucketOracle { max_delay: Some(max_delay), ..level }
    }

    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        newest(&self.list).map_or(now, |newest| now.max(newest))
    }

    /// The units used that have not drained, times `window`: the maximum, over every interval that ends now, of the
    /// units admitted less the units drained in it.
    fn backlog(&self, at: i128) -> i128 {
        let mut admitted = 0;
        let mut max = 0;
        for first in self.list.iter().rev() {
            admitted += first.units;
            max = max.max(admitted * self.window - (at - first.at) * self.count);
        }
        max
    }

    fn drains_in(&self, backlog: i128) -> i128 {
        (backlog + self.count - 1) / self.count
    }
}

impl LimitOracle for BucketOracle {
    fn room(&self, now: Nanos) -> u64 {
        let backlog = self.backlog(self.effective(now));
        let too_late = self.max_delay.is_some_and(|max| self.drains_in(backlog) > max);
        if too_late {
            return 0;
        }
        units((self.burst * self.window - backlog).max(0) / self.window)
    }

    fn record(&mut self, now: Nanos, units: u64) {
        let at = self.effective(now);
        let units = units.into();
        self.list.push(OracleAdmission { at, units });
    }

    fn ahead(&self, now: Nanos) -> i128 {
        self.effective(now) - ticks(self.tick, now)
    }

    fn set_back(&mut self, now: Nanos) {
        let back = self.ahead(now);
        shift(&mut self.list, back);
    }

    fn delay(&self, now: Nanos) -> Nanos {
        let at = self.effective(now);
        let backlog = self.backlog(at);
        if self.max_delay.is_none() || backlog == 0 {
            return Nanos::ZERO;
        }
        // While time stands still for the queue, it stands still for the requests in it.
        let from = now.max(nanos(self.tick, at));
        nanos(self.tick, at + self.drains_in(backlog)).since(from)
    }
}
