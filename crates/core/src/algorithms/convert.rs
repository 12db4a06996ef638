//! A state found under other parameters becomes one under these: units used are kept, rounded up.
//!
//! No order between versions of a rule is needed. Alternating versions over-count by less than one
//! unit per switch and never under-count. Debt survives, up to twice the new capacity.

use super::limit::Shape;
use super::{Limit, LogEntry, Meter, State};
use crate::units::{Nanos, Tick};

impl Limit {
    /// Reads a state made under `old` as one under this limit.
    pub fn adopt(&self, old: &Limit, mut state: State, now: Nanos) -> State {
        if self.tag() == old.tag() {
            return state;
        }
        let at = old.advance(&mut state, now);
        // A state frozen ahead of the clock stays where it is; a coarser tick never reads earlier.
        let seen = old.tick.start(at.settled.tick).max(now);
        let tick = ceil(self.tick, seen);
        let here = |there: u64| ceil(self.tick, old.tick.start(there));
        match (&self.shape, &old.shape, &state) {
            (Shape::Bucket(new), Shape::Bucket(was), State::Bucket(level)) => {
                State::Bucket(new.adopt(was, level, tick))
            }
            (Shape::Fixed(new), Shape::Fixed(_), State::Fixed(held)) => {
                let (start, end) = new.frame.bounds(self.tick.floor(seen));
                let mut kept = new.fresh(self.tick.floor(seen));
                kept.end = end;
                if here(held.end) > start {
                    kept.count = super::add_clamped(held.count, 0, new.limit);
                    kept.next = super::add_clamped(held.next, 0, new.limit);
                }
                State::Fixed(kept)
            }
            (Shape::Sliding(new), Shape::Sliding(was), State::Sliding(held)) => {
                let tick = self.tick.floor(seen);
                State::Sliding(new.adopt(here(held.index * was.width()), held, tick))
            }
            (Shape::Strict(new), Shape::Strict(was), State::Strict(held)) => {
                let oldest = held.index.saturating_sub(held.counts.len() as u64 - 1);
                let parts =
                    (oldest..=held.index)
                        .zip(held.counts.iter().rev())
                        .map(|(part, count)| {
                            let last = old.tick.start((part + 1) * was.part());
                            (self.tick.floor(Nanos::new(last.get() - 1)), *count)
                        });
                State::Strict(new.adopt(parts, self.tick.floor(seen)))
            }
            (Shape::Log(new), Shape::Log(_), State::Log(held)) => {
                State::Log(new.adopt(held.entries().map(|entry| LogEntry {
                    stamp: here(entry.stamp),
                    ..entry
                })))
            }
            _ => self.holding(old.used(&state, at), seen),
        }
    }

    /// A state in which `used` units have just been spent.
    pub fn holding(&self, used: u64, now: Nanos) -> State {
        let tick = ceil(self.tick, now);
        match &self.shape {
            Shape::Bucket(meter) => State::Bucket(meter.holding(tick, used)),
            Shape::Fixed(meter) => State::Fixed(meter.holding(self.tick.floor(now), used)),
            Shape::Sliding(meter) => State::Sliding(meter.holding(self.tick.floor(now), used)),
            Shape::Strict(meter) => State::Strict(meter.holding(self.tick.floor(now), used)),
            Shape::Log(meter) => State::Log(meter.holding(tick, used)),
        }
    }

    /// Whether a state has the shape this limit works on.
    pub fn fits(&self, state: &State) -> bool {
        matches!(
            (&self.shape, state),
            (Shape::Bucket(_), State::Bucket(_))
                | (Shape::Fixed(_), State::Fixed(_))
                | (Shape::Sliding(_), State::Sliding(_))
                | (Shape::Strict(_), State::Strict(_))
                | (Shape::Log(_), State::Log(_))
        )
    }
}

fn ceil(tick: Tick, at: Nanos) -> u64 {
    at.get().div_ceil(tick.nanos())
}
