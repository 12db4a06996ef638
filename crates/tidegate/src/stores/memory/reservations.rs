//! Open reservations, in addition to the counters they were charged to.
//!
//! One lock for all of them: a reservation is made for work that takes seconds, so there are few compared with
//! decisions, which never take this lock. No operation under it takes longer because many are open. Every reservation
//! and every settlement is atomic under it. Decisions may interleave with one, and then find counters rather too full
//! than too empty: charges come before refunds.

#[cfg(feature = "disk")]
use smallvec::SmallVec;
#[cfg(feature = "disk")]
use tidegate_core::store::Used;
use tidegate_core::store::{Charge, ChargeSet, LedgerFullError, Outcome, ReservationLedger, Reserve, Settle, Settled};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use crate::clock::Clock;

/// Maximum of remembered charges of reservations: 96 MiB of them. A memory cap below 880 MiB allows fewer.
pub const MAX_RESERVED_CHARGES: usize = 1 << 18;

/// The number of charges of reservations that can be remembered in `bytes`.
pub(super) fn max_reserved(bytes: u64) -> usize {
    usize::try_from(bytes / ReservationLedger::ENTRY_BYTES)
        .map_or(MAX_RESERVED_CHARGES, |max| max.min(MAX_RESERVED_CHARGES))
}

impl<C: Clock> MemoryStore<C> {
    /// Charges an estimate and remembers it until it is settled.
    ///
    /// # Errors
    /// When it cannot be remembered. Nothing is charged then.
    pub fn reserve_at(&self, reserve: &Reserve<'_>, now: Nanos) -> Result<Outcome, LedgerFullError> {
        let mut ledger = self.ledger.lock();
        for charge in &reserve.set.charges {
            for abandoned in ledger.take_expired(charge, now) {
                let estimate = Charge { cost: abandoned.reserved, ..charge.clone() };
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

    /// Replaces an estimate by the actual cost, once.
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

    /// Forgets a reservation without a refund: the caller refunds it by other means.
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

    /// Remembers a forgotten reservation again.
    #[cfg(feature = "disk")]
    pub(crate) fn remember_reservation(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        self.ledger.lock().record_all(reserve, outcome);
    }
}
