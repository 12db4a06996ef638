//! The JSON API: `POST /v1/check` and related routes.
//!
//! `wire` parses the bodies that are no checks, `serve` calls the limiter, `permits` acquires, renews and releases
//! permits, `reserve` charges costs that are known only at the end, and `explain` shows which rules apply and why.

pub(crate) mod explain;
mod permits;
mod reserve;
pub(crate) mod serve;
pub(crate) mod wire;
