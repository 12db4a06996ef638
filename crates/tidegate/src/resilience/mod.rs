//! Getting along without the store: no decision waits for it longer than its budget, none fails
//! because it did, and what it forgot is put back.
//!
//! From the outside in: `deny_cache` remembers refusals; `spread` divides a request among the parts of
//! a store; `fallback` decides by this node's share of each limit (`local`) when a part cannot be asked
//! or believed; `guard` is the part behind `deadline`, `bulkhead` and `breaker`. Beside them `node`
//! pings, puts the `mirror` back into a part that lost counts, and charges what is `owed`; both, and what
//! was `reserved` here, are the `memory` that all parts share. `standing` knows when a part may be
//! believed and who else shares it; `store_clock` tells its time and `clock_watch` whether it is off. Each
//! is a store around a store or a pure state machine, and none knows which store it is. Time, tasks and
//! chance come from a [`Runtime`], so the simulator runs this very code.

mod breaker;
mod bulkhead;
mod clock_watch;
mod counters;
mod deadline;
mod deny_cache;
mod event;
mod fallback;
mod guard;
mod join;
mod local;
mod memory;
mod mirror;
mod node;
mod owed;
mod owned;
mod reserved;
mod settings;
mod spread;
mod standing;
mod store_clock;
mod undo;

use std::sync::Arc;

use tidegate_core::store::{NodeId, Parts};

pub use self::breaker::{Breaker, Change};
pub use self::clock_watch::{ClockNews, ClockReading, ClockWatch, Level, Offset, Tolerance};
pub use self::deny_cache::DenyCache;
pub use self::event::{Event, Watcher};
pub use self::fallback::Fallback;
pub use self::settings::{BreakerSettings, Settings};
use self::spread::AsOne;
pub use self::spread::{PartWatch, Spread};
use crate::runtime::Runtime;

/// A shared store that may fail, with everything around it.
pub type Resilient<P, R> = DenyCache<Spread<P, R>, R>;

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
    let me = settings.me.unwrap_or_else(|| NodeId(runtime.random()));
    let spread = Spread::new(parts, runtime.clone(), me, settings, watch);
    DenyCache::new(spread, runtime, denials, at_most)
}
