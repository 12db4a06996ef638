//! The implementation of the store trait. Every operation is decided at its first poll and never waits.

use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, RunId, Settle, Settled, SingleOutcome, SingleOutcomes,
    StoreError, StoreResult,
};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::charge_one::admits_alone;
use crate::clock::Clock;

/// A store of ten million counters, some 4,000 tables, is swept in less than a minute, a few tables at a time so that
/// no decision waits.
pub(crate) const TABLES_PER_SWEEP: usize = 8;

impl<C: Clock> Counters for MemoryStore<C> {
    fn evict_expired(&self) {
        self.sweep(TABLES_PER_SWEEP);
    }

    fn run_id(&self, _options: &RuleOptions) -> Option<RunId> {
        Some(self.run)
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.charge_now(set))
    }

    /// Reads the clock once for all sets.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let now = self.clock.now();
        sets.iter().map(|set| Ok(self.charge_at(set, now))).collect()
    }

    /// Reads the clock once for all charges, and allocates nothing.
    async fn charge_singles(&self, charges: &[Charge<'_>], replies: &mut SingleOutcomes) {
        let now = self.clock.now();
        replies.extend(charges.iter().map(|charge| {
            let (reading, source) = self.charge_one_at(charge, now);
            Ok(SingleOutcome { admitted: admits_alone(charge.role, reading.verdict), reading, at: now, source })
        }));
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.peek_now(set))
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        Ok(self.refund_at(refund, self.clock.now()))
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        Ok(self.draw_at(charge, self.clock.now()))
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.force_at(set, self.clock.now()))
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        let restored = self.restore_at(restores, self.clock.now());
        restored.map_err(|error| StoreError::Rejected { command: "restore", source: Box::new(error) })
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        Ok(self.inspect_at(set, self.clock.now()))
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        Ok(self.reset_at(set, self.clock.now()))
    }
}

impl<C: Clock> Permits for MemoryStore<C> {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        Ok(self.acquire_at(permit, self.clock.now()))
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        Ok(self.renew_at(permit, self.clock.now()))
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.release_at(permit, self.clock.now());
        Ok(())
    }
}

impl<C: Clock> Reservations for MemoryStore<C> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let reserved = self.reserve_at(reserve, self.clock.now());
        reserved.map_err(|full| StoreError::Unavailable { waited: Nanos::ZERO, source: Box::new(full) })
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        Ok(self.settle_at(settle, self.clock.now()))
    }
}
