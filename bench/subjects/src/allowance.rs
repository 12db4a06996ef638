//! The limit of each key, in terms that every subject supports.

use std::num::NonZeroU32;

/// `count` units per `period_secs`, and at most `burst` at once.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Units refilled in one period.
    pub count: NonZeroU32,
    /// The period in seconds.
    pub period_secs: u32,
    /// Units an idle key may spend at once.
    pub burst: NonZeroU32,
}

impl Allowance {
    /// Admits every request of a run: every decision takes the path that writes state.
    ///
    /// One unit is refilled each second, so a key stays live between visits, and the burst outlasts the
    /// longest run on a single key; together they stay far below the range of 64-bit nanoseconds.
    pub const ADMITS_ALL: Allowance = Allowance::new(60, 60, 100_000_000);

    /// Denies nearly everything. The burst is 2, because `throttlecrab` never denies at 1.
    pub const DENIES: Allowance = Allowance::new(1, 3_600, 2);

    /// An ordinary limit under which a key that was seen once stays live for over a minute: no subject can
    /// drop it and appear smaller.
    pub const ORDINARY: Allowance = Allowance::new(1_000, 86_400, 200);

    const fn new(count: u32, period_secs: u32, burst: u32) -> Self {
        Allowance {
            count: NonZeroU32::new(count).expect("a constant above zero"),
            period_secs,
            burst: NonZeroU32::new(burst).expect("a constant above zero"),
        }
    }
}
