//! The JSON interface: `POST /v1/check` and its kin.
//!
//! `wire` turns bytes into requests (`fast_json` the usual ones, `json` all), `units` rejects costs that no rule
//! knows, `serve` asks the limiter, `permits` for requests that stay open, `error` says what was wrong. `reserve`
//! and `reserve_wire` are the same for costs known only at the end.

mod attributes;
pub(crate) mod error;
pub(crate) mod explain;
mod fast_json;
mod json;
mod permits;
mod reserve;
mod reserve_wire;
pub(crate) mod serve;
pub(crate) mod units;
pub(crate) mod wire;

pub(crate) use attributes::{AttributeBuilder, check_name, digest_key};
