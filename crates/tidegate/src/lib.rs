//! Tidegate as a library: the limiter, its stores, live rules and identity.
//!
//! The smallest use is a [`Throttle`]: one rate, counted by a key.
//!
//! ```
//! let search = tidegate::Throttle::new("1000/minute burst 200")?;
//! if search.check("client-17").allows() {
//!     // serve it
//! }
//! # Ok::<(), tidegate::ThrottleError>(())
//! ```
//!
//! A [`Limiter`] decides by rules: who is limited, on what, by how much, several limits at once.
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
//! let refused = limiter.check_now(ada());
//! assert_eq!(refused.binding().map(|limit| limit.rule.name().to_string()).as_deref(), Some("api"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adaptive;
pub mod clock;
mod crowd;
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

pub use adaptive::{Gradient, MAX_ADAPTIVE_PERMITS, MOST_ADAPTIVE};
pub use limiter::{
    Acquired, Act, Family, Full, Keeper, Keyed, Limiter, MOST_COUNTED, MOST_TENDED, OVERTAKEN,
    OpenRequests, Opened, RefundError, Reservation, SettleError, Settlement, Slot, SlotError,
    Standing, Ticket, TicketError, USUAL_SLOT, View,
};
pub use policy::{Follower, LoadError, News, Policy, Reading};
pub use receipt::{Actual, ReceiptError};
pub use secret::{Secret, WeakSecret};
pub use throttle::{Throttle, ThrottleError};

pub use tidegate_core::algorithms::{Retry, Verdict};
pub use tidegate_core::engine::{Decision, Fate};
pub use tidegate_core::request::{ApiKey, Request};
pub use tidegate_core::{algorithms, described, engine, event, request, rules, store, units};
