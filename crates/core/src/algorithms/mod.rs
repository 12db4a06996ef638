//! The seven algorithms as pure functions over small integer state.
//!
//! A [`Limit`] is one rate compiled to integers; a [`CounterState`] is the stored state of one subject under it. Every
//! use has the same steps: [`Limit::advance`] brings a state to the present, [`Limit::judge`] checks whether a cost
//! fits, [`Limit::spend`] charges it, [`Limit::figures`] computes what is left. A denial has no state to write back,
//! so it cannot charge. Algorithms know nothing of keys, rules or clocks.
//!
//! Invariant: time never runs backwards for a state. On a small backward step of the clock the state stands still. On
//! a step of more than [`CLOCK_TOLERANCE`] the stored times move to the present, the counts stay, and the step is
//! reported.

mod bucket;
mod convert;
mod fast_path;
mod fixed_window;
mod lease;
mod limit;
mod metered;
mod parameters;
mod share;
mod sliding_log;
mod sliding_window;
mod spec;
mod strict_window;
mod window_grid;

pub use bucket::BucketState;
pub use fast_path::{FastOutcome, MaybeFigures, TwoWordState};
pub use fixed_window::FixedState;
pub use limit::{CounterState, Limit};
pub use parameters::Parameters;
pub use share::Division;
pub use sliding_log::{LogEntry, LogState, MAX_LOG_ENTRIES};
pub use sliding_window::SlidingState;
pub use spec::{Algorithm, Precision, Spec, SpecError, Window};
pub use strict_window::{StrictState, TRACKED_SUB_WINDOWS};

use std::time::Duration;

use crate::units::{Cost, Nanos};

/// How far stored time may lie ahead of the clock before it is moved back.
pub const CLOCK_TOLERANCE: Nanos = Nanos::from_secs(5);

/// Whether a cost fits now, and if not, when.
#[must_use = "a denied request is not to pass"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It fits. A queue may require a delay before the work starts; all other algorithms have none.
    Allow {
        /// How long to wait before the work may start.
        delay: Nanos,
    },
    /// It does not fit. There is no state to write back.
    Deny {
        /// When to retry.
        retry: Retry,
    },
}

impl Verdict {
    /// Whether the cost fits.
    pub const fn allows(self) -> bool {
        matches!(self, Verdict::Allow { .. })
    }

    /// When a denied cost would fit; `None` if it fits now or never will.
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Verdict::Deny { retry: Retry::After(wait) } => Some(wait.duration()),
            Verdict::Deny { retry: Retry::Never } | Verdict::Allow { .. } => None,
        }
    }
}

/// When a denied cost would fit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Retry {
    /// After the smallest wait that suffices if no other request is charged meanwhile.
    After(Nanos),
    /// It is larger than the limit can ever hold.
    Never,
}

/// The figures of a limit that a client receives: always true at the moment of reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// The largest cost that would fit now.
    pub remaining: u64,
    /// The time until the state is equivalent to a fresh one.
    pub reset_after: Nanos,
    /// The time until more than `remaining` would fit; zero when the full capacity is available.
    pub more_after: Nanos,
}

/// The present as one state sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    now: Nanos,
    advanced: Advanced,
}

impl Moment {
    /// Whether stored time was so far ahead that it had to be set back: worth an alarm.
    ///
    /// The state must then be written back even if the request is denied, the only write of a denial. Otherwise every
    /// request finds the same future time, moves it to its own present with nothing drained, and is denied until that
    /// future comes.
    pub const fn stepped_back(&self) -> bool {
        self.advanced.stepped
    }
}

/// The tick of a state after [`Meter::advance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Advanced {
    tick: u64,
    stepped: bool,
}

impl Advanced {
    const fn at(tick: u64) -> Self {
        Advanced { tick, stepped: false }
    }

    /// The clock reads earlier than the state: time stands still until it catches up.
    const fn frozen_at(tick: u64) -> Self {
        Advanced::at(tick)
    }

    /// The state was too far ahead and has been moved.
    const fn stepped_to(tick: u64) -> Self {
        Advanced { tick, stepped: true }
    }
}

/// A verdict in absolute ticks. Absolute, so that the wait reported to a client is exact to the nanosecond whatever
/// the tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TickWait {
    /// Fits now.
    None,
    /// Admitted now, to start at this tick.
    Delayed(u64),
    /// Fits from this tick on.
    Until(u64),
    /// Fits never.
    Never,
}

impl TickWait {
    /// Whether the cost fits now.
    #[inline]
    const fn fits(self) -> bool {
        matches!(self, TickWait::None | TickWait::Delayed(_))
    }
}

/// The operations of each algorithm, in its own ticks. `tick` is always the one that `advance` returned.
pub(crate) trait Meter {
    type State;

    /// The largest cost that can ever fit.
    fn capacity(&self) -> u64;
    /// The state of a subject never seen.
    fn fresh(&self, tick: u64) -> Self::State;
    /// Lets time pass up to `tick`. A state at most `tolerance` ticks ahead stands still.
    fn advance(&self, state: &mut Self::State, tick: u64, tolerance: u64) -> Advanced;
    /// Whether `cost` fits now, or when it will.
    fn wait(&self, state: &Self::State, tick: u64, cost: Cost) -> TickWait;
    /// The largest cost that fits.
    fn remaining(&self, state: &Self::State, tick: u64) -> u64;
    /// The first tick at which the state is equivalent to a fresh one.
    fn fresh_at(&self, state: &Self::State, tick: u64) -> u64;
    /// Charges `units`, even beyond the limit; debt is kept up to twice the capacity.
    fn spend(&self, state: &mut Self::State, tick: u64, units: u64);
    /// Refunds `units` charged at tick `charged`, as far as that cannot break the bound.
    fn refund(&self, state: &mut Self::State, tick: u64, charged: u64, units: u64);
    /// Units in use, rounded up.
    fn used(&self, state: &Self::State, tick: u64) -> u64;
    /// A state in which `used` units have just been charged.
    fn with_used(&self, tick: u64, used: u64) -> Self::State {
        let mut state = self.fresh(tick);
        self.spend(&mut state, tick, used);
        state
    }
    /// Merges another state of the same subject, by maximum.
    fn merge(&self, state: &mut Self::State, other: &Self::State, tick: u64);
}

/// A count with `units` more, at most twice `limit` (debt beyond that is not kept).
fn add_clamped(count: u32, units: u64, limit: u64) -> u32 {
    let sum = u64::from(count).saturating_add(units);
    u32::try_from(sum.min(2 * limit)).unwrap_or(u32::MAX)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
