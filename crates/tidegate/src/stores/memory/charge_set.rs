//! Several charges of one request, decided together: all are charged or none is.
//!
//! Enforced charges and quotas are judged first; shadows after them, when it is known whether the request passes. A
//! denial spends nothing.

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Outcome, Role, Source};
use tidegate_core::units::Nanos;

use super::transaction::{MemoryTransaction, StagedCounter};
use super::{MemoryStore, count};

/// How to treat the charges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChargeMode {
    /// Spend them if the request is admitted.
    Charge,
    /// Spend nothing.
    Peek,
    /// Spend them whether they fit or not.
    Force,
}

impl<C> MemoryStore<C> {
    /// Decides a charge set.
    pub(super) fn decide_set(&self, set: &ChargeSet<'_>, mode: ChargeMode, now: Nanos) -> Outcome {
        let at = self.time_point(now);
        let mut locks = self.lock_counters(&set.charges);
        let mut transaction = self.begin_transaction(&mut locks, &set.charges, at);
        let outcome = transaction.decide(set, mode, now);
        let write = |counter: &&StagedCounter<'_>| counter.changed && mode != ChargeMode::Peek;
        for counter in transaction.counters.iter().filter(write) {
            self.commit(&mut locks, counter, at);
        }
        let shared = |counter: &StagedCounter<'_>| counter.source == Source::Overflow;
        let overflowed = transaction.counters.iter().any(shared);
        if overflowed && mode != ChargeMode::Peek {
            count(&self.events.overflow);
        }
        if outcome.clock_stepped && mode != ChargeMode::Peek {
            count(&self.events.clock_steps);
        }
        Outcome { source: if overflowed { Source::Overflow } else { Source::Exact }, ..outcome }
    }
}

impl<'c> StagedCounter<'c> {
    /// Judges a charge and, if it fits or is forced, spends it on the copy.
    fn judge(&mut self, charge: &'c Charge<'_>, mode: ChargeMode, now: Nanos) -> Verdict {
        let limit = self.effective_limit(&charge.limit);
        let (mut state, at) = self.state_under(&limit, now);
        let verdict = limit.judge(&state, at, charge.cost);
        if verdict.allows() || mode == ChargeMode::Force {
            limit.spend(&mut state, at, charge.cost);
            self.set_state(&charge.limit, state);
        }
        verdict
    }
}

impl<'c> MemoryTransaction<'c> {
    /// Judges and spends on the copies. Rolls back what is not to be spent before it returns.
    fn decide(&mut self, set: &'c ChargeSet<'_>, mode: ChargeMode, now: Nanos) -> Outcome {
        let mut verdicts: SmallVec<[Verdict; 8]> = smallvec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let enforced = |charge: &Charge<'_>| charge.role != Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| enforced(c)) {
            verdicts[i] = self.counters[self.counter_of[i]].judge(charge, mode, now);
        }
        let admitted = mode == ChargeMode::Force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.counters.iter_mut().for_each(StagedCounter::rollback);
        }
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !enforced(c)) {
            let counter = &mut self.counters[self.counter_of[i]];
            verdicts[i] = counter.judge(charge, mode, now);
            if !admitted {
                counter.rollback();
            }
        }
        if mode == ChargeMode::Peek {
            self.counters.iter_mut().for_each(StagedCounter::rollback);
        }
        let readings = set.charges.iter().enumerate().map(|(i, charge)| LimitReading {
            verdict: verdicts[i],
            figures: self.counters[self.counter_of[i]].figures(&charge.limit, now),
        });
        Outcome {
            admitted,
            readings: readings.collect(),
            snapshots: Vec::new(),
            at: now,
            source: Source::Exact,
            degraded: None,
            clock_stepped: self.counters.iter().any(|counter| counter.stepped),
        }
    }
}
