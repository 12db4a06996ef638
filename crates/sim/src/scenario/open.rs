//! Runs in which requests are open for a while and only so many may be.

use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::busy::any_fault;
use super::work::{Places, Work};
use super::{Fault, Rhythm, Scenario, Subject, Way};
use crate::rng::Rng;

impl Scenario {
    /// The run of `seed` in which requests are open for a while.
    pub fn slots(seed: u64) -> Self {
        Scenario::slots_with(seed, any_fault(seed))
    }

    /// The same with a fault of choice.
    pub fn slots_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 19);
        let mut scenario = Scenario::with(seed, fault);
        scenario.nodes = rng.between(2, 5) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25, 250, 250]));
        scenario.lag = Nanos::from_millis(rng.between(20, 400));
        scenario.ceiling = None;
        scenario.on_failure = match rng.below(8) {
            0 => OnStoreFailure::Deny,
            _ => OnStoreFailure::Local,
        };
        let most = match rng.below(3) {
            0 => rng.between(1, 3),
            1 => rng.between(4, 12),
            _ => rng.between(13, 40),
        };
        let lasts = Nanos::from_millis(rng.pick(&[900, 1_500, 3_000, 6_000]));
        let stay = Nanos::from_millis(rng.between(300, 3_000));
        scenario.work = Work::Slots(Places {
            most: most as u32,
            lasts,
            stay,
        });
        // From half to three times as many as there is room for.
        let load = rng.between(5, 30);
        let every = Nanos::new(stay.get() / most * 10 / load);
        let subjects = 0..rng.between(1, 2);
        let subject = |_| Subject {
            every,
            way: rng.pick(&[Way::Spread, Way::Spread, Way::Skewed, Way::Wandering]),
            rhythm: Rhythm::Steady,
        };
        scenario.subjects = subjects.map(subject).collect();
        // Who came last stays for a while, and what it held may have to end by itself.
        let rest = LONGEST_STAY.plus(lasts).plus(Nanos::from_secs(4));
        scenario.rest_between(rest, &mut rng);
        scenario
    }
}

/// Nobody stays longer.
pub(crate) const LONGEST_STAY: Nanos = Nanos::from_secs(6);
