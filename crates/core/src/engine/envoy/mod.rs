//! A request that Envoy describes: by which limits its descriptors are decided, what a store must be
//! asked, in which order, and what the answers mean.
//!
//! Kept true: what may refuse without spending is asked first; the limits that are left are charged in
//! one step with those of the rules that apply to the request, all or none; what a refused request pays
//! nevertheless comes last. Pure: the limiter does the asking.

mod descriptor_decision;
mod descriptor_match;
mod phases;
mod status;

pub use descriptor_decision::DescriptorDecision;
pub use phases::StoreCall;
