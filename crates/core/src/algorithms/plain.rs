//! A whole decision in one step, for limits whose state is two words: what nearly every request is.

use super::limit::Shape;
use super::metered::Metered;
use super::{BucketState, Figures, FixedState, Limit, Meter, SlidingState, Verdict};
use crate::units::{Cost, Nanos};

/// As much about a limit as a caller wants to know: figures cost divisions, and not all want them.
pub trait Told {
    /// Makes it, of the figures if it needs them.
    fn of(figures: impl FnOnce() -> Figures) -> Self;
}

impl Told for () {
    #[inline]
    fn of(_: impl FnOnce() -> Figures) {}
}

impl Told for Figures {
    #[inline]
    fn of(figures: impl FnOnce() -> Figures) -> Figures {
        figures()
    }
}

/// What was decided on a state of two words.
pub struct Taken<T> {
    /// Whether the cost fitted. Then it is spent.
    pub verdict: Verdict,
    /// How the limit stands now.
    pub told: T,
    /// The state after it.
    pub words: [u64; 2],
    /// From when on that is as good as fresh.
    pub fresh_at: Nanos,
    /// Whether the state stood so far ahead of the clock that it was moved; see
    /// [`super::Moment::stepped_back`].
    pub stepped_back: bool,
}

/// A state that is two words.
pub trait Words {
    /// Reads it.
    fn read(words: [u64; 2]) -> Self;
    /// Its words.
    fn words(&self) -> [u64; 2];
}

impl Limit {
    /// Advances the state in `words`, which was made under this limit, judges `cost` and spends it if
    /// it fits. Nothing for algorithms that keep more than two words.
    #[inline]
    pub fn take<T: Told>(&self, words: [u64; 2], now: Nanos, cost: Cost) -> Option<Taken<T>> {
        match &self.shape {
            Shape::Bucket(meter) => Some(self.step(meter, words, now, cost)),
            Shape::Fixed(meter) => Some(self.step(meter, words, now, cost)),
            Shape::Sliding(meter) => Some(self.step(meter, words, now, cost)),
            Shape::Strict(_) | Shape::Log(_) => None,
        }
    }

    #[inline]
    fn step<M, T>(&self, meter: &M, words: [u64; 2], now: Nanos, cost: Cost) -> Taken<T>
    where
        M: Meter<State: Words>,
        T: Told,
    {
        let metered = Metered::new(meter, self.tick, self.kept_back);
        let mut state = M::State::read(words);
        let at = metered.advance(&mut state, now);
        let wait = metered.wait(&state, at, cost);
        if wait.fits() {
            metered.spend(&mut state, at, cost);
        }
        Taken {
            verdict: metered.verdict(at, wait),
            told: T::of(|| metered.figures(&state, at)),
            words: state.words(),
            fresh_at: metered.fresh_at(&state, at),
            stepped_back: at.stepped_back(),
        }
    }
}

impl Words for BucketState {
    #[inline]
    fn read([last, level]: [u64; 2]) -> Self {
        BucketState { last, level }
    }

    #[inline]
    fn words(&self) -> [u64; 2] {
        [self.last, self.level]
    }
}

impl Words for FixedState {
    #[inline]
    fn read([end, counts]: [u64; 2]) -> Self {
        let [count, next] = halves(counts);
        FixedState { end, count, next }
    }

    #[inline]
    fn words(&self) -> [u64; 2] {
        [self.end, pair(self.count, self.next)]
    }
}

impl Words for SlidingState {
    #[inline]
    fn read([index, counts]: [u64; 2]) -> Self {
        let [current, previous] = halves(counts);
        SlidingState {
            index,
            current,
            previous,
        }
    }

    #[inline]
    fn words(&self) -> [u64; 2] {
        [self.index, pair(self.current, self.previous)]
    }
}

fn pair(high: u32, low: u32) -> u64 {
    (u64::from(high) << 32) | u64::from(low)
}

fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}
