//! A single charge: what most requests are, decided under one lock and without allocating.

use smallvec::smallvec;
use tidegate_core::algorithms::State;
use tidegate_core::store::{Charge, Outcome, Reading, Role, Source};
use tidegate_core::units::Nanos;

use super::accounts::{Present, Write};
use super::key::Key;
use super::overflow::Shared;
use super::shard::Shard;
use super::{MemoryStore, count};

/// The decision on one charge.
pub(super) struct Decided {
    pub(super) reading: Reading,
    pub(super) source: Source,
    clock_stepped: bool,
}

impl Decided {
    pub(super) fn outcome(self, role: Role, at: Nanos) -> Outcome {
        Outcome {
            admitted: self.reading.verdict.allows() || role == Role::Shadow,
            readings: smallvec![self.reading],
            at,
            source: self.source,
            clock_stepped: self.clock_stepped,
        }
    }
}

impl Decided {
    /// What is to be written: nothing after a refusal.
    fn write<'c>(
        &self,
        charge: &'c Charge<'_>,
        key: Key,
        state: State,
        now: Nanos,
    ) -> Option<Write<'c>> {
        self.reading.verdict.allows().then(|| Write {
            key,
            limit: &charge.limit,
            state,
            fresh_at: now.plus(self.reading.figures.reset_after),
        })
    }
}

impl<C> MemoryStore<C> {
    /// Charges `charge` if it fits, whatever its role.
    pub(super) fn one(&self, charge: &Charge<'_>, now: Nanos) -> Decided {
        let key = Key::of(charge.counter());
        let at = self.present(now);
        let mut shard = self.shards[key.shard()].lock();
        let Some(place) = shard.find(key) else {
            return self.newcomer(&mut shard, key, charge, at);
        };
        let was = shard.entry(place);
        let mut state = self.read(&shard, &was, charge, at);
        let decided = self.judge(charge, &mut state, now, Source::Exact);
        if let Some(write) = decided.write(charge, key, state, now) {
            self.rewrite(&mut shard, place, &was, write, at.secs, &self.budget);
        }
        decided
    }

    /// Spends if it fits. The state is worth writing only if it did.
    #[inline]
    fn judge(&self, charge: &Charge<'_>, state: &mut State, now: Nanos, source: Source) -> Decided {
        let limit = &charge.limit;
        let moment = limit.advance(state, now);
        let verdict = limit.judge(state, moment, charge.cost);
        if verdict.allows() {
            limit.spend(state, moment, charge.cost);
        }
        if moment.stepped_back() {
            count(&self.tally.clock_steps);
        }
        Decided {
            reading: Reading {
                verdict,
                figures: limit.figures(state, moment),
            },
            source,
            clock_stepped: moment.stepped_back(),
        }
    }

    /// The first charge of a subject, or the first since its counter expired and left.
    #[cold]
    fn newcomer(&self, own: &mut Shard, key: Key, charge: &Charge<'_>, at: Present) -> Decided {
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
        let (seat, known) = self.shared_seat(&mut shared, places, charge, at);
        let (decided, write) = if room {
            self.first(charge, known, key, at)
        } else {
            let state = known.unwrap_or_else(|| charge.limit.fresh(at.now));
            self.first(charge, Some(state), seat, at)
        };
        match write {
            Some(write) if room => self.write(own, write, at.secs, &self.budget),
            Some(write) => {
                self.write(&mut shared, write, at.secs, &self.overflow.budget);
                self.overflow.used();
            }
            None => {}
        }
        if decided.source == Source::Overflow {
            count(&self.tally.overflow);
        }
        decided
    }

    /// Decides on a counter that is new, or on what a shared one says; and what to write for it.
    fn first<'c>(
        &self,
        charge: &'c Charge<'_>,
        shared: Option<State>,
        key: Key,
        at: Present,
    ) -> (Decided, Option<Write<'c>>) {
        let source = match shared {
            Some(_) => Source::Overflow,
            None => Source::Exact,
        };
        let mut state = shared.unwrap_or_else(|| charge.limit.fresh(at.now));
        let decided = self.judge(charge, &mut state, at.now, source);
        let write = decided.write(charge, key, state, at.now);
        (decided, write)
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
