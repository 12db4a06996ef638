//! A state found under other parameters becomes one under these: units used are kept, rounded up.
//!
//! No order between versions of a rule is needed. Alternating versions never under-count; buckets
//! over-count by less than one unit per switch, and where their ticks differ by what drains in the
//! coarser one. Windows of other lengths count each unit as late as it can have been. Debt survives,
//! up to twice the new capacity.

use super::limit::Shape;
use super::{Limit, LogEntry, Meter, State};
use crate::units::{Nanos, Tick};

impl Limit {
    /// Reads a state made under `old` as one under this limit.
    pub fn adopt(&self, old: &Limit, mut state: State, now: Nanos) -> State {
        if self.tag() == old.tag() && self.fits(&state) {
            return state;
        }
        let at = old.advance(&mut state, now);
        // A state frozen ahead of the clock stays where it is; a coarser tick never reads earlier.
        let seen = old.tick.start(at.settled.tick).max(now);
        let tick = self.tick.floor(seen);
        // Rounded up, or to the last tick that the old one touches: always to what counts longer.
        let first = |there: u64| ceil(self.tick, old.tick.start(there));
        let last = |there: u64| {
            let next = old.tick.start(there.saturating_add(1));
            self.tick.floor(next.since(Nanos::new(1)))
        };
        match (&self.shape, &old.shape, &state) {
            (Shape::Bucket(new), Shape::Bucket(was), State::Bucket(level)) => {
                State::Bucket(new.adopt(was, level, ceil(self.tick, seen)))
            }
            (Shape::Fixed(new), Shape::Fixed(_), State::Fixed(held)) => {
                let guard_known = self.guard() <= old.guard();
                State::Fixed(new.adopt(held, first(held.end), guard_known, tick))
            }
            (Shape::Sliding(new), Shape::Sliding(was), State::Sliding(held)) => {
                State::Sliding(new.adopt(first(held.index * was.width()), held, tick))
            }
            (Shape::Strict(new), Shape::Strict(was), State::Strict(held)) => {
                let newest_first = (0..).zip(held.counts);
                let parts = newest_first.map(|(age, count)| {
                    // A clock set back to the epoch leaves counts that are older than time.
                    let part = held.index.saturating_sub(age);
                    let end = part.saturating_add(1).saturating_mul(was.part());
                    (last(end - 1), count)
                });
                State::Strict(new.adopt(parts, tick))
            }
            (Shape::Log(new), Shape::Log(_), State::Log(held)) => {
                // A stamp rounded up to a coarse grain may lie ahead, but its charge never did.
                State::Log(new.adopt(held.entries().map(|entry| LogEntry {
                    stamp: last(entry.stamp).min(tick),
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
