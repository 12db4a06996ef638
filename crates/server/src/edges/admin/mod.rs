//! The operator's door: metrics, the rules in force, one client's state.
//!
//! Loopback unless a token is set. `access` decides who may ask, `serve` answers; `metrics_listener` is a
//! door of its own, for metrics alone. A web page that an
//! operator happens to visit can reach loopback too: the host must be one of ours, a request from
//! another origin is refused, and nothing here allows cross-origin reading.

pub(crate) mod access;
pub(crate) mod metrics_listener;
mod missing_attributes;
mod readiness_page;
pub(crate) mod serve;
