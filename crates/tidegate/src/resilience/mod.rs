//! Getting along without the store: no decision waits for it longer than its budget, none fails
//! because it did, and what it forgot is put back.
//!
//! From the outside in: `deny_cache` remembers refusals; `fallback` decides by this node's share of
//! each limit (`local`) when the store cannot be asked or believed; `guard` is the store behind
//! `deadline`, `bulkhead` and `breaker`. Beside them `node` pings, puts the `mirror` back into a store
//! that lost counts, and charges what is `owed`; `standing` knows when the store may be believed and
//! who else shares it; `store_clock` tells the store's time and `clock_watch` whether it is off. Each is a store around a store or a pure
//! state machine, and none knows which store it is. Time, tasks and chance come from a
//! [`Runtime`], so the simulator runs this very code.

mod breaker;
mod bulkhead;
mod clock_watch;
mod counters;
mod deadline;
mod deny_cache;
mod event;
mod fallback;
mod guard;
mod local;
mod mirror;
mod node;
mod owed;
mod owned;
mod settings;
mod standing;
mod store_clock;

use tidegate_core::store::{NodeId, Probe, Store};

pub use self::breaker::{Breaker, Change};
pub use self::clock_watch::{ClockNews, ClockReading, ClockWatch, Level, Offset, Tolerance};
pub use self::deny_cache::DenyCache;
pub use self::event::{Event, Watcher};
pub use self::fallback::Fallback;
pub use self::settings::{BreakerSettings, Settings};
use crate::runtime::Runtime;

/// A shared store that may fail, with everything around it.
pub type Resilient<S, R> = DenyCache<Fallback<S, R>, R>;

/// Puts everything around `store`, in order. The node it makes has the id that the settings name, else
/// one of its own.
pub fn resilient<S: Store + Probe + 'static, R: Runtime>(
    store: S,
    runtime: R,
    settings: Settings,
    watcher: Watcher,
) -> Resilient<S, R> {
    let (denials, at_most) = (settings.denials, settings.denied_at_most);
    let me = settings.me.unwrap_or_else(|| NodeId(runtime.random()));
    let wall = runtime.wall();
    let fallback = Fallback::new(store, runtime.clone(), me, wall, settings, watcher);
    DenyCache::new(fallback, runtime, denials, at_most)
}
