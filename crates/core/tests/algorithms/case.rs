//! Random limits: every algorithm, precision and tick, counts from one to the maximum, windows from a nanosecond to a
//! year, bursts, guards, staggered and calendar windows.

use std::sync::Arc;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::units::Nanos;

use crate::rng::TraceRng;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// An ordinary date.
pub(crate) const TODAY: u64 = 1_794_700_000 * SECOND;

/// A limit and its spec.
#[derive(Clone, Debug)]
pub(crate) struct LimitCase {
    pub(crate) spec: Spec,
    pub(crate) precision: Precision,
    pub(crate) limit: Limit,
    /// The seed of a staggered subject.
    pub(crate) seed: Option<u64>,
    /// The start of a trace.
    pub(crate) start: Nanos,
}

impl LimitCase {
    /// A limit with the defaults of most tests.
    pub(crate) fn new(spec: Spec) -> Self {
        let precision = Precision::Memory;
        let limit = Limit::compile(&spec, precision).expect("the rate of the test compiles");
        LimitCase { spec, precision, limit, seed: None, start: Nanos::new(TODAY) }
    }

    /// Any limit of one algorithm.
    pub(crate) fn random(rng: &mut TraceRng, algorithm: Algorithm) -> Self {
        let start = start(rng);
        loop {
            let spec = spec(rng, algorithm, start);
            let precision = rng.pick(&[Precision::Memory, Precision::Double]);
            if let Ok(limit) = Limit::compile(&spec, precision) {
                let aligned = !matches!(spec.window, Window::Edges { .. });
                let seed = (spec.stagger && aligned).then(|| rng.next());
                let limit = seed.map_or(limit.clone(), |seed| limit.for_subject(seed));
                return LimitCase { spec, precision, limit, seed, start };
            }
        }
    }

    pub(crate) fn width(&self) -> u64 {
        self.spec.window.length().get()
    }
}

fn start(rng: &mut TraceRng) -> Nanos {
    Nanos::new(match rng.below(4) {
        0 => rng.below(3),
        1 => rng.below(100 * SECOND),
        2 => TODAY + rng.below(400 * DAY),
        _ => TODAY,
    })
}

fn spec(rng: &mut TraceRng, algorithm: Algorithm, start: Nanos) -> Spec {
    let mut spec = Spec::new(algorithm, count(rng, algorithm), Nanos::new(width(rng)));
    match algorithm {
        Algorithm::FixedWindow => {
            spec.window = grid(rng, start, spec.window.length());
            spec.stagger = rng.once_in(4);
            if rng.once_in(2) {
                spec.guard = Nanos::new(1 + rng.below(spec.window.length().get()));
            }
            if rng.once_in(16) {
                spec.guard = Nanos::new(2 * spec.window.length().get());
            }
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            spec.burst = burst(rng, spec.count);
            if algorithm == Algorithm::LeakyQueue && rng.once_in(2) {
                let max_delay = rng.below(2 * spec.window.length().get());
                spec.max_delay = Some(Nanos::new(max_delay));
            }
        }
        _ => {}
    }
    spec
}

fn count(rng: &mut TraceRng, algorithm: Algorithm) -> u64 {
    match rng.below(8) {
        0 => 1,
        1..=3 => rng.between(1, 20),
        4 => rng.between(1, 1_000),
        5 => rng.between(1_001, 5_000),
        6 => rng.pick(&[999_983, 1_000_000, 86_400]),
        _ if algorithm.takes_burst() => rng.between(1, 1_000_000_000_000),
        _ => rng.between(1, u64::from(u32::MAX / 2)),
    }
}

fn width(rng: &mut TraceRng) -> u64 {
    match rng.below(6) {
        0 => rng.pick(&[1, 2, 7, 10, 11, 109, 1_000, 1_009, 12_000]),
        1 => rng.pick(&[1_000_000, 1_000_003, 13_000_000, 7_001_000]),
        2 => rng.between(1, 3_600) * SECOND,
        3 => rng.pick(&[DAY, 7 * DAY, 30 * DAY, 365 * DAY]),
        4 => SECOND * rng.pick(&[1, 10, 60]),
        _ => 1_000 * rng.between(1, 100_000_000),
    }
}

fn burst(rng: &mut TraceRng, count: u64) -> Option<u64> {
    match rng.below(5) {
        0 => None,
        1 => Some(1),
        2 => Some(count),
        3 => Some(rng.between(1, 3) * count),
        _ => Some(rng.between(1, 1_000_000)),
    }
}

fn grid(rng: &mut TraceRng, start: Nanos, width: Nanos) -> Window {
    match rng.below(4) {
        0 => Window::Shifted { width, phase: Nanos::new(rng.below(3 * width.get())) },
        1 => {
            // Months of a calendar: uneven, and the trace may run past the last edge.
            let mut at = start.get() / 1_000_000 * 1_000_000;
            let edges: Arc<[Nanos]> = (0..rng.between(1, 30))
                .map(|_| {
                    at += 1_000_000 * rng.between(1, 31);
                    Nanos::new(at)
                })
                .collect();
            Window::Edges { edges, nominal: Nanos::new(30_000_000) }
        }
        _ => Window::Span(width),
    }
}
