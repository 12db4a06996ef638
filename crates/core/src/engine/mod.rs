//! From a request to a charge set, and from a store's answer to a decision.
//!
//! [`plan`] says what to charge, [`decide`] says what it means. Both are pure: the limiter in between
//! does the I/O. Neither knows which store answers or which edge asks. A request that Envoy describes
//! takes more than one question: an [`DescriptorDecision`] says which, and what the answers mean. Which limits on
//! open requests it comes under, [`concurrency_limits`] says.

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
