//! From a request to a charge set, and from a store's reply to a decision.
//!
//! [`plan`] computes the charges, [`decide`] interprets the reply. Both are pure: the limiter in between does the I/O.
//! Neither knows the store or the edge. A request with Envoy descriptors takes more than one store call: a
//! [`DescriptorDecision`] sequences the calls and interprets the replies. [`concurrency_limits`] finds the concurrency
//! limits of a request.

mod concurrency_limits;
mod decide;
mod decision;
mod descriptor_response;
mod envoy;
mod plan;
mod subject;

pub use concurrency_limits::{ConcurrencyLimit, concurrency_limits};
pub use decide::{ChargedAs, decide, decide_listed};
pub use decision::{Decision, DecisionKind, LimitView};
pub use descriptor_response::DescriptorResponse;
pub use envoy::{DescriptorDecision, StoreCall};
pub use plan::{ChargePlan, EnforceMode, Origin, plan, plan_charges};
