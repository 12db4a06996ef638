//! The JSON interface: `POST /v1/check` and its kin.
//!
//! `read` and `wire` turn bytes into requests, `serve` asks the limiter, `error` says what was wrong.

pub(crate) mod error;
pub(crate) mod explain;
mod read;
pub(crate) mod serve;
pub(crate) mod wire;

pub(crate) use read::digested;
