//! Several nodes and one hot key: how often the store is called, and how much of the limit is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::Counters;
use tidegate_core::units::Nanos;
use tidegate_sim::executor::{NodeRuntime, Sim};

use super::recording_store::{DATE, MS, RecordingStore, TestLimit, ahead, leased};

/// The result of a run.
#[derive(Debug)]
struct OverloadRun {
    /// Calls to the store per thousand requests.
    calls: u64,
    /// Requests that passed, in thousandths of the number that could have.
    passed: u64,
    /// Units that passed beyond the limit.
    over: u64,
}

/// `nodes` nodes and a bucket of `rate` per second, with a random load of `load_percent` of that rate for a
/// while.
fn run(nodes: usize, rate: u64, load_percent: u64) -> OverloadRun {
    const LASTS: Nanos = Nanos::from_secs(4);
    let sim = Sim::new(nodes as u64 ^ rate ^ load_percent);
    let backing_store = RecordingStore::new(&sim);
    backing_store.behave(|behaviour| behaviour.one_way = Nanos::new(200_000));
    let own = TestLimit::new(1, &leased(Algorithm::TokenBucket, rate, Nanos::from_secs(1)));
    let (passed, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for node in 0..nodes {
        let runtime = NodeRuntime::new(&sim, node, Nanos::from_secs(7), DATE);
        let store = Arc::new(ahead(&backing_store, runtime, 64));
        let (own, world) = (own.clone(), sim.clone());
        let (passed, requests) = (Arc::clone(&passed), Arc::clone(&requests));
        let mean = 1_000_000_000 * 100 * nodes as u64 / (rate * load_percent);
        sim.spawn(Some(node), async move {
            while world.now() < LASTS {
                let apart = world.with_rng(|rng| rng.below(2 * mean));
                world.sleep(Nanos::new(apart)).await;
                let (store, own, passed) = (Arc::clone(&store), own.clone(), Arc::clone(&passed));
                requests.fetch_add(1, Ordering::Relaxed);
                world.spawn(Some(node), async move {
                    let outcome = store.charge(&own.set(1)).await.expect("a decision");
                    passed.fetch_add(outcome.admitted.into(), Ordering::Relaxed);
                });
            }
        });
    }
    sim.run_until(LASTS.plus(MS(10)));
    let (passed, requests) = (passed.load(Ordering::Relaxed), requests.load(Ordering::Relaxed));
    let calls = backing_store.calls().len() as u64;
    let flows_in = rate * LASTS.plus(MS(10)).get() / 1_000_000_000;
    let could = own.limit.capacity() + flows_in; // the burst is shorter by the units that leases may hold
    sim.clear();
    OverloadRun {
        calls: calls * 1_000 / requests,
        passed: passed * 1_000 / could.min(requests),
        over: passed.saturating_sub(rate + flows_in),
    }
}

#[track_caller]
fn check(nodes: usize, rate: u64, load_percent: u64, max_calls: u64) {
    let run = run(nodes, rate, load_percent);
    assert_eq!(run.over, 0, "{run:?}");
    assert!(run.passed >= 990, "{run:?}");
    assert!(run.calls <= max_calls, "{run:?}");
}

#[test]
fn a_hot_key_within_its_limit_costs_one_call_for_many_requests() {
    check(1, 1_000, 90, 50);
    check(4, 10_000, 50, 50);
    check(4, 10_000, 90, 25);
    check(10, 10_000, 50, 60);
    check(10, 10_000, 90, 40);
}

#[test]
fn a_hot_key_beyond_its_limit_gets_nearly_all_of_it_and_does_not_flood_the_store() {
    check(4, 10_000, 120, 20);
    check(4, 10_000, 300, 20);
    check(10, 10_000, 300, 40);
    check(1, 1_000, 300, 50);
}

/// Below the threshold for leases nothing is gained and nothing lost.
#[test]
fn a_key_that_is_lukewarm_on_every_node_costs_no_more_than_exact_counting() {
    check(10, 1_000, 50, 1_000);
    check(10, 1_000, 90, 1_000);
}
