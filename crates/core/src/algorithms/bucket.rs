//! Token bucket, leaky bucket as a meter, and leaky bucket as a queue: one level that drains.
//!
//! The level counts the units used that have not drained yet, in reduced units: one token is `per_token` units, one
//! tick drains `per_tick`, and their ratio is the rate in lowest terms. No float and no rounded duration is ever
//! stored, so nothing drifts. A fresh bucket has level 0.
//!
//! Invariant: `level <= 2 * full_level`, and all products stay below the limit's precision; the constructor rejects
//! parameters that could violate this.

use super::{Advanced, Meter, Precision, TickWait, gcd};
use crate::units::Cost;

/// The parameters of a draining level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(super) per_token: u64,
    pub(super) per_tick: u64,
    pub(super) tokens: u64,
    /// For a queue, in which admitted requests wait for the level before them to drain, the maximum delay of a request.
    pub(super) max_delay_ticks: Option<u64>,
}

/// A level and the tick at which it was computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketState {
    /// The tick up to which the level has been drained.
    pub last: u64,
    /// The units used, in reduced units.
    pub level: u64,
}

impl Bucket {
    /// `count` tokens per `window_ticks`, holding up to `burst`; `None` if that is not exact.
    pub(crate) fn new(count: u64, window_ticks: u64, burst: u64, precision: Precision) -> Option<Self> {
        let divisor = gcd(count, window_ticks);
        let (per_tick, per_token) = (count / divisor, window_ticks / divisor);
        let max_product = (u128::from(burst) * u128::from(per_token)).saturating_mul(2);
        let exact = max_product < precision.ceiling() && u128::from(per_tick) < precision.ceiling();
        exact.then_some(Bucket { per_token, per_tick, tokens: burst, max_delay_ticks: None })
    }

    /// The same level as a queue that releases at a constant rate and delays at most `max_delay_ticks`, and at most as
    /// long as before.
    pub(crate) fn with_max_delay(mut self, max_delay_ticks: u64) -> Self {
        self.max_delay_ticks =
            Some(self.max_delay_ticks.map_or(max_delay_ticks, |current| current.min(max_delay_ticks)));
        self
    }

    /// The level at which no token is left.
    #[inline]
    fn full_level(&self) -> u64 {
        self.tokens * self.per_token
    }

    /// The tick at which `units` will have drained from a level computed at `last`.
    #[inline]
    fn drained_at(&self, last: u64, units: u64) -> u64 {
        last.saturating_add(units.div_ceil(self.per_tick))
    }

    /// How far the queue before a new request exceeds the maximum delay.
    #[inline]
    fn lateness(&self, state: &BucketState) -> u64 {
        let Some(max_delay_ticks) = self.max_delay_ticks else { return 0 };
        state.level.div_ceil(self.per_tick).saturating_sub(max_delay_ticks)
    }

    /// Converts a level of other parameters, computed at `tick` here: tokens used are kept, rounded up.
    pub(crate) fn adopt(&self, old: &Bucket, old_state: &BucketState, tick: u64) -> BucketState {
        let scaled = (u128::from(old_state.level) * u128::from(self.per_token)).div_ceil(u128::from(old.per_token));
        let max_level = 2 * self.full_level();
        BucketState { last: tick, level: u64::try_from(scaled).unwrap_or(max_level).min(max_level) }
    }

    /// The same level holding `tokens` and draining at `over / under` of the rate. A fraction too fine to be exact is
    /// rounded down: a share never admits more.
    pub(crate) fn scaled(mut self, tokens: u64, over: u64, under: u64) -> Self {
        let mut per_tick = u128::from(self.per_tick) * u128::from(over);
        let mut per_token = u128::from(self.per_token) * u128::from(under);
        let mut divisor = (per_tick, per_token);
        while divisor.1 != 0 {
            divisor = (divisor.1, divisor.0 % divisor.1);
        }
        (per_tick, per_token) = (per_tick / divisor.0.max(1), per_token / divisor.0.max(1));
        let ceiling = Precision::Memory.ceiling();
        let fits = |per_tick: u128, per_token: u128| {
            let max_product = per_token.saturating_mul(2 * u128::from(tokens));
            max_product < ceiling && per_tick < ceiling
        };
        while !fits(per_tick, per_token) && per_token > 1 {
            (per_tick, per_token) = (per_tick / 2, per_token.div_ceil(2));
        }
        self.per_tick = u64::try_from(per_tick).unwrap_or(u64::MAX).max(1);
        self.per_token = u64::try_from(per_token).unwrap_or(u64::MAX);
        self.tokens = tokens;
        self
    }

    /// The same rate with a level that holds `tokens`, or as many of them as are exact, and no fewer than before.
    pub(crate) fn enlarged(self, tokens: u64) -> Self {
        let max_level = u64::try_from(Precision::Memory.ceiling() / 2 - 1).unwrap_or(u64::MAX);
        Bucket { tokens: tokens.min(max_level / self.per_token).max(self.tokens), ..self }
    }

    /// One of `shares` equal parts of a level, in the units of `share`, rounded up.
    pub(crate) fn split(&self, state: &BucketState, share: &Bucket, shares: u64) -> BucketState {
        let scaled = u128::from(state.level) * u128::from(share.per_token);
        let share_level = scaled.div_ceil(u128::from(self.per_token) * u128::from(shares));
        let max_level = 2 * share.full_level();
        BucketState { last: state.last, level: u64::try_from(share_level).unwrap_or(max_level).min(max_level) }
    }
}

impl Meter for Bucket {
    type State = BucketState;

    #[inline]
    fn capacity(&self) -> u64 {
        self.tokens
    }

    fn fresh(&self, tick: u64) -> BucketState {
        BucketState { last: tick, level: 0 }
    }

    #[inline]
    fn advance(&self, state: &mut BucketState, tick: u64, tolerance: u64) -> Advanced {
        if tick < state.last {
            if state.last - tick <= tolerance {
                return Advanced::frozen_at(state.last);
            }
            state.last = tick;
            return Advanced::stepped_to(tick);
        }
        // A product beyond u64 is still larger than any level, so saturating keeps this exact.
        let drained = (tick - state.last).saturating_mul(self.per_tick);
        state.level = state.level.saturating_sub(drained);
        state.last = tick;
        Advanced::at(tick)
    }

    #[inline]
    fn wait(&self, state: &BucketState, _tick: u64, cost: Cost) -> TickWait {
        if cost.get() > self.tokens {
            return TickWait::Never;
        }
        let wanted = state.level + cost.get() * self.per_token;
        let over = wanted.saturating_sub(self.full_level());
        let late = self.lateness(state);
        if over > 0 || late > 0 {
            let fits = self.drained_at(state.last, over);
            return TickWait::Until(fits.max(state.last.saturating_add(late)));
        }
        match self.max_delay_ticks {
            Some(_) if state.level > 0 => TickWait::Delayed(self.drained_at(state.last, state.level)),
            _ => TickWait::None,
        }
    }

    #[inline]
    fn remaining(&self, state: &BucketState, _tick: u64) -> u64 {
        if self.lateness(state) > 0 {
            return 0;
        }
        self.full_level().saturating_sub(state.level) / self.per_token
    }

    #[inline]
    fn fresh_at(&self, state: &BucketState, _tick: u64) -> u64 {
        self.drained_at(state.last, state.level)
    }

    #[inline]
    fn spend(&self, state: &mut BucketState, _tick: u64, units: u64) {
        let added = units.saturating_mul(self.per_token);
        state.level = state.level.saturating_add(added).min(2 * self.full_level());
    }

    /// Refunds only units that cannot have drained since: a full refund would let the level fall below what it would
    /// be had the charge never happened, and break the bound.
    fn refund(&self, state: &mut BucketState, tick: u64, charged: u64, units: u64) {
        let Some(elapsed) = tick.checked_sub(charged) else {
            return; // the clock was set back since: the drained amount is unknown
        };
        let charged_level = units.saturating_mul(self.per_token);
        let refundable = charged_level.saturating_sub(elapsed.saturating_mul(self.per_tick));
        state.level = state.level.saturating_sub(refundable);
    }

    fn used(&self, state: &BucketState, _tick: u64) -> u64 {
        state.level.div_ceil(self.per_token)
    }

    fn merge(&self, state: &mut BucketState, other: &BucketState, _tick: u64) {
        let mut other = *other;
        let newest = state.last.max(other.last);
        self.advance(&mut other, newest, u64::MAX);
        self.advance(state, newest, u64::MAX);
        state.level = state.level.max(other.level).min(2 * self.full_level());
    }
}
