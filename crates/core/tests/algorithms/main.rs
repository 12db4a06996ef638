//! The algorithms, compared with slow oracles and checked against their own bounds.
//!
//! `TG_TEST_SEED=n` replays one trace of a random test; a failure prints the line to type.

#![allow(clippy::incompatible_msrv, reason = "only the library is for older versions of Rust")]

mod agreement;
mod bounds;
mod broken;
mod case;
mod ceilings;
mod clock;
mod extremes;
mod limiter;
mod measured;
mod merge;
mod oracle;
mod properties;
mod refund;
mod reload;
mod rng;
mod spec;
mod trace;
