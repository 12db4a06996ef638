//! The JSON interface: `POST /v1/check` and its kin.
//!
//! `wire` turns bytes into requests (`plain` the usual ones, `read` all), `units` rejects costs that no rule
//! knows, `serve` asks the limiter, `slots` for requests that stay open, `error` says what was wrong. `reserve`
//! and `reserve_wire` are the same for costs known only at the end.

mod attributes;
pub(crate) mod error;
pub(crate) mod explain;
mod plain;
mod read;
mod reserve;
mod reserve_wire;
pub(crate) mod serve;
mod slots;
pub(crate) mod units;
pub(crate) mod wire;

pub(crate) use attributes::{Attributes, check_name, digested};
