//! Refunds of a charge, and the readings of its limits before it.
//!
//! A reservation is not refunded but settled with zero used: a refunded reservation would be refunded once more
//! when it expires.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Outcome, Refund, Reserve, Settle, Used};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use crate::runtime::mix;
use crate::shard::call::LATE_REPLY_TIMEOUT;

/// One per charge of a set, in order.
pub(crate) type Readings = SmallVec<[LimitReading; 4]>;

/// Why a set is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChargeKind {
    /// For a request: the charge is final.
    Charge,
    /// For a reservation that will be settled.
    Reserve { id: u128, ttl: Nanos },
}

impl ChargeKind {
    pub(crate) fn of(reserve: &Reserve<'_>) -> Self {
        ChargeKind::Reserve { id: reserve.id, ttl: reserve.ttl }
    }
}

/// Settles a reservation of which nothing was used.
pub(crate) fn settle_as_unused<'a>(id: u128, ttl: Nanos, mut set: ChargeSet<'a>, outcome: &Outcome) -> Settle<'a> {
    retain_charged(&mut set, outcome);
    Settle {
        id,
        charged_at: outcome.at,
        expires_at: outcome.at.plus(ttl),
        used: Used::Known(set.charges.iter().map(|_| 0).collect()),
        set,
    }
}

/// The id of the refund of one subject's charges. Charges of one id may be in several shards, in the same shares, and
/// in fewer limits the next time: the id of each part must depend on nothing but its subject.
pub(crate) fn id_of_part(id: u128, subject: Fingerprint) -> u128 {
    let bits = subject.bits();
    let [low, high] = [bits as u64, (bits >> 64) as u64].map(mix);
    id ^ (u128::from(low) << 64 | u128::from(high))
}

/// The part of a settlement that concerns some of its charges.
pub(crate) fn part_of<'a>(settle: &Settle<'a>, charges: &[usize]) -> Settle<'a> {
    let used = match &settle.used {
        Used::Known(used) => Used::Known(charges.iter().filter_map(|i| used.get(*i).copied()).collect()),
        Used::Unknown => Used::Unknown,
    };
    let set = settle.set.subset(charges.iter().map(|i| settle.set.charges[*i].clone()));
    Settle { set, used, ..*settle }
}

fn retain_charged(set: &mut ChargeSet<'_>, outcome: &Outcome) {
    let mut readings = outcome.readings.iter();
    let allowed = |_: &mut Charge<'_>| readings.next().is_some_and(|r| r.verdict.allows());
    set.charges.retain(allowed);
}

/// A refund of all that `outcome` charged.
pub(crate) fn refund_of<'a>(id: u128, mut set: ChargeSet<'a>, outcome: &Outcome) -> Refund<'a> {
    retain_charged(&mut set, outcome);
    let resets = outcome.readings.iter().map(|r| r.figures.reset_after);
    // It is sent once and soon: keeping its id for as long as a long limit lasts would fill the store.
    let ttl = resets.max().unwrap_or(Nanos::ZERO).min(LATE_REPLY_TIMEOUT);
    Refund { id, charged_at: outcome.at, expires_at: outcome.at.plus(ttl), set }
}

/// The readings of an outcome as if its charges had been refunded at once.
pub(crate) fn readings_before(set: &ChargeSet<'_>, outcome: &Outcome) -> Readings {
    let mut readings = outcome.readings.clone();
    let seen = set.charges.iter().zip(&outcome.snapshots);
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
