//! A single charge, the usual case: decided under one lock and without allocation.

use std::borrow::Borrow;

use parking_lot::MutexGuard;
use smallvec::smallvec;
use tidegate_core::algorithms::{CounterState, Figures, Limit, MaybeFigures, Verdict};
use tidegate_core::store::{Charge, ChargeIntent, LimitReading, Outcome, Role, Source};
use tidegate_core::units::{Cost, Nanos};

use super::block::Secs;
use super::counter_io::{CounterWrite, TimePoint};
use super::key::Key;
use super::shard::{Position, Shard};
use super::{MemoryStore, count};

/// The decision on one charge, with figures of the limit if the caller needs them.
pub(super) struct SingleChargeResult<T> {
    pub(super) verdict: Verdict,
    pub(super) figures: T,
    pub(super) source: Source,
    clock_stepped: bool,
}

impl SingleChargeResult<Figures> {
    pub(super) fn reading(&self) -> LimitReading {
        LimitReading { verdict: self.verdict, figures: self.figures }
    }

    pub(super) fn outcome(self, role: Role, at: Nanos) -> Outcome {
        Outcome {
            admitted: admits_alone(role, self.verdict),
            readings: smallvec![self.reading()],
            snapshots: Vec::new(),
            at,
            source: self.source,
            degraded: None,
            clock_stepped: self.clock_stepped,
        }
    }
}

/// Whether a request passes of which this is the only charge.
pub(super) fn admits_alone(role: Role, verdict: Verdict) -> bool {
    verdict.allows() || role == Role::Shadow
}

impl<C> MemoryStore<C> {
    /// Charges `charge` if it fits, whatever its role.
    #[inline]
    pub(super) fn charge_one<T: MaybeFigures>(&self, charge: &Charge<'_>, now: Nanos) -> SingleChargeResult<T> {
        self.charge_one_with(charge.counter(), &charge.limit, charge.cost, now, || charge)
    }

    /// As `charge_one`, for a caller that builds the charge only if it is needed, which is seldom.
    #[inline]
    pub(super) fn charge_one_with<'c, T: MaybeFigures, B: Borrow<Charge<'c>>>(
        &self,
        counter: u128,
        limit: &Limit,
        cost: Cost,
        now: Nanos,
        charge: impl FnOnce() -> B,
    ) -> SingleChargeResult<T> {
        let key = Key::of(counter);
        let at = self.time_point(now);
        let mut shard = self.shards[key.shard()].lock();
        let Some(place) = shard.find(key) else {
            return self.charge_new(shard, key, charge().borrow(), at);
        };
        self.charge_in_place(&mut shard, place, limit, cost, at)
            .unwrap_or_else(|| self.charge_existing(&mut shard, place, key, charge().borrow(), at))
    }

    /// Charges a live counter of two words that was made under this very limit: nearly all counters.
    #[inline]
    fn charge_in_place<T: MaybeFigures>(
        &self,
        shard: &mut Shard,
        place: Position,
        limit: &Limit,
        cost: Cost,
        at: TimePoint,
    ) -> Option<SingleChargeResult<T>> {
        let mut entry = shard.entry_mut(place);
        if !entry.is_live_under(limit, at.secs) {
            return None;
        }
        let taken = limit.charge_words::<T>(entry.words(), at.now, cost)?;
        if taken.verdict.allows() || taken.stepped_back {
            entry.update(taken.words, Secs::expiry(self.began, taken.fresh_at));
        }
        if taken.stepped_back {
            count(&self.events.clock_steps);
        }
        Some(SingleChargeResult {
            verdict: taken.verdict,
            figures: taken.figures,
            source: Source::Exact,
            clock_stepped: taken.stepped_back,
        })
    }

    /// Charges any other existing counter: one of more words, made under another limit, or expired.
    fn charge_existing<T: MaybeFigures>(
        &self,
        shard: &mut Shard,
        place: Position,
        key: Key,
        charge: &Charge<'_>,
        at: TimePoint,
    ) -> SingleChargeResult<T> {
        let was = shard.entry(place);
        let state = self.read(shard, &was, charge, at);
        let (decided, write) = self.judge(charge, state, key, at.now);
        if let Some(write) = write {
            self.rewrite(shard, place, &was, write, at.secs, &self.budget);
        }
        decided
    }

    /// Judges a charge, and spends it if it fits. Returns also the write of its counter, if there is any.
    fn judge<'c, T: MaybeFigures>(
        &self,
        charge: &'c Charge<'_>,
        mut state: CounterState,
        key: Key,
        now: Nanos,
    ) -> (SingleChargeResult<T>, Option<CounterWrite<'c>>) {
        let limit = charge.limit.as_ref();
        let moment = limit.advance(&mut state, now);
        let verdict = limit.judge(&state, moment, charge.cost);
        let clock_stepped = moment.stepped_back();
        if verdict.allows() {
            limit.spend(&mut state, moment, charge.cost);
        }
        if clock_stepped {
            count(&self.events.clock_steps);
        }
        let figures = T::from_lazy(|| limit.figures(&state, moment));
        let decided = SingleChargeResult { verdict, figures, source: Source::Exact, clock_stepped };
        // A state so far ahead of the clock that it had to be moved is written even after a denial. Otherwise the next
        // request finds it just as far ahead.
        let changed = verdict.allows() || clock_stepped;
        let fresh_at = limit.fresh_at(&state, moment);
        (decided, changed.then_some(CounterWrite { key, limit, state, fresh_at }))
    }

    /// The first charge of a subject, or the first since its counter expired and was evicted.
    #[cold]
    fn charge_new<T: MaybeFigures>(
        &self,
        mut own: MutexGuard<'_, Shard>,
        key: Key,
        charge: &Charge<'_>,
        at: TimePoint,
    ) -> SingleChargeResult<T> {
        if self.overflow.in_use() || own.ensure_room(key, at.secs, &self.budget).is_err() {
            drop(own);
            return self.charge_as_set(charge, at.now);
        }
        let (decided, write) = self.judge(charge, charge.limit.fresh(at.now), key, at.now);
        if let Some(write) = write {
            self.write(&mut own, write, at.secs, &self.budget);
        }
        decided
    }

    /// Charges a subject that may share a counter with others.
    fn charge_as_set<T: MaybeFigures>(&self, charge: &Charge<'_>, now: Nanos) -> SingleChargeResult<T> {
        let outcome = self.decide(std::slice::from_ref(charge), ChargeIntent::Charge, now);
        let LimitReading { verdict, figures } = outcome.readings[0];
        SingleChargeResult {
            verdict,
            figures: T::from_lazy(|| figures),
            source: outcome.source,
            clock_stepped: outcome.clock_stepped,
        }
    }
}
