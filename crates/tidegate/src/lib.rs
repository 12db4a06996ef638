//! Tidegate as a library: a throttle, and a limiter that decides by rules.
//!
//! [`Throttle`] is the smallest use: one quota, counted by a key. It is all there is without features.
//!
//! ```
//! let search = tidegate::Throttle::new("1000/minute burst 200")?;
//! if search.check("client-17").allows() {
//!     // serve it
//! }
//! # Ok::<(), tidegate::ThrottleError>(())
//! ```
//!
//! With the feature `rules` a `Limiter` decides by rules. Several rules may limit one request at the same time.
//!
#![cfg_attr(feature = "rules", doc = "```")]
#![cfg_attr(not(feature = "rules"), doc = "```ignore")]
//! use tidegate::{Limiter, Request};
//!
//! let limiter = Limiter::from_yaml("version: 1\nrules: [{ name: api, by: user, rate: 2/hour }]")?;
//! let ada = || Request::default().with("user", "ada");
//! assert!(limiter.check_now(ada()).allowed());
//! assert!(limiter.check_now(ada()).allowed());
//! let denied = limiter.check_now(ada());
//! assert_eq!(denied.binding().map(|limit| limit.rule.name().to_string()).as_deref(), Some("api"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | feature | what it adds |
//! |---|---|
//! | `rules` | [`Limiter`], the rules language, receipts, reservations, permits |
//! | `live` | files of rules and keys that reload |
//! | `http` | headers and bodies of HTTP responses |
//! | `tokio` | waiting for a throttle, the runtime of background tasks |
//! | `redis` | counters in Redis or Valkey, shared by any number of nodes |
//! | `disk` | counters on disk |
//!
//! The feature `internals` shows what the service and the simulator are built from. It is no part of the public API and
//! changes in any release. Stores of other kinds implement the port in `tidegate-core`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "internals"), warn(missing_debug_implementations))]
// Without `internals`, what only the service and the simulator use is dead code.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub, unused_imports))]

// Modules with an `msrv` use what is newer than the Rust of the default features, as what they depend on does.

#[cfg(feature = "rules")]
mod adaptive;
pub mod clock;
mod counted_permits;
#[cfg(feature = "rules")]
#[clippy::msrv = "1.90"]
mod hex;
#[cfg(feature = "http")]
#[clippy::msrv = "1.90"]
pub mod http;
#[cfg(feature = "rules")]
mod limiter;
#[cfg(feature = "internals")]
pub mod observe;
#[cfg(feature = "rules")]
mod owned_charge;
mod permit_set;
#[cfg(feature = "rules")]
mod policy;
mod quota;
#[cfg(feature = "rules")]
mod receipt;
#[cfg(feature = "rules")]
pub mod runtime;
#[cfg(feature = "rules")]
mod sealed;
#[cfg(feature = "rules")]
mod secret;
mod throttle;

#[cfg(all(feature = "rules", not(feature = "internals")))]
mod ahead;
#[cfg(feature = "internals")]
pub mod ahead;
#[cfg(all(feature = "rules", not(feature = "internals")))]
#[clippy::msrv = "1.90"]
mod identity;
#[cfg(feature = "internals")]
#[clippy::msrv = "1.90"]
pub mod identity;
#[cfg(all(feature = "rules", not(feature = "internals")))]
mod live;
#[cfg(feature = "internals")]
pub mod live;
#[cfg(all(feature = "rules", not(feature = "internals")))]
mod resilience;
#[cfg(feature = "internals")]
pub mod resilience;
#[cfg(feature = "rules")]
mod shard;
#[cfg(not(feature = "internals"))]
mod stores;
#[cfg(feature = "internals")]
pub mod stores;

#[cfg(feature = "tokio")]
pub use throttle::CostTooLargeError;
#[doc(inline)]
pub use {
    quota::{Quota, ThrottleError},
    throttle::{Throttle, UnkeyedThrottle},
    tidegate_core::algorithms::{Algorithm, Figures, Retry, Verdict},
    tidegate_core::rate::RateError,
    tidegate_core::store::LimitReading,
    tidegate_core::units::{Cost, Nanos},
};

#[cfg(feature = "rules")]
#[doc(inline)]
pub use {
    limiter::{
        AcquireError, Acquired, BuildError, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage,
        DEFAULT_PERMIT_TTL, LimitUsage, Limiter, LimiterBuilder, LimiterView, MemoryCounters, Permit, PermitRenewer,
        RefundError, Reservation, SettleError, Settlement, Ticket, TicketError,
    },
    policy::{LoadError, Policy},
    receipt::{Actual, ReceiptError},
    secret::{Secret, WeakSecretError},
    tidegate_core::store::{Inspection, Refunded, Role, Source, StoreError},
    tidegate_core::subject::RuleName,
    tidegate_rules::engine::{Decision, DecisionKind, LimitView},
    tidegate_rules::event::{Event, Observer, ReservationStep},
    tidegate_rules::request::{ApiKey, Edge, Request},
    tidegate_rules::{Explanation, RuleError, RuleErrors, SourceLocation, Warning},
};

#[cfg(feature = "disk")]
pub use limiter::DiskCounters;
#[cfg(feature = "redis")]
pub use limiter::RedisCounters;
#[cfg(feature = "live")]
pub use {
    live::{FileError, FileState},
    policy::{PolicyEvent, PolicyFollower},
};

#[cfg(feature = "internals")]
pub use {
    adaptive::{Gradient, MAX_ADAPTIVE_PERMITS, MAX_ADAPTIVE_SUBJECTS},
    limiter::{KeyAction, KeyCharge, KeyFamily, MAX_COUNTED_TICKETS, OpenRequests, PENDING_SETTLEMENTS_CAP_PART},
    policy::PolicyOptions,
    tidegate_core::{algorithms, store, units},
    tidegate_rules::{self as rules, engine, envoy, event, request},
};
