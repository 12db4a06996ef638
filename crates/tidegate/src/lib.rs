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
//! | `rules` | `Limiter`, the rules language, identities, receipts, reservations, permits, policies that reload |
//! | `http` | headers and bodies of HTTP responses |
//! | `tokio` | waiting for a throttle, the runtime of background tasks |
//! | `redis` | counters in Redis or Valkey |
//! | `disk` | durable counters on disk |

#[cfg(feature = "rules")]
mod adaptive;
pub mod clock;
mod counted_permits;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "rules")]
pub mod identity;
#[cfg(feature = "rules")]
mod limiter;
#[cfg(feature = "rules")]
pub mod live;
#[cfg(feature = "rules")]
pub mod observe;
mod permit_set;
#[cfg(feature = "rules")]
mod policy;
mod quota;
#[cfg(feature = "rules")]
mod receipt;
#[cfg(feature = "rules")]
pub mod resilience;
#[cfg(feature = "rules")]
pub mod runtime;
#[cfg(feature = "rules")]
mod secret;
pub mod stores;
mod throttle;

#[cfg(feature = "rules")]
pub use adaptive::{Gradient, MAX_ADAPTIVE_PERMITS, MAX_ADAPTIVE_SUBJECTS};
#[cfg(feature = "rules")]
pub use limiter::{
    AcquireError, Acquired, BuildError, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage, DEFAULT_PERMIT_TTL,
    KeyAction, KeyCharge, KeyFamily, LimitUsage, Limiter, LimiterBuilder, LimiterView, MAX_COUNTED_TICKETS,
    MAX_PENDING_SETTLEMENTS, OpenRequests, Permit, PermitRenewer, RefundError, Reservation, SettleError, Settlement,
    Ticket, TicketError,
};
#[cfg(feature = "rules")]
pub use policy::{LoadError, Policy, PolicyEvent, PolicyFollower, PolicyOptions};
pub use quota::{Quota, ThrottleError};
#[cfg(feature = "rules")]
pub use receipt::{Actual, ReceiptError};
#[cfg(feature = "rules")]
pub use secret::{Secret, WeakSecretError};
#[cfg(feature = "tokio")]
pub use throttle::CostTooLargeError;
pub use throttle::{Throttle, UnkeyedThrottle};

pub use tidegate_core::algorithms::{Algorithm, Retry, Verdict};
pub use tidegate_core::rate::RateError;
pub use tidegate_core::units::Cost;
pub use tidegate_core::{algorithms, store, units};
#[cfg(feature = "rules")]
pub use tidegate_rules as rules;
#[cfg(feature = "rules")]
pub use tidegate_rules::engine::{Decision, DecisionKind};
#[cfg(feature = "rules")]
pub use tidegate_rules::request::{ApiKey, Request};
#[cfg(feature = "rules")]
pub use tidegate_rules::{engine, envoy, event, request};
