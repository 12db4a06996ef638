//! When an admission counts, and when it was charged.
//!
//! Who asks the store is admitted at the store's time of the answer. A unit that was drawn in advance was
//! charged then, and counts when it is used: that is the difference that leases must make up for.

use std::collections::BTreeMap;

use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::Case;
use crate::history::Record;
use crate::model::{Deed, Entry};

/// An admission and its times, by the store's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<'a> {
    pub(super) record: &'a Record,
    /// When it was admitted.
    pub(super) used: Nanos,
    /// When the store charged it.
    pub(super) charged: Nanos,
}

impl Case<'_> {
    /// When leased units were taken for a request, by the simulation's clock and by the store's: when it
    /// came, and then it waited for what the store said of its other limits. If all are leased, it may have
    /// waited for units instead, and was answered as it took them.
    pub(super) fn taken(&self, record: &Record) -> (Nanos, Nanos) {
        let mut counters = self.counters();
        match counters.all(|i| self.scenario.counting(i) == Counting::Leased) {
            true => (record.done, record.truth),
            false => (record.sent, record.began),
        }
    }

    /// What was admitted of a counter.
    pub(super) fn admitted(&self, counter: usize) -> Vec<Timed<'_>> {
        let exact = self.scenario.counting(counter) == Counting::Exact;
        let mut asked = match exact && self.scenario.counts_ahead() {
            true => self.asked(counter),
            false => BTreeMap::new(),
        };
        let mixed = self.scenario.counts_ahead() && self.scenario.ceiling.is_some();
        let mut timed = |record| {
            let mut times = self.simple(record);
            // Where another limit was decided by a lease, the answer has the time of that.
            if mixed && record.is_local() {
                (times.used, times.charged) = (record.truth, record.truth);
            }
            // Decided by a lease on another limit: of this one the store was asked all the same.
            if exact
                && matches!(record.source, Source::Lease | Source::Lenient)
                && let Some(at) = asked
                    .get_mut(&(record.node, record.sent))
                    .and_then(Vec::pop)
            {
                (times.used, times.charged) = (at, at);
            }
            times
        };
        let all = self.of(counter).filter(|record| record.admitted);
        all.map(&mut timed).collect()
    }

    fn simple<'r>(&self, record: &'r Record) -> Timed<'r> {
        let (used, charged) = match record.source {
            Source::Lease => (self.taken(record).1, record.at),
            Source::Lenient => (record.began, record.began),
            _ => (record.at, by_the_store(record)),
        };
        Timed {
            record,
            used,
            charged,
        }
    }

    /// When the store charged a counter, by who asked and when.
    fn asked(&self, counter: usize) -> BTreeMap<(usize, Nanos), Vec<Nanos>> {
        let mut asked: BTreeMap<(usize, Nanos), Vec<Nanos>> = BTreeMap::new();
        for entry in self.entries(counter) {
            if let (Deed::Charged(_), Some(at)) = (entry.deed, entry.at) {
                asked.entry((entry.node, entry.sent)).or_default().push(at);
            }
        }
        asked
    }

    /// What the store did to a counter.
    pub(super) fn entries(&self, counter: usize) -> impl Iterator<Item = &Entry> {
        let bits = self.history.counters.get(counter).copied();
        let books = self.history.books.iter();
        books.filter(move |entry| Some(entry.counter) == bits)
    }
}

/// When it was decided, by the store's clock. A node that has not met the store yet may be far off.
fn by_the_store(record: &Record) -> Nanos {
    let gap = record
        .truth
        .since(record.at)
        .max(record.at.since(record.truth));
    match gap > Nanos::from_secs(1) {
        true => record.truth,
        false => record.at,
    }
}
