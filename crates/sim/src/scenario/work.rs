//! The work of the clients: checks, reservations or permits; and the schedule of runs that need rests between
//! load periods.

use tidegate_core::units::Nanos;

use super::{LAST_REPLIES, LOAD_BEGINS, LoadPeriod, Scenario, SimFault};
use crate::rng::Rng;

/// The requests that clients send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// One decision per request.
    Checks,
    /// A reservation before each call, and a settlement after it.
    Reservations(ReservationWork),
    /// A permit for as long as the request is open.
    Permits(PermitWork),
}

/// The estimates of the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservationWork {
    /// The maximum estimate.
    pub max_estimate: u64,
    /// The maximum that most calls use, for windows that outlast the run. Nothing drains there, so a missing
    /// refund stays visible to the end.
    pub max_used_in_long_window: Option<u64>,
    /// The minimum and maximum lifetime of a reservation.
    pub ttl_range: (Nanos, Nanos),
}

/// The permits of the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitWork {
    /// The maximum number of open requests.
    pub max_open: u32,
    /// The lifetime of a permit without a renewal.
    pub lasts: Nanos,
    /// The mean duration of a request.
    pub mean_session: Nanos,
    /// The maximum duration of a request.
    pub max_session: Nanos,
}

impl Scenario {
    /// Three load periods with a rest after each, in which permits and reservations expire. The fault is in the
    /// second period; for a late store, in the first.
    pub(super) fn schedule_with_rests(&mut self, rest: Nanos, rng: &mut Rng) {
        let span = |min, max, rng: &mut Rng| Nanos::from_millis(rng.between(min, max));
        let lasts = match self.fault_ends.since(self.fault_begins) {
            Nanos::ZERO => Nanos::ZERO,
            // Long enough for every breaker to open.
            lasts => lasts.min(span(700, 4_000, rng)),
        };
        // After the clock is set back by seconds, time stands still until the clock has caught up.
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

    /// When the final check begins.
    pub fn final_check_at(&self) -> Nanos {
        self.ends.since(FINAL_CHECK_DURATION).since(LAST_REPLIES)
    }
}

/// The duration of the final check.
pub(super) const FINAL_CHECK_DURATION: Nanos = Nanos::from_millis(400);
