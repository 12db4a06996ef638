//! Decides without the store: a memory store in which each limit is this node's share of it.
//!
//! A counter starts with this node's share of what the mirror knows, so an outage gives no client a fresh quota.
//! Units admitted here are added to the write-back queue, and to the usage of the shares. Does not know whether the
//! store is up.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Division, Figures, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Degraded, LimitReading, OnStoreFailure, Outcome, PermitRequest, Refund, Refunded, Restore, Role,
    Source,
};
use tidegate_core::units::{Cost, Nanos};

use crate::clock::ManualClock;
use crate::shard::node::mirror::Mirror;
use crate::shard::node::share_usage::ShareUsage;
use crate::shard::node::write_back::WriteBackQueue;
use crate::shard::recovery::membership::Membership;
use crate::stores::memory::MemoryStore;

/// `Retry-After` where this node's share is zero: another node may have a share, or the store may be back by then.
const NO_SHARE_RETRY_AFTER: Nanos = Nanos::from_secs(1);

/// This node's shares, and the units admitted by them.
pub(crate) struct LocalFallback {
    memory: MemoryStore<ManualClock>,
    pub(crate) write_back: WriteBackQueue,
    pub(crate) usage: ShareUsage,
}

/// A charge under this node's share of its limit.
enum LocalCharge<'a> {
    Share(Charge<'a>),
    Denied,
}

/// What a decision does with the cost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalIntent {
    Charge,
    /// Nothing.
    Peek,
    /// Charges it whether it fits or not.
    Force,
}

/// What a local decision depends on.
pub(crate) struct LocalContext<'a> {
    /// The nodes among which limits are divided.
    pub(crate) membership: Arc<Membership>,
    /// The last known states.
    pub(crate) mirror: &'a Mirror,
    /// The store's time.
    pub(crate) now: Nanos,
}

impl LocalFallback {
    pub(crate) fn new(now: Nanos, max_pending: usize) -> Self {
        LocalFallback {
            memory: MemoryStore::new(ManualClock::at(now)),
            write_back: WriteBackQueue::new(max_pending),
            usage: ShareUsage::new(max_pending),
        }
    }

    /// Counts units toward this node's share that were admitted otherwise. Adds nothing to the write-back queue.
    pub(crate) fn count_admitted(&self, charge: &Charge<'_>, cost: Cost, context: &LocalContext<'_>) {
        let charge = Charge { cost, ..charge.clone() };
        if let LocalCharge::Share(share) = self.local_charge(&charge, context) {
            self.usage.add(&charge, &share.limit, cost, context.now);
            self.memory.force_at(&ChargeSet::of_one(share), context.now);
        }
    }

    /// Decides by this node's shares.
    pub(crate) fn decide(&self, set: &ChargeSet<'_>, intent: LocalIntent, context: &LocalContext<'_>) -> Outcome {
        let (mirror, now) = (context.mirror, context.now);
        let local_charges: SmallVec<[LocalCharge<'_>; 4]> =
            set.charges.iter().map(|charge| self.local_charge(charge, context)).collect();
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
            for ((charge, local), reading) in set.charges.iter().zip(&local_charges).zip(&readings) {
                if reading.verdict.allows() || intent == LocalIntent::Force {
                    let limit = local.share().map_or(&charge.limit, |share| &share.limit);
                    let empty_at = mirror.empties_at(charge).unwrap_or(now);
                    self.write_back.add(charge, limit, now, empty_at);
                    self.usage.add(charge, limit, charge.cost, now);
                }
            }
        }
        let degraded = Some(if admitted { Degraded::StoreUnavailable } else { denial_reason(set) });
        Outcome { admitted, readings, source: Source::Fallback, degraded, ..outcome }
    }

    /// A charge under this node's share of its limit. Applies to the share first the newest state of the mirror, and
    /// what the share admitted before a restart.
    fn local_charge<'a>(&self, charge: &'a Charge<'_>, context: &LocalContext<'_>) -> LocalCharge<'a> {
        let division = context.membership.division(charge.counter());
        let Some(share) = share_of(charge, division) else {
            return LocalCharge::Denied;
        };
        let mirrored =
            context.mirror.take_unapplied(charge).map(|state| charge.limit.split(&state, &share, division.nodes));
        let admitted = self.usage.take_restored(charge.counter(), &share);
        for state in mirrored.into_iter().chain(admitted) {
            let restore = Restore { charge: with_limit(charge, share.clone()), state };
            // The share's state is of the share's own algorithm, so it always fits.
            let _merged = self.memory.restore_at(&[restore], context.now);
        }
        LocalCharge::Share(with_limit(charge, share))
    }

    /// Refunds units that were admitted here.
    pub(crate) fn refund(&self, refund: &Refund<'_>, context: &LocalContext<'_>) -> Refunded {
        let now = context.now;
        let share = |charge: &Charge<'_>| share_of(charge, context.membership.division(charge.counter()));
        let shares = refund.set.charges.iter();
        let shares = shares.filter_map(|charge| Some(with_limit(charge, share(charge)?)));
        let local = Refund { set: ChargeSet::of(shares), ..refund.clone() };
        let done = self.memory.refund_at(&local, now);
        if done == Refunded::Done {
            for charge in &refund.set.charges {
                self.write_back.refund(charge, refund.charged_at, now);
                self.usage.refund(charge, refund.charged_at, now);
            }
        }
        done
    }

    /// Removes counters that were reset on purpose.
    pub(crate) fn reset(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        for charge in &set.charges {
            self.write_back.forget(charge.counter());
            self.usage.forget(charge.counter());
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

/// The reading of a limit of which this node has no share.
const NO_SHARE_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny { retry: Retry::After(NO_SHARE_RETRY_AFTER) },
    figures: Figures { remaining: 0, reset_after: NO_SHARE_RETRY_AFTER, more_after: NO_SHARE_RETRY_AFTER },
};

/// Why this node denies a set: by policy, or because its shares are exhausted.
fn denial_reason(set: &ChargeSet<'_>) -> Degraded {
    let denies = |charge: &Charge<'_>| charge.role != Role::Shadow && charge.options.on_failure == OnStoreFailure::Deny;
    if set.admits(|i| !denies(&set.charges[i])) {
        return Degraded::StoreUnavailable;
    }
    Degraded::denied_by(set.charges.iter().position(denies).unwrap_or(0))
}

/// The limit by which this node decides, if it may.
fn share_of(charge: &Charge<'_>, division: Division) -> Option<Limit> {
    match (charge.options.on_failure, charge.role) {
        (OnStoreFailure::Deny, Role::Enforce | Role::Quota) => None,
        (OnStoreFailure::Allow, _) => Some(charge.limit.as_ref().clone()),
        (OnStoreFailure::Local | OnStoreFailure::Deny, _) => charge.limit.share(division),
    }
}

/// How many permits this node may grant without the store.
pub(crate) fn permit_share(permit: &PermitRequest<'_>, division: Division) -> u32 {
    match permit.options.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Allow => permit.max_permits,
        OnStoreFailure::Local => {
            let share = division.node_units(u64::from(permit.max_permits));
            u32::try_from(share).unwrap_or(permit.max_permits).min(permit.max_permits)
        }
    }
}

fn with_limit<'a>(charge: &'a Charge<'_>, share: Limit) -> Charge<'a> {
    Charge { limit: Cow::Owned(share), rule: charge.rule, options: charge.options, ..*charge }
}
