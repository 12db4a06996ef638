//! Metrics and log throttling: counters, latencies, and how often a denial is logged.
//!
//! Observers are notified after a decision and cannot change it. Every series belongs to a rule, an edge or the
//! process, never to a client: a flood of new keys or paths adds none. The counters of a rule are looked up once, when
//! rules load; counting a decision is then one relaxed addition.
//!
//! Knows stores only by their reported figures and edges only by name. Reads no clock, and writes only the text of the
//! metrics page.

mod counting;
mod exposition;
mod histogram;
mod log_throttle;
mod metrics;
mod network;
mod page;
pub mod process;
mod series;
mod store;
mod unmatched;

pub use exposition::{Exposition, MetricKind};
pub use histogram::Histogram;
pub use log_throttle::{LogAction, LogThrottle};
pub use metrics::{Metrics, ReloadMetrics};
pub use network::NetworkMetrics;
pub use series::{Counter, Gauge, OutcomeLabel, RuleSeries};
pub use store::{DurabilityState, JournalFacts, MemoryFacts, SharedSeries, StoreFacts};
pub use unmatched::UnmatchedRules;
