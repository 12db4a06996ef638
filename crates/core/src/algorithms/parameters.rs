//! The integers of a limit: the input of a store that computes by itself, and the description inside a stored record.
//!
//! A limit for doubles must be compiled with [`Precision::Double`]; any other is rejected here rather than computed
//! inexactly. The tag is a hash of the integers alone, written out below, so that every build of every node gives a
//! limit the same tag.
//!
//! [`Precision::Double`]: super::Precision::Double

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::bucket::Bucket;
use super::fixed_window::FixedWindow;
use super::limit::AnyMeter;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::strict_window::StrictWindow;
use super::window_grid::WindowGrid;
use super::{Algorithm, Limit};
use crate::units::{Nanos, Tick};

/// A limit as integers, in its own ticks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parameters {
    /// A level that drains.
    Bucket {
        /// Units of one token.
        per_token: u64,
        /// Units that drain in a tick.
        per_tick: u64,
        /// Tokens it holds.
        tokens: u64,
        /// A queue: the maximum delay, in ticks.
        max_delay: Option<u64>,
    },
    /// Fixed windows of one width.
    Fixed {
        /// Units per window.
        limit: u64,
        /// Its length.
        width: u64,
        /// How far windows begin before a multiple of their width.
        phase: u64,
        /// The margin whose charges count on both sides of an edge.
        guard: u64,
    },
    /// Fixed windows between the edges of a calendar.
    Calendar {
        /// Units per window.
        limit: u64,
        /// The margin whose charges count on both sides of an edge.
        guard: u64,
        /// Where windows begin, ascending.
        edges: Arc<[Nanos]>,
    },
    /// Two counters.
    Sliding {
        /// Units per window.
        limit: u64,
        /// Its length.
        width: u64,
    },
    /// Sub-windows.
    Strict {
        /// Units per window.
        limit: u64,
        /// The length of a sub-window.
        sub_window: u64,
    },
    /// A log.
    Log {
        /// Units per window.
        limit: u64,
        /// Its length.
        width: u64,
        /// The multiple that stamps are rounded up to.
        grain: u64,
    },
}

/// Times beyond this are not exact in a double.
const MAX_DOUBLE_TIME: u64 = 1 << 52;

impl Limit {
    /// Its integers.
    pub fn parameters(&self) -> Parameters {
        match &self.meter {
            AnyMeter::Bucket(bucket) => Parameters::Bucket {
                per_token: bucket.per_token,
                per_tick: bucket.per_tick,
                tokens: bucket.tokens,
                max_delay: bucket.max_delay_ticks,
            },
            AnyMeter::Fixed(window) => match &window.grid {
                WindowGrid::Aligned { width, phase } => {
                    Parameters::Fixed { limit: window.limit, width: *width, phase: *phase, guard: window.guard }
                }
                WindowGrid::Edges { edges, .. } => {
                    Parameters::Calendar { limit: window.limit, guard: window.guard, edges: Arc::clone(edges) }
                }
            },
            AnyMeter::Sliding(window) => Parameters::Sliding { limit: window.limit, width: window.width },
            AnyMeter::Strict(window) => Parameters::Strict { limit: window.limit, sub_window: window.sub_window },
            AnyMeter::Log(log) => Parameters::Log { limit: log.limit, width: log.width, grain: log.grain },
        }
    }

    /// Whether arithmetic in doubles gives exactly the same results.
    pub fn is_exact_in_doubles(&self) -> bool {
        let exact = |product: u128| product < 1 << 53;
        let wide = |a: u64, b: u64, times: u128| exact(u128::from(a) * u128::from(b) * times);
        self.tick != Tick::Nano
            && match self.parameters() {
                Parameters::Bucket { per_token, per_tick, tokens, .. } => {
                    wide(tokens, per_token, 2) && exact(u128::from(per_tick))
                }
                Parameters::Fixed { width, guard, .. } => width < MAX_DOUBLE_TIME / 2 && guard < MAX_DOUBLE_TIME / 2,
                Parameters::Calendar { guard, .. } => guard < MAX_DOUBLE_TIME / 2,
                Parameters::Sliding { limit, width } => wide(limit, width, 5),
                Parameters::Strict { sub_window, .. } => wide(sub_window, 40, 1),
                Parameters::Log { width, .. } => wide(width, 4, 1),
            }
    }

    /// For the fixed window that ends at tick `end`: the tick it began at, and the end of the next window.
    pub fn windows_around(&self, end: u64) -> Option<(u64, u64)> {
        let AnyMeter::Fixed(window) = &self.meter else { return None };
        Some((window.grid.start_of(end), window.grid.end_of(end)))
    }

    /// The limit under which a record was made, as the record describes it. Only for conversion: a record does not
    /// contain the permitted amount.
    pub fn from_parameters(parameters: &Parameters, tick: Tick) -> Option<Limit> {
        let (meter, algorithm) = match *parameters {
            Parameters::Bucket { per_token, per_tick, tokens, max_delay: _ } if per_token > 0 && per_tick > 0 => {
                let bucket = Bucket { per_token, per_tick, tokens, max_delay_ticks: None };
                (AnyMeter::Bucket(bucket), Algorithm::TokenBucket)
            }
            Parameters::Fixed { limit, width, phase, guard } if width > 0 => {
                let grid = WindowGrid::Aligned { width, phase };
                (AnyMeter::Fixed(FixedWindow { limit, grid, guard }), Algorithm::FixedWindow)
            }
            Parameters::Calendar { limit, guard, ref edges } => {
                let grid = WindowGrid::Edges { edges: Arc::clone(edges), tick };
                (AnyMeter::Fixed(FixedWindow { limit, grid, guard }), Algorithm::FixedWindow)
            }
            Parameters::Sliding { limit, width } if width > 0 => {
                (AnyMeter::Sliding(SlidingWindow { limit, width }), Algorithm::SlidingWindow)
            }
            Parameters::Strict { limit, sub_window } if sub_window > 0 => {
                (AnyMeter::Strict(StrictWindow { limit, sub_window }), Algorithm::SlidingWindowStrict)
            }
            Parameters::Log { limit, width, grain } if grain > 0 => {
                (AnyMeter::Log(SlidingLog { limit, width, grain }), Algorithm::SlidingLog)
            }
            Parameters::Bucket { .. }
            | Parameters::Fixed { .. }
            | Parameters::Sliding { .. }
            | Parameters::Strict { .. }
            | Parameters::Log { .. } => return None,
        };
        Some(Limit::from_meter(meter, tick, algorithm))
    }
}

/// The same 32 bits for the same integers in every build, never zero. `phase` counts only if the window is not
/// staggered by subject.
pub(super) fn tag(parameters: &Parameters, tick: Tick, stagger: bool) -> u32 {
    let mut hasher = SipHasher13::new();
    let mut add = |numbers: &[u64]| {
        for number in numbers {
            hasher.write(&number.to_le_bytes());
        }
    };
    add(&[tick.nanos(), u64::from(stagger)]);
    match *parameters {
        Parameters::Bucket { per_token, per_tick, tokens, max_delay } => {
            add(&[1, per_token, per_tick, tokens, u64::from(max_delay.is_some()), max_delay.unwrap_or(0)]);
        }
        Parameters::Fixed { limit, width, phase, guard } => {
            add(&[2, limit, guard, 1, width, if stagger { 0 } else { phase }]);
        }
        Parameters::Calendar { limit, guard, ref edges } => {
            // Of a long list only the ends and the middle. Calendars that agree there differ in at most a few
            // windows, and confusing them moves at most the end of the present window.
            let count = edges.len();
            let some = [0, count / 2, count.saturating_sub(1)];
            let [a, b, c] = some.map(|at| edges.get(at).map_or(0, |edge| edge.get()));
            add(&[2, limit, guard, 2, count as u64, a, b, c]);
        }
        Parameters::Sliding { limit, width } => add(&[3, limit, width]),
        Parameters::Strict { limit, sub_window } => add(&[4, limit, sub_window]),
        Parameters::Log { limit, width, grain } => add(&[5, limit, width, grain]),
    }
    (hasher.finish() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Precision, Spec};

    fn limit(algorithm: Algorithm, count: u64, precision: Precision) -> Limit {
        let spec = Spec::new(algorithm, count, Nanos::from_secs(60));
        Limit::compile(&spec, precision).unwrap()
    }

    /// Written out, so that a build with other tags fails: its nodes would convert every record that others wrote.
    #[test]
    fn tags_are_the_same_in_every_build() {
        let tags = Algorithm::ALL.map(|algorithm| limit(algorithm, 100, Precision::Double).tag());
        assert_eq!(
            tags,
            [2_831_391_295, 4_155_674_984, 2_626_378_530, 2_205_328_022, 1_154_928_666, 1_154_928_666, 1_440_178_081]
        );
    }

    #[test]
    fn limits_compiled_for_memory_are_not_exact_in_doubles() {
        for algorithm in Algorithm::ALL {
            assert!(limit(algorithm, 100, Precision::Double).is_exact_in_doubles());
            assert!(!limit(algorithm, 100, Precision::Memory).is_exact_in_doubles());
        }
    }

    #[test]
    fn a_limit_can_be_rebuilt_from_its_parameters() {
        for algorithm in Algorithm::ALL {
            let original = limit(algorithm, 100, Precision::Double);
            let rebuilt = Limit::from_parameters(&original.parameters(), original.tick()).unwrap();
            let mut now = Nanos::from_secs(1_000_000);
            let mut state = original.with_used(70, now);
            for _ in 0..5 {
                now = now.plus(Nanos::from_millis(9_300));
                let at = original.advance(&mut state, now);
                let mut same = state.clone();
                let same_at = rebuilt.advance(&mut same, now);
                assert_eq!(same, state, "{algorithm}");
                let used = [original.used(&state, at), rebuilt.used(&same, same_at)];
                assert_eq!(used[0], used[1], "{algorithm}");
            }
        }
    }
}
