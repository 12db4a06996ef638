//! One shared store as this node sees it: decides while it is slow, down, or has lost counts.
//!
//! No decision waits for the store longer than its budget, none fails because the store does, and lost counts are
//! restored. `routing` divides a request among the shards of the store. Each is a `shared_shard`, and is in one of three
//! states ([`ShardState`](shared_shard::ShardState)):
//!
//! | state | what happens |
//! |---|---|
//! | `Down` | the breaker is open (`call/breaker`): this node's share decides (`node/local_fallback`), and only pings are sent (`recovery`) |
//! | `Recovering` | the shard replies and may lack counts: nodes restore what they remember (`node/mirror`, `node/open_permits`), and the share decides |
//! | `Exact` | the shard decides; while its reply is late, the newest known state does (`late`, `late_calls`) |
//!
//! - `decisions` decides a charge, `verbs` has all other operations. `call` sends them to the shard, with a deadline, a
//!   bulkhead and the breaker around each: `send_charges` a charge, which is decided without its reply if that is late,
//!   `call` everything else that a request waits for.
//! - `replies` keeps the mirror up to date, and notices that counts were lost.
//! - `recovery` pings, decides when the shard is trusted, and afterwards charges what was admitted without it
//!   (`recovery/push`, `node/write_back`).
//! - `node` is what all shards of a node share, because counters move between them. `node/local_admissions` is what
//!   survives a restart.
//!
//! The breaker, the recovery state and the late ledger are pure state machines: events go in, effects come out, time is
//! injected. The write-back queue, the mirror and the permits are shared tables with locks of their own; time is injected
//! into them, too. None knows which store is behind it. Time, tasks and randomness come from a
//! [`Runtime`](crate::runtime::Runtime), so the simulator runs this very code.

pub(crate) mod call;
mod decisions;
pub(crate) mod event;
mod late;
mod late_calls;
pub(crate) mod node;
mod recovery;
mod refund;
mod replies;
pub(crate) mod routing;
pub(crate) mod settings;
mod shared_shard;
mod verbs;

pub use self::call::breaker::{Breaker, BreakerChange};
pub use self::call::failure_counts::FailureCounts;
pub use self::event::{StoreEvent, Watcher};
pub use self::node::local_admissions::{LocalAdmissions, LocalPermit, PendingLimit, PendingUnits};
pub use self::node::open_permits::PermitSync;
pub use self::recovery::clock_watch::{ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance, ClockWatch};
pub(crate) use self::routing::AggregateObserver;
pub use self::routing::{ShardObserver, ShardedStore};
pub use self::settings::{BreakerSettings, ResilienceSettings};
