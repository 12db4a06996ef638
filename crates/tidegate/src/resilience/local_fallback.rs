//! Deciding without the store: the memory store, with each limit cut down to this node's share.
//!
//! The deciding state begins with this node's part of what the mirror knew, so an outage hands nobody
//! a fresh quota. What is admitted here is owed to the store.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Division, Figures, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, LimitReading, OnStoreFailure, Outcome, PermitRequest, Refund, Refunded,
    Restore, Role, Source,
};
use tidegate_core::units::{Cost, Nanos};

use super::mirror::Mirror;
use super::write_back::WriteBackQueue;
use crate::clock::ManualClock;
use crate::stores::memory::MemoryStore;

/// Who holds no unit of a limit may ask again after this: another node holds it, or the store is back.
const NO_SHARE_RETRY_AFTER: Nanos = Nanos::from_secs(1);

/// The local shares and what was spent of them.
pub(super) struct LocalFallback {
    memory: MemoryStore<ManualClock>,
    pub(super) write_back: WriteBackQueue,
}

/// A charge as this node may decide it.
enum LocalCharge<'a> {
    Share(Charge<'a>),
    Denied,
}

/// Whether what fits is spent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalIntent {
    Charge,
    Peek,
    Force,
}

impl LocalFallback {
    pub(super) fn new(now: Nanos, max_pending: usize) -> Self {
        LocalFallback {
            memory: MemoryStore::new(ManualClock::at(now)),
            write_back: WriteBackQueue::new(max_pending),
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
        self.decide(set, LocalIntent::Charge, division, mirror, now)
    }

    /// What `charge` would answer.
    pub(super) fn peek(
        &self,
        set: &ChargeSet<'_>,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        self.decide(set, LocalIntent::Peek, division, mirror, now)
    }

    /// Charges whether it fits or not.
    pub(super) fn force(
        &self,
        set: &ChargeSet<'_>,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        self.decide(set, LocalIntent::Force, division, mirror, now)
    }

    /// Counts units toward this node's share that were admitted otherwise, and owes nothing for them.
    pub(super) fn count_admitted(
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
        if let LocalCharge::Share(share) = self.local_charge(&charge, division, mirror, now) {
            self.memory.force_at(&ChargeSet::of_one(share), now);
        }
    }

    fn decide(
        &self,
        set: &ChargeSet<'_>,
        intent: LocalIntent,
        division: impl Fn(u128) -> Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> Outcome {
        let local_charges: SmallVec<[LocalCharge<'_>; 4]> = set
            .charges
            .iter()
            .map(|charge| self.local_charge(charge, division(charge.counter()), mirror, now))
            .collect();
        let possible = set.admits(|i| matches!(local_charges[i], LocalCharge::Share(_)));
        let shares = ChargeSet::of(local_charges.iter().filter_map(LocalCharge::share).cloned());
        let outcome = match intent {
            LocalIntent::Force => self.memory.force_at(&shares, now),
            LocalIntent::Charge if possible => self.memory.charge_at(&shares, now),
            LocalIntent::Charge | LocalIntent::Peek => self.memory.peek_at(&shares, now),
        };
        let admitted = intent == LocalIntent::Force || (possible && outcome.admitted);
        let mut decided = outcome.readings.iter();
        let readings: SmallVec<[LimitReading; 4]> = local_charges
            .iter()
            .map(|local| match local {
                LocalCharge::Share(_) => decided.next().copied().unwrap_or(NO_SHARE_READING),
                LocalCharge::Denied => NO_SHARE_READING,
            })
            .collect();
        if admitted && intent != LocalIntent::Peek {
            for ((charge, local), reading) in set.charges.iter().zip(&local_charges).zip(&readings)
            {
                if reading.verdict.allows() || intent == LocalIntent::Force {
                    let limit = local.share().map_or(&charge.limit, |share| &share.limit);
                    let empty_at = mirror.empties_at(charge).unwrap_or(now);
                    self.write_back.add(charge, limit, now, empty_at);
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
    fn local_charge<'a>(
        &self,
        charge: &'a Charge<'_>,
        division: Division,
        mirror: &Mirror,
        now: Nanos,
    ) -> LocalCharge<'a> {
        let Some(share) = share_of(charge, division) else {
            return LocalCharge::Denied;
        };
        if let Some(state) = mirror.take_unapplied(charge) {
            let share_state = charge.limit.split(&state, &share, division.nodes);
            let restore = Restore {
                charge: with_limit(charge, share.clone()),
                state: share_state,
            };
            // The part is of the share's own algorithm, so it is never a misfit.
            let _merged = self.memory.restore_at(&[restore], now);
        }
        LocalCharge::Share(with_limit(charge, share))
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
        let shares = shares.filter_map(|charge| Some(with_limit(charge, share(charge)?)));
        let local = Refund {
            set: ChargeSet::of(shares),
            ..refund.clone()
        };
        let done = self.memory.refund_at(&local, now);
        if done == Refunded::Done {
            for charge in &refund.set.charges {
                self.write_back.refund(charge, refund.charged_at, now);
            }
        }
        done
    }

    /// Forgets counters that were reset on purpose.
    pub(super) fn reset(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        for charge in &set.charges {
            self.write_back.forget(charge.counter());
        }
        self.memory.reset_at(set, now)
    }
}

impl<'a> LocalCharge<'a> {
    fn share(&self) -> Option<&Charge<'a>> {
        match self {
            LocalCharge::Share(charge) => Some(charge),
            LocalCharge::Denied => None,
        }
    }
}

/// Nothing of the limit is held here.
const NO_SHARE_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny {
        retry: Retry::After(NO_SHARE_RETRY_AFTER),
    },
    figures: Figures {
        remaining: 0,
        reset_after: NO_SHARE_RETRY_AFTER,
        more_after: NO_SHARE_RETRY_AFTER,
    },
};

/// The limit that this node may decide by, if by any.
fn share_of(charge: &Charge<'_>, division: Division) -> Option<Limit> {
    match (charge.options.on_failure, charge.role) {
        (OnStoreFailure::Deny, Role::Enforce | Role::Quota) => None,
        (OnStoreFailure::Allow, _) => Some(charge.limit.as_ref().clone()),
        (OnStoreFailure::Local | OnStoreFailure::Deny, _) => charge.limit.share(division),
    }
}

/// How many slots this node may give without the store.
pub(super) fn permit_share(permit: &PermitRequest<'_>, division: Division) -> u32 {
    match permit.options.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Allow => permit.max_permits,
        OnStoreFailure::Local => {
            let share = division.node_units(u64::from(permit.max_permits));
            u32::try_from(share)
                .unwrap_or(permit.max_permits)
                .min(permit.max_permits)
        }
    }
}

fn with_limit<'a>(charge: &'a Charge<'_>, share: Limit) -> Charge<'a> {
    Charge {
        limit: Cow::Owned(share),
        rule: charge.rule,
        options: charge.options,
        ..*charge
    }
}
