//! The times of an admission: when it counts, and when it was charged.
//!
//! A request that charges the store counts at the store's time of the reply. A unit of a lease was charged
//! when it was drawn, and counts when it is used. Leases must make up for this difference.

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
    /// When the units of a lease were taken for a request, by the simulation's clock and by the store's.
    /// Units are taken on arrival, before the request waits for the store's reply on its other limits. If all
    /// limits are leased, the request may have waited for a draw instead, and was answered as it took the
    /// units.
    pub(super) fn lease_taken_at(&self, record: &DecisionRecord) -> (Nanos, Nanos) {
        let mut counters = self.counters();
        if counters.all(|i| self.scenario.counting(i) == Counting::Leased) {
            (record.done, record.store_time_done)
        } else {
            (record.sent, record.store_time_sent)
        }
    }

    /// The admissions of a counter.
    pub(super) fn admitted(&self, counter: usize) -> Vec<Timed<'_>> {
        let exact = self.scenario.counting(counter) == Counting::Exact;
        let mut charges =
            if exact && self.scenario.counts_ahead() { self.charges_by_request(counter) } else { BTreeMap::new() };
        let mixed = self.scenario.counts_ahead() && self.scenario.ceiling.is_some();
        let mut timed = |record| {
            let mut times = self.timed(record);
            // If another limit was decided by a lease, the decision has the time of that lease.
            if mixed && record.is_local() {
                (times.used, times.charged) = (record.store_time_done, record.store_time_done);
            }
            // Decided by a lease on another limit: this limit was still charged in the store.
            if exact
                && matches!(record.source, Source::Lease | Source::Lenient)
                && let Some(at) = charges.get_mut(&(record.node, record.sent)).and_then(Vec::pop)
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
        Timed { record, used, charged }
    }

    /// When the store charged a counter, by node and time of sending.
    fn charges_by_request(&self, counter: usize) -> BTreeMap<(usize, Nanos), Vec<Nanos>> {
        let mut charges: BTreeMap<(usize, Nanos), Vec<Nanos>> = BTreeMap::new();
        for entry in self.ops_of(counter) {
            if let (OpKind::Charged(_), Some(at)) = (entry.kind, entry.at) {
                charges.entry((entry.node, entry.sent)).or_default().push(at);
            }
        }
        charges
    }

    /// The store's operations on a counter.
    pub(super) fn ops_of(&self, counter: usize) -> impl Iterator<Item = &StoreOp> {
        let bits = self.history.counters.get(counter).copied();
        let ops = self.history.store_ops.iter();
        ops.filter(move |entry| Some(entry.counter) == bits)
    }
}

/// The time of the decision by the store's clock. A node that has never reached the store may be far off.
fn decided_at(record: &DecisionRecord) -> Nanos {
    let gap = record.store_time_done.since(record.at).max(record.at.since(record.store_time_done));
    if gap > Nanos::from_secs(1) { record.store_time_done } else { record.at }
}
