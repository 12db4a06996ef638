//! Runs in which costs are known only at the end.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::busy::any_fault;
use super::work::{Estimates, Work};
use super::{Fault, Rhythm, Scenario, Subject, Way};
use crate::rng::Rng;

/// Counts of which nothing drains within a window.
const UNDRAINED: [Algorithm; 3] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
];

/// Longer than a run, and begun long before it.
const LASTING: Nanos = Nanos::from_secs(3_600);

impl Scenario {
    /// The run of `seed` in which estimates are reserved and settled.
    pub fn reserving(seed: u64) -> Self {
        Scenario::reserving_with(seed, any_fault(seed))
    }

    /// The same with a fault of choice.
    pub fn reserving_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 17);
        let mut scenario = Scenario::with(seed, fault);
        scenario.nodes = rng.between(2, 5) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25, 250, 250]));
        scenario.lag = Nanos::from_millis(rng.between(20, 400));
        scenario.on_failure = match rng.below(8) {
            0 => OnStoreFailure::Deny,
            _ => OnStoreFailure::Local,
        };
        // A clock that is set hours ahead or back is in another window.
        let lasting = !fault.steps_clock() && rng.chance(450);
        scenario.spec = match lasting {
            true => Spec::new(rng.pick(&UNDRAINED), rng.between(5_000, 50_000), LASTING),
            false => flowing(&mut rng),
        };
        let capacity = scenario.limit(0).capacity();
        let lives = match rng.below(3) {
            0 => (200, 800),
            1 => (500, 2_000),
            _ => (1_000, 4_000),
        };
        let lives = (Nanos::from_millis(lives.0), Nanos::from_millis(lives.1));
        let estimates = Estimates {
            largest: (capacity / rng.between(3, 12)).max(1),
            lasting: lasting.then_some(capacity / 500),
            lives,
        };
        scenario.work = Work::Reserving(estimates);
        scenario.subjects = subjects(&scenario, estimates, &mut rng);
        scenario.ceiling = rng.chance(250).then(|| {
            let subjects = scenario.subjects.len() as u64;
            let count = scenario.spec.count * subjects * 7 / 10;
            Spec::new(
                scenario.spec.algorithm,
                count.max(1),
                scenario.spec.window.length(),
            )
        });
        let window = match lasting {
            true => Nanos::ZERO,
            false => scenario.spec.window.length(),
        };
        let drains = window.plus(window).plus(lives.1).plus(lives.1);
        scenario.rest_between(drains.plus(Nanos::from_secs(3)), &mut rng);
        scenario
    }
}

/// Windows of a few seconds.
fn flowing(rng: &mut Rng) -> Spec {
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

/// From half to three times as much as may be open at once, or flows in.
fn subjects(scenario: &Scenario, estimates: Estimates, rng: &mut Rng) -> Vec<Subject> {
    let open = scenario.limit(0).capacity() / estimates.largest.div_ceil(2).max(1);
    let mean_life = estimates.lives.0.plus(estimates.lives.1).get() / 2;
    let turns_over = match estimates.lasting {
        Some(_) => mean_life,
        None => scenario.spec.window.length().get(),
    };
    let load = rng.between(5, 30);
    let every = turns_over / open.max(1) * 10 / load;
    let subjects = 0..rng.between(1, 3);
    let subject = |_| Subject {
        every: Nanos::new(every),
        way: rng.pick(&[Way::Spread, Way::Spread, Way::Skewed, Way::Wandering]),
        rhythm: Rhythm::Steady,
    };
    subjects.map(subject).collect()
}
