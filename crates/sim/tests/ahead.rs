//! Counting ahead of the store, by leases and by local counts: every seed keeps every promise, and the
//! figures that are promised are reached from both sides.

use tidegate_core::store::Source;
use tidegate_core::units::Nanos;
use tidegate_sim::check::{judge, overshoot};
use tidegate_sim::history::Record;
use tidegate_sim::scenario::{Fault, Kind, Rhythm, Scenario, Way};
use tidegate_sim::{Variant, world};

/// Replay one with `cargo run -p tidegate-sim --example replay -- KIND SEED`; run more with the `soak`
/// example.
#[track_caller]
fn check(kind: Kind, seeds: u64) {
    let failure = |seed| {
        let scenario = kind.scenario(seed);
        let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
        let first = findings.first()?;
        Some(format!("{} {seed}: {first}", kind.name()))
    };
    let failures: Vec<String> = (0..seeds).filter_map(failure).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_seed_of_leases_keeps_every_promise() {
    check(Kind::Leased, 80);
}

#[test]
fn every_seed_of_local_counts_keeps_every_promise() {
    check(Kind::Lenient, 60);
}

#[test]
fn every_seed_of_a_far_region_keeps_every_promise() {
    check(Kind::Region, 40);
}

/// The bound of lenient counting is no more than it must be.
#[test]
fn a_stampede_exceeds_a_lenient_limit_by_all_that_it_may() {
    let reached = |seed| {
        let scenario = Scenario::stampede(seed);
        let history = world::run(&scenario, Variant::Shipped);
        let (over, bound) = overshoot(&scenario, &history, 0);
        assert!(over <= bound, "seed {seed}: {over} over, at most {bound}");
        over * 100 / bound.max(1)
    };
    let most = (0..12).map(reached).max();
    assert!(most >= Some(90), "{most:?} hundredths of the bound");
}

/// A hot counter over ten seconds, at a given load in tenths of its limit: what was admitted of what
/// could be, in thousandths, and how many of a thousand decisions needed no store.
fn hot(seed: u64, load: u64) -> (u64, u64) {
    let mut scenario = Scenario::leased_with(seed, Fault::None);
    scenario.ceiling = None;
    scenario.subjects.truncate(1);
    scenario.nodes = 4;
    scenario.spec.count = scenario.spec.window.length().millis_up() * 2; // 2,000 a second
    scenario.spec.burst = None;
    scenario.counting = tidegate_core::store::Counting::Leased;
    scenario.spec.leased = Some(Nanos::from_millis(100));
    let every = Nanos::new(500_000 * 10 / load);
    scenario.subjects[0].every = every;
    scenario.subjects[0].way = Way::Spread;
    scenario.subjects[0].rhythm = Rhythm::Steady;
    let ends = Nanos::from_secs(11);
    scenario.bouts = vec![(Nanos::from_secs(1), ends)];
    scenario.ends = ends.plus(Nanos::from_millis(20));
    let history = world::run(&scenario, Variant::Shipped);
    assert_eq!(judge(&scenario, &history), [], "seed {seed} load {load}");
    let admitted = history.records.iter().filter(|r| r.admitted).count() as u64;
    let limit = scenario.limit(0);
    let possible = (limit.capacity() + 20_000).min(history.records.len() as u64);
    let here = |r: &&Record| matches!(r.source, Source::Lease | Source::DenyCache);
    let here = history.records.iter().filter(here).count();
    let of_all = here * 1_000 / history.records.len();
    (admitted * 1_000 / possible, of_all as u64)
}

#[test]
fn a_hot_counter_gets_0_98_of_its_limit_and_hardly_asks_the_store() {
    for load in [5, 9, 12, 30] {
        for seed in 0..8 {
            let (admitted, here) = hot(seed, load);
            assert!(
                admitted >= 980,
                "seed {seed} load {load}: {admitted} of 1,000"
            );
            assert!(
                here >= 900,
                "seed {seed} load {load}: {here} of 1,000 without the store"
            );
        }
    }
}
