//! The gradient algorithm: how many requests to admit at once, by their latency.
//!
//! When requests take longer than before, the limit falls; while they do not, it grows by a few, which may wait in
//! a short queue. This is Gradient2 of Netflix's concurrency-limits, which takes one sample per request. Pure:
//! durations are arguments. Invariant: the limit is from 20 to 200.
//!
//! The algorithm does not know the latency of an idle backend. Under a load that never pauses the long average
//! learns the queue too, and the limit creeps up by about one in 40 requests.

use tidegate_core::units::Nanos;

/// The initial limit and its minimum: a few requests must pass to learn anything.
const MIN_LIMIT: u32 = 20;
/// The maximum of the limit.
const MAX_LIMIT: u32 = 200;
/// Requests that may wait in a queue at the backend.
const QUEUE: f64 = 4.0;
/// Weight of each new limit.
const SMOOTHING: f64 = 0.2;
/// Number of samples in the long average.
const LONG: f64 = 600.0;
/// Samples of which the long average is the plain mean, so that the first one does not weigh for ever.
const WARM_UP: u32 = 10;

/// A limit that follows the latency of requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gradient {
    limit: f64,
    long: f64,
    samples: u32,
}

impl Default for Gradient {
    fn default() -> Self {
        Gradient { limit: f64::from(MIN_LIMIT), long: 0.0, samples: 0 }
    }
}

impl Gradient {
    /// The number of requests that may be open.
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Records a finished request that took `took`, while `in_flight` were open with it.
    pub fn sample(&mut self, took: Nanos, in_flight: u32) {
        let short = (took.get() as f64).max(1.0);
        self.average(short);
        // After a spike the long average is far too long: the usual latency would look fast.
        if self.long > 2.0 * short {
            self.long *= 0.9;
        }
        // A limit that is not used cannot show whether a higher one would do.
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let gradient = (self.long / short).clamp(0.5, 1.0);
        let next = self.limit * gradient + QUEUE;
        let next = self.limit * (1.0 - SMOOTHING) + next * SMOOTHING;
        self.limit = next.clamp(f64::from(MIN_LIMIT), f64::from(MAX_LIMIT));
    }

    fn average(&mut self, short: f64) {
        if self.samples < WARM_UP {
            self.samples += 1;
            self.long += (short - self.long) / f64::from(self.samples);
        } else {
            let weight = 2.0 / (LONG + 1.0);
            self.long += (short - self.long) * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    proptest! {
        #[test]
        fn the_limit_stays_within_its_bounds_and_moves_in_small_steps(
            samples in prop::collection::vec((any::<u64>(), any::<u32>()), 1..2_000),
        ) {
            let mut gradient = Gradient::default();
            for (took, in_flight) in samples {
                let before = gradient.limit();
                gradient.sample(Nanos::new(took), in_flight);
                prop_assert!((MIN_LIMIT..=MAX_LIMIT).contains(&gradient.limit()));
                // Up by a fraction of the queue, down by a tenth.
                prop_assert!(gradient.limit() <= before + 1);
                prop_assert!(gradient.limit() + 1 >= before - before / 10);
            }
        }

        #[test]
        fn an_idle_limit_neither_grows_nor_falls(took in prop::collection::vec(any::<u64>(), 1..500)) {
            let mut gradient = Gradient::default();
            for took in took {
                gradient.sample(Nanos::new(took), MIN_LIMIT / 2 - 1);
                prop_assert_eq!(gradient.limit(), MIN_LIMIT);
            }
        }
    }

    /// A backend with `capacity` workers, and callers that use the whole limit. A request takes `service`, times
    /// the ratio of open requests to workers if that is above 1.
    struct Backend {
        capacity: u32,
        service: Nanos,
        gradient: Gradient,
    }

    impl Backend {
        fn serve(&mut self, requests: u32) -> u32 {
            for _ in 0..requests {
                let open = self.gradient.limit();
                let queued = open.max(self.capacity);
                let took = self.service.get() * u64::from(queued) / u64::from(self.capacity);
                self.gradient.sample(Nanos::new(took), open);
            }
            self.gradient.limit()
        }
    }

    #[test]
    fn the_limit_finds_the_capacity_falls_with_a_slow_backend_and_comes_back() {
        let mut backend = Backend { capacity: 60, service: MS(10), gradient: Gradient::default() };
        let found = backend.serve(1_000);
        assert!((60..=90).contains(&found), "{found} of 60");
        backend.service = MS(200);
        let slow = backend.serve(100);
        assert!(slow <= 30, "{slow} while it is slow");
        backend.service = MS(10);
        let again = backend.serve(1_000);
        // The rest of the long average is up to twice the usual latency, and so is the limit.
        assert!((60..=120).contains(&again), "{again} of 60");
    }

    /// The trace of a slow phase in the long average is gone soon: otherwise a recovered backend would look fast,
    /// and be flooded.
    #[test]
    fn a_long_average_from_worse_times_is_cut() {
        let mut gradient = Gradient::default();
        for _ in 0..2_000 {
            gradient.sample(MS(1_000), 1);
        }
        for _ in 0..60 {
            gradient.sample(MS(10), 1);
        }
        assert!(gradient.long <= 2.0 * 10e6, "{}", gradient.long);
    }
}
