//! The admin listener: metrics, the active rules, and the state of one client.
//!
//! It listens on loopback unless a token is set. `access` authorizes requests and `serve` handles them.
//! `metrics_listener` is a listener of its own, for metrics alone. A web page that an operator happens to visit can
//! reach loopback too. So the host must be configured, a request from another origin is rejected, and no response
//! allows cross-origin reading.

pub(crate) mod access;
pub(crate) mod metrics_listener;
mod missing_attributes;
mod readiness_page;
pub(crate) mod serve;
