//! The error of the two counters of a sliding window under traffic that does not exploit them. The figures of
//! `docs/algorithms.md` come from here and are asserted, so that they stay true. To see the table: `cargo test -p
//! tidegate-core --test algorithms measured -- --nocapture`.

use tidegate_core::algorithms::{Algorithm, BucketState, FixedState, LogEntry, SlidingState, Spec, StrictState};
use tidegate_core::invariants::{Admission, busiest};
use tidegate_core::units::Nanos;

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::TraceRng;

const LIMIT: u64 = 100;
const WINDOW: Nanos = Nanos::from_secs(60);
const STEPS_PER_WINDOW: u64 = 10_000;
const WINDOWS: u64 = 400;

/// The results of one run.
struct Measurement {
    admitted: u64,
    /// The error of the estimates against the exact count, on average and at worst, in units.
    mean_error: f64,
    worst_error: u64,
    busiest: u64,
}

/// Runs one algorithm. A log records the same admissions and has the exact count.
fn run(algorithm: Algorithm, arrivals: &[Nanos]) -> Measurement {
    let limiter = LimitCase::new(Spec::new(algorithm, LIMIT, WINDOW));
    let truth = LimitCase::new(Spec::new(Algorithm::SlidingLog, LIMIT, WINDOW));
    let (mut limiter, mut truth) = (ShippedLimiter::new(&limiter.limit), ShippedLimiter::new(&truth.limit));
    let mut history = Vec::new();
    let (mut sum, mut worst) = (0, 0);
    for at in arrivals {
        let (estimate, exact) = (used(&limiter, *at), used(&truth, *at));
        sum += estimate.abs_diff(exact);
        worst = worst.max(estimate.abs_diff(exact));
        if limiter.remaining(*at) > 0 {
            limiter.spend(*at, cost(1));
            truth.spend(*at, cost(1));
            history.push(Admission { at: *at, units: 1 });
        }
    }
    Measurement {
        admitted: history.len() as u64,
        mean_error: sum as f64 / arrivals.len() as f64,
        worst_error: worst,
        busiest: busiest(&history, WINDOW),
    }
}

fn used(subject: &ShippedLimiter, now: Nanos) -> u64 {
    let (state, at) = subject.at(now);
    subject.limit.used(&state, at)
}

/// Independent arrivals, `load` percent of the limit on average; in clumps of `clump` requests.
fn traffic(load: u64, clump: u64) -> Vec<Nanos> {
    let mut rng = TraceRng::new(load * 1_000 + clump);
    let step = WINDOW.get() / STEPS_PER_WINDOW;
    let one_in = STEPS_PER_WINDOW * 100 * clump;
    let mut arrivals = Vec::new();
    for i in 0..WINDOWS * STEPS_PER_WINDOW {
        if rng.below(one_in) < LIMIT * load {
            let at = Nanos::new(i * step);
            arrivals.extend(std::iter::repeat_n(at, clump as usize));
        }
    }
    arrivals
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// The limit is 100, so units are percent of it.
#[test]
fn measured_error_of_the_sliding_window_under_honest_traffic() {
    println!("load  clump  mean error  worst error  busiest window  admitted, of the log's");
    for (clump, max_mean_error, max_busiest) in [(1, 5.0, 120), (10, 9.0, 160)] {
        for load in [50, 80, 100, 120, 200, 400] {
            let arrivals = traffic(load, clump);
            let window = run(Algorithm::SlidingWindow, &arrivals);
            let log = run(Algorithm::SlidingLog, &arrivals);
            let share = percent(window.admitted, log.admitted);
            println!(
                "{load:>3}%  {clump:>5}  {:>9.1}%  {:>10}%  {:>13}%  {share:>20.1}%",
                window.mean_error, window.worst_error, window.busiest,
            );
            assert_eq!(log.worst_error, 0, "a log is exact");
            assert!(window.mean_error < max_mean_error);
            assert!(window.busiest <= max_busiest);
            assert!((98.0..104.0).contains(&share), "{share}");
        }
    }
}

#[test]
fn measured_throughput_of_the_strict_window_is_ten_elevenths() {
    let arrivals = traffic(400, 1);
    let strict = run(Algorithm::SlidingWindowStrict, &arrivals);
    let log = run(Algorithm::SlidingLog, &arrivals);
    let share = percent(strict.admitted, log.admitted);
    println!("strict window under four times its limit: {share:.1}% of the log's");
    assert!(strict.busiest <= LIMIT);
    assert!((90.0..92.0).contains(&share), "{share}");
}

#[test]
fn measured_state_is_as_small_as_the_table_says() {
    assert_eq!(size_of::<BucketState>(), 16);
    assert_eq!(size_of::<FixedState>(), 16);
    assert_eq!(size_of::<SlidingState>(), 16);
    assert_eq!(size_of::<StrictState>(), 56);
    assert_eq!(size_of::<LogEntry>(), 16);
}
