//! Replays a script's decision from the records that the script found.
//!
//! A script replies with the records as it found them and the time. The transaction of the port computes the same
//! decision from these, with every figure for the client. So a script computes only what to write, and its reply
//! cannot differ from the stored records.

use tidegate_core::store::{Charge, ChargeIntent, ChargeTransaction, CounterSnapshot, Outcome};
use tidegate_core::units::Nanos;

use super::plan::ScriptPlan;
use super::record::{self, RecordCounter, RecordError};

/// Where a counter is.
#[derive(Debug)]
pub(super) struct RecordPlace {
    /// The index of its record.
    pub(super) key: usize,
    /// Its rate in the record.
    pub(super) rate: u8,
    /// Whether the record had it.
    existed: bool,
}

impl PartialEq for RecordPlace {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.rate) == (other.key, other.rate)
    }
}

pub(super) type DecisionReplay<'c> = ChargeTransaction<'c, RecordPlace>;

/// Decodes the counters of `charges` from `records`, which are in the plan's order.
pub(super) fn open_replay<'c>(
    charges: &'c [Charge<'c>],
    plan: &ScriptPlan,
    records: &[Option<impl AsRef<[u8]>>],
    now: Nanos,
) -> Result<DecisionReplay<'c>, RecordError> {
    let mut decoded = Vec::with_capacity(records.len());
    for bytes in records {
        let found = bytes.as_ref().map(|bytes| record::read(bytes.as_ref()));
        decoded.push(found.transpose()?.unwrap_or_default());
    }
    let mut replay = DecisionReplay::new(charges, now);
    for ((charge, header), key) in charges.iter().zip(&plan.headers).zip(&plan.key_of) {
        let mut of_record = decoded.get(*key).into_iter().flatten();
        let stored = of_record.find(|counter| counter.header.rate() == charge.rate);
        let place = RecordPlace { key: *key, rate: charge.rate, existed: stored.is_some() };
        replay.add(place, None, || match stored {
            None => (charge.limit.fresh(now), false),
            Some(counter) if counter.header == *header => (counter.state.clone(), false),
            Some(RecordCounter { limit, state, .. }) => {
                let stepped = limit.advance(&mut state.clone(), now).stepped_back();
                (charge.limit.adopt(limit, state.clone(), now), stepped)
            }
        });
    }
    Ok(replay)
}

/// The decision on all charges, with the counters after it.
pub(super) fn decide(replay: &mut DecisionReplay<'_>, intent: ChargeIntent) -> Outcome {
    let outcome = replay.decide(intent);
    let snapshots = (0..outcome.readings.len()).map(|charge| snapshot_of(replay, charge)).collect();
    Outcome { snapshots, ..outcome }
}

pub(super) fn snapshot_of(replay: &DecisionReplay<'_>, charge: usize) -> CounterSnapshot {
    CounterSnapshot { state: replay.state_of(charge).0, existed: replay.counter(charge).place.existed }
}
