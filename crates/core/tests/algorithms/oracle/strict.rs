//! Strict window: time is divided into tenths of the window, rounded up; units admitted in this tenth and the ten
//! before it count in full.

use tidegate_core::units::{Nanos, Tick};

use super::{LimitOracle, OracleAdmission, newest, shift, ticks, units};
use crate::case::LimitCase;

pub(super) struct StrictWindowOracle {
    limit: i128,
    sub_window: i128,
    tick: Tick,
    list: Vec<OracleAdmission>,
}

impl StrictWindowOracle {
    pub(super) fn new(case: &LimitCase) -> Self {
        let tick = case.limit.tick();
        StrictWindowOracle {
            limit: case.spec.count.into(),
            sub_window: (ticks(tick, case.spec.window.length()) + 9) / 10,
            tick,
            list: Vec::new(),
        }
    }

    fn sub_window_of(&self, at: i128) -> i128 {
        at.div_euclid(self.sub_window)
    }

    /// Time is at least the start of the newest admission's sub-window.
    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        newest(&self.list).map_or(now, |newest| now.max(self.sub_window_of(newest) * self.sub_window))
    }
}

impl LimitOracle for StrictWindowOracle {
    fn room(&self, now: Nanos) -> u64 {
        let oldest = self.sub_window_of(self.effective(now)) - 10;
        let in_view = self.list.iter().filter(|a| self.sub_window_of(a.at) >= oldest);
        units(self.limit - in_view.map(|a| a.units).sum::<i128>())
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
        let sub_windows = self.sub_window_of(newest) - self.sub_window_of(ticks(self.tick, now));
        shift(&mut self.list, sub_windows * self.sub_window);
    }
}
