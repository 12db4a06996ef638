//! Credits: the store has charged units for a request that was denied here because the reply was late. They pay for
//! another request or are refunded, and no unit of a later charge is refunded for them.

#[allow(dead_code, reason = "shared with other tests")]
mod testbed;

use testbed::{MS, ShardLimit, ShardedTestbed};
use tidegate_core::store::{Counters, OnStoreLate, Outcome, Role, RuleOptions, Source};
use tidegate_core::units::Nanos;
use tidegate_sim::model::{Lateness, NetworkConditions};

const HUNG: NetworkConditions = NetworkConditions { hung: true, ..NetworkConditions::HEALTHY };
const DENY_LATE: RuleOptions = RuleOptions { on_late: OnStoreLate::Deny, specificity: 1, ..RuleOptions::DEFAULT };

/// A limit on shard 0 that denies late requests.
fn strict(setup: &ShardedTestbed, count: u64) -> ShardLimit {
    setup.with(0, count, Role::Enforce, DENY_LATE)
}

/// A limit on shard 1 that is used up.
fn used_up(setup: &ShardedTestbed) -> ShardLimit {
    let limit = setup.limit(1, 1, 0);
    assert!(setup.charge(&setup.set(&[(&limit, 1)])).admitted);
    limit
}

/// Denies a request for `cost` because its reply is late. The reply arrives 5 ms later: a credit.
fn denied_late(setup: &ShardedTestbed, own: &ShardLimit, cost: u64) {
    let late = Lateness { per_mille: 1_000, min: MS(30), max: MS(30), node: None };
    setup.set_conditions(0, NetworkConditions { lateness: late, ..NetworkConditions::HEALTHY });
    let denied = setup.charge(&setup.set(&[(own, cost)]));
    assert!(!denied.admitted && denied.source == Source::Late);
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(MS(8));
}

fn paid_by_credit(outcome: &Outcome) -> bool {
    outcome.admitted && outcome.source == Source::Late
}

#[test]
fn a_credit_pays_for_the_next_request_that_the_store_denies() {
    let setup = ShardedTestbed::new();
    let own = strict(&setup, 10);
    denied_late(&setup, &own, 5);
    let set = setup.set(&[(&own, 5)]);
    assert_eq!(setup.charge(&set).source, Source::Exact);
    assert!(paid_by_credit(&setup.charge(&set)));
    assert!(!setup.charge(&set).admitted);
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.used_units(&own), 10);
}

/// The refund was as of the denial: it returned what the bucket had drained since the charge once more, as if the
/// bucket had been full for that time.
#[test]
fn a_step_that_credits_paid_for_is_refunded_as_of_the_charge_of_the_credits() {
    let setup = ShardedTestbed::new();
    let (mut own, all) = (setup.bucket(0, 1_000, 1_000, 1), used_up(&setup));
    own.options = DENY_LATE;
    denied_late(&setup, &own, 500);
    assert!(setup.charge(&setup.set(&[(&own, 500)])).admitted);
    setup.pass(MS(30));
    let charged = setup.charge(&setup.set(&[(&own, 500), (&all, 1)]));
    assert!(!charged.admitted, "by the second shard");
    setup.pass(MS(5));
    // 500 drained for as long as there was no other charge, 500 since, and neither twice.
    let used_units = setup.used_units(&own);
    assert!((460..=510).contains(&used_units), "{used_units}");
}

/// The units stayed charged, for a request that was denied.
#[test]
fn credits_that_paid_for_an_unsent_step_of_a_denied_request_are_refunded() {
    let setup = ShardedTestbed::new();
    let own = strict(&setup, 10);
    let all = setup.with(1, 10, Role::Enforce, RuleOptions { specificity: 0, ..DENY_LATE });
    denied_late(&setup, &own, 5);
    setup.set_conditions(1, HUNG);
    let mut set = setup.set(&[(&own, 5), (&all, 1)]);
    set.max_wait = Some(Nanos::ZERO);
    let denied = setup.charge(&set);
    assert!(!denied.admitted && denied.source == Source::Late);
    setup.set_conditions(1, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.used_units(&own), 0);
}

/// The refund of a credit from before the reset took units from the charges after it.
#[test]
fn a_reset_voids_credits() {
    let setup = ShardedTestbed::new();
    let own = strict(&setup, 10);
    denied_late(&setup, &own, 5);
    let set = setup.set(&[(&own, 5)]);
    setup.sim.block_on(setup.store.reset(&set)).expect("a reply");
    assert!(setup.charge(&set).admitted);
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.used_units(&own), 5);
}

/// The store had charged it before the reset, and its reply arrived after it.
#[test]
fn a_late_reply_to_a_charge_before_a_reset_is_no_credit() {
    let setup = ShardedTestbed::new();
    let own = strict(&setup, 10);
    let late = Lateness { per_mille: 1_000, min: MS(100), max: MS(100), node: None };
    setup.set_conditions(0, NetworkConditions { lateness: late, ..NetworkConditions::HEALTHY });
    let set = setup.set(&[(&own, 5)]);
    assert!(!setup.charge(&set).admitted);
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.sim.block_on(setup.store.reset(&set)).expect("a reply");
    assert!(setup.charge(&set).admitted);
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.used_units(&own), 5);
}
