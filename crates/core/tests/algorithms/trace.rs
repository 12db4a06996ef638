//! Random traffic: the time and cost of each request. Chosen near every edge of a limit: the window and one nanosecond
//! to either side, the reported wait and one less, the units left and one more.

use tidegate_core::algorithms::{Retry, Verdict};
use tidegate_core::units::{Cost, Nanos};

use crate::case::LimitCase;
use crate::limiter::{PeekResult, cost};
use crate::rng::TraceRng;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockKind {
    /// Never goes back.
    Steady,
    /// Goes back, seldom far.
    Unsteady,
}

pub(crate) struct TrafficTrace<'a> {
    case: &'a LimitCase,
    clock: ClockKind,
    pub(crate) now: Nanos,
}

impl<'a> TrafficTrace<'a> {
    pub(crate) fn new(case: &'a LimitCase, clock: ClockKind) -> Self {
        TrafficTrace { case, clock, now: case.start }
    }

    /// Moves to the next arrival, given the result of the last one.
    pub(crate) fn step(&mut self, rng: &mut TraceRng, last: Option<PeekResult>) {
        self.now = if self.clock == ClockKind::Unsteady && rng.once_in(12) {
            self.now.since(back(rng, self.case.width()))
        } else {
            self.now.plus(Nanos::new(self.forward(rng, last)))
        };
    }

    fn forward(&self, rng: &mut TraceRng, last: Option<PeekResult>) -> u64 {
        let width = self.case.width();
        let apart = (width / self.case.spec.count).max(1);
        match rng.below(24) {
            0..=5 => 0,
            6 => 1,
            7 => self.case.limit.tick().nanos(),
            8 => width - 1,
            9 => width,
            10 => width + 1,
            11 => 2 * width,
            12 => width / 10 + rng.below(2),
            13 | 14 => rng.below(2 * apart),
            15 => rng.below(width),
            16 => rng.below(3 * width),
            // The last instant before an aligned edge, for a burst on both sides of it.
            17 | 18 => (width - 1).saturating_sub(self.now.get() % width),
            19 => rng.below(width / 10 + 1),
            _ => last.map_or(0, |look| wait(rng, look)),
        }
    }

    /// A cost near the units left.
    pub(crate) fn cost(&self, rng: &mut TraceRng, remaining: u64) -> Cost {
        let capacity = self.case.limit.capacity();
        cost(match rng.below(12) {
            0..=3 => 1,
            4 => rng.between(1, 3),
            5 => rng.between(1, capacity + 1),
            6 => rng.between(1, capacity / 3 + 1),
            7 => capacity,
            8 => capacity + rng.below(2),
            9 | 10 => remaining.max(1),
            _ => remaining + 1,
        })
    }
}

fn wait(rng: &mut TraceRng, last: PeekResult) -> u64 {
    let retry = match last.verdict {
        Verdict::Deny { retry: Retry::After(wait) } => wait,
        _ => last.figures.more_after,
    };
    let span = rng.pick(&[retry, last.figures.more_after, last.figures.reset_after]);
    // After the last calendar edge the wait never ends.
    if span > Nanos::from_secs(800 * 86_400) {
        return 0;
    }
    span.get().saturating_sub(rng.below(2))
}

fn back(rng: &mut TraceRng, width: u64) -> Nanos {
    const TOLERANCE: u64 = 5_000_000_000;
    Nanos::new(match rng.below(8) {
        0 => 1,
        1..=3 => rng.below(TOLERANCE) + 1,
        4 => TOLERANCE,
        5 => rng.below(width.min(TOLERANCE)) + 1,
        6 => TOLERANCE + 1 + rng.below(1_000_000_000),
        _ => TOLERANCE + rng.below(2 * width),
    })
}
