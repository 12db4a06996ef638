//! The implementation of the store trait: memory decides, and durable counts wait for the journal.

use tidegate_core::store::{
    Charge, ChargeSet, Counters, Degraded, Durability, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest,
    Permits, Refund, Refunded, Reservations, Reserve, Restore, RuleOptions, RunId, Settle, Settled, StoreError,
    StoreResult,
};
use tidegate_core::units::Nanos;

use super::DiskStore;
use super::entry::JournaledCounter;
use super::journal::JournalError;
use crate::clock::Clock;

/// How long a charge without a budget waits. Charges of rules have a budget.
const DEFAULT_BUDGET: Nanos = Nanos::from_millis(50);

impl<C: Clock + 'static> Counters for DiskStore<C> {
    fn evict_expired(&self) {
        self.memory.evict_expired();
    }

    fn run_id(&self, options: &RuleOptions) -> Option<RunId> {
        Some(match options.durability {
            Durability::Disk => self.run,
            _ => self.memory.run(),
        })
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let durable = check_set(set)?;
        let mut outcome = self.memory.charge_now(set);
        if durable && outcome.admitted {
            let persisted = self.persist(spent_charges(set, &outcome)).await;
            self.apply_disk_failure(set, &mut outcome, &persisted);
        }
        Ok(outcome)
    }

    /// Reads the clock once for all sets, and waits once for all.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let now = self.memory.clock().now();
        let decide = |set: &&ChargeSet<'_>| check_set(set).map(|durable| (self.memory.charge_at(set, now), durable));
        let mut decided: Vec<StoreResult<(Outcome, bool)>> = sets.iter().map(decide).collect();
        let mut charges: Vec<&Charge<'_>> = Vec::new();
        for (set, decision) in sets.iter().zip(&decided) {
            if let Ok((outcome, true)) = decision
                && outcome.admitted
            {
                charges.extend(spent_charges(set, outcome));
            }
        }
        if !charges.is_empty() {
            let persisted = self.persist(charges).await;
            for (set, decision) in sets.iter().zip(&mut decided) {
                if let Ok((outcome, true)) = decision
                    && outcome.admitted
                {
                    self.apply_disk_failure(set, outcome, &persisted);
                }
            }
        }
        let outcomes = decided.into_iter();
        outcomes.map(|decision| Ok(decision?.0)).collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.memory.peek_now(set))
    }

    /// A refund lost in a crash leaves a counter too strict, never too lax: it stands either way. Its id is written in
    /// the same step as the counters, so that it is made once whatever happens.
    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let (now, durable) = (self.memory.clock().now(), check_set(&refund.set)?);
        if durable && refund.expires_at > now && !self.memory.has_refunded(refund.id, now) {
            let recorded = self.journal.record_refund(refund.id, refund.expires_at);
            recorded.map_err(|why| unavailable(why, Nanos::ZERO))?;
        }
        let refunded = self.memory.refund_at(refund, now);
        if durable && refunded == Refunded::Done {
            let _stands_anyway = self.persist(durable_charges(&refund.set)).await;
        }
        Ok(refunded)
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        let durable = check_charge(charge)?;
        let lease = self.memory.draw_at(charge, self.memory.clock().now());
        if durable && lease.units > 0 {
            self.require_persisted(vec![charge]).await?;
        }
        Ok(lease)
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let durable = check_set(set)?;
        let mut outcome = self.memory.force_at(set, self.memory.clock().now());
        if durable && self.persist(durable_charges(set)).await.is_err() {
            mark_not_durable(&mut outcome);
        }
        Ok(outcome)
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        for restore in restores {
            check_charge(&restore.charge)?;
        }
        self.memory.restore(restores).await?;
        let charges = restores.iter().map(|restore| &restore.charge);
        let charges: Vec<&Charge<'_>> = charges.filter(|charge| is_durable(charge)).collect();
        self.require_persisted(charges).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.memory.inspect(set).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let durable = check_set(set)?;
        let reset_count = self.memory.reset(set).await?;
        if durable {
            self.require_persisted(durable_charges(set)).await?;
        }
        Ok(reset_count)
    }
}

impl<C: Clock + 'static> Permits for DiskStore<C> {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.memory.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.memory.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.memory.release(permit).await
    }
}

impl<C: Clock + 'static> Reservations for DiskStore<C> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let (set, durable) = (&reserve.set, check_set(&reserve.set)?);
        let mut outcome = self.memory.reserve(reserve).await?;
        if durable && outcome.admitted {
            let persisted = self.persist(spent_charges(set, &outcome)).await;
            if persisted.is_err() {
                // A denied estimate is refunded here, and must not be refunded again at its end.
                self.memory.forget_reservation(reserve, &outcome);
                self.apply_disk_failure(set, &mut outcome, &persisted);
                if outcome.admitted {
                    self.memory.remember_reservation(reserve, &outcome);
                }
            }
        }
        Ok(outcome)
    }

    /// The journal has counts and no reservations: after a crash an open estimate stays charged.
    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let durable = check_set(&settle.set)?;
        let settled = self.memory.settle(settle).await?;
        if durable && matches!(settled, Settled::Done | Settled::Late) {
            let _stands_anyway = self.persist(durable_charges(&settle.set)).await;
        }
        Ok(settled)
    }
}

impl<C: Clock + 'static> DiskStore<C> {
    async fn persist(&self, charges: Vec<&Charge<'_>>) -> Result<(), JournalError> {
        let max_wait = max_wait(charges.iter().copied());
        let counters: Vec<JournaledCounter> = charges.into_iter().map(JournaledCounter::of).collect();
        self.journal.persist(counters, max_wait.duration()).await
    }

    /// The same, and fails if they are not written in time.
    async fn require_persisted(&self, charges: Vec<&Charge<'_>>) -> StoreResult<()> {
        if charges.is_empty() {
            return Ok(());
        }
        let waited = max_wait(charges.iter().copied());
        self.persist(charges).await.map_err(|why| unavailable(why, waited))
    }

    /// Adjusts a decision whose counts could not be written: it stands, unless a rule denies in that case. Then its
    /// charges are refunded.
    fn apply_disk_failure(&self, set: &ChargeSet<'_>, outcome: &mut Outcome, persisted: &Result<(), JournalError>) {
        if persisted.is_ok() {
            return;
        }
        mark_not_durable(outcome);
        if let Some(denial) = set.denial_if_not_durable() {
            let charged = set.charges.iter().zip(&outcome.readings);
            let charged = charged.filter(|(_, reading)| reading.verdict.allows());
            let charges = ChargeSet::of(charged.map(|(charge, _)| charge.clone()));
            let now = self.memory.clock().now();
            self.memory.refund_charges_at(&charges, outcome.at, now);
            outcome.admitted = false;
            outcome.readings = self.memory.peek_at(set, now).readings;
            outcome.degraded = Some(denial);
        }
    }
}

/// The counts of an outcome could not be written in time.
fn mark_not_durable(outcome: &mut Outcome) {
    outcome.degraded = Some(Degraded::NotDurable);
}

fn is_durable(charge: &Charge<'_>) -> bool {
    charge.options.durability == Durability::Disk
}

/// A limit whose state a record cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a limit is too fine for a journal; parse the rules with `Capabilities::JOURNAL`")]
struct JournalPrecisionError;

/// Whether a charge must be durable. Fails if it must be and cannot.
fn check_charge(charge: &Charge<'_>) -> StoreResult<bool> {
    if is_durable(charge) && !charge.limit.is_exact_in_doubles() {
        return Err(StoreError::Rejected { command: "journal", source: Box::new(JournalPrecisionError) });
    }
    Ok(is_durable(charge))
}

/// Whether any charge of a set must be durable. Fails if one must be and cannot.
fn check_set(set: &ChargeSet<'_>) -> StoreResult<bool> {
    let mut any = false;
    for charge in &set.charges {
        any |= check_charge(charge)?;
    }
    Ok(any)
}

fn durable_charges<'s, 'a>(set: &'s ChargeSet<'a>) -> Vec<&'s Charge<'a>> {
    set.charges.iter().filter(|c| is_durable(c)).collect()
}

/// The durable charges of a set that were spent.
fn spent_charges<'s, 'a>(set: &'s ChargeSet<'a>, outcome: &Outcome) -> Vec<&'s Charge<'a>> {
    let charges = set.charges.iter().zip(&outcome.readings);
    let spent = charges.filter(|(charge, reading)| is_durable(charge) && reading.verdict.allows());
    spent.map(|(charge, _)| charge).collect()
}

/// The shortest budget of the charges.
fn max_wait<'c, 'a: 'c>(charges: impl IntoIterator<Item = &'c Charge<'a>>) -> Nanos {
    let budgets = charges.into_iter().map(|c| c.options.budget.unwrap_or(DEFAULT_BUDGET));
    budgets.min().unwrap_or(DEFAULT_BUDGET)
}

fn unavailable(why: JournalError, waited: Nanos) -> StoreError {
    StoreError::Unavailable { waited, source: Box::new(why) }
}
