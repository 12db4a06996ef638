//! Runs in which the cost of a call is known only at its end.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::high_load::any_fault;
use super::work::{ReservationWork, Work};
use super::{ArrivalPattern, Routing, Scenario, SimFault, SimSubject};
use crate::rng::Rng;

/// Algorithms in which nothing drains within a window.
const WINDOWED: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingWindowStrict];

/// A window that is longer than a run and began long before it.
const LONG_WINDOW: Nanos = Nanos::from_secs(3_600);

impl Scenario {
    /// The run of `seed` with reservations.
    pub fn reservations(seed: u64) -> Self {
        Scenario::reservations_with(seed, any_fault(seed))
    }

    /// The same with the given fault.
    pub fn reservations_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 17);
        let mut scenario = Scenario::with_fault(seed, fault);
        scenario.nodes = rng.between(2, 5) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25, 250, 250]));
        scenario.replica_lag = Nanos::from_millis(rng.between(20, 400));
        scenario.on_failure = match rng.below(8) {
            0 => OnStoreFailure::Deny,
            _ => OnStoreFailure::Local,
        };
        // A clock that steps by hours is in another window.
        let long_window = !fault.steps_clock() && rng.chance(450);
        scenario.spec = if long_window {
            Spec::new(rng.pick(&WINDOWED), rng.between(5_000, 50_000), LONG_WINDOW)
        } else {
            short_window(&mut rng)
        };
        let capacity = scenario.limit(0).capacity();
        let ttl_range = match rng.below(3) {
            0 => (200, 800),
            1 => (500, 2_000),
            _ => (1_000, 4_000),
        };
        let ttl_range = (Nanos::from_millis(ttl_range.0), Nanos::from_millis(ttl_range.1));
        let estimates = ReservationWork {
            max_estimate: (capacity / rng.between(3, 12)).max(1),
            max_used_in_long_window: long_window.then_some(capacity / 500),
            ttl_range,
        };
        scenario.work = Work::Reservations(estimates);
        scenario.subjects = subjects(&scenario, estimates, &mut rng);
        scenario.ceiling = rng.chance(250).then(|| {
            let subjects = scenario.subjects.len() as u64;
            let count = scenario.spec.count * subjects * 7 / 10;
            Spec::new(scenario.spec.algorithm, count.max(1), scenario.spec.window.length())
        });
        let window = if long_window { Nanos::ZERO } else { scenario.spec.window.length() };
        let drains = window.plus(window).plus(ttl_range.1).plus(ttl_range.1);
        scenario.schedule_with_rests(drains.plus(Nanos::from_secs(3)), &mut rng);
        scenario
    }
}

/// Windows of a few seconds.
fn short_window(rng: &mut Rng) -> Spec {
    let algorithm = rng.pick(&Algorithm::ALL);
    let window = Nanos::from_millis(rng.pick(&[1_000, 2_000, 3_000]));
    let count = match rng.below(4) {
        0 => rng.between(5, 30),
        _ => rng.between(60, 2_000),
    };
    let mut spec = Spec::new(algorithm, count, window);
    if algorithm.takes_burst() && rng.chance(500) {
        spec.burst = Some(rng.between(count / 2 + 1, 2 * count));
    }
    spec
}

/// From half to three times the capacity or the inflow.
fn subjects(scenario: &Scenario, estimates: ReservationWork, rng: &mut Rng) -> Vec<SimSubject> {
    let open = scenario.limit(0).capacity() / estimates.max_estimate.div_ceil(2).max(1);
    let mean_ttl = estimates.ttl_range.0.plus(estimates.ttl_range.1).get() / 2;
    let turns_over = match estimates.max_used_in_long_window {
        Some(_) => mean_ttl,
        None => scenario.spec.window.length().get(),
    };
    let load = rng.between(5, 30);
    let mean_interval = turns_over / open.max(1) * 10 / load;
    let subjects = 0..rng.between(1, 3);
    let subject = |_| SimSubject {
        mean_interval: Nanos::new(mean_interval),
        routing: rng.pick(&[Routing::Spread, Routing::Spread, Routing::Skewed, Routing::Rotating]),
        arrivals: ArrivalPattern::Steady,
    };
    subjects.map(subject).collect()
}
