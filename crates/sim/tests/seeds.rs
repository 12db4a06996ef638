//! The shipped code on the simulator: every seed keeps every promise.
//!
//! Replay one with `cargo run -p tidegate-sim --example replay -- KIND SEED`; run more with the `soak`
//! example.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::{Scenario, ScenarioKind, SimFault};
use tidegate_sim::{Variant, world};

#[track_caller]
fn check(kind: ScenarioKind, seeds: u64) {
    let failure = |seed| {
        let scenario = kind.scenario(seed);
        let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
        let first = findings.first()?;
        Some(format!("{} {seed}: {first}", kind.name()))
    };
    let failures: Vec<String> = (0..seeds).filter_map(failure).collect();
    let first: Vec<&str> = failures.iter().take(20).map(String::as_str).collect();
    let summary = format!("{} seeds, the first:\n{}", failures.len(), first.join("\n"));
    assert!(failures.is_empty(), "{summary}");
}

#[test]
fn every_seed_keeps_every_promise() {
    check(ScenarioKind::Single, 2_166);
}

#[test]
fn every_seed_of_a_sharded_store_keeps_every_promise() {
    check(ScenarioKind::Sharded, 660);
}

#[test]
fn every_seed_of_leases_keeps_every_promise() {
    check(ScenarioKind::Leased, 40);
}

#[test]
fn every_seed_of_lenient_counting_keeps_every_promise() {
    check(ScenarioKind::Lenient, 40);
}

#[test]
fn every_seed_of_a_far_region_keeps_every_promise() {
    check(ScenarioKind::Region, 40);
}

#[test]
fn every_seed_of_reservations_keeps_every_promise() {
    check(ScenarioKind::Reservations, 500);
}

#[test]
fn every_seed_of_permits_keeps_every_promise() {
    check(ScenarioKind::Permits, 500);
}

#[test]
fn every_seed_of_late_replies_keeps_every_promise() {
    check(ScenarioKind::LateReplies, 400);
}

/// Each outage after a restart once had a fresh share, and fresh permits.
#[test]
fn every_seed_of_outages_with_restarts_keeps_every_promise() {
    check(ScenarioKind::Restarts, 450);
}

/// The connection is refused for a moment, a request is admitted without the store, and the late charge of an
/// earlier request pays for it. The store counts that unit from the earlier charge on.
#[test]
fn a_late_charge_that_pays_for_a_later_admission_is_accounted_for() {
    let scenario = ScenarioKind::LateReplies.scenario(2_723);
    let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
    assert_eq!(findings, []);
}

/// A late reservation is held by its node, which charges the estimate by force. More is charged than was used where the
/// reply to that charge is lost and it is repeated (407), where its refund is lost (26647, 38767), and where the store
/// holds the reservation as well and another node settles it (35967). The other seeds once failed for no known reason.
#[test]
fn reservations_under_the_gray_fault_are_accounted_for() {
    for seed in [407, 487, 1_287, 1_947, 26_647, 35_967, 38_767] {
        let scenario = ScenarioKind::Reservations.scenario(seed);
        assert_eq!(scenario.fault, SimFault::Gray);
        assert_eq!(judge(&scenario, &world::run(&scenario, Variant::Shipped)), [], "seed {seed}");
    }
}

/// Without this no failure could be investigated.
#[test]
fn a_seed_replays() {
    let alone = (0..36).map(Scenario::from_seed);
    let sharded = (0..22).map(Scenario::sharded);
    for scenario in alone.chain(sharded) {
        let seed = scenario.seed;
        let runs = [(); 2].map(|()| world::run(&scenario, Variant::Shipped));
        assert_eq!(runs[0].records, runs[1].records, "seed {seed}");
        assert_eq!(runs[0].events, runs[1].events, "seed {seed}");
    }
}

/// Ids are random, too: a run depends on its seed alone.
#[test]
fn a_seed_of_reservations_or_permits_replays() {
    for seed in 0..40 {
        for kind in [ScenarioKind::Reservations, ScenarioKind::Permits] {
            let scenario = kind.scenario(seed);
            let runs = [(); 2].map(|()| world::run(&scenario, Variant::Shipped));
            assert_eq!(runs[0].reservation_calls, runs[1].reservation_calls, "seed {seed}");
            assert_eq!(runs[0].reservation_events, runs[1].reservation_events, "seed {seed}");
            assert_eq!(runs[0].permit_sessions, runs[1].permit_sessions, "seed {seed}");
            assert_eq!(runs[0].permit_events, runs[1].permit_events, "seed {seed}");
        }
    }
}
