//! Runs in which the store is healthy and its replies are late.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::{Fault, LAST_ANSWERS, LOAD_BEGINS, Rhythm, Scenario, Subject, Way};
use crate::rng::Rng;

impl Scenario {
    /// The run of `seed` with a kind of lateness.
    pub fn late(seed: u64) -> Self {
        let faults = Fault::OF_LATENESS;
        Scenario::late_with(seed, faults[(seed % faults.len() as u64) as usize])
    }

    /// The same with a fault of choice.
    pub fn late_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 17);
        let mut scenario = Scenario::with(seed, fault);
        let window = Nanos::from_millis(rng.pick(&[1_000, 2_000, 3_000]));
        let count = rng.pick(&[20, 60, 150]);
        scenario.spec = Spec::new(rng.pick(&Algorithm::ALL), count, window);
        scenario.ceiling = None;
        scenario.on_failure = OnStoreFailure::Local;
        scenario.nodes = rng.between(2, 6) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25]));
        scenario.late_per_mille = rng.pick(&[10, 100, 500, 1_000]);
        let load = rng.between(5, 40);
        scenario.subjects = vec![Subject {
            every: Nanos::new(window.get() / count * 10 / load),
            way: rng.pick(&[Way::Spread, Way::Spread, Way::Skewed]),
            rhythm: match rng.below(3) {
                // A storm on a counter that nobody has seen, or has seen little of.
                0 => Rhythm::Surges(4 * count, Nanos::from_millis(rng.between(600, 2_500))),
                _ => Rhythm::Steady,
            },
        }];
        // Half of the runs are late from the first request on.
        scenario.begins = Nanos::from_millis(rng.pick(&[650, 2_600]));
        let lasts = rng.between(3_000, 6_000);
        scenario.clears = scenario.begins.plus(Nanos::from_millis(lasts));
        let settle = Nanos::new(2 * window.get()).plus(Nanos::from_millis(3_000));
        scenario.ends = scenario.clears.plus(settle);
        scenario.bouts = vec![(LOAD_BEGINS, scenario.ends.since(LAST_ANSWERS))];
        scenario
    }
}
