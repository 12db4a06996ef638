//! Converts a state made under other parameters: units used are kept, rounded up.
//!
//! Versions of a rule need no order. Alternating versions never under-count. Buckets over-count by less than one unit
//! per switch, and where their ticks differ by what drains in the coarser one. Windows of other lengths count each
//! unit at the latest time it can have been charged. Debt survives, up to twice the new capacity.

use super::limit::AnyMeter;
use super::{CounterState, Limit, LogEntry, Meter};
use crate::units::{Nanos, Tick};

impl Limit {
    /// Converts a state made under `old` to one under this limit.
    pub fn adopt(&self, old: &Limit, mut state: CounterState, now: Nanos) -> CounterState {
        if self.tag() == old.tag() && self.accepts(&state) {
            return state;
        }
        let at = old.advance(&mut state, now);
        // A state frozen ahead of the clock stays where it is; a coarser tick never reads earlier.
        let seen = old.tick.start(at.advanced.tick).max(now);
        let tick = self.tick.floor(seen);
        // Rounded up, or to the last tick that the old one touches: always to the tick that counts longer.
        let first = |there: u64| ceil(self.tick, old.tick.start(there));
        let last = |there: u64| {
            let next = old.tick.start(there.saturating_add(1));
            self.tick.floor(next.since(Nanos::new(1)))
        };
        match (&self.meter, &old.meter, &state) {
            (AnyMeter::Bucket(new), AnyMeter::Bucket(was), CounterState::Bucket(level)) => {
                CounterState::Bucket(new.adopt(was, level, ceil(self.tick, seen)))
            }
            (AnyMeter::Fixed(new), AnyMeter::Fixed(_), CounterState::Fixed(window)) => {
                let guard_known = self.guard() <= old.guard();
                CounterState::Fixed(new.adopt(window, first(window.end), guard_known, tick))
            }
            (AnyMeter::Sliding(new), AnyMeter::Sliding(was), CounterState::Sliding(window)) => {
                CounterState::Sliding(new.adopt(first(window.index * was.width), window, tick))
            }
            (AnyMeter::Strict(new), AnyMeter::Strict(was), CounterState::Strict(window)) => {
                let newest_first = (0..).zip(window.counts);
                let sub_windows = newest_first.map(|(age, count)| {
                    // A clock set back to the Unix epoch leaves counts from before the epoch.
                    let sub_window = window.index.saturating_sub(age);
                    let end = sub_window.saturating_add(1).saturating_mul(was.sub_window);
                    (last(end - 1), count)
                });
                CounterState::Strict(new.adopt(sub_windows, tick))
            }
            (AnyMeter::Log(new), AnyMeter::Log(_), CounterState::Log(log)) => {
                // A stamp rounded up to a coarse grain may lie ahead of the clock, but its charge never did.
                CounterState::Log(
                    new.adopt(log.entries().map(|entry| LogEntry { stamp: last(entry.stamp).min(tick), ..entry })),
                )
            }
            _ => self.with_used(old.used(&state, at), seen),
        }
    }

    /// A state in which `used` units have just been charged.
    pub fn with_used(&self, used: u64, now: Nanos) -> CounterState {
        let tick = ceil(self.tick, now);
        let floor = self.tick.floor(now);
        match &self.meter {
            AnyMeter::Bucket(meter) => CounterState::Bucket(meter.with_used(tick, used)),
            AnyMeter::Fixed(meter) => CounterState::Fixed(meter.with_used(floor, used)),
            AnyMeter::Sliding(meter) => CounterState::Sliding(meter.with_used(floor, used)),
            AnyMeter::Strict(meter) => CounterState::Strict(meter.with_used(floor, used)),
            AnyMeter::Log(meter) => CounterState::Log(meter.with_used(tick, used)),
        }
    }

    /// Whether a state has the shape of this limit.
    pub fn accepts(&self, state: &CounterState) -> bool {
        matches!(
            (&self.meter, state),
            (AnyMeter::Bucket(_), CounterState::Bucket(_))
                | (AnyMeter::Fixed(_), CounterState::Fixed(_))
                | (AnyMeter::Sliding(_), CounterState::Sliding(_))
                | (AnyMeter::Strict(_), CounterState::Strict(_))
                | (AnyMeter::Log(_), CounterState::Log(_))
        )
    }
}

fn ceil(tick: Tick, at: Nanos) -> u64 {
    at.get().div_ceil(tick.nanos())
}
