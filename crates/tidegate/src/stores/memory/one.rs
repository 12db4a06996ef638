//! A single charge: what most requests are, decided under one lock and without allocating.

use std::borrow::Borrow;

use smallvec::smallvec;
use tidegate_core::algorithms::{Figures, Limit, State, Told, Verdict};
use tidegate_core::store::{Charge, Outcome, Reading, Role, Source};
use tidegate_core::units::{Cost, Nanos};

use super::accounts::{Present, Write};
use super::block::Secs;
use super::key::Key;
use super::overflow::Shared;
use super::shard::{Position, Shard};
use super::{MemoryStore, count};

/// The decision on one charge, with as much about the limit as was asked for.
pub(super) struct Decided<T> {
    pub(super) verdict: Verdict,
    pub(super) told: T,
    pub(super) source: Source,
    clock_stepped: bool,
}

impl Decided<Figures> {
    pub(super) fn reading(&self) -> Reading {
        Reading {
            verdict: self.verdict,
            figures: self.told,
        }
    }

    pub(super) fn outcome(self, role: Role, at: Nanos) -> Outcome {
        Outcome {
            admitted: self.verdict.allows() || role == Role::Shadow,
            readings: smallvec![self.reading()],
            seen: Vec::new(),
            at,
            source: self.source,
            clock_stepped: self.clock_stepped,
        }
    }
}

/// A state after it was judged, and whether it must be written.
struct Judged {
    state: State,
    fresh_at: Nanos,
    /// It was spent, or stood so far ahead of the clock that it had to be moved: unless that is
    /// kept, the next request finds it just as far ahead.
    changed: bool,
}

impl Judged {
    /// What is to be written under `key`: nothing after a refusal.
    fn write<'c>(self, charge: &'c Charge<'_>, key: Key) -> Option<Write<'c>> {
        self.changed.then_some(Write {
            key,
            limit: &charge.limit,
            state: self.state,
            fresh_at: self.fresh_at,
        })
    }
}

impl<C> MemoryStore<C> {
    /// Charges `charge` if it fits, whatever its role.
    #[inline]
    pub(super) fn one<T: Told>(&self, charge: &Charge<'_>, now: Nanos) -> Decided<T> {
        self.one_of(charge.counter(), &charge.limit, charge.cost, now, || charge)
    }

    /// The same for a caller who has not made the charge: it is seldom needed.
    #[inline]
    pub(super) fn one_of<'c, T: Told, B: Borrow<Charge<'c>>>(
        &self,
        counter: u128,
        limit: &Limit,
        cost: Cost,
        now: Nanos,
        charge: impl FnOnce() -> B,
    ) -> Decided<T> {
        let key = Key::of(counter);
        let at = self.present(now);
        let mut shard = self.shards[key.shard()].lock();
        let Some(place) = shard.find(key) else {
            return self.newcomer(&mut shard, key, charge().borrow(), at);
        };
        self.plain(&mut shard, place, limit, cost, at)
            .unwrap_or_else(|| self.known(&mut shard, place, key, charge().borrow(), at))
    }

    /// A live counter of two words, made under this very limit: what nearly all are.
    #[inline]
    fn plain<T: Told>(
        &self,
        shard: &mut Shard,
        place: Position,
        limit: &Limit,
        cost: Cost,
        at: Present,
    ) -> Option<Decided<T>> {
        let mut entry = shard.entry_mut(place);
        if !entry.is_live_under(limit, at.secs) {
            return None;
        }
        let taken = limit.take::<T>(entry.words(), at.now, cost)?;
        if taken.verdict.allows() || taken.stepped_back {
            entry.update(taken.words, Secs::expiry(self.began, taken.fresh_at));
        }
        if taken.stepped_back {
            count(&self.tally.clock_steps);
        }
        Some(Decided {
            verdict: taken.verdict,
            told: taken.told,
            source: Source::Exact,
            clock_stepped: taken.stepped_back,
        })
    }

    /// Any other counter that is there: of more words, made under another limit, or expired.
    fn known<T: Told>(
        &self,
        shard: &mut Shard,
        place: Position,
        key: Key,
        charge: &Charge<'_>,
        at: Present,
    ) -> Decided<T> {
        let was = shard.entry(place);
        let state = self.read(shard, &was, charge, at);
        let (decided, judged) = self.judge(charge, state, at.now, Source::Exact);
        if let Some(write) = judged.write(charge, key) {
            self.rewrite(shard, place, &was, write, at.secs, &self.budget);
        }
        decided
    }

    /// Spends if it fits.
    fn judge<T: Told>(
        &self,
        charge: &Charge<'_>,
        mut state: State,
        now: Nanos,
        source: Source,
    ) -> (Decided<T>, Judged) {
        let limit = &charge.limit;
        let moment = limit.advance(&mut state, now);
        let verdict = limit.judge(&state, moment, charge.cost);
        let clock_stepped = moment.stepped_back();
        if verdict.allows() {
            limit.spend(&mut state, moment, charge.cost);
        }
        if clock_stepped {
            count(&self.tally.clock_steps);
        }
        let decided = Decided {
            verdict,
            told: T::of(|| limit.figures(&state, moment)),
            source,
            clock_stepped,
        };
        let judged = Judged {
            fresh_at: limit.fresh_at(&state, moment),
            state,
            changed: verdict.allows() || clock_stepped,
        };
        (decided, judged)
    }

    /// The first charge of a subject, or the first since its counter expired and left.
    #[cold]
    fn newcomer<T: Told>(
        &self,
        own: &mut Shard,
        key: Key,
        charge: &Charge<'_>,
        at: Present,
    ) -> Decided<T> {
        let room = own.has_room(key, at.secs, &self.budget).is_ok();
        if room && !self.overflow.in_use() {
            let (decided, write) = self.first(charge, None, key, at);
            if let Some(write) = write {
                self.write(own, write, at.secs, &self.budget);
            }
            return decided;
        }
        let places = Shared::of(charge);
        let mut shared = self.overflow.lock(places.shard);
        let common = Charge {
            limit: places.keeps(&charge.limit),
            ..charge.clone()
        };
        let (seat, known) = self.shared_seat(&mut shared, places, &common, at);
        let (decided, write) = if room {
            let known = known.map(|state| places.inherited(state, &charge.limit, at.now));
            self.first(charge, known, key, at)
        } else {
            let state = known.unwrap_or_else(|| common.limit.fresh(at.now));
            self.first(&common, Some(state), seat, at)
        };
        match write {
            Some(write) if room => self.write(own, write, at.secs, &self.budget),
            Some(write) => {
                self.write(&mut shared, write, at.secs, &self.overflow.budget);
                self.overflow.used(places.shard);
            }
            None => {}
        }
        if decided.source == Source::Overflow {
            count(&self.tally.overflow);
        }
        decided
    }

    /// Decides on a counter that is new, or on what a shared one says; and what to write for it.
    fn first<'c, T: Told>(
        &self,
        charge: &'c Charge<'_>,
        shared: Option<State>,
        key: Key,
        at: Present,
    ) -> (Decided<T>, Option<Write<'c>>) {
        let source = match shared {
            Some(_) => Source::Overflow,
            None => Source::Exact,
        };
        let state = shared.unwrap_or_else(|| charge.limit.fresh(at.now));
        let (decided, judged) = self.judge(charge, state, at.now, source);
        (decided, judged.write(charge, key))
    }

    /// Which shared counter stands in for one of its own, and how it stands if there is one.
    pub(super) fn shared_seat(
        &self,
        shared: &mut Shard,
        places: Shared,
        charge: &Charge<'_>,
        at: Present,
    ) -> (Key, Option<State>) {
        let found = |shard: &Shard, key| {
            let entry = shard.entry(shard.find(key)?);
            let live = entry.expires > at.secs;
            live.then(|| self.read(shard, &entry, charge, at))
        };
        if let Some(state) = found(shared, places.part) {
            return (places.part, Some(state));
        }
        let known = found(shared, places.last_resort);
        let there = shared.find(places.part).is_some();
        let room = there
            || shared
                .has_room(places.part, at.secs, &self.overflow.budget)
                .is_ok();
        let seat = if room {
            places.part
        } else {
            places.last_resort
        };
        (seat, known)
    }
}
