//! Runs in which the store is healthy and its replies are late.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::{ArrivalPattern, LAST_REPLIES, LOAD_BEGINS, Routing, Scenario, SimFault, SimSubject};
use crate::rng::Rng;

impl Scenario {
    /// The run of `seed` with late replies.
    pub fn late_replies(seed: u64) -> Self {
        let faults = SimFault::LATENESS;
        Scenario::late_replies_with(seed, faults[(seed % faults.len() as u64) as usize])
    }

    /// The same with the given fault.
    pub fn late_replies_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 17);
        let mut scenario = Scenario::with_fault(seed, fault);
        let window = Nanos::from_millis(rng.pick(&[1_000, 2_000, 3_000]));
        let count = rng.pick(&[20, 60, 150]);
        scenario.spec = Spec::new(rng.pick(&Algorithm::ALL), count, window);
        scenario.ceiling = None;
        scenario.on_failure = OnStoreFailure::Local;
        scenario.nodes = rng.between(2, 6) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25]));
        scenario.late_per_mille = rng.pick(&[10, 100, 500, 1_000]);
        let load = rng.between(5, 40);
        scenario.subjects = vec![SimSubject {
            mean_interval: Nanos::new(window.get() / count * 10 / load),
            routing: rng.pick(&[Routing::Spread, Routing::Spread, Routing::Skewed]),
            arrivals: match rng.below(3) {
                // A surge on a counter that nodes have not seen, or hardly seen.
                0 => ArrivalPattern::Surges(4 * count, Nanos::from_millis(rng.between(600, 2_500))),
                _ => ArrivalPattern::Steady,
            },
        }];
        // In half of the runs replies are late from the first request on.
        scenario.fault_begins = Nanos::from_millis(rng.pick(&[650, 2_600]));
        let lasts = rng.between(3_000, 6_000);
        scenario.fault_ends = scenario.fault_begins.plus(Nanos::from_millis(lasts));
        let recovery = Nanos::new(2 * window.get()).plus(Nanos::from_millis(3_000));
        scenario.ends = scenario.fault_ends.plus(recovery);
        scenario.load_periods = vec![(LOAD_BEGINS, scenario.ends.since(LAST_REPLIES))];
        scenario
    }
}
