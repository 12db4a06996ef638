//! Profiles of the algorithms: use case, memory, accuracy, burst behaviour and worst case.
//!
//! `L` is the count, `W` the window, `B` the burst. The bounds are those the tests and the simulator
//! check; `docs/rules.md` prints this table and a test compares the two.

use tidegate_core::algorithms::Algorithm;

/// The properties of an algorithm that matter for choosing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlgorithmProfile {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The use case that it suits.
    pub suited_for: &'static str,
    /// Memory of one subject in the memory store.
    pub memory: &'static str,
    /// How close the counted rate comes to the written one.
    pub accuracy: &'static str,
    /// Treatment of requests that arrive all at once.
    pub burst: &'static str,
    /// Upper bound on what passes in any span as long as the window.
    pub worst_case: &'static str,
}

impl AlgorithmProfile {
    /// The properties of `algorithm`.
    pub const fn of(algorithm: Algorithm) -> AlgorithmProfile {
        let (suited_for, memory, accuracy, burst, worst_case) = match algorithm {
            Algorithm::FixedWindow => (
                "quotas that people read on a calendar: per day, week or month",
                "one count",
                "exact within its window",
                "the whole count at once, again right after the edge unless `guard` is set",
                "2L around an edge",
            ),
            Algorithm::SlidingLog => (
                "few requests that matter: logins, payments, password resets",
                "8 to 16 bytes for each admitted request, at most 1,000 of them",
                "exact; above a count of 1,000 times are rounded up, never in favour of the client",
                "the whole count at once, then as old requests leave the window",
                "L",
            ),
            Algorithm::SlidingWindow => (
                "most APIs: no burst at the edge of a window, and cheap",
                "two counts",
                "assumes that the last window was even",
                "the whole count at once, then spread over the window",
                "2L - 1",
            ),
            Algorithm::SlidingWindowStrict => (
                "contracts and security limits with counts too large for a log",
                "eleven counts",
                "never over; up to a tenth of the rate is lost to rounding",
                "the whole count at once, then in steps of a tenth of the window",
                "L",
            ),
            Algorithm::TokenBucket => (
                "APIs whose clients come in bursts, where the burst is a choice of its own",
                "one level",
                "exact",
                "B at once, refilled evenly",
                "B + L",
            ),
            Algorithm::LeakyBucket => (
                "the same as token-bucket, described as water that drains",
                "one level",
                "exact",
                "B at once, drained evenly",
                "B + L",
            ),
            Algorithm::LeakyQueue => (
                "work that may wait but must start evenly, in front of something fragile",
                "one level",
                "exact",
                "delayed instead of denied, up to B waiting or `max_delay`",
                "L + 1 started; B + L admitted",
            ),
        };
        AlgorithmProfile { algorithm, suited_for, memory, accuracy, burst, worst_case }
    }
}
