//! Decides without the store: a memory store in which each limit is this node's share of it.
//!
//! A counter starts with this node's share of what the mirror knows, so an outage gives no client a fresh quota.
//! Units admitted here are added to the write-back queue, and to the usage of the shares. The nodes among which limits
//! are divided and the store's time are arguments. Does not know whether the store is up.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Division, Figures, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeIntent, ChargeSet, Degraded, LimitReading, OnStoreFailure, Outcome, PermitRequest, Refund, Refunded,
    Restore, Role, Source,
};
use tidegate_core::units::{Cost, Nanos};

use crate::shard::node::NodeState;
use crate::shard::recovery::membership::Membership;

/// `Retry-After` where this node's share is zero: another node may have a share, or the store may be back by then.
const NO_SHARE_RETRY_AFTER: Nanos = Nanos::from_secs(1);

/// The reading of a limit of which this node has no share.
const NO_SHARE_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny { retry: Retry::After(NO_SHARE_RETRY_AFTER) },
    figures: Figures { remaining: 0, reset_after: NO_SHARE_RETRY_AFTER, more_after: NO_SHARE_RETRY_AFTER },
};

impl NodeState {
    /// Counts units toward this node's share that were admitted otherwise. Adds nothing to the write-back queue.
    pub(crate) fn count_admitted(&self, charge: &Charge<'_>, cost: Cost, nodes: &Membership, now: Nanos) {
        let charge = Charge { cost, ..charge.clone() };
        if let Some(share) = self.charge_to_share(&charge, nodes, now) {
            self.usage.add(&charge, &share.limit, cost, now);
            self.shares.force_at(&ChargeSet::of_one(share), now);
        }
    }

    /// Decides by this node's shares.
    pub(crate) fn decide_by_share(
        &self,
        set: &ChargeSet<'_>,
        intent: ChargeIntent,
        nodes: &Membership,
        now: Nanos,
    ) -> Outcome {
        let local: SmallVec<[Option<Charge<'_>>; 4]> =
            set.charges.iter().map(|charge| self.charge_to_share(charge, nodes, now)).collect();
        let possible = set.admits(|i| local[i].is_some());
        let shares = ChargeSet::of(local.iter().flatten().cloned());
        let outcome = match intent {
            ChargeIntent::Force => self.shares.force_at(&shares, now),
            ChargeIntent::Charge if possible => self.shares.charge_at(&shares, now),
            ChargeIntent::Charge | ChargeIntent::Peek => self.shares.peek_at(&shares, now),
        };
        let admitted = intent == ChargeIntent::Force || (possible && outcome.admitted);
        let mut decided = outcome.readings.iter().copied();
        let reading = |share: &Option<_>| share.as_ref().and_then(|_| decided.next()).unwrap_or(NO_SHARE_READING);
        let readings: SmallVec<[LimitReading; 4]> = local.iter().map(reading).collect();
        if admitted && intent != ChargeIntent::Peek {
            for ((charge, share), reading) in set.charges.iter().zip(&local).zip(&readings) {
                if reading.verdict.allows() || intent == ChargeIntent::Force {
                    let limit = share.as_ref().map_or(&charge.limit, |share| &share.limit);
                    self.write_back.add(charge, limit, now, self.mirror.empties_at(charge).unwrap_or(now));
                    self.usage.add(charge, limit, charge.cost, now);
                }
            }
        }
        let degraded = Some(if admitted { Degraded::StoreUnavailable } else { denial_reason(set) });
        Outcome { admitted, readings, source: Source::Fallback, degraded, ..outcome }
    }

    /// A charge under this node's share of its limit; `None` if it may not decide. Applies to the share first the newest
    /// state of the mirror, and what the share admitted before a restart.
    fn charge_to_share<'a>(&self, charge: &'a Charge<'_>, nodes: &Membership, now: Nanos) -> Option<Charge<'a>> {
        let division = nodes.division(charge.counter());
        let share = share_of(charge, division)?;
        let mirrored = self.mirror.take_unapplied(charge);
        let mirrored = mirrored.map(|state| charge.limit.split(&state, &share, division.nodes));
        let admitted = self.usage.take_restored(charge.counter(), &share);
        for state in mirrored.into_iter().chain(admitted) {
            let restore = Restore { charge: with_limit(charge, share.clone()), state };
            // The share's state is of the share's own algorithm, so it always fits.
            let _merged = self.shares.restore_at(&[restore], now);
        }
        Some(with_limit(charge, share))
    }

    /// Refunds units that were admitted by this node's shares.
    pub(crate) fn refund_to_share(&self, refund: &Refund<'_>, nodes: &Membership, now: Nanos) -> Refunded {
        let share = |charge: &Charge<'_>| share_of(charge, nodes.division(charge.counter()));
        let shares = refund.set.charges.iter().filter_map(|charge| Some(with_limit(charge, share(charge)?)));
        let done = self.shares.refund_at(&Refund { set: ChargeSet::of(shares), ..refund.clone() }, now);
        if done == Refunded::Done {
            for charge in &refund.set.charges {
                self.write_back.refund(charge, refund.charged_at, now);
                self.usage.refund(charge, refund.charged_at, now);
            }
        }
        done
    }

    /// Removes counters that were reset on purpose. Returns how many of them the shares had.
    pub(crate) fn reset(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        for counter in set.charges.iter().map(Charge::counter) {
            self.mirror.forget(counter);
            self.permits.forget(counter);
            self.write_back.forget(counter);
            self.usage.forget(counter);
        }
        self.reservations.forget(set);
        self.shares.reset_at(set, now)
    }
}

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
