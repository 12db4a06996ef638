//! A whole decision in one step, for limits whose state is two words: the case of nearly every request.

use super::limit::AnyMeter;
use super::metered::Metered;
use super::{BucketState, Figures, FixedState, Limit, Meter, SlidingState, Verdict};
use crate::units::{Cost, Nanos};

/// The figures of a limit, computed only for callers that want them: they cost divisions.
pub trait MaybeFigures {
    /// Builds the value, from the figures if it needs them.
    fn from_lazy(figures: impl FnOnce() -> Figures) -> Self;
}

impl MaybeFigures for () {
    #[inline]
    fn from_lazy(_: impl FnOnce() -> Figures) {}
}

impl MaybeFigures for Figures {
    #[inline]
    fn from_lazy(figures: impl FnOnce() -> Figures) -> Figures {
        figures()
    }
}

/// A decision on a state of two words.
pub struct FastOutcome<T> {
    /// Whether the cost fitted. If so, it is charged.
    pub verdict: Verdict,
    /// The figures of the limit after the decision.
    pub figures: T,
    /// The state after the decision.
    pub words: [u64; 2],
    /// When that state is equivalent to a fresh one.
    pub fresh_at: Nanos,
    /// Whether the state was so far ahead of the clock that it was moved; see [`super::Moment::stepped_back`].
    pub stepped_back: bool,
}

/// A state that is two words.
pub trait TwoWordState {
    /// The state of these words.
    fn from_words(words: [u64; 2]) -> Self;
    /// Its words.
    fn to_words(&self) -> [u64; 2];
}

impl Limit {
    /// Advances the state in `words`, which was made under this limit, and charges `cost` if it fits. `None` for
    /// algorithms that keep more than two words.
    #[inline]
    pub fn charge_words<T: MaybeFigures>(&self, words: [u64; 2], now: Nanos, cost: Cost) -> Option<FastOutcome<T>> {
        match &self.meter {
            AnyMeter::Bucket(meter) => Some(self.charge_meter(meter, words, now, cost)),
            AnyMeter::Fixed(meter) => Some(self.charge_meter(meter, words, now, cost)),
            AnyMeter::Sliding(meter) => Some(self.charge_meter(meter, words, now, cost)),
            AnyMeter::Strict(_) | AnyMeter::Log(_) => None,
        }
    }

    #[inline]
    fn charge_meter<M, T>(&self, meter: &M, words: [u64; 2], now: Nanos, cost: Cost) -> FastOutcome<T>
    where
        M: Meter<State: TwoWordState>,
        T: MaybeFigures,
    {
        let metered = Metered::new(meter, self.tick, self.headroom);
        let mut state = M::State::from_words(words);
        let at = metered.advance(&mut state, now);
        let wait = metered.wait(&state, at, cost);
        if wait.fits() {
            metered.spend(&mut state, at, cost);
        }
        FastOutcome {
            verdict: metered.verdict(at, wait),
            figures: T::from_lazy(|| metered.figures(&state, at)),
            words: state.to_words(),
            fresh_at: metered.fresh_at(&state, at),
            stepped_back: at.stepped_back(),
        }
    }
}

impl TwoWordState for BucketState {
    #[inline]
    fn from_words([last, level]: [u64; 2]) -> Self {
        BucketState { last, level }
    }

    #[inline]
    fn to_words(&self) -> [u64; 2] {
        [self.last, self.level]
    }
}

impl TwoWordState for FixedState {
    #[inline]
    fn from_words([end, counts]: [u64; 2]) -> Self {
        let [count, next] = halves(counts);
        FixedState { end, count, next }
    }

    #[inline]
    fn to_words(&self) -> [u64; 2] {
        [self.end, pair(self.count, self.next)]
    }
}

impl TwoWordState for SlidingState {
    #[inline]
    fn from_words([index, counts]: [u64; 2]) -> Self {
        let [current, previous] = halves(counts);
        SlidingState { index, current, previous }
    }

    #[inline]
    fn to_words(&self) -> [u64; 2] {
        [self.index, pair(self.current, self.previous)]
    }
}

fn pair(high: u32, low: u32) -> u64 {
    (u64::from(high) << 32) | u64::from(low)
}

fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}
