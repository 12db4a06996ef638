//! A rate as it is written, before it is compiled to integers.

use std::fmt;
use std::sync::Arc;

use crate::units::{Nanos, Tick};

/// How requests are counted against a rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// One count per aligned window.
    FixedWindow,
    /// Every admission remembered for one window.
    SlidingLog,
    /// Two counts, the older one weighed.
    SlidingWindow,
    /// Eleven counts, never over the limit in any window.
    SlidingWindowStrict,
    /// Tokens that refill up to a burst.
    TokenBucket,
    /// The same arithmetic told as water in a bucket.
    LeakyBucket,
    /// A queue that releases at a constant rate.
    LeakyQueue,
}

impl Algorithm {
    /// Every algorithm, in the order the documentation has them.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowStrict,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ];

    /// The name a rules file uses.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::SlidingWindowStrict => "sliding-window-strict",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::LeakyBucket => "leaky-bucket",
            Algorithm::LeakyQueue => "leaky-queue",
        }
    }

    /// The algorithm a rules file calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Whether a burst means anything to it.
    pub const fn takes_burst(self) -> bool {
        matches!(
            self,
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue
        )
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How large the products of a limit may grow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// Unsigned 64-bit integers with a bit to spare.
    Memory,
    /// Doubles, exact up to 2^53: what a script in Redis computes with.
    Script,
}

impl Precision {
    pub(crate) const fn ceiling(self) -> u128 {
        match self {
            Precision::Memory => 1 << 63,
            Precision::Script => 1 << 53,
        }
    }

    /// The grains that can hold a date: nanoseconds since the epoch do not fit a double.
    pub(super) fn ticks(self) -> &'static [Tick] {
        match self {
            Precision::Memory => &Tick::ALL,
            Precision::Script => &[Tick::Micro, Tick::Milli],
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
        /// How much earlier than the epoch the grid begins.
        phase: Nanos,
    },
    /// Calendar edges in ascending order, for months and for days of a time zone. `usual` is the
    /// length a client is told.
    Edges {
        /// The edges.
        edges: Arc<[Nanos]>,
        /// The length to report.
        nominal: Nanos,
    },
}

impl Window {
    /// The length of the window, for people and headers.
    pub fn length(&self) -> Nanos {
        match self {
            Window::Span(width) | Window::Shifted { width, .. } => *width,
            Window::Edges { nominal: usual, .. } => *usual,
        }
    }
}

/// A rate as it was written, before it is compiled.
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
    /// Fixed window: the margin charged to both sides of an edge.
    pub guard: Nanos,
    /// Fixed window: whether each subject has its own edges.
    pub stagger: bool,
    /// Queue: the longest delay, if shorter than the queue itself allows.
    pub max_delay: Option<Nanos>,
    /// The longest that units drawn in advance may wait to be used, if any may be drawn.
    pub lease_ttl: Option<Nanos>,
}

impl Spec {
    /// `count` per `window`, all else as usual.
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
    #[error("a count of 0 would refuse everything")]
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
    /// A window algorithm given a burst, or another parameter that means nothing to it.
    #[error("a burst means nothing to a window")]
    BurstOnWindow,
    /// A burst too small to be shortened by what leases may hold.
    #[error("a burst below {least} leaves nothing to lease")]
    BurstBelowLeases {
        /// The smallest burst that works.
        least: u64,
    },
    /// A log or a queue: what is drawn in advance has no place in their order.
    #[error("units of it cannot be drawn in advance")]
    NotLeasable,
}

/// The largest count of a window: twice that must fit a 32-bit counter, because debt is kept.
pub(super) const MAX_PER_WINDOW: u64 = (u32::MAX / 2) as u64;
