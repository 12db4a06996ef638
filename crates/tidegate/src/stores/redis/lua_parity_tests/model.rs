//! The expected effect of a script on a record, computed by the library: the bytes after it, and their expiry.

use tidegate_core::algorithms::{CounterState, Limit, LogState};
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, LeaseReply, Outcome};
use tidegate_core::units::Nanos;

use crate::stores::redis::decision_replay::{DecisionReplay, decide, open_replay, snapshot_of};
use crate::stores::redis::plan::ScriptPlan;
use crate::stores::redis::record::{self, END_OF_TIME, RecordCounter, RecordHeader};

/// A record and its expiry, in seconds.
pub(super) type StoredRecord = Option<(Vec<u8>, u64)>;

/// The latest expiry of a record, in seconds.
const LATEST: u64 = 9_007_199_254_740;

/// A counter to write: its limit, its state, and whether it changed.
struct WrittenCounter {
    header: RecordHeader,
    limit: Limit,
    state: CounterState,
    changed: bool,
}

/// The time from which an unchanged state is as good as fresh; zero for an empty one.
fn fresh_at(limit: &Limit, state: &CounterState) -> Nanos {
    let ever = limit.advance(&mut limit.fresh(Nanos::ZERO), Nanos::ZERO);
    limit.fresh_at(state, ever)
}

/// The first whole second at or after `fresh`, as a script computes it.
fn second(limit: &Limit, fresh: Nanos) -> u64 {
    let ticks = (fresh.get() / limit.tick().nanos()).min(END_OF_TIME);
    let per_second = 1_000_000_000 / limit.tick().nanos();
    ticks.div_ceil(per_second).min(LATEST)
}

/// A record with the changed counters. Its expiry is never earlier than before.
fn write_record(stored: &StoredRecord, mut entries: Vec<WrittenCounter>, now: Nanos) -> StoredRecord {
    let mut changed: Vec<WrittenCounter> = entries.extract_if(.., |entry| entry.changed).collect();
    assert!(!changed.is_empty(), "only a changed record is written");
    let (old, mut expires) = match stored {
        None => (Vec::new(), 1),
        Some((was, expires)) => (record::read(was).expect("a record"), *expires),
    };
    for RecordCounter { header, limit, state } in old {
        let fresh = fresh_at(&limit, &state);
        let taken = changed.iter().any(|e| e.header.rate() == header.rate());
        if !taken && fresh > now {
            changed.push(WrittenCounter { header, limit, state, changed: false });
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

/// Writes the changed counters into `records`.
fn commit(replay: &DecisionReplay<'_>, records: &mut [StoredRecord], now: Nanos) {
    for (key, stored) in records.iter_mut().enumerate() {
        let of_key = replay.counters().iter().filter(|counter| counter.place.key == key);
        let entries: Vec<WrittenCounter> = of_key
            .filter(|counter| counter.is_changed())
            .map(|counter| {
                let limit = counter.limit().into_owned();
                let header = RecordHeader::of(counter.place.rate, &limit);
                WrittenCounter { header, state: counter.state_under(&limit, now).0, limit, changed: true }
            })
            .collect();
        if !entries.is_empty() {
            *stored = write_record(stored, entries, now);
        }
    }
}

fn bytes(records: &[StoredRecord]) -> Vec<Option<Vec<u8>>> {
    let bytes = |stored: &StoredRecord| stored.as_ref().map(|(bytes, _)| bytes.clone());
    records.iter().map(bytes).collect()
}

pub(super) fn charge(
    set: &ChargeSet<'_>,
    plan: &ScriptPlan,
    records: &mut [StoredRecord],
    intent: ChargeIntent,
    now: Nanos,
) -> Outcome {
    let mut replay = open_replay(&set.charges, plan, &bytes(records), now).expect("records");
    let outcome = decide(&mut replay, intent);
    if intent != ChargeIntent::Peek {
        commit(&replay, records, now);
    }
    outcome
}

pub(super) fn draw(charges: &[Charge<'_>], plan: &ScriptPlan, records: &mut [StoredRecord], now: Nanos) -> LeaseReply {
    let mut replay = open_replay(charges, plan, &bytes(records), now).expect("records");
    let drawn = replay.draw();
    commit(&replay, records, now);
    LeaseReply { snapshot: Some(snapshot_of(&replay, 0)), ..drawn }
}

pub(super) fn restore(
    charge: &Charge<'_>,
    plan: &ScriptPlan,
    records: &mut [StoredRecord],
    state: &CounterState,
    now: Nanos,
) {
    let charges = std::slice::from_ref(charge);
    let mut replay = open_replay(charges, plan, &bytes(records), now).expect("records");
    replay.restore(state);
    commit(&replay, records, now);
}

pub(super) fn refund(
    charges: &[Charge<'_>],
    plan: &ScriptPlan,
    records: &mut [StoredRecord],
    charged: Nanos,
    now: Nanos,
) {
    for (key, stored) in records.iter_mut().enumerate() {
        let Some((was, _)) = &*stored else { continue };
        let mut counters = record::read(was).expect("a record");
        let mut entries: Vec<WrittenCounter> = Vec::new();
        for (i, charge) in charges.iter().enumerate().filter(|(i, _)| plan.key_of[*i] == key) {
            let same = |counter: &&mut RecordCounter| counter.header == plan.headers[i];
            let Some(counter) = counters.iter_mut().find(same) else {
                continue;
            };
            let limit = charge.limit.as_ref();
            let at = limit.advance(&mut counter.state, now);
            limit.refund(&mut counter.state, at, charged, charge.cost);
            entries.retain(|entry| entry.header != counter.header);
            entries.push(WrittenCounter {
                header: counter.header.clone(),
                limit: limit.clone(),
                state: counter.state.clone(),
                changed: true,
            });
        }
        if !entries.is_empty() {
            *stored = write_record(stored, entries, now);
        }
    }
}

pub(super) fn reset(charges: &[Charge<'_>], plan: &ScriptPlan, records: &mut [StoredRecord], now: Nanos) -> i64 {
    let mut reset_count = 0;
    for (key, stored) in records.iter_mut().enumerate() {
        let Some((was, _)) = stored else {
            continue;
        };
        let named = |counter: &&mut RecordCounter| {
            let mut of_key = charges.iter().zip(&plan.key_of).filter(|(_, of)| **of == key);
            of_key.any(|(charge, _)| charge.rate == counter.header.rate())
        };
        let mut counters = record::read(was).expect("a record");
        for counter in counters.iter_mut().filter(named) {
            reset_count += i64::from(fresh_at(&counter.limit, &counter.state) > now);
            empty(&mut counter.state);
        }
        *was = record::write(counters.iter().map(|c| (&c.header, &c.limit, &c.state)));
    }
    reset_count
}

/// Sets the usage to zero and keeps the time.
fn empty(state: &mut CounterState) {
    match state {
        CounterState::Bucket(bucket) => bucket.level = 0,
        CounterState::Fixed(window) => (window.count, window.next) = (0, 0),
        CounterState::Sliding(window) => (window.current, window.previous) = (0, 0),
        CounterState::Strict(window) => window.counts.fill(0),
        CounterState::Log(log) => *log = LogState::default(),
    }
}
