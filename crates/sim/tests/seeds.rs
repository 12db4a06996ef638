//! The shipped code on the simulator: every seed keeps every promise.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{Variant, world};

const SEEDS: u64 = 2_166;
const SEEDS_IN_PARTS: u64 = 660;

/// What is wrong with the runs of all seeds, or of the one that `variable` names; with an S at its end
/// it says how many seeds.
fn failures(variable: &str, seeds: u64, scenario: fn(u64) -> Scenario) -> Vec<String> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse::<u64>()
                .expect("the number of a seed, or of seeds"),
        )
    };
    let most = number(&format!("{variable}S")).unwrap_or(seeds);
    let seeds = number(variable).map_or(0..most, |seed| seed..seed + 1);
    let failure = |seed| {
        let scenario = scenario(seed);
        let findings = judge(&scenario, &world::run(&scenario, Variant::Shipped));
        let first = findings.first()?;
        Some(format!("seed {seed} {scenario:?}\n  {first}"))
    };
    seeds.filter_map(failure).collect()
}

fn told(failures: &[String]) -> String {
    let first: Vec<&str> = failures.iter().take(20).map(String::as_str).collect();
    format!("{} seeds, the first:\n{}", failures.len(), first.join("\n"))
}

/// Replay one with `TIDEGATE_SEED=7 cargo test -p tidegate-sim --test seeds`; run more with
/// `TIDEGATE_SEEDS=100000`.
#[test]
fn every_seed_keeps_every_promise() {
    let failures = failures("TIDEGATE_SEED", SEEDS, Scenario::of);
    assert!(failures.is_empty(), "{}", told(&failures));
}

/// The same of a store with three parts: `TIDEGATE_PARTS_SEED=7`, `TIDEGATE_PARTS_SEEDS=100000`.
#[test]
fn every_seed_of_a_store_in_parts_keeps_every_promise() {
    let failures = failures("TIDEGATE_PARTS_SEED", SEEDS_IN_PARTS, Scenario::in_parts);
    assert!(failures.is_empty(), "{}", told(&failures));
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
