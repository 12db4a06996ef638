//! The conformance tests of stores: every store must pass all of them.
//!
//! A store under test provides a [`Rig`]: the store and a way to advance its time. Every test uses subjects of its own,
//! so one store can serve all tests. Knows nothing of how a store works.

#![allow(dead_code, unreachable_pub)]

mod changed_limits;
mod charging;
mod correcting;
mod permits;
mod reserving;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Counters, Inspection, Outcome, Role, RuleOptions, Store};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::{Cost, Nanos};

pub use self::changed_limits::*;
pub use self::charging::*;
pub use self::correcting::*;
pub use self::permits::*;
pub use self::reserving::*;

/// A store under test and its time.
pub trait Rig {
    type Store: Store;
    fn store(&self) -> &Self::Store;
    /// Advances the store's time.
    fn advance(&self, span: Nanos);
    /// The precision of the store's arithmetic.
    fn precision(&self) -> Precision;
}

/// Calls the macro `$each` with the given tokens and then the name of every test.
#[macro_export]
macro_rules! every_conformance_test {
    ($each:ident! { $($given:tt)* }) => {
        $each! {
            $($given)*;
            each_algorithm_admits_its_limit_and_no_more
            a_reading_includes_an_admitted_charge_but_no_denied_one
            a_denial_by_the_last_limit_leaves_the_others_unchanged
            a_ceiling_leaves_the_rest_to_charges_with_a_higher_one
            a_denial_by_a_ceiling_leaves_the_others_unchanged
            a_shadow_never_denies_and_is_charged_only_with_the_request
            quotas_deny_only_when_none_has_room
            a_counter_named_twice_is_charged_twice
            a_peek_decides_like_a_charge_and_spends_nothing
            a_cost_above_the_capacity_never_fits
            a_batch_is_decided_in_order
            a_refund_counts_once
            a_refund_is_capped_by_what_has_not_drained
            a_lease_draws_half_of_what_remains_or_an_eighth_of_the_request
            a_forced_charge_is_a_debt
            a_reservation_is_charged_and_settled_once
            usage_above_the_estimate_is_a_debt
            an_expired_estimate_is_refunded_by_the_next_reservation
            a_settlement_after_the_refund_of_its_estimate_is_charged_once
            a_settlement_that_is_too_late_changes_nothing
            a_reservation_is_all_or_nothing_and_a_denied_one_leaves_nothing
            a_late_settlement_refunds_only_what_has_not_drained
            reservations_of_one_counter_do_not_touch_each_other
            a_reservation_before_a_reset_is_never_refunded
            a_restore_raises_a_counter_and_never_lowers_it
            permits_are_acquired_renewed_released_and_expire
            a_renewal_acquires_no_permit
            a_permit_acquired_again_expires_no_sooner
            permits_of_subjects_and_rules_are_separate
            a_reset_frees_the_permits_of_a_rule_and_subject
            inspection_shows_usage_and_reset_clears_it
            a_changed_limit_keeps_what_was_used
            debt_under_a_smaller_limit_is_twice_that_limit
        }
    };
}

pub const HOUR: Nanos = Nanos::from_secs(3_600);

pub fn limit(rig: &impl Rig, algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, HOUR);
    Limit::compile(&spec, rig.precision()).expect("a limit that fits")
}

pub fn tokens(rig: &impl Rig, count: u64) -> Limit {
    limit(rig, Algorithm::TokenBucket, count)
}

/// A subject that no other test uses.
pub fn anyone() -> Fingerprint {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let run = std::process::id();
    let mut hasher = FingerprintKey::new([42; 16]).hasher("conformance");
    hasher.part(&run.to_le_bytes());
    hasher.part(&number.to_le_bytes());
    hasher.finish()
}

/// A counter that no other test uses.
pub struct ConformanceCounter {
    pub rule: RuleName,
    pub subject: Fingerprint,
}

impl ConformanceCounter {
    pub fn new() -> Self {
        ConformanceCounter { rule: RuleName::new("conformance"), subject: anyone() }
    }

    pub fn charge<'a>(&'a self, limit: &'a Limit, cost: u64, role: Role) -> Charge<'a> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(limit),
            cost: Cost::new(cost).expect("a cost"),
            role,
            options: &RuleOptions::DEFAULT,
        }
    }

    pub fn enforce<'a>(&'a self, limit: &'a Limit, cost: u64) -> Charge<'a> {
        self.charge(limit, cost, Role::Enforce)
    }
}

pub fn set<'a>(charges: impl IntoIterator<Item = Charge<'a>>) -> ChargeSet<'a> {
    ChargeSet::of(charges)
}

async fn charge<'a>(rig: &impl Rig, charges: impl IntoIterator<Item = Charge<'a>>) -> Outcome {
    let outcome = rig.store().charge(&set(charges)).await;
    outcome.expect("a store that replies")
}

async fn inspect(rig: &impl Rig, charge: Charge<'_>) -> Option<Inspection> {
    let inspections = rig.store().inspect(&set([charge])).await;
    inspections.expect("a store that replies")[0]
}

async fn used(rig: &impl Rig, counter: &ConformanceCounter, limit: &Limit) -> u64 {
    let inspection = inspect(rig, counter.enforce(limit, 1)).await;
    inspection.map_or(0, |found| found.used)
}
