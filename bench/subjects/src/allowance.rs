//! What each key is allowed, in terms that every subject can express.

use std::num::NonZeroU32;

/// `count` units per `period_secs`, and at most `burst` at once.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Units that come back in one period.
    pub count: NonZeroU32,
    /// The period in seconds.
    pub period_secs: u32,
    /// Units a rested key may spend at once.
    pub burst: NonZeroU32,
}

impl Allowance {
    /// Admits whatever a run can ask: every decision takes the path that writes state.
    ///
    /// A unit comes back each second, so a key stays live between visits, and the burst outlasts
    /// the longest run on a single key; together they stay far below the range of 64-bit nanoseconds.
    pub const ADMITS_ALL: Allowance = Allowance::new(60, 60, 100_000_000);

    /// Refuses nearly everything. The burst is 2, because `throttlecrab` never refuses at 1.
    pub const DENIES: Allowance = Allowance::new(1, 3_600, 2);

    /// An ordinary limit under which a key that was seen once stays live for over a minute: no
    /// subject can drop it and look smaller.
    pub const ORDINARY: Allowance = Allowance::new(1_000, 86_400, 200);

    const fn new(count: u32, period_secs: u32, burst: u32) -> Self {
        Allowance {
            count: NonZeroU32::new(count).expect("a constant above zero"),
            period_secs,
            burst: NonZeroU32::new(burst).expect("a constant above zero"),
        }
    }
}
