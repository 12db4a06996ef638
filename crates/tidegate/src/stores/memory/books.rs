//! The counters of one request as copies: opened under their locks, changed at will, and written
//! only when the verdict on the whole request is known.
//!
//! A counter that occurs twice is one account: the second charge sees what the first would spend.
//! A subject that finds no room for a counter has an account with a shared one.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Limit, Moment, State};
use tidegate_core::store::{Charge, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::accounts::{Present, Write};
use super::key::Key;
use super::locks::Locks;
use super::overflow::Shared;
use super::shard::Shard;

/// Which counter an account is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seat {
    Own(Key),
    Shared { places: Shared, key: Key },
}

/// One counter of the request.
pub(super) struct Account<'c> {
    seat: Seat,
    /// Whether it is, or begins as, a shared one.
    pub(super) source: Source,
    /// The limit that `state` is under: that of the last charge that was spent.
    limit: &'c Limit,
    state: State,
    /// As it was found, for a request that is not charged.
    found: (&'c Limit, State),
    /// Whether it was found so far ahead of the clock that it had to be moved. That must be kept
    /// even if the request is refused, or the next one finds it just as far ahead.
    pub(super) stepped: bool,
    /// Whether there is anything to write.
    pub(super) changed: bool,
}

impl<'c> Account<'c> {
    /// A copy of the state, under `limit` and at the present. What is only looked at stays under
    /// the limit it was found or last spent under.
    pub(super) fn under(&self, limit: &Limit, now: Nanos) -> (State, Moment) {
        let mut state = self.state.clone();
        // Limits of two shapes may share a tag; then the shape tells them apart.
        if self.limit.tag() != limit.tag() || !limit.fits(&state) {
            state = limit.adopt(&self.keeps(self.limit), state, now);
        }
        let at = limit.advance(&mut state, now);
        (state, at)
    }

    /// `limit` as this counter keeps it.
    pub(super) fn keeps<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        match &self.seat {
            Seat::Own(_) => Cow::Borrowed(limit),
            Seat::Shared { places, .. } => places.keeps(limit),
        }
    }

    /// Takes a state of this account that was changed.
    pub(super) fn take(&mut self, limit: &'c Limit, state: State) {
        (self.limit, self.state) = (limit, state);
        self.changed = true;
    }

    /// Undoes every change that was spent.
    pub(super) fn restore(&mut self) {
        (self.limit, self.state) = self.found.clone();
        self.changed = self.stepped;
    }

    pub(super) fn figures(&self, limit: &Limit, now: Nanos) -> Figures {
        let limit = self.keeps(limit);
        let (state, at) = self.under(&limit, now);
        limit.figures(&state, at)
    }
}

/// The accounts of a request, and which of them each charge is on.
#[derive(Default)]
pub(super) struct Books<'c> {
    pub(super) accounts: SmallVec<[Account<'c>; 4]>,
    pub(super) of: SmallVec<[usize; 8]>,
}

impl<C> MemoryStore<C> {
    /// Reads the counters of `charges`, whose shards are locked, and finds a shared one for those
    /// that have and get none of their own.
    pub(super) fn open<'a, 'c>(
        &'a self,
        locks: &mut Locks<'a>,
        charges: &'c [Charge<'_>],
        at: Present,
    ) -> Books<'c> {
        let mut looks: SmallVec<[Look; 8]> = SmallVec::new();
        for charge in charges {
            let key = Key::of(charge.counter());
            looks.push(self.look(locks.own(key), key, charge, at));
        }
        let absent = |(charge, look): (&Charge<'_>, &Look)| match look {
            Look::Found(_) | Look::Fresh => None,
            Look::Inherits | Look::Shares => Some(Shared::of(charge).shard),
        };
        self.lock_shared(locks, charges.iter().zip(&looks).filter_map(absent));

        let mut books = Books::default();
        for (charge, look) in charges.iter().zip(looks) {
            let own = Seat::Own(Key::of(charge.counter()));
            let (seat, state, source) = match look {
                Look::Found(state) => (own, Some(state), Source::Exact),
                Look::Fresh => (own, None, Source::Exact),
                Look::Inherits | Look::Shares => {
                    let places = Shared::of(charge);
                    let common = Charge {
                        limit: places.keeps(&charge.limit),
                        ..charge.clone()
                    };
                    let shared = locks.shared(places.shard);
                    let (key, state) = self.shared_seat(shared, places, &common, at);
                    match (look, state) {
                        (Look::Inherits, None) => (own, None, Source::Exact),
                        (Look::Inherits, Some(state)) => {
                            let state = places.inherited(state, &charge.limit, at.now);
                            (own, Some(state), Source::Overflow)
                        }
                        (_, state) => (Seat::Shared { places, key }, state, Source::Overflow),
                    }
                }
            };
            let state = state.unwrap_or_else(|| match &seat {
                Seat::Own(_) => charge.limit.fresh(at.now),
                Seat::Shared { places, .. } => places.keeps(&charge.limit).fresh(at.now),
            });
            books.enter(seat, source, &charge.limit, state, at.now);
        }
        books
    }

    fn look(&self, own: &mut Shard, key: Key, charge: &Charge<'_>, at: Present) -> Look {
        if let Some(place) = own.find(key) {
            return Look::Found(self.read(own, &own.entry(place), charge, at));
        }
        match own.has_room(key, at.secs, &self.budget) {
            Ok(()) if self.overflow.in_use() => Look::Inherits,
            Ok(()) => Look::Fresh,
            Err(_) => Look::Shares,
        }
    }

    /// Writes an account.
    pub(super) fn commit(&self, locks: &mut Locks<'_>, account: &Account<'_>, at: Present) {
        let limit = account.keeps(account.limit);
        let (state, moment) = account.under(&limit, at.now);
        let mut write = Write {
            key: Key::NONE,
            limit: &limit,
            fresh_at: limit.fresh_at(&state, moment),
            state,
        };
        match account.seat {
            Seat::Own(key) => {
                write.key = key;
                self.write(locks.own(key), write, at.secs, &self.budget);
            }
            Seat::Shared { places, key } => {
                write.key = key;
                self.write(
                    locks.shared(places.shard),
                    write,
                    at.secs,
                    &self.overflow.budget,
                );
                self.overflow.used(places.shard);
            }
        }
    }
}

/// What there is for one charge.
enum Look {
    /// Its own counter.
    Found(State),
    /// Nothing, and room for one.
    Fresh,
    /// Nothing, and room for one that begins as a copy of a shared one.
    Inherits,
    /// Nothing, and no room.
    Shares,
}

impl<'c> Books<'c> {
    fn enter(&mut self, seat: Seat, source: Source, limit: &'c Limit, state: State, now: Nanos) {
        let known = self
            .accounts
            .iter()
            .position(|account| account.seat == seat);
        self.of.push(known.unwrap_or(self.accounts.len()));
        if known.is_none() {
            let mut account = Account {
                seat,
                source,
                limit,
                found: (limit, state.clone()),
                state,
                stepped: false,
                changed: false,
            };
            let at = account.keeps(limit).advance(&mut account.state, now);
            if at.stepped_back() {
                (account.stepped, account.changed) = (true, true);
                account.found = (limit, account.state.clone());
            }
            self.accounts.push(account);
        }
    }
}
