//! The rules of Tidegate: the language they are written in, and the engine that decides by them.
//!
//! `language` parses, checks, indexes, matches, lints and explains rules files; `envoy` does the same for the descriptor
//! files of the Envoy reference service. `engine` turns a request into a charge set and the outcome of a store into a
//! decision; observers receive the decision as an `event`. `request` is what edges fill in.
//!
//! Knowledge points one way: `request <- language, envoy <- engine <- event`, all of them on top of `tidegate-core`.
//! Everything here is pure: no clock, no file, no socket, no store.

pub mod engine;
pub mod envoy;
pub mod event;
mod language;
pub mod request;

pub use language::*;
