//! From a request to a charge set, and from a store's reply to a decision.
//!
//! [`plan`] computes the charges, [`decide`] interprets the reply. Both are pure: the limiter in between does the I/O.
//! Neither knows the store or the edge. A request with Envoy descriptors takes more than one store call: a
//! [`DescriptorDecision`] sequences the calls and interprets the replies. [`concurrency_limits`] finds the concurrency
//! limits of a request.

mod decide;
mod decision;
mod envoy;
mod plan;
mod subject;

pub use decide::{ChargedAs, decide, decide_listed};
pub use decision::{Decision, DecisionKind, LimitView};
pub use envoy::{DescriptorDecision, DescriptorResponse, StoreCall};
pub use plan::{ChargePlan, ConcurrencyLimit, EnforceMode, Origin, concurrency_limits, plan, plan_charges};
