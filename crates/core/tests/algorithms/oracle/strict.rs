//! Strict window: time is cut into tenths of the window, rounded up; what was admitted in this tenth
//! and the ten before it counts in full.

use tidegate_core::units::{Nanos, Tick};

use super::{Admitted, Oracle, newest, shift, ticks, units};
use crate::case::Case;

pub(super) struct Strict {
    limit: i128,
    part: i128,
    tick: Tick,
    list: Vec<Admitted>,
}

impl Strict {
    pub(super) fn new(case: &Case) -> Self {
        let tick = case.limit.tick();
        Strict {
            limit: case.spec.count.into(),
            part: (ticks(tick, case.spec.window.length()) + 9) / 10,
            tick,
            list: Vec::new(),
        }
    }

    fn part_of(&self, at: i128) -> i128 {
        at.div_euclid(self.part)
    }

    /// Time is at least the beginning of the newest admission's part.
    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        newest(&self.list).map_or(now, |newest| now.max(self.part_of(newest) * self.part))
    }
}

impl Oracle for Strict {
    fn room(&self, now: Nanos) -> u64 {
        let oldest = self.part_of(self.effective(now)) - 10;
        let in_view = self.list.iter().filter(|a| self.part_of(a.at) >= oldest);
        units(self.limit - in_view.map(|a| a.units).sum::<i128>())
    }

    fn record(&mut self, now: Nanos, units: u64) {
        let at = self.effective(now);
        let units = units.into();
        self.list.push(Admitted { at, units });
    }

    fn ahead(&self, now: Nanos) -> i128 {
        self.effective(now) - ticks(self.tick, now)
    }

    fn set_back(&mut self, now: Nanos) {
        let newest = newest(&self.list).unwrap_or(0);
        let parts = self.part_of(newest) - self.part_of(ticks(self.tick, now));
        shift(&mut self.list, parts * self.part);
    }
}
