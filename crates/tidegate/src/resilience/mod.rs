//! Getting along without the store: no decision waits for it longer than its budget, none fails
//! because it did, and what it forgot is put back.
//!
//! From the outside in: `deny_cache` remembers refusals; `lease` decides by units drawn in advance, of
//! sets that it may have to `split`; `spread` divides a request among the parts of
//! a store; `fallback` decides by this node's share of each limit (`local`) when a part cannot be asked
//! or believed, and by the newest state seen when its reply is `late`; `guard` is the part behind `deadline`, `bulkhead` and `breaker`. Beside them `node`
//! pings, puts the `mirror` and the `open_slots` back into a part that lost them, and charges what is
//! `owed`; these, and what was `reserved` here, are the `memory` that all parts share. `standing` knows
//! when a part may be believed and who else shares it; `store_clock` tells its time and `clock_watch`
//! whether it is off. Each is a store around a store or a pure state machine, and none knows which store it
//! is. Time, tasks and chance come from a [`Runtime`], so the simulator runs this very code.

mod breaker;
mod bulkhead;
mod clock_watch;
mod counters;
mod deadline;
mod deny_cache;
mod event;
mod eviction;
mod failure_counts;
mod fallback;
mod guard;
mod in_flight;
mod join;
mod late;
mod lease;
mod lenient;
mod local;
mod membership;
mod memory;
mod mirror;
mod node;
mod open_slots;
mod owed;
mod owned;
mod pending;
mod reserved;
mod settings;
mod split;
mod spread;
mod standing;
mod store_clock;
mod undo;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, Parts, Terms};

pub use self::breaker::{Breaker, Change};
pub use self::clock_watch::{ClockNews, ClockReading, ClockWatch, Level, Offset, Tolerance};
pub use self::deny_cache::DenyCache;
pub use self::event::{Event, Watcher};
pub use self::failure_counts::FailureCounts;
pub use self::fallback::Fallback;
pub(crate) use self::join::join_all;
pub use self::lease::{Lease, LeaseFacts, Lender};
pub use self::lenient::{Lenient, Nodes, Overshoot};
pub use self::pending::{PendingLimit, PendingUnits};
pub use self::settings::{BreakerSettings, Settings};
use self::spread::AsOne;
pub use self::spread::{PartWatch, Spread};
use crate::runtime::Runtime;

/// A shared store that may fail, with everything around it.
pub type Resilient<P, R> = DenyCache<Lease<Lenient<Spread<P, R>, R>, R>, R>;

/// Puts everything around a store and its parts, in order. The node it makes has the id that the
/// settings name, else one of its own.
pub fn resilient<P: Parts + 'static, R: Runtime>(
    parts: P,
    runtime: R,
    settings: Settings,
    watcher: Watcher,
) -> Resilient<P, R> {
    let watch = Arc::new(AsOne::new(watcher));
    resilient_parts(parts, runtime, settings, watch)
}

/// The same, for someone who wants to know of each part.
pub fn resilient_parts<P: Parts + 'static, R: Runtime>(
    parts: P,
    runtime: R,
    settings: Settings,
    watch: Arc<dyn PartWatch>,
) -> Resilient<P, R> {
    let (denials, at_most) = (settings.denials, settings.denied_at_most);
    let (leases, views) = (settings.leases, settings.views);
    let me = settings.me.unwrap_or_else(|| NodeId(runtime.random()));
    let spread = Spread::new(parts, runtime.clone(), me, settings, watch);
    let roster = spread.clone();
    let nodes: Nodes = Arc::new(move || roster.nodes());
    let late = spread.clone();
    let unsettled = Arc::new(move |counter| late.is_unsettled(counter));
    let lenient = Lenient::new(spread, runtime.clone(), views, nodes);
    let lease = Lease::new(lenient, runtime.clone(), leases);
    DenyCache::new(lease, runtime, denials, at_most).unless(unsettled)
}

impl<P: Parts + 'static, R: Runtime> Resilient<P, R> {
    /// The nodes as last listed, to be kept for the next start.
    pub fn roster(&self) -> Vec<NodeId> {
        self.spread().roster()
    }

    /// What this node has admitted and the store does not count yet, to be kept for the next start.
    pub fn pending(&self) -> Vec<PendingUnits> {
        self.spread().pending()
    }

    /// Goes on with what was pending before a restart. `limit_of` finds the limit that its rule has now, and
    /// the rule's terms. How many counters of it have a rule.
    pub fn restore_pending(
        &self,
        pending: &[PendingUnits],
        limit_of: impl Fn(&PendingUnits) -> Option<(Limit, Terms)>,
    ) -> usize {
        self.spread().restore_pending(pending, limit_of)
    }

    /// How far the store's clock and this node's are apart.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.spread().clock_reading()
    }

    /// By how many units each lenient rule may be exceeded, as of a moment ago.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        self.store().store().overshoot()
    }

    /// How often the store failed, by kind, and why it failed last.
    pub fn failures(&self) -> &FailureCounts {
        self.spread().failures()
    }

    /// What became of units drawn in advance.
    pub fn leases(&self) -> LeaseFacts {
        self.store().facts()
    }

    /// Ends well: what was drawn in advance goes back, what was admitted by hearsay is told, and from now
    /// on the store is asked about everything.
    pub async fn drain(&self) {
        self.store().give_back_all().await;
        self.store().store().flush().await;
    }

    fn spread(&self) -> &Spread<P, R> {
        self.store().store().store()
    }
}
