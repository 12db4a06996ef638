//! A rate as written in the rules, before it is compiled to integers.

use std::fmt;
use std::sync::Arc;

use crate::units::{Nanos, Tick};

crate::named_enum! {
    /// How requests are counted against a rate.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Algorithm {
        /// One count per aligned window.
        FixedWindow = "fixed-window",
        /// Every admission remembered for one window.
        SlidingLog = "sliding-log",
        /// Two counts, the older one weighted.
        SlidingWindow = "sliding-window",
        /// Eleven counts, never over the limit in any window.
        SlidingWindowStrict = "sliding-window-strict",
        /// Tokens that refill up to a burst.
        TokenBucket = "token-bucket",
        /// The same arithmetic, described as water in a bucket.
        LeakyBucket = "leaky-bucket",
        /// A queue that releases at a constant rate.
        LeakyQueue = "leaky-queue",
    }
}

impl Algorithm {
    /// The algorithm with this name in a rules file.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Whether it has a burst.
    pub const fn takes_burst(self) -> bool {
        match self {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => true,
            Algorithm::FixedWindow
            | Algorithm::SlidingWindow
            | Algorithm::SlidingWindowStrict
            | Algorithm::SlidingLog => false,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The maximum size of a limit's products.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// Unsigned 64-bit integers with a bit to spare.
    Memory,
    /// Floating-point numbers of 64 bits, exact up to 2^53: the arithmetic of a store that computes with them.
    Double,
}

impl Precision {
    pub(crate) const fn ceiling(self) -> u128 {
        match self {
            Precision::Memory => 1 << 63,
            Precision::Double => 1 << 53,
        }
    }

    /// The ticks that can hold a date: nanoseconds since the Unix epoch do not fit a double.
    pub(super) fn ticks(self) -> &'static [Tick] {
        match self {
            Precision::Memory => &Tick::ALL,
            Precision::Double => &[Tick::Micro, Tick::Milli],
        }
    }
}

/// The span a count refers to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Window {
    /// A span of time. For a fixed window it is aligned to the epoch.
    Span(Nanos),
    /// Equal windows that begin `phase` before the multiples of `width`, for UTC weeks.
    Shifted {
        /// The length of every window.
        width: Nanos,
        /// How much earlier than the Unix epoch the grid begins.
        phase: Nanos,
    },
    /// Calendar edges in ascending order, for months and for days of a time zone. `nominal` is the length that a
    /// client receives.
    Edges {
        /// The edges.
        edges: Arc<[Nanos]>,
        /// The length to report.
        nominal: Nanos,
    },
}

impl Window {
    /// The length of the window, for display and headers.
    pub fn length(&self) -> Nanos {
        match self {
            Window::Span(width) | Window::Shifted { width, .. } => *width,
            Window::Edges { nominal, .. } => *nominal,
        }
    }
}

/// A rate as written in the rules, before it is compiled.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Spec {
    /// How it is counted.
    pub algorithm: Algorithm,
    /// Units per window.
    pub count: u64,
    /// The window.
    pub window: Window,
    /// Capacity of a bucket or queue; `count` if absent.
    pub burst: Option<u64>,
    /// Fixed window: the margin before an edge whose charges count on both sides of it.
    pub guard: Nanos,
    /// Fixed window: whether each subject has its own edges.
    pub stagger: bool,
    /// Queue: the longest delay, if shorter than the queue itself allows.
    pub max_delay: Option<Nanos>,
    /// The maximum time that leased units may stay unused; `None` if no lease may be drawn.
    pub lease_ttl: Option<Nanos>,
}

impl Spec {
    /// `count` per `window`, with defaults for all else.
    pub fn new(algorithm: Algorithm, count: u64, window: Nanos) -> Self {
        Spec {
            algorithm,
            count,
            window: Window::Span(window),
            burst: None,
            guard: Nanos::ZERO,
            stagger: false,
            max_delay: None,
            lease_ttl: None,
        }
    }

    /// The same with a burst.
    #[must_use]
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }
}

/// Why a rate cannot be compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// A count or burst of zero.
    #[error("a count of 0 would deny every request")]
    Zero,
    /// A window of no length, or one that is not a whole number of milliseconds where it must be.
    #[error("the window cannot be computed exactly")]
    Inexact,
    /// More than a counter can hold.
    #[error("the count is above {max}")]
    TooMany {
        /// The largest count that works.
        max: u64,
    },
    /// A window algorithm with a burst, or another parameter that it does not have.
    #[error("a window algorithm has no burst; leave the burst out")]
    BurstOnWindow,
    /// A burst too small for the reduction that leases need.
    #[error("a burst below {least} leaves no units to lease; write {least} or more")]
    BurstBelowLeases {
        /// The smallest burst that works.
        least: u64,
    },
    /// A log or a queue: leased units have no place in their order.
    #[error("a sliding log or a leaky queue cannot be leased; use another algorithm")]
    NotLeasable,
}

/// The maximum count of a window: twice that must fit a 32-bit counter, because debt is kept.
pub(super) const MAX_PER_WINDOW: u64 = (u32::MAX / 2) as u64;
