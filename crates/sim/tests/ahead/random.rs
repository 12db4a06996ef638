//! Random requests at random times, against the invariants: the store's counters hold exactly the admitted
//! units, and no interval holds more than the limit as written.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::{Counters, Source};
use tidegate_core::units::Nanos;

use super::recording_store::{LeaseTestbed, MS, TestLimit, leased};

/// The admissions of two nodes: time, units, and whether by a lease.
type AdmittedUnits = Arc<Mutex<Vec<(Nanos, u64, bool)>>>;

/// Sends random requests to two nodes for a while. Some charge a second limit, too.
fn run(setup: &LeaseTestbed, own: &TestLimit, beside: &TestLimit, lasts: Nanos) -> (AdmittedUnits, u64) {
    let nodes = [setup.lease.clone(), setup.second_node()];
    let (admitted, also) = (AdmittedUnits::default(), Arc::new(Mutex::new(0)));
    let draw = |max: u64| setup.sim.with_rng(|rng| rng.below(max));
    let ends = setup.sim.now().plus(lasts);
    while setup.sim.now() < ends {
        let quiet = draw(40) == 0;
        let apart = if quiet { draw(150_000) } else { draw(700) };
        setup.pass(Nanos::new(apart * 1_000));
        setup.store.behave(|behaviour| behaviour.one_way = Nanos::new(draw(3_000_000)));
        let (node, cost) = (nodes[draw(2) as usize].clone(), 1 + draw(4) * draw(2));
        let with = (draw(8) == 0).then(|| beside.clone());
        let (sim, own) = (setup.sim.clone(), own.clone());
        let (admitted, also) = (Arc::clone(&admitted), Arc::clone(&also));
        setup.sim.spawn(None, async move {
            let mut set = own.set(cost);
            set.charges.extend(with.as_ref().map(|beside| beside.charge(1)));
            let outcome = node.charge(&set).await.expect("a decision");
            if outcome.admitted {
                *also.lock() += u64::from(with.is_some());
                let leased = outcome.source == Source::Lease;
                admitted.lock().push((sim.now(), cost, leased));
            }
        });
    }
    setup.pass(MS(20));
    for node in &nodes {
        setup.sim.block_on(node.drain());
        assert_eq!((node.lease_stats().units_outstanding, node.lease_stats().units_lapsed), (0, 0));
    }
    let also = *also.lock();
    (admitted, also)
}

fn beside() -> TestLimit {
    let spec = Spec::new(Algorithm::FixedWindow, 120, Nanos::from_secs(100));
    TestLimit::new(2, &spec)
}

fn units(admitted: &AdmittedUnits) -> u64 {
    admitted.lock().iter().map(|(_, units, _)| units).sum()
}

#[test]
fn the_counters_hold_the_admitted_units() {
    let mut by_lease = 0;
    for seed in 0..40 {
        let (setup, beside) = (LeaseTestbed::with(seed, 8), beside());
        let spec = leased(Algorithm::FixedWindow, 50_000, Nanos::from_secs(100));
        let own = TestLimit::new(1, &spec);
        let (admitted, also) = run(&setup, &own, &beside, Nanos::from_secs(1));
        assert_eq!(setup.used_units(&own), units(&admitted), "seed {seed}");
        assert_eq!(setup.used_units(&beside), also, "seed {seed}");
        by_lease += admitted.lock().iter().filter(|(_, _, leased)| *leased).count();
    }
    assert!(by_lease > 10_000, "only {by_lease} by leases");
}

#[test]
fn no_interval_holds_more_than_the_limit_as_written() {
    let mut fullest = 0;
    for seed in 0..40 {
        let (setup, beside) = (LeaseTestbed::with(seed, 8), beside());
        let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
        spec.burst = Some(300);
        let own = TestLimit::new(1, &spec);
        let (admitted, _) = run(&setup, &own, &beside, Nanos::from_secs(1));
        let mut admitted = admitted.lock().clone();
        admitted.sort_unstable();
        let thousandths = max_beyond_inflow(&admitted);
        assert!(thousandths <= 300 * 1_000_000, "seed {seed}: {thousandths}");
        fullest = fullest.max(thousandths);
    }
    assert!(fullest > 200 * 1_000_000, "never full: {fullest}");
}

/// The maximum that any interval holds beyond its inflow, in millionths of a unit: at a thousand per second a
/// unit flows in each millisecond.
fn max_beyond_inflow(admitted: &[(Nanos, u64, bool)]) -> u64 {
    let (mut max, mut level, mut last) = (0, 0_u64, Nanos::ZERO);
    for (at, units, _) in admitted {
        level = level.saturating_sub(at.since(last).get()) + units * 1_000_000;
        (max, last) = (max.max(level), *at);
    }
    max
}

#[test]
fn a_seed_replays() {
    let history = |seed| {
        let (setup, beside) = (LeaseTestbed::with(seed, 8), beside());
        let spec = leased(Algorithm::FixedWindow, 50_000, Nanos::from_secs(100));
        let (admitted, _) = run(&setup, &TestLimit::new(1, &spec), &beside, MS(300));
        admitted.lock().clone()
    };
    assert_eq!(history(5), history(5));
    assert_ne!(history(5), history(6));
}
