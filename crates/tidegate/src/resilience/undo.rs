//! Taking back a charge: what is refunded, and how the limits stood before it.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Reading, Refund};
use tidegate_core::units::Nanos;

use super::guard::LATE;
use crate::runtime::Runtime;

/// One per charge of a set, in order.
pub(super) type Readings = SmallVec<[Reading; 4]>;

/// A refund of all that `outcome` charged, under an id of its own.
pub(super) fn refund_of<'a, R: Runtime>(
    runtime: &R,
    mut set: ChargeSet<'a>,
    outcome: &Outcome,
) -> Refund<'a> {
    let mut readings = outcome.readings.iter();
    let allowed = |_: &mut Charge<'_>| readings.next().is_some_and(|r| r.verdict.allows());
    set.charges.retain(allowed);
    let resets = outcome.readings.iter().map(|r| r.figures.reset_after);
    Refund {
        id: u128::from(runtime.random()) << 64 | u128::from(runtime.random()),
        charged: outcome.at,
        // It is sent once and soon: to remember its id for as long as a long limit would fill the store.
        until: outcome
            .at
            .plus(resets.max().unwrap_or(Nanos::ZERO).min(LATE)),
        set,
    }
}

/// The readings of an outcome as if its charges had been given back at once.
pub(super) fn before(set: &ChargeSet<'_>, outcome: &Outcome) -> Readings {
    let mut readings = outcome.readings.clone();
    let seen = set.charges.iter().zip(&outcome.seen);
    for ((charge, seen), reading) in seen.zip(&mut readings) {
        if reading.verdict.allows() {
            let mut state = seen.state.clone();
            let at = charge.limit.advance(&mut state, outcome.at);
            charge.limit.refund(&mut state, at, outcome.at, charge.cost);
            reading.figures = charge.limit.figures(&state, at);
        }
    }
    readings
}
