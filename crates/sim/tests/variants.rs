//! Tests of the checkers: every deliberate mistake is found, by the promise that it breaks.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::{Scenario, SimFault};
use tidegate_sim::{Variant, world};

/// The number of seeds in which a mistake must show.
const SEEDS: u64 = 400;

/// Runs a variant until its broken promise is found, under faults that expose it.
#[track_caller]
fn check(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::with_fault, variant, faults, promise);
}

/// The same with a store of three shards.
#[track_caller]
fn check_sharded(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::sharded_with, variant, faults, promise);
}

/// The same with leases.
#[track_caller]
fn check_leased(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::leased_with, variant, faults, promise);
}

/// The same with lenient counting.
#[track_caller]
fn check_lenient(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::lenient_with, variant, faults, promise);
}

/// The same with reservations.
#[track_caller]
fn check_reservations(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::reservations_with, variant, faults, promise);
}

/// The same with permits.
#[track_caller]
fn check_permits(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::permits_with, variant, faults, promise);
}

/// The same with late replies of a healthy store.
#[track_caller]
fn check_late(variant: Variant, faults: &[SimFault], promise: &str) {
    check_in(Scenario::late_replies_with, variant, faults, promise);
}

#[track_caller]
fn check_in(scenario: fn(u64, SimFault) -> Scenario, variant: Variant, faults: &[SimFault], promise: &str) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        let fault = faults[seed as usize % faults.len()];
        let scenario = scenario(seed, fault);
        let findings = judge(&scenario, &world::run(&scenario, variant));
        if findings.iter().any(|finding| finding.promise == promise) {
            let shipped = judge(&scenario, &world::run(&scenario, Variant::Shipped));
            assert_eq!(shipped, [], "seed {seed} fails without the mistake");
            return;
        }
        others.extend(findings.into_iter().map(|finding| (seed, finding)));
    }
    let first = others.first();
    panic!("{variant:?} was not found by `{promise}` in {SEEDS} seeds; found instead: {first:?}");
}

/// The same with restarts of nodes between outages.
#[track_caller]
fn check_restarts(variant: Variant, promise: &str) {
    check_in(|seed, _| Scenario::restarts(seed), variant, &[SimFault::OutagesAndRestarts], promise);
}

#[test]
fn a_share_that_is_forgotten_by_a_restart() {
    check_restarts(Variant::ForgetsShares, "nodes without the store admit at most their shares");
}

#[test]
fn permits_that_are_forgotten_by_a_restart() {
    check_restarts(Variant::ForgetsPermits, "at most the limit plus the shares hold permits");
}

#[test]
fn a_write_back_that_includes_restored_units() {
    let faults = [SimFault::Kill, SimFault::Hang];
    check(Variant::WritesBackRestored, &faults, "nothing is charged twice");
}

#[test]
fn a_mirror_merged_by_sum() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check(Variant::MergesBySum, &faults, "nothing is charged twice");
}

#[test]
fn a_refund_that_is_retried() {
    let faults = [SimFault::Gray, SimFault::Slow];
    check(Variant::RetriesRefunds, &faults, "the store admits at most the limit");
}

#[test]
fn a_breaker_that_probes_with_requests() {
    let promise = "no charge is sent while the breaker is open";
    check(Variant::ProbesWithRequests, &[SimFault::Hang], promise);
}

#[test]
fn a_denial_that_refreshes_its_record() {
    let promise = "clients get what the limit allows";
    check(Variant::DenialRefreshes, &[SimFault::None], promise);
}

#[test]
fn a_node_that_uses_its_own_clock() {
    check(Variant::NodeClock, &[SimFault::None], "the store's clock decides");
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
fn an_outage_that_is_never_written_back() {
    check(Variant::NeverWritesBack, &[SimFault::Kill], "no admission goes uncharged");
}

#[test]
fn a_mirror_that_is_never_restored() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check(Variant::NeverRestores, &faults, "no admission goes uncharged");
}

#[test]
fn nodes_that_assume_that_they_are_alone() {
    check(Variant::IgnoresPeers, &[SimFault::Kill], "nodes without the store admit at most their shares");
}

#[test]
fn nodes_that_assume_too_many_peers() {
    let promise = "nodes without the store use 0.9 of their shares";
    check(Variant::ImaginesPeers, &[SimFault::Kill], promise);
}

#[test]
fn a_decision_that_waits_too_long() {
    let promise = "no decision exceeds its budget";
    check(Variant::WaitsTooLong, &[SimFault::Hang], promise);
}

#[test]
fn a_denial_cached_too_long() {
    let promise = "the deny cache denies only what the store would deny";
    check(Variant::RemembersTooLong, &[SimFault::None], promise);
}

#[test]
fn a_narrow_charge_that_is_not_refunded_when_a_wide_limit_denies() {
    let promise = "nothing is charged twice";
    check_sharded(Variant::NeverRefunds, &[SimFault::None], promise);
    let promise = "clients get what the limit allows";
    check_sharded(Variant::NeverRefunds, &[SimFault::None], promise);
}

#[test]
fn a_wide_limit_that_is_charged_first() {
    let promise = "a denial charges nothing wider";
    check_sharded(Variant::WideFirst, &[SimFault::None], promise);
}

#[test]
fn a_narrow_charge_that_is_refunded_twice() {
    let promise = "no admission goes uncharged";
    check_sharded(Variant::RetriesRefunds, &[SimFault::None], promise);
}

#[test]
fn a_promoted_shard_that_is_trusted_without_a_restore() {
    let promise = "a promoted shard is restored before it is trusted";
    check_sharded(Variant::TrustsNewShards, &[SimFault::Failover], promise);
}

#[test]
fn a_burst_that_is_not_shortened() {
    let promise = "the store admits at most the limit";
    check_leased(Variant::NeverShortens, &[SimFault::None], promise);
}

#[test]
fn a_lease_counted_from_the_reply() {
    let promise = "a lease expires at its deadline, counted from the request";
    check_leased(Variant::ExpiresFromReply, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_used_after_its_expiry() {
    let promise = "a lease expires at its deadline, counted from the request";
    check_leased(Variant::SpendsExpired, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_outlasts_its_window() {
    let promise = "the store admits at most the limit";
    check_leased(Variant::OutlastsWindows, &[SimFault::None], promise);
}

#[test]
fn a_lease_from_a_fallback_decision() {
    let promise = "every unit was charged before it was used";
    let faults = [SimFault::Kill, SimFault::Gray];
    check_leased(Variant::LeasesWithoutStore, &faults, promise);
}

#[test]
fn a_lease_that_is_not_charged() {
    let promise = "the store admits at most the limit";
    check_leased(Variant::LeasesUncharged, &[SimFault::None], promise);
}

#[test]
fn a_lease_of_more_than_was_charged() {
    let promise = "every unit was charged before it was used";
    check_leased(Variant::LeasesMore, &[SimFault::None], promise);
}

#[test]
fn a_returned_lease_that_is_used() {
    let promise = "every unit was charged before it was used";
    check_leased(Variant::UsesReturnedLease, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_returned_twice() {
    let promise = "only unused units are returned, and once";
    check_leased(Variant::RetriesRefunds, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_refunded_in_full_after_a_while() {
    let promise = "the store admits at most the limit";
    check_leased(Variant::RefundsInFull, &[SimFault::None], promise);
}

#[test]
fn a_lease_that_is_not_remembered() {
    let faults = [SimFault::Restart, SimFault::KillEmpty];
    check_leased(Variant::ForgetsLeases, &faults, "no admission goes uncharged");
}

#[test]
fn a_node_that_drains_without_returning_its_leases() {
    let promise = "a drained node has returned all leases";
    check_leased(Variant::NeverRefunds, &[SimFault::Drain], promise);
}

#[test]
fn lenient_counts_that_are_never_synced() {
    let promise = "every node sees a request within 100 ms";
    check_lenient(Variant::NeverWritesBack, &[SimFault::None], promise);
}

#[test]
fn lenient_counts_that_are_synced_twice() {
    let promise = "nothing is charged twice";
    check_lenient(Variant::SyncsTwice, &[SimFault::None], promise);
}

#[test]
fn a_node_that_ignores_sync_replies() {
    let promise = "the overshoot of lenient counting is bounded";
    check_lenient(Variant::IgnoresSyncReplies, &[SimFault::None], promise);
}

#[test]
fn a_reservation_that_is_settled_and_stays_open() {
    let promise = "a reservation is settled once";
    check_reservations(Variant::SettlesTwice, &[SimFault::None], promise);
}

#[test]
fn an_estimate_that_is_never_refunded() {
    let promise = "an unsettled estimate is refunded when it expires";
    check_reservations(Variant::NeverReturns, &[SimFault::None], promise);
    let promise = "the counters match the used units at the end";
    check_reservations(Variant::NeverReturns, &[SimFault::None], promise);
}

#[test]
fn an_estimate_that_is_refunded_while_its_call_is_in_flight() {
    let promise = "used units keep the limit";
    check_reservations(Variant::ReturnsEarly, &[SimFault::None], promise);
}

#[test]
fn a_late_settlement_that_charges_nothing() {
    let promise = "the counters match the used units at the end";
    check_reservations(Variant::ForgivesLate, &[SimFault::None], promise);
}

#[test]
fn a_debt_that_is_forgiven() {
    let promise = "the counters match the used units at the end";
    check_reservations(Variant::ForgivesDebt, &[SimFault::None], promise);
    let promise = "every counter agrees with the oracle";
    check_reservations(Variant::ForgivesDebt, &[SimFault::None], promise);
}

#[test]
fn a_settlement_that_refunds_drained_units() {
    let promise = "used units keep the limit";
    check_reservations(Variant::RefundsInFull, &[SimFault::None], promise);
}

#[test]
fn a_permit_that_never_expires() {
    let promise = "no permit outlasts its holder";
    check_permits(Variant::PermitsNeverExpire, &[SimFault::None], promise);
    let promise = "all permits are free at the end";
    check_permits(Variant::PermitsNeverExpire, &[SimFault::None], promise);
}

#[test]
fn a_renewal_that_acquires_a_released_permit() {
    let promise = "a released permit is not renewed";
    check_permits(Variant::RenewsReleased, &[SimFault::None], promise);
}

#[test]
fn a_release_that_frees_another_permit() {
    let promise = "the store grants no permit over the limit";
    check_permits(Variant::ReleasesAnother, &[SimFault::None], promise);
    let promise = "a permit renewed in time is kept";
    check_permits(Variant::ReleasesAnother, &[SimFault::None], promise);
}

#[test]
fn a_release_that_frees_nothing() {
    let promise = "a denial means that all permits may be held";
    check_permits(Variant::ReleasesNothing, &[SimFault::None], promise);
}

#[test]
fn a_release_that_is_forgotten_before_other_nodes_have_restored_the_permit() {
    let promise = "no permit outlasts its holder";
    check_permits(Variant::ReleasesOnce, &[SimFault::Restart, SimFault::Flush], promise);
}

#[test]
fn nodes_that_grant_all_permits_without_the_store() {
    let promise = "at most the limit plus the shares hold permits";
    let faults = [SimFault::Kill, SimFault::Hang, SimFault::BlackHole];
    check_permits(Variant::IgnoresPeers, &faults, promise);
}

#[test]
fn late_replies_that_are_ignored() {
    let promise = "late replies deny few requests";
    check_late(Variant::LosesLateReplies, &[SimFault::LateReplies], promise);
}

#[test]
fn late_nodes_that_assume_that_they_are_alone() {
    let promise = "at most the limit plus the shares is admitted";
    check_late(Variant::IgnoresPeers, &[SimFault::Stalls], promise);
}

#[test]
fn late_units_that_are_never_written_back() {
    let faults = [SimFault::LateReplies, SimFault::SlowNode, SimFault::Stalls];
    check_late(Variant::NeverWritesBack, &faults, "no admission goes uncharged");
}
