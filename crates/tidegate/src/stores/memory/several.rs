//! Several charges of one request, decided together: all are charged or none is.
//!
//! All counters are locked, read and judged on copies; only when the verdict on the whole request is
//! known is anything written. A counter that occurs twice is one account: the second charge sees what
//! the first would spend.

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::{Figures, Limit, Moment, State, Verdict};
use tidegate_core::store::{Charge, ChargeSet, Outcome, Reading, Role, Source};
use tidegate_core::units::Nanos;

use super::accounts::{Present, Write};
use super::key::Key;
use super::locks::Locks;
use super::overflow::Shared;
use super::shard::Shard;
use super::{MemoryStore, count};

/// What is to become of the charges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// They are spent if the request is admitted.
    Charge,
    /// Nothing is spent.
    Peek,
    /// They are spent whether they fit or not.
    Force,
}

/// Which counter an account is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seat {
    Own(Key),
    Shared { shard: usize, key: Key },
}

/// One counter of the request.
struct Account<'c> {
    seat: Seat,
    /// The limit that `state` is under: that of the last charge that was judged.
    limit: &'c Limit,
    state: State,
    /// As it was found, for a request that is not charged.
    found: (&'c Limit, State),
    spent: bool,
}

impl<'c> Account<'c> {
    /// Brings the state to the present and under `limit`.
    fn advance(&mut self, limit: &'c Limit, now: Nanos) -> Moment {
        if self.limit.tag() != limit.tag() {
            let state = std::mem::replace(&mut self.state, limit.fresh(now));
            self.state = limit.adopt(self.limit, state, now);
        }
        self.limit = limit;
        limit.advance(&mut self.state, now)
    }

    /// Judges a charge and, if it fits or is forced, spends it on the copy.
    fn judge(&mut self, charge: &'c Charge<'_>, intent: Intent, now: Nanos) -> (Verdict, bool) {
        let limit = charge.limit.as_ref();
        let at = self.advance(limit, now);
        let verdict = limit.judge(&self.state, at, charge.cost);
        if verdict.allows() || intent == Intent::Force {
            limit.spend(&mut self.state, at, charge.cost);
            self.spent = true;
        }
        (verdict, at.stepped_back())
    }

    /// Undoes all that was spent on the copy.
    fn restore(&mut self) {
        (self.limit, self.state) = self.found.clone();
        self.spent = false;
    }

    fn figures(&mut self, limit: &'c Limit, now: Nanos) -> Figures {
        let at = self.advance(limit, now);
        limit.figures(&self.state, at)
    }
}

/// The accounts of a request, and which of them each charge is on.
#[derive(Default)]
struct Books<'c> {
    accounts: SmallVec<[Account<'c>; 4]>,
    of: SmallVec<[usize; 8]>,
}

impl<C> MemoryStore<C> {
    /// Decides a charge set.
    pub(super) fn settle(&self, set: &ChargeSet<'_>, intent: Intent, now: Nanos) -> Outcome {
        let at = self.present(now);
        let keys: SmallVec<[Key; 8]> = set.charges.iter().map(|c| Key::of(c.counter())).collect();
        let mut locks = self.lock_all(keys.iter().copied());
        let mut books = self.open(&mut locks, set, &keys, at);
        let decided = books.decide(set, intent, now);
        for account in books.accounts.iter_mut().filter(|account| account.spent) {
            self.commit(&mut locks, account, at);
        }
        let shared = |account: &Account<'_>| matches!(account.seat, Seat::Shared { .. });
        let overflowed = books.accounts.iter().any(shared);
        if overflowed && intent != Intent::Peek {
            count(&self.tally.overflow);
        }
        if decided.clock_stepped && intent != Intent::Peek {
            count(&self.tally.clock_steps);
        }
        Outcome {
            source: if overflowed {
                Source::Overflow
            } else {
                Source::Exact
            },
            ..decided
        }
    }

    /// Reads every counter, and finds a shared one for those that have and get none of their own.
    fn open<'a, 'c>(
        &'a self,
        locks: &mut Locks<'a>,
        set: &'c ChargeSet<'_>,
        keys: &[Key],
        at: Present,
    ) -> Books<'c> {
        let mut looks: SmallVec<[Look; 8]> = SmallVec::new();
        for (charge, key) in set.charges.iter().zip(keys) {
            looks.push(self.look(locks.own(*key), *key, charge, at));
        }
        let absent = |(charge, look): (&Charge<'_>, &Look)| match look {
            Look::Found(_) | Look::Fresh => None,
            Look::Inherits | Look::Shares => Some(Shared::of(charge).shard),
        };
        self.lock_shared(locks, set.charges.iter().zip(&looks).filter_map(absent));

        let mut books = Books::default();
        for ((charge, key), look) in set.charges.iter().zip(keys).zip(looks) {
            let (seat, state) = match look {
                Look::Found(state) => (Seat::Own(*key), state),
                Look::Fresh => (Seat::Own(*key), charge.limit.fresh(at.now)),
                Look::Inherits | Look::Shares => {
                    let places = Shared::of(charge);
                    let shard = places.shard;
                    let (shared, state) = self.shared_seat(locks.shared(shard), places, charge, at);
                    match look {
                        Look::Inherits => (Seat::Own(*key), state),
                        _ => (Seat::Shared { shard, key: shared }, state),
                    }
                }
            };
            books.enter(seat, &charge.limit, state);
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

    fn commit(&self, locks: &mut Locks<'_>, account: &mut Account<'_>, at: Present) {
        let moment = account.advance(account.limit, at.now);
        let mut write = Write {
            key: Key::NONE,
            limit: account.limit,
            fresh_at: account.limit.fresh_at(&account.state, moment),
            state: account.state.clone(),
        };
        match account.seat {
            Seat::Own(key) => {
                write.key = key;
                self.write(locks.own(key), write, at.secs, &self.budget);
            }
            Seat::Shared { shard, key } => {
                write.key = key;
                self.write(locks.shared(shard), write, at.secs, &self.overflow.budget);
                self.overflow.used();
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
    fn enter(&mut self, seat: Seat, limit: &'c Limit, state: State) {
        let known = self
            .accounts
            .iter()
            .position(|account| account.seat == seat);
        self.of.push(known.unwrap_or(self.accounts.len()));
        if known.is_none() {
            self.accounts.push(Account {
                seat,
                limit,
                found: (limit, state.clone()),
                state,
                spent: false,
            });
        }
    }

    /// Judges and spends on the accounts. What is not to be spent is undone before it returns.
    fn decide(&mut self, set: &'c ChargeSet<'_>, intent: Intent, now: Nanos) -> Outcome {
        let mut verdicts: SmallVec<[Verdict; 8]> =
            smallvec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let mut clock_stepped = false;
        let enforced = |charge: &Charge<'_>| charge.role != Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| enforced(c)) {
            let (verdict, back) = self.accounts[self.of[i]].judge(charge, intent, now);
            verdicts[i] = verdict;
            clock_stepped |= back;
        }
        let admitted = intent == Intent::Force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.accounts.iter_mut().for_each(Account::restore);
        }
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !enforced(c)) {
            let account = &mut self.accounts[self.of[i]];
            verdicts[i] = account.judge(charge, intent, now).0;
            if !admitted {
                account.restore();
            }
        }
        if intent == Intent::Peek {
            self.accounts.iter_mut().for_each(Account::restore);
        }
        let readings = set.charges.iter().enumerate().map(|(i, charge)| Reading {
            verdict: verdicts[i],
            figures: self.accounts[self.of[i]].figures(&charge.limit, now),
        });
        Outcome {
            admitted,
            readings: readings.collect(),
            at: now,
            source: Source::Exact,
            clock_stepped,
        }
    }
}
