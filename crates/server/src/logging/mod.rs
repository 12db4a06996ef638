//! The log: lines are written by a thread of their own, so that a log nobody reads delays no decision.
//!
//! `init` sets up format and level, `writer` is the queue and its thread, `panics` reports panics,
//! `decision_ids` makes the ids that responses and log lines share, `rate_limited_log` bounds the lines that clients cause.

pub(crate) mod decision_ids;
pub(crate) mod init;
pub(crate) mod panics;
pub(crate) mod rate_limited_log;
pub(crate) mod writer;

pub(crate) use self::decision_ids::{DecisionId, DecisionIds};
pub(crate) use self::init::SanitizedText;
pub(crate) use self::rate_limited_log::RateLimitedLog;
