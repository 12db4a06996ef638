//! The algorithms, proven against slow oracles and against their own promises.
//!
//! `TIDEGATE_SEED=n` replays one trace of a random test; a failure prints the line to type.

mod agreement;
mod broken;
mod case;
mod clock;
mod oracle;
mod properties;
mod refund;
mod reload;
mod rng;
mod subject;
mod trace;
