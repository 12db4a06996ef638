//! What is asked of the nodes: to decide, to reserve estimates, or to keep slots; and the bouts of those
//! that need a rest between them.

use tidegate_core::units::Nanos;

use super::{LAST_REPLIES, LOAD_BEGINS, LoadPeriod, Scenario, SimFault};
use crate::rng::Rng;

/// What clients want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// One decision for each request.
    Checks,
    /// An estimate before, and what was used afterwards.
    Reservations(ReservationWork),
    /// A slot for as long as the request is open.
    Permits(PermitWork),
}

/// What is estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservationWork {
    /// At most so much.
    pub max_estimate: u64,
    /// Where the window outlasts the run: most calls use at most this. Nothing drains there, so whatever
    /// is not given back is seen to the end.
    pub max_used_in_long_window: Option<u64>,
    /// The shortest life of a reservation, and the longest.
    pub ttl_range: (Nanos, Nanos),
}

/// What may be open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitWork {
    /// So many requests at once.
    pub max_open: u32,
    /// How long a slot lasts unless it is renewed.
    pub lasts: Nanos,
    /// How long a request is open on average.
    pub mean_session: Nanos,
}

impl Scenario {
    /// Three bouts with a rest between, in which everything ends that has to end by itself, and one more
    /// after them. The fault is in the second; in the first, where the store comes late.
    pub(super) fn schedule_with_rests(&mut self, rest: Nanos, rng: &mut Rng) {
        let span = |least, most, rng: &mut Rng| Nanos::from_millis(rng.between(least, most));
        let lasts = match self.fault_ends.since(self.fault_begins) {
            Nanos::ZERO => Nanos::ZERO,
            // Long enough for every breaker to open.
            lasts => lasts.min(span(700, 4_000, rng)),
        };
        // Behind a clock set back by seconds, time stands still until it is caught up with.
        let longer = match self.fault {
            SimFault::FailoverSkewed => Nanos::from_millis(5_500),
            _ => Nanos::ZERO,
        };
        let recovery = Nanos::from_millis(2_200).plus(longer);
        let late = self.fault == SimFault::LateStore;
        let mut from = LOAD_BEGINS;
        let mut periods: Vec<LoadPeriod> = Vec::new();
        for i in 0..3 {
            let mut to = from.plus(span(1_500, 3_000, rng));
            if i == usize::from(!late) {
                self.fault_begins = if late { Nanos::ZERO } else { to };
                self.fault_ends = self.fault_begins.plus(lasts);
                to = self.fault_ends.plus(recovery).plus(span(1_500, 3_000, rng));
            }
            periods.push((from, to));
            from = to.plus(rest);
        }
        self.ends = from.plus(FINAL_CHECK_DURATION).plus(LAST_REPLIES);
        self.load_periods = periods;
    }

    /// When it is looked whether all is as it was in the beginning.
    pub fn final_check_at(&self) -> Nanos {
        self.ends.since(FINAL_CHECK_DURATION).since(LAST_REPLIES)
    }
}

/// How long the last look takes.
const FINAL_CHECK_DURATION: Nanos = Nanos::from_millis(400);
