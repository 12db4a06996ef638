//! Background maintenance: the sweep that evicts expired counters, and the figures for operators.
//!
//! No counter has a task or timer. A sweep visits a few tables at a time, each under its shard's lock for one pass, and
//! skips those in which nothing can have expired.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::store::ReservationLedger;
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::key::SHARDS;
use super::registry::Round;
use crate::clock::Clock;

/// The figures of a memory store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStats {
    /// Entries, including expired ones that have not been swept yet.
    pub keys: u64,
    /// Bytes held for them and for open reservations.
    pub bytes: u64,
    /// Maximum of bytes that may be held.
    pub cap: u64,
    /// Decisions by a shared counter because there was no room for another.
    pub overflow: u64,
    /// Counters converted to a limit with other parameters.
    pub converted: u64,
    /// Entries evicted by sweeps.
    pub swept: u64,
    /// Counters found so far ahead of the clock that it must have been set back.
    pub clock_steps: u64,
}

/// The next position of the sweep, and the limits it has found in use if a round is running.
#[derive(Default)]
pub(super) struct SweepCursor {
    shard: usize,
    table: usize,
    round: Option<Round>,
}

impl<C: Clock> MemoryStore<C> {
    /// Sweeps the next `tables` tables and returns the number of evicted entries. Call it from time to time: a store
    /// of ten million counters has about 4,000 tables.
    pub fn sweep(&self, tables: usize) -> u64 {
        self.sweep_at(tables, self.clock.now())
    }

    /// The same at a time that the caller has read.
    pub(crate) fn sweep_at(&self, tables: usize, now: Nanos) -> u64 {
        let now = self.time_point(now).secs;
        let mut swept = 0;
        let mut cursor = self.sweep.lock();
        for _ in 0..tables {
            let at = &mut *cursor;
            if (at.shard, at.table) == (0, 0) {
                at.round = self.registry.begin_round();
            }
            let mut shard = self.shards[at.shard].lock();
            swept += u64::from(shard.sweep(at.table, now, &self.budget));
            if let Some(round) = &mut at.round {
                round.extend(shard.tags(at.table, now));
            }
            (at.shard, at.table) =
                if at.table + 1 < shard.tables() { (at.shard, at.table + 1) } else { ((at.shard + 1) % SHARDS, 0) };
            drop(shard);
            if (at.shard, at.table) == (0, 0) {
                swept += self.overflow.sweep(now);
                if let Some(mut round) = at.round.take() {
                    self.overflow.add_tags(now, &mut round);
                    self.registry.end_round(&round);
                }
                break;
            }
        }
        self.events.swept.fetch_add(swept, Ordering::Relaxed);
        swept
    }

    /// The current figures.
    pub fn stats(&self) -> MemoryStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let keys: u64 = self.shards.iter().map(|shard| shard.lock().len()).sum();
        let reserved = |charges: usize| charges as u64 * ReservationLedger::ENTRY_BYTES;
        let (open, max_open) = {
            let ledger = self.ledger.lock();
            (ledger.len(), ledger.max())
        };
        MemoryStats {
            keys: keys + self.overflow.len(),
            bytes: self.budget.used() + self.overflow.budget.used() + reserved(open),
            cap: self.budget.cap() + self.overflow.budget.cap() + reserved(max_open),
            overflow: read(&self.events.overflow),
            converted: read(&self.events.converted),
            swept: read(&self.events.swept),
            clock_steps: read(&self.events.clock_steps),
        }
    }
}
