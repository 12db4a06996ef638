//! Several charges of one request, decided together: all are charged or none is.
//!
//! Enforced charges and quotas are judged first; shadows after them, when it is known whether the
//! request passes. A refusal spends nothing.

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Reading, Role, Source};
use tidegate_core::units::Nanos;

use super::books::{Account, Books};
use super::{MemoryStore, count};

/// What is to become of the charges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// They are spent if the request is admitted.
    Charge,
    /// Nothing is spent.
    Peek,
    /// They are spent whether they fit or not.
    Force,
}

impl<C> MemoryStore<C> {
    /// Decides a charge set.
    pub(super) fn settle(&self, set: &ChargeSet<'_>, intent: Intent, now: Nanos) -> Outcome {
        let at = self.present(now);
        let mut locks = self.lock_counters(&set.charges);
        let mut books = self.open(&mut locks, &set.charges, at);
        let decided = books.decide(set, intent, now);
        let write = |account: &&Account<'_>| account.changed && intent != Intent::Peek;
        for account in books.accounts.iter().filter(write) {
            self.commit(&mut locks, account, at);
        }
        let shared = |account: &Account<'_>| account.source == Source::Overflow;
        let overflowed = books.accounts.iter().any(shared);
        if overflowed && intent != Intent::Peek {
            count(&self.tally.overflow);
        }
        if decided.clock_stepped && intent != Intent::Peek {
            count(&self.tally.clock_steps);
        }
        Outcome {
            source: if overflowed {
                Source::Overflow
            } else {
                Source::Exact
            },
            ..decided
        }
    }
}

impl<'c> Account<'c> {
    /// Judges a charge and, if it fits or is forced, spends it on the copy.
    fn judge(&mut self, charge: &'c Charge<'_>, intent: Intent, now: Nanos) -> Verdict {
        let limit = self.keeps(&charge.limit);
        let (mut state, at) = self.under(&limit, now);
        let verdict = limit.judge(&state, at, charge.cost);
        if verdict.allows() || intent == Intent::Force {
            limit.spend(&mut state, at, charge.cost);
            self.take(&charge.limit, state);
        }
        verdict
    }
}

impl<'c> Books<'c> {
    /// Judges and spends on the accounts. What is not to be spent is undone before it returns.
    fn decide(&mut self, set: &'c ChargeSet<'_>, intent: Intent, now: Nanos) -> Outcome {
        let mut verdicts: SmallVec<[Verdict; 8]> =
            smallvec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let enforced = |charge: &Charge<'_>| charge.role != Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| enforced(c)) {
            verdicts[i] = self.accounts[self.of[i]].judge(charge, intent, now);
        }
        let admitted = intent == Intent::Force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.accounts.iter_mut().for_each(Account::restore);
        }
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !enforced(c)) {
            let account = &mut self.accounts[self.of[i]];
            verdicts[i] = account.judge(charge, intent, now);
            if !admitted {
                account.restore();
            }
        }
        if intent == Intent::Peek {
            self.accounts.iter_mut().for_each(Account::restore);
        }
        let readings = set.charges.iter().enumerate().map(|(i, charge)| Reading {
            verdict: verdicts[i],
            figures: self.accounts[self.of[i]].figures(&charge.limit, now),
        });
        Outcome {
            admitted,
            readings: readings.collect(),
            seen: Vec::new(),
            at: now,
            source: Source::Exact,
            clock_stepped: self.accounts.iter().any(|account| account.stepped),
        }
    }
}
