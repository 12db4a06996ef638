//! A request with Envoy descriptors: the limits that decide its descriptors, the store calls, their order, and the
//! meaning of the replies.
//!
//! Invariant: limits that may deny without a charge come first; the remaining limits are charged in one step with
//! those of the rules that apply to the request, all or none; the charges of a denied request come last. Pure: the
//! limiter makes the calls.

mod descriptor_decision;
mod descriptor_match;
mod phases;
mod status;

pub use descriptor_decision::DescriptorDecision;
pub use phases::StoreCall;
pub use status::DescriptorResponse;
