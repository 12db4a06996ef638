//! The store trait, filled: memory decides, and what must be kept is waited for.

use tidegate_core::algorithms::{Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Durability, Granted, Held, Hold, Inspection, OnStoreFailure, Outcome,
    Refund, Refunded, Reserve, Role, RunId, Seed, Settle, Settled, Source, Store, StoreError,
    Terms,
};
use tidegate_core::units::Nanos;

use super::DiskStore;
use super::entry::{Journaled, RefundNote};
use super::journal::Unkept;
use crate::clock::Clock;

type Answer<T> = Result<T, StoreError>;

/// How long a charge waits that does not say: one that no rule has read.
const USUAL: Nanos = Nanos::from_millis(50);
/// What a rule says that refuses when its counts cannot be kept. The disk may have room again soon.
const UNKEPT: Verdict = Verdict::Deny {
    retry: Retry::After(Nanos::from_secs(1)),
};

impl<C: Clock + 'static> Store for DiskStore<C> {
    fn run_of(&self, terms: &Terms) -> Option<RunId> {
        Some(match terms.durability {
            Durability::Disk => self.run,
            _ => self.memory.run(),
        })
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let durable = fit(set)?;
        let mut outcome = self.memory.charge_now(set);
        if durable && outcome.admitted {
            let kept = self.keep(spent(set, &outcome)).await;
            self.without_disk(set, &mut outcome, &kept);
        }
        Ok(outcome)
    }

    /// Reads the clock once for all, and waits once for all.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let now = self.memory.clock().now();
        let decide = |set: &&ChargeSet<'_>| {
            fit(set).map(|durable| (self.memory.charge_at(set, now), durable))
        };
        let mut decided: Vec<Answer<(Outcome, bool)>> = sets.iter().map(decide).collect();
        let mut charges: Vec<&Charge<'_>> = Vec::new();
        for (set, decision) in sets.iter().zip(&decided) {
            if let Ok((outcome, true)) = decision
                && outcome.admitted
            {
                charges.extend(spent(set, outcome));
            }
        }
        if !charges.is_empty() {
            let kept = self.keep(charges).await;
            for (set, decision) in sets.iter().zip(&mut decided) {
                if let Ok((outcome, true)) = decision
                    && outcome.admitted
                {
                    self.without_disk(set, outcome, &kept);
                }
            }
        }
        let outcomes = decided.into_iter();
        outcomes.map(|decision| Ok(decision?.0)).collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        Ok(self.memory.peek_now(set))
    }

    /// A refund that a crash forgets leaves a counter too strict, never too lax: it stands either way. Its
    /// id is written in the same step as the counters, so that it is made once whatever happens.
    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let (now, waits) = (self.memory.clock().now(), fit(&refund.set)?);
        if waits && refund.until > now && !self.memory.has_refunded(refund.id, now) {
            let (id, until) = (refund.id, refund.until);
            let noted = self.journal.note(RefundNote { id, until });
            noted.map_err(|why| unavailable(why, Nanos::ZERO))?;
        }
        let refunded = self.memory.refund_at(refund, now);
        if waits && refunded == Refunded::Done {
            let _stands_anyway = self.keep(durable(&refund.set)).await;
        }
        Ok(refunded)
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        let durable = fits(charge)?;
        let granted = self.memory.grant_at(charge, self.memory.clock().now());
        if durable && granted.units > 0 {
            let kept = self.keep(vec![charge]).await;
            kept.map_err(|why| unavailable(why, patience([charge])))?;
        }
        Ok(granted)
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let waits = fit(set)?;
        let mut outcome = self.memory.force_at(set, self.memory.clock().now());
        if waits && self.keep(durable(set)).await.is_err() {
            outcome.source = Source::Fallback;
        }
        Ok(outcome)
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let (set, durable) = (&reserve.set, fit(&reserve.set)?);
        let mut outcome = self.memory.reserve(reserve).await?;
        if durable && outcome.admitted {
            let kept = self.keep(spent(set, &outcome)).await;
            if kept.is_err() {
                // Refused after all, it is given back here, and must not come back once more at its end.
                self.memory.forget_reserved(reserve, &outcome);
                self.without_disk(set, &mut outcome, &kept);
                if outcome.admitted {
                    self.memory.remember_reserved(reserve, &outcome);
                }
            }
        }
        Ok(outcome)
    }

    /// The journal has counts and no reservations: after a crash what was estimated stands.
    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let waits = fit(&settle.set)?;
        let settled = self.memory.settle(settle).await?;
        if waits && matches!(settled, Settled::Done | Settled::Late) {
            let _stands_anyway = self.keep(durable(&settle.set)).await;
        }
        Ok(settled)
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        for seed in seeds {
            fits(&seed.charge)?;
        }
        self.memory.seed(seeds).await?;
        let charges = seeds.iter().map(|seed| &seed.charge);
        let charges: Vec<&Charge<'_>> = charges.filter(|charge| is_durable(charge)).collect();
        if charges.is_empty() {
            return Ok(());
        }
        let waited = patience(charges.iter().copied());
        let kept = self.keep(charges).await;
        kept.map_err(|why| unavailable(why, waited))
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.memory.hold(hold).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.memory.renew(hold).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.memory.release(hold).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.memory.inspect(set).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let waits = fit(set)?;
        let forgotten = self.memory.reset(set).await?;
        if waits {
            let charges = durable(set);
            let waited = patience(charges.iter().copied());
            let kept = self.keep(charges).await;
            kept.map_err(|why| unavailable(why, waited))?;
        }
        Ok(forgotten)
    }
}

impl<C: Clock + 'static> DiskStore<C> {
    async fn keep(&self, charges: Vec<&Charge<'_>>) -> Result<(), Unkept> {
        let patience = patience(charges.iter().copied());
        let counters: Vec<Journaled> = charges.into_iter().map(Journaled::of).collect();
        self.journal.keep(counters, patience.duration()).await
    }

    /// What becomes of a decision whose counts could not be kept: it stands, as one that was made
    /// without the store, unless a rule wants to refuse then. What it had charged is given back.
    fn without_disk(&self, set: &ChargeSet<'_>, outcome: &mut Outcome, kept: &Result<(), Unkept>) {
        if kept.is_ok() {
            return;
        }
        outcome.source = Source::Fallback;
        let refuses = |charge: &Charge<'_>| {
            is_durable(charge)
                && charge.role != Role::Shadow
                && charge.terms.on_failure == OnStoreFailure::Deny
        };
        if set.charges.iter().any(refuses) {
            let charged = set.charges.iter().zip(&outcome.readings);
            let charged = charged.filter(|(_, reading)| reading.verdict.allows());
            let charges = ChargeSet::of(charged.map(|(charge, _)| charge.clone()));
            let now = self.memory.clock().now();
            self.memory.take_back_at(&charges, outcome.at, now);
            outcome.admitted = false;
            // It is by these that a refusal for want of the store is told from one by a limit.
            for (charge, reading) in set.charges.iter().zip(&mut outcome.readings) {
                if refuses(charge) {
                    reading.verdict = UNKEPT;
                }
            }
        }
    }
}

fn is_durable(charge: &Charge<'_>) -> bool {
    charge.terms.durability == Durability::Disk
}

/// A limit whose state a record cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a limit is too fine for a journal; read the rules with `Abilities::JOURNAL`")]
struct TooFine;

/// Whether a charge must be kept, and can be.
fn fits(charge: &Charge<'_>) -> Answer<bool> {
    match is_durable(charge) && !charge.limit.suits_scripts() {
        true => Err(StoreError::Refused {
            command: "journal",
            source: Box::new(TooFine),
        }),
        false => Ok(is_durable(charge)),
    }
}

/// Whether any charge of a set must be kept, and all that must can be.
fn fit(set: &ChargeSet<'_>) -> Answer<bool> {
    let mut any = false;
    for charge in &set.charges {
        any |= fits(charge)?;
    }
    Ok(any)
}

/// The durable charges of a set.
fn durable<'s, 'a>(set: &'s ChargeSet<'a>) -> Vec<&'s Charge<'a>> {
    set.charges.iter().filter(|c| is_durable(c)).collect()
}

/// Those of them that were spent.
fn spent<'s, 'a>(set: &'s ChargeSet<'a>, outcome: &Outcome) -> Vec<&'s Charge<'a>> {
    let charges = set.charges.iter().zip(&outcome.readings);
    let spent = charges.filter(|(charge, reading)| is_durable(charge) && reading.verdict.allows());
    spent.map(|(charge, _)| charge).collect()
}

/// The shortest wait that any of them allows.
fn patience<'c, 'a: 'c>(charges: impl IntoIterator<Item = &'c Charge<'a>>) -> Nanos {
    let budgets = charges.into_iter().map(|c| c.terms.budget.unwrap_or(USUAL));
    budgets.min().unwrap_or(USUAL)
}

fn unavailable(why: Unkept, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}
