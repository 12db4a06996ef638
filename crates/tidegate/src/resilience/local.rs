//! Deciding without the store: the memory store, with each limit cut down to this node's share.
//!
//! The deciding state begins with this node's part of what the mirror knew, so an outage hands nobody
//! a fresh quota. What is admitted here is owed to the store.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Division, Figures, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Hold, OnStoreFailure, Outcome, Reading, Refund, Refunded, Role, Seed, Source,
};
use tidegate_core::units::{Cost, Nanos};

use super::mirror::Mirror;
use super::owed::Owed;
use crate::clock::ManualClock;
use crate::stores::memory::MemoryStore;

/// Who holds no unit of a limit may ask again after this: another node holds it, or the store is back.
const ELSEWHERE: Nanos = Nanos::from_secs(1);

/// The local shares and what was spent of them.
pub(super) struct Local {
    memory: MemoryStore<ManualClock>,
    pub(super) owed: Owed,
}

/// A charge as this node may decide it.
enum Cut<'a> {
    Share(Charge<'a>),
    Refused,
}

/// Whether what fits is spent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Charge,
    Peek,
    Force,
}

impl Local {
    pub(super) fn new(now: Nanos, remembered: usize) -> Self {
        Local {
            memory: MemoryStore::new(ManualClock::at(now)),
            owed: Owed::new(remembered),
        }
    }

    /// Decides by this node's shares, at the store's time `now`.
    pub(super) fn charge(
        &self,
        set: &ChargeSet<'_>,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        self.decide(set, Intent::Charge, division, mirror, now)
    }

    /// What `charge` would answer.
    pub(super) fn peek(
        &self,
        set: &ChargeSet<'_>,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        self.decide(set, Intent::Peek, division, mirror, now)
    }

    /// Charges whether it fits or not.
    pub(super) fn force(
        &self,
        set: &ChargeSet<'_>,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        self.decide(set, Intent::Force, division, mirror, now)
    }

    /// Counts units toward this node's share that were admitted otherwise, and owes nothing for them.
    pub(super) fn count(
        &self,
        charge: &Charge<'_>,
        cost: Cost,
        division: Division,
        mirror: &Mirror,
        now: Nanos,
    ) {
        let charge = Charge {
            cost,
            ..charge.clone()
        };
        if let Cut::Share(share) = self.cut(&charge, division, mirror, now) {
            self.memory.force_at(&ChargeSet::of_one(share), now);
        }
    }

    fn decide(
        &self,
        set: &ChargeSet<'_>,
        intent: Intent,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        let cuts: SmallVec<[Cut<'_>; 4]> = set
            .charges
            .iter()
            .map(|charge| self.cut(charge, division(charge.counter()), mirror, now))
            .collect();
        let possible = set.admits(|i| matches!(cuts[i], Cut::Share(_)));
        let shares = ChargeSet::of(cuts.iter().filter_map(Cut::share).cloned());
        let outcome = match intent {
            Intent::Force => self.memory.force_at(&shares, now),
            Intent::Charge if possible => self.memory.charge_at(&shares, now),
            Intent::Charge | Intent::Peek => self.memory.peek_at(&shares, now),
        };
        let admitted = intent == Intent::Force || (possible && outcome.admitted);
        let mut decided = outcome.readings.iter();
        let readings: SmallVec<[Reading; 4]> = cuts
            .iter()
            .map(|cut| match cut {
                Cut::Share(_) => decided.next().copied().unwrap_or(NOTHING_HERE),
                Cut::Refused => NOTHING_HERE,
            })
            .collect();
        if admitted && intent != Intent::Peek {
            for ((charge, cut), reading) in set.charges.iter().zip(&cuts).zip(&readings) {
                if reading.verdict.allows() || intent == Intent::Force {
                    let limit = cut.share().map_or(&charge.limit, |share| &share.limit);
                    let empty_at = mirror.empties_at(charge).unwrap_or(now);
                    self.owed.spend(charge, limit, now, empty_at);
                }
            }
        }
        Outcome {
            admitted,
            readings,
            source: Source::Fallback,
            ..outcome
        }
    }

    /// A charge under this node's share of its limit, which has heard what the mirror knows.
    fn cut<'a>(
        &self,
        charge: &'a Charge<'_>,
        division: Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Cut<'a> {
        let Some(share) = share_of(charge, division) else {
            return Cut::Refused;
        };
        if let Some(state) = mirror.news(charge) {
            let part = charge.limit.split(&state, &share, division.nodes);
            let seed = Seed {
                charge: under(charge, share.clone()),
                state: part,
            };
            // The part is of the share's own algorithm, so it is never a misfit.
            let _merged = self.memory.seed_at(&[seed], now);
        }
        Cut::Share(under(charge, share))
    }

    /// Gives back what was admitted here.
    pub(super) fn refund(
        &self,
        refund: &Refund<'_>,
        division: impl Fn(u128) -> Division,
        now: Nanos,
    ) -> Refunded {
        let share = |charge: &Charge<'_>| share_of(charge, division(charge.counter()));
        let shares = refund.set.charges.iter();
        let shares = shares.filter_map(|charge| Some(under(charge, share(charge)?)));
        let local = Refund {
            set: ChargeSet::of(shares),
            ..refund.clone()
        };
        let done = self.memory.refund_at(&local, now);
        if done == Refunded::Done {
            for charge in &refund.set.charges {
                self.owed.give_back(charge, refund.charged, now);
            }
        }
        done
    }

    /// Forgets counters that were reset on purpose.
    pub(super) fn reset(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        for charge in &set.charges {
            self.owed.forget(charge.counter());
        }
        self.memory.reset_at(set, now)
    }
}

impl<'a> Cut<'a> {
    fn share(&self) -> Option<&Charge<'a>> {
        match self {
            Cut::Share(charge) => Some(charge),
            Cut::Refused => None,
        }
    }
}

/// Nothing of the limit is held here.
const NOTHING_HERE: Reading = Reading {
    verdict: Verdict::Deny {
        retry: Retry::After(ELSEWHERE),
    },
    figures: Figures {
        remaining: 0,
        reset_after: ELSEWHERE,
        more_after: ELSEWHERE,
    },
};

/// The limit that this node may decide by, if by any.
fn share_of(charge: &Charge<'_>, division: Division) -> Option<Limit> {
    match (charge.terms.on_failure, charge.role) {
        (OnStoreFailure::Deny, Role::Enforce | Role::Quota) => None,
        (OnStoreFailure::Allow, _) => Some(charge.limit.as_ref().clone()),
        (OnStoreFailure::Local | OnStoreFailure::Deny, _) => charge.limit.share(division),
    }
}

/// How many slots this node may give without the store.
pub(super) fn slots_of(hold: &Hold<'_>, division: Division) -> u32 {
    match hold.terms.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Allow => hold.most,
        OnStoreFailure::Local => {
            let share = division.units(u64::from(hold.most));
            u32::try_from(share).unwrap_or(hold.most).min(hold.most)
        }
    }
}

fn under<'a>(charge: &'a Charge<'_>, share: Limit) -> Charge<'a> {
    Charge {
        limit: Cow::Owned(share),
        rule: charge.rule,
        terms: charge.terms,
        ..*charge
    }
}
