//! The limiters under measurement, by name.

use std::io;

use bench_subjects::{Governor, Limitador, LimiterSubject, Throttlecrab};

use crate::fill::{MILLION, print_samples};

/// Tidegate's name, needed also when it is absent.
pub(crate) const TIDEGATE: &str = "tidegate";
/// The strict sliding window, which keeps sub-buckets.
pub(crate) const TIDEGATE_STRICT: &str = "tidegate, strict window";

/// The rows of the table.
pub(crate) const NAMES: [&str; 5] = [TIDEGATE, TIDEGATE_STRICT, Governor::NAME, Throttlecrab::NAME, Limitador::NAME];

/// Fills the limiter of this name and prints its samples; none when this build does not include it.
pub(crate) fn fill(name: &str, max_keys: usize) -> io::Result<()> {
    match name {
        TIDEGATE => print_samples::<bench_subjects::Tidegate>(max_keys),
        TIDEGATE_STRICT => print_samples::<bench_subjects::TidegateStrict>(max_keys),
        Governor::NAME => print_samples::<Governor>(max_keys),
        Throttlecrab::NAME => print_samples::<Throttlecrab>(max_keys),
        // Over a kilobyte and eight microseconds for each key: a fifth of the keys shows enough.
        Limitador::NAME => print_samples::<Limitador>((max_keys / 5).max(MILLION)),
        _ => Ok(()),
    }
}
