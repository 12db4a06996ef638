//! The rules of Tidegate: the language they are written in, and the engine that decides by them.
//!
//! `request` is what edges fill in, and `envoy` has the types of the Envoy rate limit protocol. `language` parses,
//! checks, indexes, matches, lints and explains rules files, and the descriptor files of the Envoy reference service.
//! `engine` turns a request into a charge set, and the outcome of a store into a decision. Observers receive the
//! decision as an `event`.
//!
//! Dependencies point one way: `request, envoy <- language <- engine <- event`, all of them on top of `tidegate-core`.
//! Everything here is pure: no clock, no file, no socket, no store.

pub mod engine;
pub mod envoy;
pub mod event;
mod language;
pub mod request;

pub use language::*;
