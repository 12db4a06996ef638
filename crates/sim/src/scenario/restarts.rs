//! Runs with several outages in one window, and restarts of nodes between and during them.

use tidegate_core::algorithms::Spec;
use tidegate_core::units::Nanos;

use super::{ArrivalPattern, LAST_REPLIES, LOAD_BEGINS, Routing, Scenario, SimFault, SimSubject};
use crate::rng::Rng;

impl Scenario {
    /// The run of `seed` with restarts. In a third of the runs clients hold permits.
    pub fn restarts(seed: u64) -> Self {
        if seed % 3 == 2 { Scenario::permits_with_restarts(seed) } else { Scenario::checks_with_restarts(seed) }
    }

    fn checks_with_restarts(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 23);
        let mut scenario = Scenario::with_fault(seed, SimFault::OutagesAndRestarts);
        // Long enough for two or three outages.
        let window = Nanos::from_millis(rng.pick(&[4_000, 6_000, 8_000]));
        for spec in [Some(&mut scenario.spec), scenario.ceiling.as_mut()].into_iter().flatten() {
            let longer = Spec::new(spec.algorithm, spec.count, window);
            *spec = if let Some(burst) = spec.burst { longer.burst(burst) } else { longer };
        }
        for subject in &mut scenario.subjects {
            let load = rng.between(10, 40);
            *subject = SimSubject {
                mean_interval: Nanos::new(window.get() / scenario.spec.count * 10 / load),
                routing: rng.pick(&[Routing::Spread, Routing::Sticky, Routing::Rotating, Routing::Skewed]),
                arrivals: ArrivalPattern::Steady,
            };
        }
        // A node that starts in an outage has only its own clock.
        scenario.clock_skew = Nanos::ZERO;
        let windows = |count: u64| Nanos::new(count * window.get());
        scenario.fault_ends = scenario.fault_begins.plus(windows(rng.between(2, 3))).plus(scenario.last_outage());
        scenario.ends = scenario.fault_ends.plus(windows(3)).plus(Nanos::from_secs(9));
        scenario.load_periods = vec![(LOAD_BEGINS, scenario.ends.since(LAST_REPLIES))];
        scenario
    }

    fn permits_with_restarts(seed: u64) -> Self {
        let mut scenario = Scenario::permits_with(seed, SimFault::OutagesAndRestarts);
        scenario.clock_skew = Nanos::ZERO;
        scenario.schedule_with_one_period(Nanos::from_secs(12));
        scenario
    }

    /// The length of the last outage: so long that what was admitted before it has drained.
    pub(crate) fn last_outage(&self) -> Nanos {
        let window = self.spec.window.length();
        window.plus(window).plus(Nanos::from_millis(2_500))
    }
}
