//! The JSON API: `POST /v1/check` and related routes.
//!
//! `wire` parses bodies into requests (`fast_json` the usual ones, `json` all), `units` rejects costs that no rule
//! counts, `serve` calls the limiter, `permits` acquires, renews and releases permits, and `error` builds error
//! responses. `reserve` and `reserve_wire` do the same for costs that are known only at the end.

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
