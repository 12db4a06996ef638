//! When an admission counts, and when it was charged.
//!
//! Who asks the store is admitted at the store's time of the answer. A unit that was drawn in advance was
//! charged then, and counts when it is used: that is the difference that leases must make up for.

use std::collections::BTreeMap;

use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::CheckCase;
use crate::history::DecisionRecord;
use crate::model::{OpKind, StoreOp};

/// An admission and its times, by the store's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<'a> {
    pub(super) record: &'a DecisionRecord,
    /// When it was admitted.
    pub(super) used: Nanos,
    /// When the store charged it.
    pub(super) charged: Nanos,
}

impl CheckCase<'_> {
    /// When leased units were taken for a request, by the simulation's clock and by the store's: when it
    /// came, and then it waited for what the store said of its other limits. If all are leased, it may have
    /// waited for units instead, and was answered as it took them.
    pub(super) fn lease_taken_at(&self, record: &DecisionRecord) -> (Nanos, Nanos) {
        let mut counters = self.counters();
        match counters.all(|i| self.scenario.counting(i) == Counting::Leased) {
            true => (record.done, record.store_time_done),
            false => (record.sent, record.store_time_sent),
        }
    }

    /// What was admitted of a counter.
    pub(super) fn admitted(&self, counter: usize) -> Vec<Timed<'_>> {
        let exact = self.scenario.counting(counter) == Counting::Exact;
        let mut charges = match exact && self.scenario.counts_ahead() {
            true => self.charges_by_request(counter),
            false => BTreeMap::new(),
        };
        let mixed = self.scenario.counts_ahead() && self.scenario.ceiling.is_some();
        let mut timed = |record| {
            let mut times = self.timed(record);
            // Where another limit was decided by a lease, the answer has the time of that.
            if mixed && record.is_local() {
                (times.used, times.charged) = (record.store_time_done, record.store_time_done);
            }
            // Decided by a lease on another limit: of this one the store was asked all the same.
            if exact
                && matches!(record.source, Source::Lease | Source::Lenient)
                && let Some(at) = charges
                    .get_mut(&(record.node, record.sent))
                    .and_then(Vec::pop)
            {
                (times.used, times.charged) = (at, at);
            }
            times
        };
        let all = self.records_of(counter).filter(|record| record.admitted);
        all.map(&mut timed).collect()
    }

    fn timed<'r>(&self, record: &'r DecisionRecord) -> Timed<'r> {
        let (used, charged) = match record.source {
            Source::Lease => (self.lease_taken_at(record).1, record.at),
            Source::Lenient => (record.store_time_sent, record.store_time_sent),
            _ => (record.at, decided_at(record)),
        };
        Timed {
            record,
            used,
            charged,
        }
    }

    /// When the store charged a counter, by who asked and when.
    fn charges_by_request(&self, counter: usize) -> BTreeMap<(usize, Nanos), Vec<Nanos>> {
        let mut charges: BTreeMap<(usize, Nanos), Vec<Nanos>> = BTreeMap::new();
        for entry in self.ops_of(counter) {
            if let (OpKind::Charged(_), Some(at)) = (entry.kind, entry.at) {
                charges
                    .entry((entry.node, entry.sent))
                    .or_default()
                    .push(at);
            }
        }
        charges
    }

    /// What the store did to a counter.
    pub(super) fn ops_of(&self, counter: usize) -> impl Iterator<Item = &StoreOp> {
        let bits = self.history.counters.get(counter).copied();
        let ops = self.history.store_ops.iter();
        ops.filter(move |entry| Some(entry.counter) == bits)
    }
}

/// When it was decided, by the store's clock. A node that has not met the store yet may be far off.
fn decided_at(record: &DecisionRecord) -> Nanos {
    let gap = record
        .store_time_done
        .since(record.at)
        .max(record.at.since(record.store_time_done));
    match gap > Nanos::from_secs(1) {
        true => record.store_time_done,
        false => record.at,
    }
}
