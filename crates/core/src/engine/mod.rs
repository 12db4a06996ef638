//! From a request to a charge set, and from a store's answer to a decision.
//!
//! [`plan`] says what to charge, [`settle`] says what it means. Both are pure: the limiter in between
//! does the I/O. Neither knows which store answers or which edge asks. A request that Envoy describes
//! takes more than one question: an [`Inquiry`] says which, and what the answers mean. Which limits on
//! open requests it comes under, [`openings`] says.

mod decision;
mod described;
mod judged;
mod openings;
mod plan;
mod settle;
mod subject;

pub use decision::{Decision, Fate, LimitView};
pub use described::{Ask, Inquiry};
pub use judged::Judged;
pub use openings::{Opening, openings};
pub use plan::{Origin, Plan, Stance, charges, plan};
pub use settle::{Spent, settle, settle_listed};
