//! One rate compiled to integers, and the stored state under it.

use std::borrow::Cow;
use std::sync::Arc;

use super::bucket::{Bucket, BucketState};
use super::fixed_window::{FixedState, FixedWindow};
use super::lease;
use super::metered::Metered;
use super::sliding_log::{LogState, SlidingLog};
use super::sliding_window::{SlidingState, SlidingWindow};
use super::spec::{Algorithm, MAX_PER_WINDOW, Precision, Spec, SpecError, Window};
use super::strict_window::{StrictState, StrictWindow};
use super::window_grid::WindowGrid;
use super::{Figures, Meter, Moment, Verdict, parameters};
use crate::units::{Cost, Nanos, Tick};

/// One rate, compiled to integers. Only [`Limit::compile`] makes one, so every limit is exact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    pub(super) meter: AnyMeter,
    pub(super) tick: Tick,
    algorithm: Algorithm,
    stagger: bool,
    tag: u32,
    pub(super) per: Nanos,
    pub(super) count: u64,
    /// How long leased units may stay unused; not part of the tag, because no state depends on it.
    lease_ttl: Option<Nanos>,
    /// Units that a cost must leave, reserved for requests of higher priority. No state depends on it either. Below
    /// the capacity.
    pub(super) headroom: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AnyMeter {
    Bucket(Bucket),
    Fixed(FixedWindow),
    Sliding(SlidingWindow),
    Strict(StrictWindow),
    Log(SlidingLog),
}

/// The stored state of one subject under one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CounterState {
    /// Token bucket, leaky bucket, leaky queue.
    Bucket(BucketState),
    /// Fixed window.
    Fixed(FixedState),
    /// Two-counter sliding window.
    Sliding(SlidingState),
    /// Sliding window of sub-windows.
    Strict(StrictState),
    /// Sliding log.
    Log(LogState),
}

/// Why a state always has the shape of the limit it is used with.
const MADE_BY_LIMIT: &str = "a state is read only under the limit that made or adopted it";

/// Runs one expression on the meter and the state that belongs to it. A kind that is missing from the list does not
/// compile.
macro_rules! with {
    ($limit:expr, $state:expr, |$metered:ident, $inner:ident| $run:expr) => {
        with!(@of $limit, $state, $metered, $inner, $run, Bucket Fixed Sliding Strict Log)
    };
    (@of $limit:expr, $state:expr, $metered:ident, $inner:ident, $run:expr, $($kind:ident)*) => {
        match &$limit.meter {
            $(AnyMeter::$kind(meter) => {
                let CounterState::$kind($inner) = $state else { unreachable!("{MADE_BY_LIMIT}") };
                let $metered = Metered::new(meter, $limit.tick, $limit.headroom);
                $run
            })*
        }
    };
}

impl Limit {
    /// Compiles a rate with the finest tick that keeps it exact.
    pub fn compile(spec: &Spec, precision: Precision) -> Result<Self, SpecError> {
        let burst = spec.burst.unwrap_or(spec.count);
        if spec.count == 0 || burst == 0 {
            return Err(SpecError::Zero);
        }
        if spec.burst.is_some() && !spec.algorithm.takes_burst() {
            return Err(SpecError::BurstOnWindow);
        }
        if !spec.algorithm.takes_burst() && spec.count > MAX_PER_WINDOW {
            return Err(SpecError::TooMany { max: MAX_PER_WINDOW });
        }
        let (lease_ttl, burst) = match spec.lease_ttl {
            Some(wanted) => lease::ttl_and_burst(spec, burst, wanted).map(|(ttl, burst)| (Some(ttl), burst))?,
            None => (None, burst),
        };
        let mut ticks = precision.ticks().iter();
        let compiled = ticks.find_map(|tick| Some((AnyMeter::compile(spec, burst, *tick, precision)?, *tick)));
        let (meter, tick) = compiled.ok_or(SpecError::Inexact)?;
        let (per, count, stagger) = (spec.window.length(), spec.count, spec.stagger);
        Ok(Limit { per, count, stagger, lease_ttl, ..Limit::from_meter(meter, tick, spec.algorithm) }.tagged())
    }

    /// With the tag of its parameters.
    pub(super) fn tagged(self) -> Self {
        Limit { tag: parameters::tag(&self.parameters(), self.tick, self.stagger), ..self }
    }

    /// Identifies the parameters that a stored state was made with. Never zero.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// A limit of this shape with no other known property. Its tag is zero: no state counts as made under it.
    pub(super) fn from_meter(meter: AnyMeter, tick: Tick, algorithm: Algorithm) -> Self {
        Limit {
            meter,
            tick,
            algorithm,
            stagger: false,
            tag: 0,
            per: Nanos::ZERO,
            count: 1,
            lease_ttl: None,
            headroom: 0,
        }
    }

    /// The algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most a client can ever have at once: the burst, the count of a window, or the part of them that
    /// [`Limit::with_ceiling`] leaves.
    pub fn capacity(&self) -> u64 {
        self.full_capacity() - self.headroom
    }

    /// The capacity for requests that may use all of it.
    pub fn full_capacity(&self) -> u64 {
        match &self.meter {
            AnyMeter::Bucket(meter) => meter.capacity(),
            AnyMeter::Fixed(meter) => meter.capacity(),
            AnyMeter::Sliding(meter) => meter.capacity(),
            AnyMeter::Strict(meter) => meter.capacity(),
            AnyMeter::Log(meter) => meter.capacity(),
        }
    }

    /// The same counter for requests that may use at most `units` of it, at least one: a cost fits if the units used
    /// plus the cost do not exceed them. The rest is reserved for requests of higher priority. A charge changes the
    /// same state under the same tag, and the state drains and ages as before.
    #[must_use]
    pub fn with_ceiling(&self, units: u64) -> Limit {
        let full_capacity = self.full_capacity();
        Limit { headroom: full_capacity - units.clamp(1, full_capacity), ..self.clone() }
    }

    /// Units per [`Limit::per`].
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The window the count refers to.
    pub fn per(&self) -> Nanos {
        self.per
    }

    /// The resolution of its time.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// The fixed window that contains `at`: its first instant, and the first instant after it.
    pub fn window_at(&self, at: Nanos) -> Option<(Nanos, Nanos)> {
        let AnyMeter::Fixed(window) = &self.meter else { return None };
        let (start, end) = window.grid.bounds(self.tick.floor(at));
        Some((self.tick.start(start), self.tick.start(end)))
    }

    /// The margin of a fixed window whose charges count on both sides of an edge. Otherwise zero.
    pub fn guard(&self) -> Nanos {
        match &self.meter {
            AnyMeter::Fixed(window) => self.tick.start(window.guard),
            _ => Nanos::ZERO,
        }
    }

    /// How long leased units may stay unused; `None` if no lease may be drawn.
    pub fn lease_ttl(&self) -> Option<Nanos> {
        self.lease_ttl
    }

    /// The end of the time in which units charged at `at` may be used, with every bound as if they were charged when
    /// used.
    pub fn lease_until(&self, at: Nanos) -> Nanos {
        let ttl = self.lease_ttl.unwrap_or(Nanos::ZERO);
        let edge = lease::next_edge(&self.meter, self.tick.floor(at));
        let expires_at = at.plus(ttl);
        edge.map_or(expires_at, |edge| expires_at.min(self.tick.start(edge)))
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

    /// Whether an admitted request may be delayed.
    pub fn is_queue(&self) -> bool {
        matches!(&self.meter, AnyMeter::Bucket(Bucket { max_delay_ticks: Some(_), .. }))
    }

    /// This limit for one subject: the subject's hash shifts a staggered window.
    pub fn for_subject(&self, seed: u64) -> Limit {
        let mut own = self.clone();
        if let (true, AnyMeter::Fixed(window)) = (self.stagger, &mut own.meter) {
            window.grid = window.grid.staggered(seed);
        }
        own
    }

    /// This limit for a counter that several subjects share: with the windows of `seed`, which no subject shifts.
    pub fn in_phase(&self, seed: Option<u64>) -> Cow<'_, Limit> {
        match seed {
            Some(seed) if self.stagger => Cow::Owned(self.for_subject(seed)),
            _ => Cow::Borrowed(self),
        }
    }

    /// The same queue for a caller that waits at most `max_delay`. Other limits never delay.
    #[must_use]
    pub fn with_max_delay(mut self, max_delay: Nanos) -> Limit {
        if let AnyMeter::Bucket(bucket @ Bucket { max_delay_ticks: Some(_), .. }) = &mut self.meter {
            *bucket = bucket.with_max_delay(self.tick.floor(max_delay));
        }
        self
    }

    /// The state of a subject never seen.
    #[inline]
    pub fn fresh(&self, now: Nanos) -> CounterState {
        let tick = self.tick.floor(now);
        match &self.meter {
            AnyMeter::Bucket(meter) => CounterState::Bucket(meter.fresh(tick)),
            AnyMeter::Fixed(meter) => CounterState::Fixed(meter.fresh(tick)),
            AnyMeter::Sliding(meter) => CounterState::Sliding(meter.fresh(tick)),
            AnyMeter::Strict(meter) => CounterState::Strict(meter.fresh(tick)),
            AnyMeter::Log(meter) => CounterState::Log(meter.fresh(tick)),
        }
    }

    /// Lets time pass for a state, up to `now`.
    #[inline]
    pub fn advance(&self, state: &mut CounterState, now: Nanos) -> Moment {
        with!(self, state, |metered, inner| metered.advance(inner, now))
    }

    /// Whether `cost` fits.
    #[inline]
    pub fn judge(&self, state: &CounterState, at: Moment, cost: Cost) -> Verdict {
        with!(self, state, |metered, inner| metered.judge(inner, at, cost))
    }

    /// Charges `cost` even if it does not fit. Call it only after [`Limit::judge`] allowed, or to force a debt.
    #[inline]
    pub fn spend(&self, state: &mut CounterState, at: Moment, cost: Cost) {
        with!(self, state, |metered, inner| metered.spend(inner, at, cost));
    }

    /// Refunds `cost` charged at `charged`, as far as that cannot break the bound.
    pub fn refund(&self, state: &mut CounterState, at: Moment, charged: Nanos, cost: Cost) {
        let (tick, charged) = (at.advanced.tick, self.tick.floor(charged));
        let units = cost.get();
        with!(self, state, |metered, inner| metered.meter.refund(inner, tick, charged, units));
    }

    /// The largest cost that would fit.
    pub fn remaining(&self, state: &CounterState, at: Moment) -> u64 {
        with!(self, state, |metered, inner| metered.remaining(inner, at))
    }

    /// Draws a lease: up to `max` units, and at most half of the units that would fit, rounded up, or an eighth of
    /// `max` if that is more and available. Returns the units drawn.
    ///
    /// Half leaves units for other nodes. But halving until nothing is left takes many draws of next to nothing, so a
    /// draw takes at least an eighth of `max` where that is available. A node soon uses up so few units.
    pub fn draw(&self, state: &mut CounterState, at: Moment, max: Cost) -> u64 {
        let (left, max) = (self.remaining(state, at), max.get());
        let units = left.div_ceil(2).max(max.div_ceil(8)).min(left).min(max);
        if let Some(cost) = Cost::new(units) {
            self.spend(state, at, cost);
        }
        units
    }

    /// The figures that a client receives.
    pub fn figures(&self, state: &CounterState, at: Moment) -> Figures {
        with!(self, state, |metered, inner| metered.figures(inner, at))
    }

    /// The instant from which the state is equivalent to a fresh one, and may be evicted.
    #[inline]
    pub fn fresh_at(&self, state: &CounterState, at: Moment) -> Nanos {
        with!(self, state, |metered, inner| metered.fresh_at(inner, at))
    }

    /// Units in use, rounded up.
    pub fn used(&self, state: &CounterState, at: Moment) -> u64 {
        let tick = at.advanced.tick;
        with!(self, state, |metered, inner| metered.meter.used(inner, tick))
    }

    /// Merges another state of the same subject, by maximum. Both are made with this limit.
    pub fn merge(&self, state: &mut CounterState, other: &CounterState, now: Nanos) {
        let tick = self.tick.floor(now);
        macro_rules! merge {
            ($($kind:ident)*) => {
                match &self.meter {
                    $(AnyMeter::$kind(meter) => {
                        let (CounterState::$kind(state), CounterState::$kind(other)) = (state, other) else {
                            unreachable!("{MADE_BY_LIMIT}")
                        };
                        meter.merge(state, other, tick);
                    })*
                }
            };
        }
        merge!(Bucket Fixed Sliding Strict Log);
    }
}

impl AnyMeter {
    fn compile(spec: &Spec, burst: u64, tick: Tick, precision: Precision) -> Option<AnyMeter> {
        let exact_ticks = |span: Nanos| {
            let exact = span.get() > 0 && span.get() % tick.nanos() == 0;
            exact.then(|| span.get() / tick.nanos())
        };
        if spec.algorithm == Algorithm::FixedWindow {
            let grid = match &spec.window {
                Window::Span(width) => WindowGrid::Aligned { width: exact_ticks(*width)?, phase: 0 },
                Window::Shifted { width, phase } => {
                    WindowGrid::Aligned { width: exact_ticks(*width)?, phase: tick.floor(*phase) }
                }
                Window::Edges { edges, .. } => WindowGrid::Edges { edges: Arc::clone(edges), tick },
            };
            return Some(AnyMeter::Fixed(FixedWindow {
                limit: spec.count,
                grid,
                guard: spec.guard.get().div_ceil(tick.nanos()),
            }));
        }
        let width = exact_ticks(spec.window.length())?;
        let count = spec.count;
        Some(match spec.algorithm {
            Algorithm::FixedWindow => return None,
            Algorithm::SlidingLog => AnyMeter::Log(SlidingLog::new(count, width, precision)?),
            Algorithm::SlidingWindow => AnyMeter::Sliding(SlidingWindow::new(count, width, precision)?),
            Algorithm::SlidingWindowStrict => AnyMeter::Strict(StrictWindow::new(count, width, precision)?),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                AnyMeter::Bucket(Bucket::new(count, width, burst, precision)?)
            }
            Algorithm::LeakyQueue => {
                let max_delay = spec.max_delay.map_or(u64::MAX, |max_delay| tick.floor(max_delay));
                let bucket = Bucket::new(count, width, burst, precision)?;
                AnyMeter::Bucket(bucket.with_max_delay(max_delay))
            }
        })
    }
}
