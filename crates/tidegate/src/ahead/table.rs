//! The bounded table of what is known of counters ahead of the store.
//!
//! A counter has entries only for what is known of it: a denial, leases, a lenient view. A leased counter has leases
//! for each limit that it is charged under, because units drawn under a high ceiling must not admit under a low one. A
//! lenient view is shared by all ceilings.
//!
//! Entries lie in buckets by counter, each with a lock of its own. A full bucket evicts the entry that expires first.
//! Entries with units or with a call in flight are never evicted, so neither a flood of denials nor one of cold keys
//! evicts a lease or a count that is not synced. Pure: times go in, effects come out. Knows no task and no store.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeSet, CounterSnapshot, Epoch, LeaseReply};
use tidegate_core::units::{Cost, Nanos};

use super::LeaseStats;
use super::deadlines::Deadlines;
use super::denial::Denial;
use super::leased_counter::{DrawRequest, LeasedCounter, UnusedLease};
use super::lenient_view::{LenientView, SyncRequest};

/// Entries of one bucket: few enough to walk, and enough that counters rarely compete for room.
const BUCKET_SIZE: usize = 8;

/// A call that follows from the state of the table.
pub(super) enum Effect {
    Draw(DrawRequest),
    Return(UnusedLease),
    Sync(SyncRequest),
}

/// One entry.
struct CounterEntry {
    counter: u128,
    state: EntryState,
}

pub(super) enum EntryState {
    Denied(Box<Denial>),
    Leased(Box<LeasedCounter>),
    Lenient(Box<LenientView>),
}

impl EntryState {
    /// When it expires; `None` while it must not be evicted.
    fn evictable_at(&self, now: Nanos) -> Option<Nanos> {
        match self {
            EntryState::Denied(denial) => Some(denial.until),
            EntryState::Leased(leased) => leased.is_evictable(now).then(|| leased.idle_at()),
            EntryState::Lenient(_) => None,
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        match self {
            EntryState::Denied(_) => None,
            EntryState::Leased(leased) => leased.next_deadline(),
            EntryState::Lenient(view) => view.next_sync,
        }
    }

    /// Adds the effects that are due at `now`. False if the entry ends.
    fn take_due(&mut self, now: Nanos, effects: &mut Vec<Effect>) -> bool {
        match self {
            EntryState::Denied(_) => {}
            EntryState::Leased(leased) => effects.extend(leased.remove_leases(now).map(Effect::Return)),
            EntryState::Lenient(view) if view.next_sync.is_some_and(|due| due <= now) => {
                let sync = view.take_sync(now);
                effects.extend(sync.map(Effect::Sync));
                return view.next_sync.is_none();
            }
            EntryState::Lenient(_) => {}
        }
        true
    }
}

/// The entries of the counters of one bucket of the table.
pub(super) struct AheadEntries {
    entries: Vec<CounterEntry>,
    max_entries: usize,
    /// When units of any counter here may last have been refunded. A request that was sent before may have been denied
    /// without them.
    refunded_at: Nanos,
}

impl AheadEntries {
    fn states(&mut self, counter: u128) -> impl Iterator<Item = &mut EntryState> {
        let own = self.entries.iter_mut().filter(move |entry| entry.counter == counter);
        own.map(|entry| &mut entry.state)
    }

    /// The denial of a counter: the latest.
    pub(super) fn denial(&mut self, counter: u128) -> Option<&Denial> {
        self.states(counter).find_map(|state| match state {
            EntryState::Denied(denial) => Some(&**denial),
            _ => None,
        })
    }

    pub(super) fn leased(&mut self, counter: u128, limit: &Limit) -> Option<&mut LeasedCounter> {
        self.states(counter).find_map(|state| match state {
            EntryState::Leased(leased) if leased.charge.limit == *limit => Some(&mut **leased),
            _ => None,
        })
    }

    pub(super) fn view(&mut self, counter: u128) -> Option<&mut LenientView> {
        self.states(counter).find_map(|state| match state {
            EntryState::Lenient(view) => Some(&mut **view),
            _ => None,
        })
    }

    /// Adds an entry if there is room or an entry to evict.
    pub(super) fn insert(&mut self, counter: u128, state: EntryState, now: Nanos) {
        if self.entries.len() >= self.max_entries {
            let evictable = |(at, entry): (usize, &CounterEntry)| Some((entry.state.evictable_at(now)?, at));
            let Some((_, evicted)) = self.entries.iter().enumerate().filter_map(evictable).min() else {
                return;
            };
            self.entries.swap_remove(evicted);
        }
        self.entries.push(CounterEntry { counter, state });
    }

    pub(super) fn fresh_view(&mut self, charge: &Charge<'_>, now: Nanos) -> Option<&mut LenientView> {
        self.view(charge.counter()).filter(|view| view.is_fresh(&charge.limit, now))
    }

    /// Replaces the denial of a counter. One from before a refund is not remembered.
    pub(super) fn set_denial(&mut self, counter: u128, denial: Option<Denial>, now: Nanos) {
        self.entries.retain(|entry| entry.counter != counter || !matches!(entry.state, EntryState::Denied(_)));
        if let Some(denial) = denial.filter(|denial| denial.sent >= self.refunded_at) {
            self.insert(counter, EntryState::Denied(Box::new(denial)), now);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.entries.iter().filter_map(|entry| entry.state.next_deadline()).min()
    }

    fn take_due(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.entries.retain_mut(|entry| entry.state.take_due(now, effects));
    }

    fn outstanding_units(&self) -> u64 {
        let units = self.entries.iter().map(|entry| match &entry.state {
            EntryState::Leased(leased) => leased.outstanding(),
            _ => 0,
        });
        units.sum()
    }
}

/// All buckets, and when they are due.
pub(super) struct AheadTable {
    buckets: Box<[Mutex<AheadEntries>]>,
    /// When the buckets with leases and views are due. Lock order: locked before a bucket, never after.
    deadlines: Mutex<Deadlines>,
    next_id: AtomicU64,
    totals: Mutex<LeaseStats>,
}

impl AheadTable {
    /// A table of about `max_entries` entries.
    pub(super) fn new(max_entries: usize) -> Self {
        let bucket_size = max_entries.clamp(1, BUCKET_SIZE);
        let bucket =
            |_| Mutex::new(AheadEntries { entries: Vec::new(), max_entries: bucket_size, refunded_at: Nanos::ZERO });
        AheadTable {
            buckets: (0..(max_entries / bucket_size).max(1)).map(bucket).collect(),
            deadlines: Mutex::default(),
            next_id: AtomicU64::new(0),
            totals: Mutex::default(),
        }
    }

    fn index(&self, counter: u128) -> usize {
        ((counter ^ (counter >> 64)) as u64 % self.buckets.len() as u64) as usize
    }

    /// The bucket of a counter, locked.
    pub(super) fn bucket(&self, counter: u128) -> MutexGuard<'_, AheadEntries> {
        self.buckets[self.index(counter)].lock()
    }

    /// An unused [`LeasedCounter::id`].
    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The units stay charged.
    pub(super) fn add_lapsed(&self, units: u64) {
        self.totals.lock().units_lapsed += units;
    }

    pub(super) fn add_returned(&self, units: u64) {
        self.totals.lock().units_returned += units;
    }

    pub(super) fn lease_stats(&self) -> LeaseStats {
        LeaseStats { units_outstanding: self.outstanding_units(), ..*self.totals.lock() }
    }

    /// Updates the deadline of a counter that may be due sooner than before.
    pub(super) fn schedule(&self, counter: u128) {
        let (mut deadlines, index) = (self.deadlines.lock(), self.index(counter));
        let due = self.buckets[index].lock().next_deadline();
        deadlines.set(index, due);
    }

    /// When anything is due next, if anything is.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.deadlines.lock().next()
    }

    /// The effects that are due at `now`. Only due buckets are locked.
    pub(super) fn take_due(&self, now: Nanos) -> Vec<Effect> {
        let (mut deadlines, mut effects) = (self.deadlines.lock(), Vec::new());
        for index in deadlines.due(now) {
            let mut bucket = self.buckets[index].lock();
            bucket.take_due(now, &mut effects);
            deadlines.set(index, bucket.next_deadline());
        }
        effects
    }

    /// The effects that leave no lease and no unsynced unit behind.
    pub(super) fn take_all(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.buckets.iter().for_each(|bucket| bucket.lock().take_due(Nanos::MAX, &mut effects));
        effects
    }

    /// The draw sent at `sent` has a reply, or failed. Units that may not be used any more stay charged.
    pub(super) fn complete_draw(
        &self,
        request: &DrawRequest,
        drawn: Option<(LeaseReply, Epoch)>,
        sent: Nanos,
        now: Nanos,
    ) {
        let (charge, counter) = (request.charge.charge(), request.charge.counter());
        let units = drawn.as_ref().map_or(0, |(lease, _)| lease.units);
        let denial = drawn.as_ref().and_then(|(lease, _)| Denial::by_draw(&charge, lease, sent));
        if units > 0 {
            let mut totals = self.totals.lock();
            totals.leases_drawn += 1;
            totals.units_drawn += units;
        }
        let mut bucket = self.bucket(counter);
        let Some(leased) = bucket.leased(counter, &charge.limit).filter(|leased| leased.id == request.id) else {
            return self.add_lapsed(units);
        };
        leased.complete_draw(drawn, sent, now, denial.as_ref().map(|denial| denial.until));
        if denial.is_some() || bucket.denial(counter).is_some_and(Denial::is_by_draw) {
            bucket.set_denial(counter, denial, now);
        }
        drop(bucket);
        self.schedule(counter);
    }

    /// The sync sent at `sent` has a reply that shows the counter at the store's time `at`, or failed. Returns the
    /// units that are to be charged by another call, because the view has ended.
    pub(super) fn complete_sync(
        &self,
        counter: u128,
        reply: Option<(&CounterSnapshot, Nanos)>,
        sent: Nanos,
        now: Nanos,
    ) -> Option<Cost> {
        let mut bucket = self.bucket(counter);
        let view = bucket.view(counter)?;
        let Some((seen, at)) = reply else {
            let unsynced = view.unsynced_units();
            bucket.entries.retain(|e| e.counter != counter || !matches!(e.state, EntryState::Lenient(_)));
            return unsynced;
        };
        view.synced(seen, sent, now, at);
        drop(bucket);
        self.schedule(counter);
        None
    }

    /// Forgets the denials of a set, and does not remember those of requests sent before `at`: units of its counters may
    /// have been refunded.
    pub(super) fn forget_denials(&self, set: &ChargeSet<'_>, at: Nanos) {
        for counter in set.charges.iter().map(Charge::counter) {
            let mut bucket = self.bucket(counter);
            bucket.refunded_at = bucket.refunded_at.max(at);
            bucket.set_denial(counter, None, at);
        }
    }

    /// Forgets all that is known of the counters of a set before `at`. Their leases are void.
    pub(super) fn forget(&self, set: &ChargeSet<'_>, at: Nanos) {
        self.forget_denials(set, at);
        for counter in set.charges.iter().map(Charge::counter) {
            let mut bucket = self.bucket(counter);
            let before = bucket.outstanding_units();
            bucket.entries.retain(|entry| entry.counter != counter);
            self.add_lapsed(before - bucket.outstanding_units());
        }
    }

    fn outstanding_units(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.lock().outstanding_units()).sum()
    }

    /// Whether there are neither leases nor views.
    pub(super) fn is_drained(&self) -> bool {
        let mut views = 0;
        self.for_each_view(|_| views += 1);
        views == 0 && self.outstanding_units() == 0
    }

    /// Visits every view.
    pub(super) fn for_each_view(&self, mut visit: impl FnMut(&mut LenientView)) {
        for bucket in &self.buckets {
            for entry in &mut bucket.lock().entries {
                if let EntryState::Lenient(view) = &mut entry.state {
                    visit(view);
                }
            }
        }
    }
}
