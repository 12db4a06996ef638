//! Runs with several outages in one window, and restarts of nodes between and during them.

use tidegate_core::algorithms::Spec;
use tidegate_core::units::Nanos;

use super::{ArrivalPattern, LAST_REPLIES, LOAD_BEGINS, Routing, Scenario, SimFault, SimSubject, Work};
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

    /// Requests outlast several outages, and clients want far more than the limit and the shares. Otherwise permits
    /// end in an outage as fast as a node that has forgotten its own grants new ones. And permits last longer than a
    /// breaker stays open: after that, the store grants those that another node still renews without it.
    fn permits_with_restarts(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 29);
        let mut scenario = Scenario::permits_with(seed, SimFault::OutagesAndRestarts);
        scenario.clock_skew = Nanos::ZERO;
        if let Work::Permits(permits) = &mut scenario.work {
            permits.lasts = Nanos::from_millis(rng.between(6_000, 9_000));
            permits.mean_session = Nanos::from_millis(rng.between(10_000, 30_000));
            permits.max_session = Nanos::from_secs(20);
            let load = rng.between(100, 400);
            let mean_interval = Nanos::new(permits.mean_session.get() / u64::from(permits.max_open) * 10 / load);
            for subject in &mut scenario.subjects {
                subject.mean_interval = mean_interval;
            }
        }
        scenario.schedule_with_one_period(Nanos::from_secs(12));
        scenario
    }

    /// The length of the last outage: so long that what was admitted before it has drained.
    pub(crate) fn last_outage(&self) -> Nanos {
        let window = self.spec.window.length();
        window.plus(window).plus(Nanos::from_millis(2_500))
    }
}
