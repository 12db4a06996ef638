//! What is asked of the nodes: to decide, to reserve estimates, or to keep slots; and the bouts of those
//! that need a rest between them.

use tidegate_core::units::Nanos;

use super::{Bout, Fault, LAST_ANSWERS, LOAD_BEGINS, Scenario};
use crate::rng::Rng;

/// What clients want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// One decision for each request.
    Checks,
    /// An estimate before, and what was used afterwards.
    Reserving(Estimates),
    /// A slot for as long as the request is open.
    Slots(Places),
}

/// What is estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimates {
    /// At most so much.
    pub largest: u64,
    /// Where the window outlasts the run: most calls use at most this. Nothing drains there, so whatever
    /// is not given back is seen to the end.
    pub lasting: Option<u64>,
    /// The shortest life of a reservation, and the longest.
    pub lives: (Nanos, Nanos),
}

/// What may be open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// So many requests at once.
    pub most: u32,
    /// How long a slot lasts unless it is renewed.
    pub lasts: Nanos,
    /// How long a request is open on average.
    pub stay: Nanos,
}

impl Scenario {
    /// Three bouts with a rest between, in which everything ends that has to end by itself, and one more
    /// after them. The fault is in the second; in the first, where the store comes late.
    pub(super) fn rest_between(&mut self, rest: Nanos, rng: &mut Rng) {
        let span = |least, most, rng: &mut Rng| Nanos::from_millis(rng.between(least, most));
        let lasts = match self.clears.since(self.begins) {
            Nanos::ZERO => Nanos::ZERO,
            // Long enough for every breaker to open.
            lasts => lasts.min(span(700, 4_000, rng)),
        };
        // Behind a clock set back by seconds, time stands still until it is caught up with.
        let longer = match self.fault {
            Fault::FailoverSkewed => Nanos::from_millis(5_500),
            _ => Nanos::ZERO,
        };
        let settles = Nanos::from_millis(2_200).plus(longer);
        let late = self.fault == Fault::LateStore;
        let mut from = LOAD_BEGINS;
        let mut bouts: Vec<Bout> = Vec::new();
        for i in 0..3 {
            let mut to = from.plus(span(1_500, 3_000, rng));
            if i == usize::from(!late) {
                self.begins = if late { Nanos::ZERO } else { to };
                self.clears = self.begins.plus(lasts);
                to = self.clears.plus(settles).plus(span(1_500, 3_000, rng));
            }
            bouts.push((from, to));
            from = to.plus(rest);
        }
        self.ends = from.plus(LAST_LOOK).plus(LAST_ANSWERS);
        self.bouts = bouts;
    }

    /// When it is looked whether all is as it was in the beginning.
    pub fn last_look(&self) -> Nanos {
        self.ends.since(LAST_LOOK).since(LAST_ANSWERS)
    }
}

/// How long the last look takes.
const LAST_LOOK: Nanos = Nanos::from_millis(400);
