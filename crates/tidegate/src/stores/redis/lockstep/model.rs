//! What a script should do to a record, told by the library: the bytes after, and when they expire.

use tidegate_core::algorithms::{Limit, LogState, State};
use tidegate_core::store::{Charge, Granted, Outcome};
use tidegate_core::units::Nanos;

use crate::stores::redis::books::{Books, Intent};
use crate::stores::redis::plan::Plan;
use crate::stores::redis::record::{self, Counter, END_OF_TIME, Header};
use tidegate_core::store::ChargeSet;

/// A record and the second it expires at.
pub(super) type Stored = Option<(Vec<u8>, u64)>;

/// The last second that a record is told to expire at.
const LATEST: u64 = 9_007_199_254_740;

/// A counter to be written: under which limit, in which state, and whether it changed.
struct Entry {
    header: Header,
    limit: Limit,
    state: State,
    changed: bool,
}

/// From when on a state that was not touched is as good as fresh; an empty one since ever.
fn fresh_at(limit: &Limit, state: &State) -> Nanos {
    let ever = limit.advance(&mut limit.fresh(Nanos::ZERO), Nanos::ZERO);
    limit.fresh_at(state, ever)
}

/// The second with which `fresh` has passed, as a script counts.
fn second(limit: &Limit, fresh: Nanos) -> u64 {
    let ticks = (fresh.get() / limit.tick().nanos()).min(END_OF_TIME);
    let per_second = 1_000_000_000 / limit.tick().nanos();
    ticks.div_ceil(per_second).min(LATEST)
}

/// A record made of what it was and what changed in it. It never expires earlier than it would have.
fn written(stored: &Stored, mut entries: Vec<Entry>, now: Nanos) -> Stored {
    let mut changed: Vec<Entry> = entries.extract_if(.., |entry| entry.changed).collect();
    assert!(!changed.is_empty(), "only a changed record is written");
    let (old, mut expires) = match stored {
        None => (Vec::new(), 1),
        Some((was, expires)) => (record::read(was).expect("a record"), *expires),
    };
    for Counter {
        header,
        limit,
        state,
    } in old
    {
        let fresh = fresh_at(&limit, &state);
        let taken = changed.iter().any(|e| e.header.rate() == header.rate());
        if !taken && fresh > now {
            changed.push(Entry {
                header,
                limit,
                state,
                changed: false,
            });
        }
    }
    changed.sort_by_key(|entry| entry.header.rate());
    for entry in &mut changed {
        let fresh = if entry.changed {
            let at = entry.limit.advance(&mut entry.state, now);
            entry.limit.fresh_at(&entry.state, at)
        } else {
            fresh_at(&entry.limit, &entry.state)
        };
        expires = expires.max(second(&entry.limit, fresh));
    }
    let counters = changed.iter().map(|e| (&e.header, &e.limit, &e.state));
    Some((record::write(counters), expires))
}

/// Writes the changed accounts into `records`.
fn commit(books: &Books<'_>, records: &mut [Stored], now: Nanos) {
    for (key, stored) in records.iter_mut().enumerate() {
        let of_key = books.accounts.iter().filter(|account| account.key == key);
        let entries: Vec<Entry> = of_key
            .filter(|account| account.held.changed)
            .map(|account| Entry {
                header: account.held.header.clone(),
                limit: account.held.limit.clone(),
                state: account.held.state.clone(),
                changed: true,
            })
            .collect();
        if !entries.is_empty() {
            *stored = written(stored, entries, now);
        }
    }
}

fn bytes(records: &[Stored]) -> Vec<Option<Vec<u8>>> {
    let bytes = |stored: &Stored| stored.as_ref().map(|(bytes, _)| bytes.clone());
    records.iter().map(bytes).collect()
}

pub(super) fn charge(
    set: &ChargeSet<'_>,
    plan: &Plan,
    records: &mut [Stored],
    intent: Intent,
    now: Nanos,
) -> Outcome {
    let mut books = Books::open(&set.charges, plan, &bytes(records), now).expect("records");
    let outcome = books.decide(set, intent);
    if intent != Intent::Peek {
        commit(&books, records, now);
    }
    outcome
}

pub(super) fn grant(
    charges: &[Charge<'_>],
    plan: &Plan,
    records: &mut [Stored],
    now: Nanos,
) -> Granted {
    let mut books = Books::open(charges, plan, &bytes(records), now).expect("records");
    let granted = books.grant();
    commit(&books, records, now);
    granted
}

pub(super) fn seed(
    charge: &Charge<'_>,
    plan: &Plan,
    records: &mut [Stored],
    state: &State,
    now: Nanos,
) {
    let charges = std::slice::from_ref(charge);
    let mut books = Books::open(charges, plan, &bytes(records), now).expect("records");
    let (mut merged, _) = books.under(0);
    charge.limit.merge(&mut merged, state, now);
    let at = charge.limit.advance(&mut merged, now);
    if charge.limit.fresh_at(&merged, at) > now {
        books.take(0, merged);
    }
    commit(&books, records, now);
}

pub(super) fn refund(
    charges: &[Charge<'_>],
    plan: &Plan,
    records: &mut [Stored],
    charged: Nanos,
    now: Nanos,
) {
    for (key, stored) in records.iter_mut().enumerate() {
        let Some((was, _)) = &*stored else { continue };
        let mut counters = record::read(was).expect("a record");
        let mut entries: Vec<Entry> = Vec::new();
        for (i, charge) in charges
            .iter()
            .enumerate()
            .filter(|(i, _)| plan.of[*i] == key)
        {
            let same = |counter: &&mut Counter| counter.header == plan.headers[i];
            let Some(counter) = counters.iter_mut().find(same) else {
                continue;
            };
            let limit = charge.limit.as_ref();
            let at = limit.advance(&mut counter.state, now);
            limit.refund(&mut counter.state, at, charged, charge.cost);
            entries.retain(|entry| entry.header != counter.header);
            entries.push(Entry {
                header: counter.header.clone(),
                limit: limit.clone(),
                state: counter.state.clone(),
                changed: true,
            });
        }
        if !entries.is_empty() {
            *stored = written(stored, entries, now);
        }
    }
}

pub(super) fn reset(
    charges: &[Charge<'_>],
    plan: &Plan,
    records: &mut [Stored],
    now: Nanos,
) -> i64 {
    let mut forgotten = 0;
    for (key, stored) in records.iter_mut().enumerate() {
        let Some((was, _)) = stored else {
            continue;
        };
        let named = |counter: &&mut Counter| {
            let mut of_key = charges.iter().zip(&plan.of).filter(|(_, of)| **of == key);
            of_key.any(|(charge, _)| charge.rate == counter.header.rate())
        };
        let mut counters = record::read(was).expect("a record");
        for counter in counters.iter_mut().filter(named) {
            forgotten += i64::from(fresh_at(&counter.limit, &counter.state) > now);
            empty(&mut counter.state);
        }
        *was = record::write(counters.iter().map(|c| (&c.header, &c.limit, &c.state)));
    }
    forgotten
}

/// Nothing is used any more; when that was is kept.
fn empty(state: &mut State) {
    match state {
        State::Bucket(bucket) => bucket.level = 0,
        State::Fixed(window) => (window.count, window.next) = (0, 0),
        State::Sliding(window) => (window.current, window.previous) = (0, 0),
        State::Strict(window) => window.counts.fill(0),
        State::Log(log) => *log = LogState::default(),
    }
}
