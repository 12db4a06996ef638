//! Decides ahead of a shared store: by remembered denials, by leases, and by lenient views.
//!
//! - `denial`: a denial is remembered until it can change. It ends when its wait is over, when a refund, a settle, a
//!   reserve or a reset of its counter passes by, and when the limit changes.
//! - `leased_counter`, `rate_estimate`, `refill`: units that are charged before they are used. A hot key costs one round
//!   trip for many requests, and not one request too many is admitted.
//! - `lenient_view`: the last synced state of a counter, by which a node admits before it syncs what it admitted.
//! - `table` bounds all of these, `decision` decides a set by them, and `background_calls` makes the calls that
//!   follow: draws, returns and syncs. The store behind decides everything else.
//!
//! A node with enough requests for a leased counter draws a lease and decides by it until it is used up or expires; the
//! limit sets its TTL. The next lease is drawn in the background when half is used; a request that finds no units
//! meanwhile waits for it a little. Units that are left when the lease expires or the counter is idle are returned once.
//!
//! Invariant: every unit admitted by a lease was charged before, no longer ago than its TTL. Lost replies and lost
//! refunds leave units charged that were never used, never the other way round. Knows neither rules nor which store is
//! behind it, only what [`BackingStore`] reports.
//!
//! Cancel-safety: a request that is dropped while the rest of it is decided has used its units; one that is dropped
//! while it waits for a refill has taken none.

mod background_calls;
mod deadlines;
mod decision;
mod denial;
mod leased_counter;
mod lenient_view;
mod port;
mod rate_estimate;
mod refill;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use tidegate_core::store::{Charge, ChargeSet, Epoch, Store};
use tidegate_core::units::Nanos;

use self::table::AheadTable;
use crate::runtime::Runtime;

/// What deciding ahead of a store has to know of it.
pub trait BackingStore: Store {
    /// The epoch of the store that holds the counter of `charge`; `None` while it is not trusted. A store that reports
    /// no epoch has a constant one. Units drawn in one epoch are not returned to another: it may have lost their
    /// charge.
    fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch>;

    /// How long a decision on `set` may take.
    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos;

    /// How many nodes share the store.
    fn nodes(&self) -> u64;

    /// Whether a late reply may still change what can be admitted of a counter. Denials of sets with such a counter are
    /// neither remembered nor repeated.
    fn has_late_charges(&self, counter: u128) -> bool;
}

/// Decides ahead of a store. Clones share their state.
pub struct Ahead<S, R>(Arc<AheadInner<S, R>>);

impl<S, R> fmt::Debug for Ahead<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").finish_non_exhaustive()
    }
}

struct AheadInner<S, R> {
    store: S,
    runtime: R,
    table: AheadTable,
    max_denial_age: Nanos,
    /// Effects, and requests that may yet return units.
    in_flight: Arc<AtomicUsize>,
    /// Whether the task is running that makes the calls which are due.
    task_running: AtomicBool,
    /// Set when nothing is decided ahead any more. Read after `in_flight` is raised, so that a drain that sets it and
    /// then finds nothing in flight has missed nothing.
    draining: AtomicBool,
}

/// The totals of leased units, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseStats {
    /// Leases drawn.
    pub leases_drawn: u64,
    /// Units drawn.
    pub units_drawn: u64,
    /// Units returned unused.
    pub units_returned: u64,
    /// Units neither used nor returned.
    pub units_lapsed: u64,
    /// Units in leases now.
    pub units_outstanding: u64,
}

/// By how many units a lenient limit may be exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overshoot {
    /// In any case: every other node admits all that is left before it syncs.
    pub worst_case: u64,
    /// If no node gets busier than the busiest was between the last two syncs.
    pub at_current_rate: u64,
}

impl<S, R> Clone for Ahead<S, R> {
    fn clone(&self) -> Self {
        Ahead(Arc::clone(&self.0))
    }
}

impl<S: BackingStore + 'static, R: Runtime> Ahead<S, R> {
    /// Decides ahead of `store`, with up to `max_entries` denials, leased counters and lenient views at a time. A denial
    /// is remembered for at most `max_denial_age`.
    pub fn new(store: S, runtime: R, max_entries: usize, max_denial_age: Nanos) -> Self {
        Ahead(Arc::new(AheadInner {
            store,
            runtime,
            table: AheadTable::new(max_entries),
            max_denial_age,
            in_flight: Arc::default(),
            task_running: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// How many units were drawn, returned, lapsed and are outstanding.
    pub fn lease_stats(&self) -> LeaseStats {
        self.0.table.lease_stats()
    }

    /// By how many units each rule with lenient views may be exceeded: the largest value of its counters.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        let (nodes, now) = (self.0.store.nodes(), self.0.runtime.now());
        let mut rules: BTreeMap<Box<str>, Overshoot> = BTreeMap::new();
        self.0.table.for_each_view(|view| {
            let (of, rule) = (view.overshoot(nodes, now), Box::from(view.charge.rule.as_str()));
            let worst = rules.entry(rule).or_default();
            worst.worst_case = worst.worst_case.max(of.worst_case);
            worst.at_current_rate = worst.at_current_rate.max(of.at_current_rate);
        });
        rules
    }

    /// Shuts down cleanly: returns all leases and syncs all lenient charges. From then on the store decides everything.
    /// Done when the store has replied, or after a few seconds.
    pub async fn drain(&self) {
        self.0.drain().await;
    }
}
