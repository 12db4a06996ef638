//! Sliding window: the admissions of this aligned window, plus those of the previous one weighted by the part of it
//! still in view.

use tidegate_core::units::{Nanos, Tick};

use super::{LimitOracle, OracleAdmission, newest, shift, ticks, units};
use crate::case::LimitCase;

pub(super) struct SlidingWindowOracle {
    limit: i128,
    width: i128,
    tick: Tick,
    list: Vec<OracleAdmission>,
}

impl SlidingWindowOracle {
    pub(super) fn new(case: &LimitCase) -> Self {
        let tick = case.limit.tick();
        SlidingWindowOracle {
            limit: case.spec.count.into(),
            width: ticks(tick, case.spec.window.length()),
            tick,
            list: Vec::new(),
        }
    }

    fn window(&self, at: i128) -> i128 {
        at.div_euclid(self.width)
    }

    /// Time is at least the start of the newest admission's window.
    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        newest(&self.list).map_or(now, |newest| now.max(self.window(newest) * self.width))
    }

    fn admitted_in(&self, window: i128) -> i128 {
        let inside = self.list.iter().filter(|a| self.window(a.at) == window);
        inside.map(|a| a.units).sum()
    }
}

impl LimitOracle for SlidingWindowOracle {
    fn room(&self, now: Nanos) -> u64 {
        let at = self.effective(now);
        let window = self.window(at);
        let into = at - window * self.width;
        let weighed = self.admitted_in(window) * self.width + self.admitted_in(window - 1) * (self.width - into);
        units((self.limit * self.width - weighed).max(0) / self.width)
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
        let newest = newest(&self.list).unwrap_or(0);
        let windows = self.window(newest) - self.window(ticks(self.tick, now));
        shift(&mut self.list, windows * self.width);
    }
}
