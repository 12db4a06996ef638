//! Anything at any time, against what must hold of it: the books show what was admitted and no unit
//! more or less, and no interval holds more than the limit as it was written.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::{Source, Store};
use tidegate_core::units::Nanos;

use super::till::{Bench, MS, Own, leased};

/// What two nodes admitted: when, how many units, and whether by a lease.
type Admitted = Arc<Mutex<Vec<(Nanos, u64, bool)>>>;

/// Two nodes that are asked for a limit, and sometimes for one beside it, at random for a while.
fn run(bench: &Bench, own: &Own, beside: &Own, lasts: Nanos) -> (Admitted, u64) {
    let nodes = [bench.lease.clone(), bench.neighbour()];
    let (admitted, also) = (Admitted::default(), Arc::new(Mutex::new(0)));
    let draw = |most: u64| bench.sim.draw(|rng| rng.below(most));
    let ends = bench.sim.now().plus(lasts);
    while bench.sim.now() < ends {
        let quiet = draw(40) == 0;
        let apart = if quiet { draw(150_000) } else { draw(700) };
        bench.pass(Nanos::new(apart * 1_000));
        bench
            .till
            .behave(|manner| manner.way = Nanos::new(draw(3_000_000)));
        let (node, cost) = (nodes[draw(2) as usize].clone(), 1 + draw(4) * draw(2));
        let with = (draw(8) == 0).then(|| beside.clone());
        let (sim, own) = (bench.sim.clone(), own.clone());
        let (admitted, also) = (Arc::clone(&admitted), Arc::clone(&also));
        bench.sim.spawn(None, async move {
            let mut set = own.set(cost);
            set.charges
                .extend(with.as_ref().map(|beside| beside.charge(1)));
            let outcome = node.charge(&set).await.expect("a decision");
            if outcome.admitted {
                *also.lock() += u64::from(with.is_some());
                let leased = outcome.source == Source::Lease;
                admitted.lock().push((sim.now(), cost, leased));
            }
        });
    }
    bench.pass(MS(20));
    for node in &nodes {
        bench.sim.block_on(node.give_back_all());
        assert_eq!((node.facts().held, node.facts().lapsed), (0, 0));
    }
    let also = *also.lock();
    (admitted, also)
}

fn beside() -> Own {
    let spec = Spec::new(Algorithm::FixedWindow, 120, Nanos::from_secs(100));
    Own::new(2, &spec)
}

fn units(admitted: &Admitted) -> u64 {
    admitted.lock().iter().map(|(_, units, _)| units).sum()
}

#[test]
fn the_books_show_what_was_admitted() {
    let mut by_lease = 0;
    for seed in 0..40 {
        let (bench, beside) = (Bench::with(seed, 8), beside());
        let spec = leased(Algorithm::FixedWindow, 50_000, Nanos::from_secs(100));
        let own = Own::new(1, &spec);
        let (admitted, also) = run(&bench, &own, &beside, Nanos::from_secs(1));
        assert_eq!(bench.booked(&own), units(&admitted), "seed {seed}");
        assert_eq!(bench.booked(&beside), also, "seed {seed}");
        by_lease += admitted
            .lock()
            .iter()
            .filter(|(_, _, leased)| *leased)
            .count();
    }
    assert!(by_lease > 10_000, "only {by_lease} by leases");
}

#[test]
fn no_interval_holds_more_than_the_limit_as_it_was_written() {
    let mut fullest = 0;
    for seed in 0..40 {
        let (bench, beside) = (Bench::with(seed, 8), beside());
        let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
        spec.burst = Some(300);
        let own = Own::new(1, &spec);
        let (admitted, _) = run(&bench, &own, &beside, Nanos::from_secs(1));
        let mut admitted = admitted.lock().clone();
        admitted.sort_unstable();
        let thousandths = most_beyond_the_flow(&admitted);
        assert!(thousandths <= 300 * 1_000_000, "seed {seed}: {thousandths}");
        fullest = fullest.max(thousandths);
    }
    assert!(fullest > 200 * 1_000_000, "never full: {fullest}");
}

/// The most that any interval holds beyond what flows in during it, in millionths of a unit: at a
/// thousand in a second a unit flows in each millisecond.
fn most_beyond_the_flow(admitted: &[(Nanos, u64, bool)]) -> u64 {
    let (mut most, mut level, mut last) = (0, 0_u64, Nanos::ZERO);
    for (at, units, _) in admitted {
        level = level.saturating_sub(at.since(last).get()) + units * 1_000_000;
        (most, last) = (most.max(level), *at);
    }
    most
}

#[test]
fn one_seed_gives_one_run() {
    let history = |seed| {
        let (bench, beside) = (Bench::with(seed, 8), beside());
        let spec = leased(Algorithm::FixedWindow, 50_000, Nanos::from_secs(100));
        let (admitted, _) = run(&bench, &Own::new(1, &spec), &beside, MS(300));
        admitted.lock().clone()
    };
    assert_eq!(history(5), history(5));
    assert_ne!(history(5), history(6));
}
