//! Sliding log: at most `L` in any span shorter than `W`. Above a thousand, stamps are rounded up to
//! a grain of `W / 998`.

use tidegate_core::units::{Nanos, Tick};

use super::{LimitOracle, OracleAdmission, newest, shift, ticks, units};
use crate::case::LimitCase;

pub(super) struct SlidingLogOracle {
    limit: i128,
    width: i128,
    grain: i128,
    tick: Tick,
    list: Vec<OracleAdmission>,
}

impl SlidingLogOracle {
    pub(super) fn new(case: &LimitCase) -> Self {
        let tick = case.limit.tick();
        let width = ticks(tick, case.spec.window.length());
        let grain = if case.spec.count > 1_000 { (width + 997) / 998 } else { 1 };
        SlidingLogOracle { limit: case.spec.count.into(), width, grain, tick, list: Vec::new() }
    }

    fn stamp(&self, at: i128) -> i128 {
        (at + self.grain - 1).div_euclid(self.grain) * self.grain
    }

    /// The newest stamp shows only the grain in which it was made: time is at least the start of that grain.
    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        newest(&self.list).map_or(now, |newest| now.max(newest - self.grain + 1))
    }
}

impl LimitOracle for SlidingLogOracle {
    fn room(&self, now: Nanos) -> u64 {
        let at = self.effective(now);
        let in_view = self.list.iter().filter(|a| a.at > at - self.width);
        units(self.limit - in_view.map(|a| a.units).sum::<i128>())
    }

    fn record(&mut self, now: Nanos, units: u64) {
        // Admissions out of view at a charge do not return, though the clock may.
        let seen = self.effective(now);
        self.list.retain(|a| a.at > seen - self.width);
        let (at, units) = (self.stamp(seen), units.into());
        self.list.push(OracleAdmission { at, units });
    }

    fn ahead(&self, now: Nanos) -> i128 {
        self.effective(now) - ticks(self.tick, now)
    }

    fn set_back(&mut self, now: Nanos) {
        let newest = newest(&self.list).unwrap_or(0);
        let back = newest - self.stamp(ticks(self.tick, now));
        shift(&mut self.list, back);
        for admitted in &mut self.list {
            admitted.at = admitted.at.max(0); // no stamp lies before the epoch
        }
    }
}
