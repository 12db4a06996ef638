//! One rate compiled to integers, and the state a store keeps under it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::bucket::{Bucket, BucketState};
use super::fixed_window::{FixedState, FixedWindow};
use super::frame::Frame;
use super::sliding_log::{LogState, SlidingLog};
use super::sliding_window::{SlidingState, SlidingWindow};
use super::strict_window::{StrictState, StrictWindow};
use super::{Figures, Meter, Moment, PATIENCE, Retry, Verdict, Wait};
use crate::units::{Cost, Nanos, Tick};

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
    fn ticks(self) -> &'static [Tick] {
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
        usual: Nanos,
    },
}

impl Window {
    /// The length of the window, for people and headers.
    pub fn length(&self) -> Nanos {
        match self {
            Window::Span(width) | Window::Shifted { width, .. } => *width,
            Window::Edges { usual, .. } => *usual,
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
pub enum Unfit {
    /// A count or burst of zero.
    #[error("a count of 0 would refuse everything")]
    Zero,
    /// A window of no length, or one that is not a whole number of milliseconds where it must be.
    #[error("the window cannot be computed exactly")]
    Inexact,
    /// More than a counter can hold.
    #[error("the count is above {most}")]
    TooMany {
        /// The largest count that works.
        most: u64,
    },
    /// A window algorithm given a burst, or another parameter that means nothing to it.
    #[error("a burst means nothing to a window")]
    BurstOnWindow,
}

/// The largest count of a window: twice that must fit a 32-bit counter, because debt is kept.
pub(crate) const MOST_PER_WINDOW: u64 = (u32::MAX / 2) as u64;

/// One rate, compiled to integers. Only [`Limit::compile`] makes one, so every limit is exact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    pub(super) shape: Shape,
    pub(super) tick: Tick,
    algorithm: Algorithm,
    stagger: bool,
    tag: u32,
    pub(super) per: Nanos,
    pub(super) count: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Shape {
    Bucket(Bucket),
    Fixed(FixedWindow),
    Sliding(SlidingWindow),
    Strict(StrictWindow),
    Log(SlidingLog),
}

/// What a store keeps for one subject under one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Token bucket, leaky bucket, leaky queue.
    Bucket(BucketState),
    /// Fixed window.
    Fixed(FixedState),
    /// Two-counter sliding window.
    Sliding(SlidingState),
    /// Sub-bucket sliding window.
    Strict(StrictState),
    /// Sliding log.
    Log(LogState),
}

/// Runs one expression on the meter and the state that belongs to it.
macro_rules! with {
    ($limit:expr, $state:expr, |$meter:ident, $inner:ident| $run:expr) => {
        match (&$limit.shape, $state) {
            (Shape::Bucket($meter), State::Bucket($inner)) => $run,
            (Shape::Fixed($meter), State::Fixed($inner)) => $run,
            (Shape::Sliding($meter), State::Sliding($inner)) => $run,
            (Shape::Strict($meter), State::Strict($inner)) => $run,
            (Shape::Log($meter), State::Log($inner)) => $run,
            _ => unreachable!("a state is read only under the limit that made or adopted it"),
        }
    };
}

impl Limit {
    /// Compiles a rate with the finest tick that keeps it exact.
    pub fn compile(spec: &Spec, precision: Precision) -> Result<Self, Unfit> {
        let burst = spec.burst.unwrap_or(spec.count);
        if spec.count == 0 || burst == 0 {
            return Err(Unfit::Zero);
        }
        if spec.burst.is_some() && !spec.algorithm.takes_burst() {
            return Err(Unfit::BurstOnWindow);
        }
        if !spec.algorithm.takes_burst() && spec.count > MOST_PER_WINDOW {
            return Err(Unfit::TooMany {
                most: MOST_PER_WINDOW,
            });
        }
        let fitting = precision.ticks().iter().find_map(|tick| {
            let shape = Shape::compile(spec, burst, *tick, precision)?;
            Some((*tick, shape))
        });
        let (tick, shape) = fitting.ok_or(Unfit::Inexact)?;
        let limit = Limit {
            shape,
            tick,
            algorithm: spec.algorithm,
            stagger: spec.stagger,
            tag: 0,
            per: spec.window.length(),
            count: spec.count,
        };
        Ok(limit.tagged())
    }

    /// With the tag of its parameters.
    pub(super) fn tagged(mut self) -> Self {
        self.tag = self.compute_tag();
        self
    }

    /// Tells whether a stored state was made with these very parameters. Never zero.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.tag
    }

    fn compute_tag(&self) -> u32 {
        let mut hasher = SipHasher13::new();
        (&self.shape, self.tick, self.stagger).hash(&mut hasher);
        (hasher.finish() as u32).max(1)
    }

    /// How it is counted.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most a client can ever have at once: the burst, or the count of a window.
    pub fn capacity(&self) -> u64 {
        match &self.shape {
            Shape::Bucket(meter) => Meter::capacity(meter),
            Shape::Fixed(meter) => meter.capacity(),
            Shape::Sliding(meter) => meter.capacity(),
            Shape::Strict(meter) => meter.capacity(),
            Shape::Log(meter) => meter.capacity(),
        }
    }

    /// Units per [`Limit::per`].
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The window the count refers to.
    pub fn per(&self) -> Nanos {
        self.per
    }

    /// The grain in which it reads time.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// A fixed window: the first instant of the one that holds `at`, and the first after it.
    pub fn window_at(&self, at: Nanos) -> Option<(Nanos, Nanos)> {
        let Shape::Fixed(window) = &self.shape else {
            return None;
        };
        let (start, end) = window.frame.bounds(self.tick.floor(at));
        Some((self.tick.start(start), self.tick.start(end)))
    }

    /// A fixed window: the margin that is charged to both sides of an edge. Else zero.
    pub fn guard(&self) -> Nanos {
        match &self.shape {
            Shape::Fixed(window) => self.tick.start(window.guard),
            _ => Nanos::ZERO,
        }
    }

    /// How long an empty limit takes to hold its whole capacity again, for headers.
    pub fn full_window(&self) -> Nanos {
        let whole = u128::from(self.capacity()) * u128::from(self.per.get());
        let span = whole.div_ceil(u128::from(self.count));
        Nanos::new(u64::try_from(span).unwrap_or(u64::MAX))
    }

    /// Whether each subject has windows of its own.
    pub fn is_staggered(&self) -> bool {
        self.stagger
    }

    /// Whether an admitted request may be told to wait.
    pub fn is_queue(&self) -> bool {
        matches!(&self.shape, Shape::Bucket(bucket) if bucket.is_queue())
    }

    /// This limit for one subject: a staggered window begins where the subject's hash puts it.
    pub fn for_subject(&self, seed: u64) -> Limit {
        let mut own = self.clone();
        if let (true, Shape::Fixed(window)) = (self.stagger, &mut own.shape) {
            window.frame = window.frame.staggered(seed);
        }
        own
    }

    /// The same queue for a caller who will not wait longer than `most`. Other limits never delay.
    #[must_use]
    pub fn waiting_at_most(mut self, most: Nanos) -> Limit {
        if let Shape::Bucket(bucket) = &mut self.shape
            && bucket.is_queue()
        {
            *bucket = bucket.queued_at_most(self.tick.floor(most));
        }
        self
    }

    /// A subject never seen.
    #[inline]
    pub fn fresh(&self, now: Nanos) -> State {
        let tick = self.tick.floor(now);
        match &self.shape {
            Shape::Bucket(meter) => State::Bucket(meter.fresh(tick)),
            Shape::Fixed(meter) => State::Fixed(meter.fresh(tick)),
            Shape::Sliding(meter) => State::Sliding(meter.fresh(tick)),
            Shape::Strict(meter) => State::Strict(meter.fresh(tick)),
            Shape::Log(meter) => State::Log(meter.fresh(tick)),
        }
    }

    /// Lets time pass for a state, up to `now`.
    #[inline]
    pub fn advance(&self, state: &mut State, now: Nanos) -> Moment {
        let (tick, patience) = (self.tick.floor(now), self.tick.floor(PATIENCE));
        let settled = with!(self, state, |meter, inner| meter
            .advance(inner, tick, patience));
        Moment { now, settled }
    }

    /// Whether `cost` fits.
    #[inline]
    pub fn judge(&self, state: &State, at: Moment, cost: Cost) -> Verdict {
        let tick = at.settled.tick;
        match with!(self, state, |meter, inner| meter.wait(inner, tick, cost)) {
            Wait::None => Verdict::Allow { delay: Nanos::ZERO },
            Wait::NoneButDelayed(until) => Verdict::Allow {
                delay: self.delay(at, until),
            },
            Wait::Until(until) => Verdict::Deny {
                retry: Retry::After(self.until(at, until)),
            },
            Wait::Never => Verdict::Deny {
                retry: Retry::Never,
            },
        }
    }

    #[inline]
    fn until(&self, at: Moment, tick: u64) -> Nanos {
        self.tick.start(tick).since(at.now)
    }

    /// While time stands still for a queue it stands still for those who wait in it too: the gap to
    /// the clock is no part of their delay, or it could exceed the longest one permitted.
    fn delay(&self, at: Moment, tick: u64) -> Nanos {
        let from = self.tick.start(at.settled.tick).max(at.now);
        self.tick.start(tick).since(from)
    }

    /// Charges `cost` whether it fits or not. Call it only after [`Limit::judge`] allowed, or to
    /// force a debt.
    #[inline]
    pub fn spend(&self, state: &mut State, at: Moment, cost: Cost) {
        let (tick, units) = (at.settled.tick, cost.get());
        with!(self, state, |meter, inner| meter.spend(inner, tick, units));
    }

    /// Gives back `cost` charged at `charged`, as far as that cannot break the bound.
    pub fn refund(&self, state: &mut State, at: Moment, charged: Nanos, cost: Cost) {
        let (tick, charged) = (at.settled.tick, self.tick.floor(charged));
        with!(self, state, |meter, inner| meter.refund(
            inner,
            tick,
            charged,
            cost.get()
        ));
    }

    /// The largest cost that would fit.
    #[inline]
    pub fn remaining(&self, state: &State, at: Moment) -> u64 {
        let tick = at.settled.tick;
        with!(self, state, |meter, inner| meter.remaining(inner, tick))
    }

    /// What a client may be told.
    #[inline]
    pub fn figures(&self, state: &State, at: Moment) -> Figures {
        let remaining = self.remaining(state, at);
        let more = Cost::new(remaining.saturating_add(1)).map(|cost| self.judge(state, at, cost));
        let more_after = match more {
            Some(Verdict::Deny {
                retry: Retry::After(wait),
            }) => wait,
            _ => Nanos::ZERO,
        };
        Figures {
            remaining,
            reset_after: self.fresh_at(state, at).since(at.now),
            more_after,
        }
    }

    /// The instant from which the state cannot be told from a fresh one, and may be forgotten.
    #[inline]
    pub fn fresh_at(&self, state: &State, at: Moment) -> Nanos {
        let tick = at.settled.tick;
        let fresh = with!(self, state, |meter, inner| meter.fresh_at(inner, tick));
        self.tick.start(fresh)
    }

    /// Units in use, rounded up.
    pub fn used(&self, state: &State, at: Moment) -> u64 {
        let tick = at.settled.tick;
        with!(self, state, |meter, inner| meter.used(inner, tick))
    }

    /// Takes the larger of two accounts of one subject, both made with this limit.
    pub fn merge(&self, state: &mut State, other: &State, now: Nanos) {
        let tick = self.tick.floor(now);
        match (&self.shape, state, other) {
            (Shape::Bucket(m), State::Bucket(a), State::Bucket(b)) => m.merge(a, b, tick),
            (Shape::Fixed(m), State::Fixed(a), State::Fixed(b)) => m.merge(a, b, tick),
            (Shape::Sliding(m), State::Sliding(a), State::Sliding(b)) => m.merge(a, b, tick),
            (Shape::Strict(m), State::Strict(a), State::Strict(b)) => m.merge(a, b, tick),
            (Shape::Log(m), State::Log(a), State::Log(b)) => m.merge(a, b, tick),
            _ => unreachable!("a state is read only under the limit that made or adopted it"),
        }
    }
}

impl Shape {
    fn compile(spec: &Spec, burst: u64, tick: Tick, precision: Precision) -> Option<Shape> {
        let whole = |span: Nanos| {
            let exact = span.get() > 0 && span.get().is_multiple_of(tick.nanos());
            exact.then(|| span.get() / tick.nanos())
        };
        if spec.algorithm == Algorithm::FixedWindow {
            let frame = match &spec.window {
                Window::Span(width) => Frame::Aligned {
                    width: whole(*width)?,
                    phase: 0,
                },
                Window::Shifted { width, phase } => Frame::Aligned {
                    width: whole(*width)?,
                    phase: tick.floor(*phase),
                },
                Window::Edges { edges, .. } => Frame::Edges {
                    edges: Arc::clone(edges),
                    tick,
                },
            };
            return Some(Shape::Fixed(FixedWindow {
                limit: spec.count,
                frame,
                guard: spec.guard.get().div_ceil(tick.nanos()),
            }));
        }
        let width = whole(spec.window.length())?;
        let count = spec.count;
        Some(match spec.algorithm {
            Algorithm::FixedWindow => return None,
            Algorithm::SlidingLog => Shape::Log(SlidingLog::new(count, width, precision)?),
            Algorithm::SlidingWindow => {
                Shape::Sliding(SlidingWindow::new(count, width, precision)?)
            }
            Algorithm::SlidingWindowStrict => {
                Shape::Strict(StrictWindow::new(count, width, precision)?)
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Shape::Bucket(Bucket::new(count, width, burst, precision)?)
            }
            Algorithm::LeakyQueue => {
                let max_delay = spec.max_delay.map_or(u64::MAX, |most| tick.floor(most));
                let bucket = Bucket::new(count, width, burst, precision)?;
                Shape::Bucket(bucket.queued_at_most(max_delay))
            }
        })
    }
}
