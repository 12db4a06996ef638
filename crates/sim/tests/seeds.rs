//! The shipped code on the simulator: every seed keeps every promise.
//!
//! Replay one with `cargo run -p tidegate-sim --example replay -- KIND SEED`; run more with the `soak`
//! example.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::{Kind, Scenario};
use tidegate_sim::{Variant, world};

#[track_caller]
fn check(kind: Kind, seeds: u64) {
    let failure = |seed| {
        let scenario = kind.scenario(seed);
        let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
        let first = findings.first()?;
        Some(format!("{} {seed}: {first}", kind.name()))
    };
    let failures: Vec<String> = (0..seeds).filter_map(failure).collect();
    let first: Vec<&str> = failures.iter().take(20).map(String::as_str).collect();
    let told = format!("{} seeds, the first:\n{}", failures.len(), first.join("\n"));
    assert!(failures.is_empty(), "{told}");
}

#[test]
fn every_seed_keeps_every_promise() {
    check(Kind::Whole, 2_166);
}

#[test]
fn every_seed_of_a_store_in_parts_keeps_every_promise() {
    check(Kind::Parts, 660);
}

#[test]
fn every_seed_of_leases_keeps_every_promise() {
    check(Kind::Leased, 40);
}

#[test]
fn every_seed_of_local_counts_keeps_every_promise() {
    check(Kind::Lenient, 40);
}

#[test]
fn every_seed_of_a_far_region_keeps_every_promise() {
    check(Kind::Region, 40);
}

#[test]
fn every_seed_of_estimates_keeps_every_promise() {
    check(Kind::Reserving, 500);
}

#[test]
fn every_seed_of_open_requests_keeps_every_promise() {
    check(Kind::Slots, 500);
}

#[test]
fn every_seed_of_late_replies_keeps_every_promise() {
    check(Kind::Late, 400);
}

/// The connection is refused for a moment, a request is admitted without the store, and the late charge of an
/// earlier request pays for it. The store counts that unit from the earlier charge on.
#[test]
fn a_late_charge_that_pays_for_a_later_admission_is_not_forgiven() {
    let scenario = Kind::Late.scenario(2_723);
    let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
    assert_eq!(findings, []);
}

/// Without this no failure could be looked into.
#[test]
fn a_seed_replays() {
    let alone = (0..36).map(Scenario::of);
    let in_parts = (0..22).map(Scenario::in_parts);
    for scenario in alone.chain(in_parts) {
        let seed = scenario.seed;
        let runs = [(); 2].map(|()| world::run(&scenario, Variant::Shipped));
        assert_eq!(runs[0].records, runs[1].records, "seed {seed}");
        assert_eq!(runs[0].events, runs[1].events, "seed {seed}");
    }
}

/// Their names are drawn too: a run depends on its seed alone.
#[test]
fn a_seed_of_estimates_or_open_requests_replays() {
    for seed in 0..40 {
        for kind in [Kind::Reserving, Kind::Slots] {
            let scenario = kind.scenario(seed);
            let runs = [(); 2].map(|()| world::run(&scenario, Variant::Shipped));
            assert_eq!(runs[0].calls, runs[1].calls, "seed {seed}");
            assert_eq!(runs[0].postings, runs[1].postings, "seed {seed}");
            assert_eq!(runs[0].stays, runs[1].stays, "seed {seed}");
            assert_eq!(runs[0].passages, runs[1].passages, "seed {seed}");
        }
    }
}
