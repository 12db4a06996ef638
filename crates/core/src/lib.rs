//! The pure core of Tidegate: units, algorithms, rules, engine, and the [`store`] port.
//!
//! Dependencies point one way: `units <- algorithms <- store`, `units <- request, envoy`, all of these `<- rules <-
//! engine <- event`.
//!
//! Nothing here reads a clock, touches a file, opens a socket or needs a runtime. Every input of a decision is an
//! argument, so tests, simulator and production run the same code.

pub mod algorithms;
pub mod engine;
pub mod envoy;
pub mod event;
pub mod invariants;
pub mod request;
pub mod rules;
mod siphash;
pub mod store;
pub mod subject;
#[doc(hidden)] // for the crates of this workspace, not a promise
pub mod sweep;
pub mod units;
