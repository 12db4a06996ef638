//! The JSON interface: `POST /v1/check` and its kin.
//!
//! `wire` turns bytes into requests (`plain` the usual ones, `read` all), `serve` asks the limiter, `slots` for
//! requests that stay open, `error` says what was wrong.

mod attributes;
pub(crate) mod error;
pub(crate) mod explain;
mod plain;
mod read;
pub(crate) mod serve;
mod slots;
pub(crate) mod wire;

pub(crate) use attributes::{Attributes, check_name, digested};
