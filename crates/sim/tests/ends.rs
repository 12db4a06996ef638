//! What is known only at the end, and what must end: estimates that are settled or not, and requests that are
//! open for a while. Every seed keeps every promise.

use tidegate_sim::check::judge;
use tidegate_sim::scenario::Kind;
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
fn every_seed_of_estimates_keeps_every_promise() {
    check(Kind::Reserving, 500);
}

#[test]
fn every_seed_of_open_requests_keeps_every_promise() {
    check(Kind::Slots, 500);
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
