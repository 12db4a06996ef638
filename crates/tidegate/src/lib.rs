//! Tidegate as a library: the limiter, its stores, live rules and identity.
//!
//! [`Throttle`] is the smallest use: one rate, counted by a key.
//!
//! ```
//! let search = tidegate::Throttle::new("1000/minute burst 200")?;
//! if search.check("client-17").allows() {
//!     // serve it
//! }
//! # Ok::<(), tidegate::ThrottleError>(())
//! ```
//!
//! [`Limiter`] decides by rules. Several rules may limit one request at the same time.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate::{Limiter, Policy, Request, Secret, clock::SystemClock, stores::memory::MemoryStore};
//!
//! let text = "version: 1\nrules: [{ name: api, by: user, rate: 2/hour }]";
//! let rules = tidegate::rules::parse(&[tidegate::rules::SourceFile { name: "rules.yaml", text }])?;
//! let clock = Arc::new(SystemClock::new());
//! let store = MemoryStore::new(Arc::clone(&clock));
//! let limiter = Limiter::new(store, Policy::of(rules), Secret::random()?, clock);
//!
//! let ada = || Request::default().with("user", "ada");
//! assert!(limiter.check_now(ada()).allowed());
//! assert!(limiter.check_now(ada()).allowed());
//! let denied = limiter.check_now(ada());
//! assert_eq!(denied.binding().map(|limit| limit.rule.name().to_string()).as_deref(), Some("api"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adaptive;
pub mod clock;
mod counted_permits;
pub mod http;
pub mod identity;
mod limiter;
pub mod live;
pub mod observe;
mod permit_set;
mod policy;
mod receipt;
pub mod resilience;
pub mod runtime;
mod secret;
pub mod stores;
mod throttle;

pub use adaptive::{Gradient, MAX_ADAPTIVE_PERMITS, MAX_ADAPTIVE_SUBJECTS};
pub use limiter::{
    AcquireError, Acquired, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage,
    DEFAULT_PERMIT_TTL, KeyAction, KeyCharge, KeyFamily, LimitUsage, Limiter, LimiterView,
    MAX_COUNTED_TICKETS, MAX_PENDING_SETTLEMENTS, OpenRequests, Permit, PermitRenewer, RefundError,
    Reservation, SettleError, Settlement, Ticket, TicketError,
};
pub use policy::{LoadError, Policy, PolicyEvent, PolicyFollower, PolicyOptions};
pub use receipt::{Actual, ReceiptError};
pub use secret::{Secret, WeakSecretError};
pub use throttle::{Throttle, ThrottleError};

pub use tidegate_core::algorithms::{Retry, Verdict};
pub use tidegate_core::{algorithms, store, units};
pub use tidegate_rules as rules;
pub use tidegate_rules::engine::{Decision, DecisionKind};
pub use tidegate_rules::request::{ApiKey, Request};
pub use tidegate_rules::{engine, envoy, event, request};
