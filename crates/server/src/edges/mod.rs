//! The doors: each speaks one protocol, asks the limiter, and knows neither stores nor the others.

pub(crate) mod admin;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod proxy_auth;
pub(crate) mod resp;
