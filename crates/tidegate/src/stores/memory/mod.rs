//! Counters in this process's memory: the store that needs no installation.
//!
//! Invariant: a charge set is decided under the locks of all its counters, so it is charged as a whole or not at all.
//! A denial writes nothing, a live counter is never evicted, and memory stays below the cap. Time is injected. Knows
//! nothing of rules: limits are passed by value, and a counter found under other parameters than it was made with is
//! converted.
//!
//! From the outside in: `port` implements the store trait. `charge_one` decides a single charge, `charge_set` a set
//! on copies of its counters under `locks`, and `operations`, `permits` and `reservations` do the rest. `counter_io` reads, converts
//! and writes a counter; `maintenance` sweeps and counts. `shard` finds counters under one lock, `table` and `rebuild`
//! keep them in order. `out_of_line` stores what does not fit an entry of a
//! `block`, `permit_list` the permits of a subject, `budget` counts the bytes. `overflow` is for subjects without room
//! for a counter, `crate::counted_permits` for permits without room for their holders.
//!
//! Lock order, for every operation: the ledger of reservations, then shards by ascending index, then overflow shards by
//! ascending index, then `registry` or the pool of `budget`, which are never held together.

mod block;
mod budget;
mod charge_one;
mod charge_set;
mod counter_io;
mod key;
mod locks;
mod maintenance;
mod object_slab;
mod operations;
mod out_of_line;
mod overflow;
mod permit_list;
mod permits;
mod port;
mod rebuild;
mod registry;
mod reservations;
mod shard;
mod table;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_core::algorithms::{Limit, Verdict};
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, LimitReading, Outcome, ReservationLedger, RunId, Source};
use tidegate_core::units::{Cost, Nanos};

use self::budget::Budget;
use self::key::SHARDS;
use self::maintenance::SweepCursor;
use self::overflow::Overflow;
use self::registry::Registry;
use self::shard::Shard;
use crate::clock::{Clock, SystemClock};

pub use self::maintenance::MemoryStats;
pub(crate) use self::port::TABLES_PER_SWEEP;
pub use self::reservations::MAX_RESERVED_CHARGES;
use self::reservations::max_reserved;

/// The default cap: room for about 17 million counters.
pub const DEFAULT_CAP: u64 = 1 << 30;

/// Counters in memory.
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    run: RunId,
    /// The origin of expiries.
    began: Nanos,
    shards: Box<[CachePadded<Mutex<Shard>>; SHARDS]>,
    budget: Budget,
    overflow: Box<Overflow>,
    registry: Registry,
    ledger: Box<Mutex<ReservationLedger>>,
    events: MemoryEventCounts,
    sweep: Box<Mutex<SweepCursor>>,
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// Rare events since the store was created.
#[derive(Default)]
struct MemoryEventCounts {
    overflow: AtomicU64,
    converted: AtomicU64,
    clock_steps: AtomicU64,
    swept: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A new run id. If the system has no randomness, the time distinguishes two runs.
fn new_run<C: Clock>(clock: &C) -> RunId {
    let drawn = getrandom::u64().ok().and_then(RunId::new);
    let by_time = || RunId::new(clock.now().get() | 1);
    drawn.or_else(by_time).expect("an odd number is not zero")
}

impl<C: Clock> MemoryStore<C> {
    /// A store with the default cap.
    pub fn new(clock: C) -> Self {
        Self::with_cap(clock, DEFAULT_CAP)
    }

    /// A store that keeps a process that does little else below `bytes` of resident memory.
    pub fn with_cap(clock: C, bytes: u64) -> Self {
        // An eighth is left for the rest of the process, such as permits and reservations that a limiter tracks, and
        // for the allocator.
        let tables = bytes - bytes / 8;
        let reserve = tables / 16;
        let reservations = max_reserved(tables / 8);
        let shard = |_| CachePadded::new(Mutex::new(Shard::new()));
        MemoryStore {
            began: clock.now(),
            run: new_run(&clock),
            clock,
            shards: Box::new(std::array::from_fn(shard)),
            budget: Budget::new(tables - reserve - reservations as u64 * ReservationLedger::ENTRY_BYTES),
            overflow: Box::new(Overflow::new(reserve)),
            registry: Registry::default(),
            ledger: Box::new(Mutex::new(ReservationLedger::new(reservations))),
            events: MemoryEventCounts::default(),
            sweep: Box::default(),
        }
    }

    /// The same clock with another cap. Counts are forgotten.
    pub(crate) fn recapped(self, bytes: u64) -> Self {
        Self::with_cap(self.clock, bytes)
    }

    /// The run of this store: its counts end with it.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The clock of this store.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Charges every limit of one request: all are charged or none is.
    pub fn charge_now(&self, set: &ChargeSet<'_>) -> Outcome {
        self.charge_at(set, self.clock.now())
    }

    /// The same at a time that the caller has read from the store's clock, to read it once for many sets.
    pub fn charge_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Outcome {
        match set.charges.as_slice() {
            [only] => self.charge_one(only, now).outcome(only.role, now),
            _ => self.decide(&set.charges, ChargeIntent::Charge, now),
        }
    }

    /// Charges a single limit. Whether the request passes depends on its role: a shadow always does.
    pub fn charge_one_at(&self, charge: &Charge<'_>, now: Nanos) -> (LimitReading, Source) {
        let decided = self.charge_one(charge, now);
        (decided.reading(), decided.source)
    }

    /// As `charge_one_at`, for callers that need only the verdict. `counter`, `limit` and `cost` are those of
    /// `charge`, which is built only if they do not suffice.
    #[inline]
    pub fn verdict_one_at<'c>(
        &self,
        counter: u128,
        limit: &Limit,
        cost: Cost,
        now: Nanos,
        charge: impl FnOnce() -> Charge<'c>,
    ) -> Verdict {
        let decided: charge_one::SingleChargeResult<()> = self.charge_one_with(counter, limit, cost, now, charge);
        decided.verdict
    }

    /// The outcome of a charge, without charging.
    pub fn peek_now(&self, set: &ChargeSet<'_>) -> Outcome {
        self.peek_at(set, self.clock.now())
    }

    /// The same at a time that the caller has read.
    pub fn peek_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Outcome {
        self.decide(&set.charges, ChargeIntent::Peek, now)
    }
}
