//! One rate compiled to integers, and the state a store keeps under it.

use std::sync::Arc;

use super::bucket::{Bucket, BucketState};
use super::fixed_window::{FixedState, FixedWindow};
use super::frame::Frame;
use super::lease;
use super::metered::Metered;
use super::sliding_log::{LogState, SlidingLog};
use super::sliding_window::{SlidingState, SlidingWindow};
use super::spec::{Algorithm, MOST_PER_WINDOW, Precision, Spec, Unfit, Window};
use super::strict_window::{StrictState, StrictWindow};
use super::{Figures, Meter, Moment, Verdict, parameters};
use crate::units::{Cost, Nanos, Tick};

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
    /// How long units drawn in advance may wait; not part of the tag, because no state depends on it.
    lease: Option<Nanos>,
    /// Units that a cost must leave behind, kept for requests that matter more. No state depends on it
    /// either. Below the capacity.
    pub(super) kept_back: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
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
    ($limit:expr, $state:expr, |$metered:ident, $inner:ident| $run:expr) => {
        match (&$limit.shape, $state) {
            (Shape::Bucket(meter), State::Bucket($inner)) => with!($limit, meter, $metered, $run),
            (Shape::Fixed(meter), State::Fixed($inner)) => with!($limit, meter, $metered, $run),
            (Shape::Sliding(meter), State::Sliding($inner)) => with!($limit, meter, $metered, $run),
            (Shape::Strict(meter), State::Strict($inner)) => with!($limit, meter, $metered, $run),
            (Shape::Log(meter), State::Log($inner)) => with!($limit, meter, $metered, $run),
            _ => unreachable!("a state is read only under the limit that made or adopted it"),
        }
    };
    ($limit:expr, $meter:ident, $metered:ident, $run:expr) => {{
        let $metered = Metered::new($meter, $limit.tick, $limit.kept_back);
        $run
    }};
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
        let (lease, burst) = match spec.leased {
            Some(wanted) => lease::shorten(spec, burst, wanted).map(|(l, b)| (Some(l), b))?,
            None => (None, burst),
        };
        let fitting = precision.ticks().iter().find_map(|tick| {
            let shape = Shape::compile(spec, burst, *tick, precision)?;
            Some((*tick, shape))
        });
        let (tick, shape) = fitting.ok_or(Unfit::Inexact)?;
        let limit = Limit {
            algorithm: spec.algorithm,
            stagger: spec.stagger,
            tag: 0,
            per: spec.window.length(),
            count: spec.count,
            lease,
            kept_back: 0,
            shape,
            tick,
        };
        Ok(limit.tagged())
    }

    /// With the tag of its parameters.
    pub(super) fn tagged(mut self) -> Self {
        self.tag = parameters::tag(&self.shape, self.tick, self.stagger);
        self
    }

    /// Tells whether a stored state was made with these very parameters. Never zero.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// A limit of this shape and nothing else known about it. Its tag is zero: no state is taken to
    /// be made under it.
    pub(super) fn from_shape(shape: Shape, tick: Tick, algorithm: Algorithm) -> Self {
        Limit {
            shape,
            tick,
            algorithm,
            stagger: false,
            tag: 0,
            per: Nanos::ZERO,
            count: 1,
            lease: None,
            kept_back: 0,
        }
    }

    /// How it is counted.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most a client can ever have at once: the burst, the count of a window, or what of them
    /// [`Limit::up_to`] left.
    pub fn capacity(&self) -> u64 {
        self.whole() - self.kept_back
    }

    /// What it holds for those who may use all of it.
    pub fn whole(&self) -> u64 {
        match &self.shape {
            Shape::Bucket(meter) => meter.capacity(),
            Shape::Fixed(meter) => meter.capacity(),
            Shape::Sliding(meter) => meter.capacity(),
            Shape::Strict(meter) => meter.capacity(),
            Shape::Log(meter) => meter.capacity(),
        }
    }

    /// The same counter for requests that may use no more than `units` of it, one at least: a cost fits
    /// if it and what is used come to no more. The rest is kept for those that matter more. Whatever
    /// is charged is the same state under the same tag, and drains and ages as ever.
    #[must_use]
    pub fn up_to(&self, units: u64) -> Limit {
        let whole = self.whole();
        Limit {
            kept_back: whole - units.clamp(1, whole),
            ..self.clone()
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

    /// How long units that are drawn in advance may wait to be used, if any may be drawn.
    pub fn lease(&self) -> Option<Nanos> {
        self.lease
    }

    /// Until when units charged at `at` may be used with every bound as if they were charged when used.
    pub fn lease_until(&self, at: Nanos) -> Nanos {
        let lasts = self.lease.unwrap_or(Nanos::ZERO);
        let edge = lease::edge(&self.shape, self.tick.floor(at));
        let ends = at.plus(lasts);
        edge.map_or(ends, |edge| ends.min(self.tick.start(edge)))
    }

    /// How long an empty limit takes to hold its whole capacity again, for headers.
    pub fn full_window(&self) -> Nanos {
        if !self.algorithm.takes_burst() {
            return self.per;
        }
        let all = u128::from(self.capacity()) * u128::from(self.per.get());
        let span = all.div_ceil(u128::from(self.count));
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
        with!(self, state, |metered, inner| metered.advance(inner, now))
    }

    /// Whether `cost` fits.
    #[inline]
    pub fn judge(&self, state: &State, at: Moment, cost: Cost) -> Verdict {
        with!(self, state, |metered, inner| metered.judge(inner, at, cost))
    }

    /// Charges `cost` whether it fits or not. Call it only after [`Limit::judge`] allowed, or to
    /// force a debt.
    #[inline]
    pub fn spend(&self, state: &mut State, at: Moment, cost: Cost) {
        with!(self, state, |metered, inner| metered.spend(inner, at, cost));
    }

    /// Gives back `cost` charged at `charged`, as far as that cannot break the bound.
    pub fn refund(&self, state: &mut State, at: Moment, charged: Nanos, cost: Cost) {
        let (tick, charged) = (at.settled.tick, self.tick.floor(charged));
        let units = cost.get();
        with!(self, state, |metered, inner| metered
            .meter
            .refund(inner, tick, charged, units));
    }

    /// The largest cost that would fit.
    pub fn remaining(&self, state: &State, at: Moment) -> u64 {
        with!(self, state, |metered, inner| metered.remaining(inner, at))
    }

    /// Charges in advance: up to `most`, and no more than half of what would fit, rounded up, or an eighth
    /// of `most` if that is more and there. How many units that were.
    ///
    /// Half leaves something for others; but who halves until nothing is left asks many times for next to
    /// nothing. An eighth of what one needs for a while is used up in no time.
    pub fn draw(&self, state: &mut State, at: Moment, most: Cost) -> u64 {
        let (left, most) = (self.remaining(state, at), most.get());
        let units = left.div_ceil(2).max(most.div_ceil(8)).min(left).min(most);
        if let Some(cost) = Cost::new(units) {
            self.spend(state, at, cost);
        }
        units
    }

    /// What a client may be told.
    pub fn figures(&self, state: &State, at: Moment) -> Figures {
        with!(self, state, |metered, inner| metered.figures(inner, at))
    }

    /// The instant from which the state cannot be told from a fresh one, and may be forgotten.
    #[inline]
    pub fn fresh_at(&self, state: &State, at: Moment) -> Nanos {
        with!(self, state, |metered, inner| metered.fresh_at(inner, at))
    }

    /// Units in use, rounded up.
    pub fn used(&self, state: &State, at: Moment) -> u64 {
        let tick = at.settled.tick;
        with!(self, state, |metered, inner| metered
            .meter
            .used(inner, tick))
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
