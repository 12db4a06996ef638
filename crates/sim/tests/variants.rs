//! The checkers at work: every deliberate mistake is seen, by the promise it breaks.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::{Scenario, SimFault};
use tidegate_sim::{Variant, world};

/// How many seeds a mistake is given to show.
const SEEDS: u64 = 400;

/// Runs a mistake until the promise it breaks is found broken, under faults that bring it out.
#[track_caller]
fn check(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::with_fault, variant, faults, promise);
}

/// The same with a store of three parts.
#[track_caller]
fn check_sharded(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::sharded_with, variant, faults, promise);
}

/// The same where units are drawn in advance.
#[track_caller]
fn check_leased(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::leased_with, variant, faults, promise);
}

/// The same where nodes count for themselves.
#[track_caller]
fn check_lenient(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::lenient_with, variant, faults, promise);
}

/// The same where costs are estimated.
#[track_caller]
fn check_reservations(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::reservations_with, variant, faults, promise);
}

/// The same where requests are open for a while.
#[track_caller]
fn check_permits(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::permits_with, variant, faults, promise);
}

/// The same where the store is healthy and its replies are late.
#[track_caller]
fn check_late(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::late_replies_with, variant, faults, promise);
}

#[track_caller]
fn check_in(
    scenario: fn(u64, SimFault) -> Scenario,
    variant: Variant,
    faults: &[SimFault],
    promise: &str,
) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        let fault = faults[seed as usize % faults.len()];
        let scenario = scenario(seed, fault);
        let findings = judge(&scenario, &world::run(&scenario, variant));
        if findings.iter().any(|finding| finding.promise == promise) {
            let shipped = judge(&scenario, &world::run(&scenario, Variant::Shipped));
            assert_eq!(shipped, [], "seed {seed} is wrong without the mistake");
            return;
        }
        others.extend(findings.into_iter().map(|finding| (seed, finding)));
    }
    let first = others.first();
    panic!("{variant:?} was not caught as `{promise}` in {SEEDS} seeds; else: {first:?}");
}

#[test]
fn reconcile_that_pushes_the_seed() {
    let faults = [SimFault::Kill, SimFault::Hang];
    check(
        Variant::WritesBackRestored,
        &faults,
        "nothing is charged twice",
    );
}

#[test]
fn a_mirror_merged_by_sum() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check(Variant::MergesBySum, &faults, "nothing is charged twice");
}

#[test]
fn a_refund_that_is_retried() {
    let faults = [SimFault::Gray, SimFault::Slow];
    check(
        Variant::RetriesRefunds,
        &faults,
        "the store admits its limit",
    );
}

#[test]
fn a_breaker_that_probes_with_requests() {
    let promise = "nothing is asked while the breaker is open";
    check(Variant::ProbesWithRequests, &[SimFault::Hang], promise);
}

#[test]
fn a_refusal_that_refreshes_its_record() {
    let promise = "who asks gets what the limit has";
    check(Variant::DenialRefreshes, &[SimFault::None], promise);
}

#[test]
fn a_node_that_uses_its_own_clock() {
    check(
        Variant::NodeClock,
        &[SimFault::None],
        "the store's clock decides",
    );
}

#[test]
fn a_window_carried_over_a_loss() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check(Variant::CarriesWindows, &faults, "nothing is charged twice");
}

#[test]
fn a_double_charge_when_the_script_is_missing() {
    let promise = "nothing is charged twice";
    check(Variant::ChargesTwiceOnNoScript, &[SimFault::None], promise);
}

#[test]
fn an_outage_that_is_never_charged() {
    check(
        Variant::NeverWritesBack,
        &[SimFault::Kill],
        "nothing is forgiven",
    );
}

#[test]
fn a_mirror_that_is_never_put_back() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check(Variant::NeverRestores, &faults, "nothing is forgiven");
}

#[test]
fn nodes_that_believe_they_are_alone() {
    check(
        Variant::IgnoresPeers,
        &[SimFault::Kill],
        "nodes alone admit their share",
    );
}

#[test]
fn nodes_that_imagine_peers() {
    let promise = "nodes alone use 0.9 of their share";
    check(Variant::ImaginesPeers, &[SimFault::Kill], promise);
}

#[test]
fn a_decision_that_waits_too_long() {
    let promise = "no decision is later than its budget";
    check(Variant::WaitsTooLong, &[SimFault::Hang], promise);
}

#[test]
fn a_refusal_remembered_too_long() {
    let promise = "a deny cache refuses only what the store would";
    check(Variant::RemembersTooLong, &[SimFault::None], promise);
}

#[test]
fn a_narrow_charge_that_stays_when_a_wide_limit_refuses() {
    let promise = "nothing is charged twice";
    check_sharded(Variant::NeverRefunds, &[SimFault::None], promise);
    let promise = "who asks gets what the limit has";
    check_sharded(Variant::NeverRefunds, &[SimFault::None], promise);
}

#[test]
fn a_wide_limit_that_is_charged_first() {
    let promise = "a refusal touches nothing wider";
    check_sharded(Variant::WideFirst, &[SimFault::None], promise);
}

#[test]
fn a_narrow_charge_that_is_given_back_twice() {
    let promise = "nothing is forgiven";
    check_sharded(Variant::RetriesRefunds, &[SimFault::None], promise);
}

#[test]
fn a_part_that_takes_over_and_is_believed_as_it_is() {
    let promise = "a part that takes over is told before it is believed";
    check_sharded(Variant::TrustsNewShards, &[SimFault::Failover], promise);
}

#[test]
fn a_burst_that_is_not_shortened() {
    let promise = "the store admits its limit";
    check_leased(Variant::NeverShortens, &[SimFault::None], promise);
}

#[test]
fn a_lease_counted_from_the_answer() {
    let promise = "a lease ends at its deadline, counted from the question";
    check_leased(Variant::ExpiresFromReply, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_used_when_it_is_over() {
    let promise = "a lease ends at its deadline, counted from the question";
    check_leased(Variant::SpendsExpired, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_outlasts_its_window() {
    let promise = "the store admits its limit";
    check_leased(Variant::OutlastsWindows, &[SimFault::None], promise);
}

#[test]
fn a_lease_from_a_fallback_answer() {
    let promise = "every unit was charged before it was used";
    let faults = [SimFault::Kill, SimFault::Gray];
    check_leased(Variant::LeasesWithoutStore, &faults, promise);
}

#[test]
fn a_lease_that_nobody_charged() {
    let promise = "the store admits its limit";
    check_leased(Variant::LeasesUncharged, &[SimFault::None], promise);
}

#[test]
fn a_lease_of_more_than_was_charged() {
    let promise = "every unit was charged before it was used";
    check_leased(Variant::LeasesMore, &[SimFault::None], promise);
}

#[test]
fn a_grant_that_was_given_back_and_is_used() {
    let promise = "every unit was charged before it was used";
    check_leased(Variant::UsesReturnedLease, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_given_back_twice() {
    let promise = "only what was not used is given back, and once";
    check_leased(Variant::RetriesRefunds, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_given_back_in_full_after_a_while() {
    let promise = "the store admits its limit";
    check_leased(Variant::RefundsInFull, &[SimFault::None], promise);
}

#[test]
fn a_grant_that_is_not_remembered() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check_leased(Variant::ForgetsLeases, &faults, "nothing is forgiven");
}

#[test]
fn a_node_that_leaves_with_what_it_holds() {
    let promise = "who leaves in peace gives everything back";
    check_leased(Variant::NeverRefunds, &[SimFault::Drain], promise);
}

#[test]
fn local_counts_that_are_never_synced() {
    let promise = "a request is seen by all within 100 ms";
    check_lenient(Variant::NeverWritesBack, &[SimFault::None], promise);
}

#[test]
fn local_counts_that_are_synced_twice() {
    let promise = "nothing is charged twice";
    check_lenient(Variant::SyncsTwice, &[SimFault::None], promise);
}

#[test]
fn a_node_that_never_hears_of_the_others() {
    let promise = "a limit is exceeded by no more than is told";
    check_lenient(Variant::IgnoresSyncReplies, &[SimFault::None], promise);
}

#[test]
fn a_reservation_that_is_settled_and_stays_open() {
    let promise = "a reservation is settled once";
    check_reservations(Variant::SettlesTwice, &[SimFault::None], promise);
}

#[test]
fn an_estimate_that_never_comes_back() {
    let promise = "an estimate comes back by itself at its end";
    check_reservations(Variant::NeverReturns, &[SimFault::None], promise);
    let promise = "in the end the books show what was used";
    check_reservations(Variant::NeverReturns, &[SimFault::None], promise);
}

#[test]
fn an_estimate_that_comes_back_while_the_call_is_under_way() {
    let promise = "what is used keeps the limit";
    check_reservations(Variant::ReturnsEarly, &[SimFault::None], promise);
}

#[test]
fn a_late_settlement_that_charges_nothing() {
    let promise = "in the end the books show what was used";
    check_reservations(Variant::ForgivesLate, &[SimFault::None], promise);
}

#[test]
fn a_debt_that_is_forgiven() {
    let promise = "in the end the books show what was used";
    check_reservations(Variant::ForgivesDebt, &[SimFault::None], promise);
    let promise = "what is charged is what was used";
    check_reservations(Variant::ForgivesDebt, &[SimFault::None], promise);
}

#[test]
fn a_settlement_that_gives_back_what_has_drained() {
    let promise = "what is used keeps the limit";
    check_reservations(Variant::RefundsInFull, &[SimFault::None], promise);
}

#[test]
fn a_slot_that_never_ends() {
    let promise = "no slot outlasts its holder";
    check_permits(Variant::PermitsNeverExpire, &[SimFault::None], promise);
    let promise = "in the end there is room for all";
    check_permits(Variant::PermitsNeverExpire, &[SimFault::None], promise);
}

#[test]
fn a_renewal_that_takes_what_was_given_back() {
    let promise = "what was given back is not renewed";
    check_permits(Variant::RenewsReleased, &[SimFault::None], promise);
}

#[test]
fn a_release_that_frees_another_slot() {
    let promise = "the store lets nobody in beside those who are";
    check_permits(Variant::ReleasesAnother, &[SimFault::None], promise);
    let promise = "who renews in time keeps the slot";
    check_permits(Variant::ReleasesAnother, &[SimFault::None], promise);
}

#[test]
fn a_release_that_frees_nothing() {
    let promise = "who is refused finds no room";
    check_permits(Variant::ReleasesNothing, &[SimFault::None], promise);
}

#[test]
fn nodes_that_give_all_slots_without_the_store() {
    let promise = "the limit and the share are the most";
    let faults = [SimFault::Kill, SimFault::Hang, SimFault::BlackHole];
    check_permits(Variant::IgnoresPeers, &faults, promise);
}

#[test]
fn late_replies_that_are_thrown_away() {
    let promise = "late replies deny hardly anybody";
    check_late(Variant::LosesLateReplies, &[SimFault::LateReplies], promise);
}

#[test]
fn late_nodes_that_believe_to_be_alone() {
    let promise = "the limit and the share is the most";
    check_late(Variant::IgnoresPeers, &[SimFault::Stalls], promise);
}

#[test]
fn late_units_that_are_never_charged() {
    let faults = [SimFault::LateReplies, SimFault::SlowNode, SimFault::Stalls];
    check_late(Variant::NeverWritesBack, &faults, "nothing is forgiven");
}
