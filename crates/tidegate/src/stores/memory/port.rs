//! The store trait, filled. Every verb is decided when it is first polled and never waits.

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Outcome, Refund, Refunded, Reserve, Role,
    RunId, Seed, Settle, Settled, Single, Singles, Store, StoreError, Terms,
};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use crate::clock::Clock;

type Answer<T> = Result<T, StoreError>;

impl<C: Clock> Store for MemoryStore<C> {
    fn run_of(&self, _terms: &Terms) -> Option<RunId> {
        Some(self.run)
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        Ok(self.charge_now(set))
    }

    /// Reads the clock once for all.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let now = self.clock.now();
        sets.iter()
            .map(|set| Ok(self.charge_at(set, now)))
            .collect()
    }

    /// Reads the clock once for all, and allocates nothing.
    async fn charge_singles(&self, charges: &[Charge<'_>], answers: &mut Singles) {
        let now = self.clock.now();
        answers.extend(charges.iter().map(|charge| {
            let (reading, source) = self.charge_one_at(charge, now);
            Ok(Single {
                admitted: reading.verdict.allows() || charge.role == Role::Shadow,
                reading,
                at: now,
                source,
            })
        }));
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        Ok(self.peek_now(set))
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        Ok(self.refund_at(refund, self.clock.now()))
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        Ok(self.grant_at(charge, self.clock.now()))
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        Ok(self.force_at(set, self.clock.now()))
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let reserved = self.reserve_at(reserve, self.clock.now());
        reserved.map_err(|full| StoreError::Unavailable {
            waited: Nanos::ZERO,
            source: Box::new(full),
        })
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        Ok(self.settle_at(settle, self.clock.now()))
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        let merged = self.seed_at(seeds, self.clock.now());
        merged.map_err(|misfit| StoreError::Refused {
            command: "seed",
            source: Box::new(misfit),
        })
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        Ok(self.hold_at(hold, self.clock.now()))
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        Ok(self.renew_at(hold, self.clock.now()))
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.release_at(hold, self.clock.now());
        Ok(())
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        Ok(self.inspect_at(set, self.clock.now()))
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        Ok(self.reset_at(set, self.clock.now()))
    }
}
