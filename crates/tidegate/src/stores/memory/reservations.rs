//! Estimates that wait to be settled, beside the counters they were charged to.
//!
//! One lock for all of them: a reservation is made for work that takes seconds, and there are few
//! beside the decisions, which never come here. No step under it takes longer because many are open. Under it every reservation and every settlement is a
//! step of its own. Decisions may come in between the parts of one, and find counters that are rather
//! too full than too empty: what is charged comes before what is given back.

#[cfg(feature = "disk")]
use smallvec::SmallVec;
#[cfg(feature = "disk")]
use tidegate_core::store::Used;
use tidegate_core::store::{
    Charge, ChargeSet, LedgerFullError, Outcome, ReservationLedger, Reserve, Settle, Settled,
};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use crate::clock::Clock;

/// The most charges of reservations that are remembered: about 50 MiB of them. A small memory cap allows
/// fewer.
pub const MAX_RESERVED_CHARGES: usize = 1 << 18;

/// How many charges of reservations are remembered in `bytes`.
pub(super) fn max_reserved(bytes: u64) -> usize {
    usize::try_from(bytes / ReservationLedger::ENTRY_BYTES)
        .map_or(MAX_RESERVED_CHARGES, |max| max.min(MAX_RESERVED_CHARGES))
}

impl<C: Clock> MemoryStore<C> {
    /// Charges an estimate and remembers it until it is settled.
    ///
    /// # Errors
    /// When it cannot be remembered. Nothing is charged then.
    pub fn reserve_at(
        &self,
        reserve: &Reserve<'_>,
        now: Nanos,
    ) -> Result<Outcome, LedgerFullError> {
        let mut ledger = self.ledger.lock();
        for charge in &reserve.set.charges {
            for abandoned in ledger.take_expired(charge, now) {
                let estimate = Charge {
                    cost: abandoned.reserved,
                    ..charge.clone()
                };
                self.refund_charges_at(&ChargeSet::of_one(estimate), abandoned.charged_at, now);
            }
        }
        ledger.make_room(reserve, now)?;
        let outcome = self.charge_at(&reserve.set, now);
        if outcome.admitted {
            ledger.record_all(reserve, &outcome);
        }
        Ok(outcome)
    }

    /// Corrects an estimate to what was used, once.
    pub fn settle_at(&self, settle: &Settle<'_>, now: Nanos) -> Settled {
        if settle.is_too_late(now) {
            return Settled::Lapsed;
        }
        let mut ledger = self.ledger.lock();
        let found = ledger.close(settle);
        let more = settle.extra_charges(&found);
        if !more.charges.is_empty() {
            self.force_at(&more, now);
        }
        let charged = settle.refunds_charged_at(&found);
        self.refund_charges_at(&settle.refunds(&found), charged, now);
        settle.outcome(&found, now)
    }

    /// Forgets a reservation without giving anything back: whoever asks for that does it otherwise.
    #[cfg(feature = "disk")]
    pub(crate) fn forget_reservation(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        self.ledger.lock().close(&Settle {
            id: reserve.id,
            charged_at: outcome.at,
            expires_at: outcome.at.plus(reserve.ttl),
            set: reserve.set.clone(),
            used: Used::Known(SmallVec::new()),
        });
    }

    /// Remembers it again.
    #[cfg(feature = "disk")]
    pub(crate) fn remember_reservation(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        self.ledger.lock().record_all(reserve, outcome);
    }
}
