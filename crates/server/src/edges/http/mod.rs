//! The JSON API: `POST /v1/check` and related routes.
//!
//! `wire` parses the bodies that are no checks, `serve` has the routes, and `explain` renders which rules apply and why.

pub(crate) mod explain;
pub(crate) mod serve;
pub(crate) mod wire;
