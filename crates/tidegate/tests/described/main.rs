//! Requests that Envoy describes, decided as the reference service decides them: every rule of its files, its matching
//! and its responses, on memory and a manual clock.
#![allow(clippy::unwrap_used, reason = "clippy sees tests only inside test functions")]

#[macro_use]
#[path = "../common/delegate.rs"]
mod delegate;

mod beside_rules;
mod decisions;
mod files;
mod fixture;
mod matching;
mod model;
mod shards;
mod words;
