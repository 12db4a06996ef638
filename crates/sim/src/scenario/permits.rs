//! Runs with long requests and a concurrency limit.

use tidegate_core::store::OnStoreFailure;
use tidegate_core::units::Nanos;

use super::high_load::any_fault;
use super::work::{FINAL_CHECK_DURATION, PermitWork, Work};
use super::{ArrivalPattern, LAST_REPLIES, LOAD_BEGINS, Routing, Scenario, SimFault, SimSubject};
use crate::rng::Rng;

impl Scenario {
    /// The run of `seed` with permits.
    pub fn permits(seed: u64) -> Self {
        Scenario::permits_with(seed, any_fault(seed))
    }

    /// The same with the given fault.
    pub fn permits_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 19);
        let mut scenario = Scenario::with_fault(seed, fault);
        scenario.nodes = rng.between(2, 5) as usize;
        scenario.budget = Nanos::from_millis(rng.pick(&[5, 25, 250, 250]));
        scenario.replica_lag = Nanos::from_millis(rng.between(20, 400));
        scenario.ceiling = None;
        scenario.on_failure = match rng.below(8) {
            0 => OnStoreFailure::Deny,
            _ => OnStoreFailure::Local,
        };
        let max_open = match rng.below(3) {
            0 => rng.between(1, 3),
            1 => rng.between(4, 12),
            _ => rng.between(13, 40),
        };
        let lasts = Nanos::from_millis(rng.pick(&[900, 1_500, 3_000, 6_000, 20_000]));
        let mean_session = Nanos::from_millis(rng.between(300, 3_000));
        scenario.work =
            Work::Permits(PermitWork { max_open: max_open as u32, lasts, mean_session, max_session: MAX_SESSION });
        // From half to three times the limit.
        let load = rng.between(5, 30);
        let mean_interval = Nanos::new(mean_session.get() / max_open * 10 / load);
        let subjects = 0..rng.between(1, 2);
        let subject = |_| SimSubject {
            mean_interval,
            routing: rng.pick(&[Routing::Spread, Routing::Spread, Routing::Skewed, Routing::Rotating]),
            arrivals: ArrivalPattern::Steady,
        };
        scenario.subjects = subjects.map(subject).collect();
        scenario.schedule_with_rests(rest_after(MAX_SESSION, lasts), &mut rng);
        scenario
    }

    /// One load period with the fault in it, and a rest in which all permits expire.
    pub(super) fn schedule_with_one_period(&mut self, fault: Nanos) {
        let Work::Permits(PermitWork { lasts, max_session, .. }) = self.work else {
            return;
        };
        self.fault_ends = self.fault_begins.plus(fault);
        let to = self.fault_ends.plus(Nanos::from_secs(11));
        self.load_periods = vec![(LOAD_BEGINS, to)];
        self.ends = to.plus(rest_after(max_session, lasts)).plus(FINAL_CHECK_DURATION).plus(LAST_REPLIES);
    }
}

/// The last client stays for a while, and its permit may have to expire.
fn rest_after(max_session: Nanos, lasts: Nanos) -> Nanos {
    max_session.plus(lasts).plus(Nanos::from_secs(4))
}

/// The maximum duration of a request.
const MAX_SESSION: Nanos = Nanos::from_secs(6);
