//! The shipped code on the simulator: every seed keeps every promise.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{Variant, world};

const SEEDS: u64 = 2_166;

/// One run; what is wrong with it.
fn check(seed: u64) -> Option<String> {
    let scenario = Scenario::of(seed);
    let history = world::run(&scenario, Variant::Shipped);
    let findings = judge(&scenario, &history);
    let first = findings.first()?;
    Some(format!("seed {seed} {scenario:?}\n  {first}"))
}

/// Replay one with `TIDEGATE_SEED=7 cargo test -p tidegate-sim --test seeds`; run more with
/// `TIDEGATE_SEEDS=100000`.
#[test]
fn every_seed_keeps_every_promise() {
    let only = std::env::var("TIDEGATE_SEED").ok();
    let only: Option<u64> = only.map(|text| text.parse().expect("TIDEGATE_SEED is a number"));
    let most = std::env::var("TIDEGATE_SEEDS").ok();
    let most = most.map_or(SEEDS, |text| {
        text.parse().expect("TIDEGATE_SEEDS is a number")
    });
    let seeds = only.map_or(0..most, |seed| seed..seed + 1);
    let failures: Vec<String> = seeds.filter_map(check).collect();
    assert!(
        failures.is_empty(),
        "{} of {most} seeds, the first:\n{}",
        failures.len(),
        failures
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n"),
    );
}

/// Without this no failure could be looked into.
#[test]
fn a_seed_replays() {
    for seed in 0..36 {
        let scenario = Scenario::of(seed);
        let runs = [(); 2].map(|()| world::run(&scenario, Variant::Shipped));
        assert_eq!(runs[0].records, runs[1].records, "seed {seed}");
        assert_eq!(runs[0].events, runs[1].events, "seed {seed}");
    }
}
