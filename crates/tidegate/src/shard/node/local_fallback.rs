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

/// The longest `retry_after` of a denial by a share. The store may be back by then, or another node may have units left:
/// how long this node's share stays exhausted is no reason to stay away.
const MAX_RETRY_AFTER: Nanos = Nanos::from_secs(1);

/// The reading of a limit of which this node has no share.
const NO_SHARE_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny { retry: Retry::After(MAX_RETRY_AFTER) },
    figures: Figures { remaining: 0, reset_after: MAX_RETRY_AFTER, more_after: MAX_RETRY_AFTER },
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
        let readings = set.charges.iter().zip(&local).map(|(charge, share)| {
            let reading = share.as_ref().and_then(|_| decided.next()).unwrap_or(NO_SHARE_READING);
            for_the_limit(charge, reading)
        });
        let readings: SmallVec<[LimitReading; 4]> = readings.collect();
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
            self.late.update_active(|ledger| ledger.reset(counter, now));
        }
        self.reservations.forget(set);
        self.shares.reset_at(set, now)
    }
}

/// The reading of a share as one of its whole limit: a cost above the share fits when the store is back.
fn for_the_limit(charge: &Charge<'_>, LimitReading { verdict, figures }: LimitReading) -> LimitReading {
    let Verdict::Deny { retry } = verdict else {
        return LimitReading { verdict, figures };
    };
    let fits_never = charge.cost.get() > charge.limit.capacity();
    let retry = if fits_never { Retry::Never } else { retry.min(Retry::After(MAX_RETRY_AFTER)) };
    let [reset_after, more_after] = [figures.reset_after, figures.more_after].map(|wait| wait.min(MAX_RETRY_AFTER));
    LimitReading { verdict: Verdict::Deny { retry }, figures: Figures { reset_after, more_after, ..figures } }
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

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Precision, Spec};
    use tidegate_core::store::{NodeId, RuleOptions};
    use tidegate_core::subject::{Fingerprint, RuleName};

    use super::*;
    use crate::owned_charge::OwnedCharge;
    use crate::shard::settings::ResilienceSettings;

    const DAY: Nanos = Nanos::from_secs(86_400);

    /// Decides `cost` of a limit of 100 a day, of which each of `nodes` nodes may admit its share, after `used` units.
    #[track_caller]
    fn check(nodes: u32, used: u64, cost: u64, intent: ChargeIntent, want: Retry) {
        for algorithm in Algorithm::ALL {
            let state = NodeState::new(Nanos::ZERO, &ResilienceSettings::default());
            let me = NodeId(1);
            let members = (1..=u64::from(nodes)).map(NodeId).collect();
            let nodes = Membership { me, members, nodes, is_complete: true, share_percent: 80, epoch: None };
            let limit = Limit::compile(&Spec::new(algorithm, 100, DAY), Precision::Memory).expect("a valid rate");
            let (subject, rule) = (Fingerprint::new(7), RuleName::new("rule"));
            let charge = |cost| OwnedCharge::new(subject, rule.clone(), 0, limit.clone(), cost, RuleOptions::DEFAULT);
            let decide = |cost, intent| {
                let charge = charge(cost);
                state.decide_by_share(&ChargeSet::of_one(charge.charge()), intent, &nodes, DAY)
            };
            if let Some(used) = Cost::new(used) {
                assert!(decide(used, ChargeIntent::Charge).admitted, "{algorithm}");
            }
            let outcome = decide(Cost::new(cost).expect("a cost above zero"), intent);
            let LimitReading { verdict, figures } = outcome.readings[0];
            assert_eq!((outcome.admitted, verdict), (false, Verdict::Deny { retry: want }), "{algorithm}");
            assert!(figures.more_after <= MAX_RETRY_AFTER && figures.reset_after <= MAX_RETRY_AFTER, "{figures:?}");
        }
    }

    /// It was denied as a cost that never fits, although it fits as soon as the store is back.
    #[test]
    fn a_cost_above_the_share_may_fit_later_and_one_above_the_limit_never_fits() {
        for intent in [ChargeIntent::Charge, ChargeIntent::Peek] {
            for nodes in [2, 1_000] {
                check(nodes, 0, 100, intent, Retry::After(MAX_RETRY_AFTER));
                check(nodes, 0, 101, intent, Retry::Never);
            }
        }
    }

    /// A client was sent away for the rest of the day, although the store might be back in a second.
    #[test]
    fn an_exhausted_share_denies_for_a_second_at_most() {
        check(2, 40, 1, ChargeIntent::Charge, Retry::After(MAX_RETRY_AFTER));
    }
}
