//! The edges: each speaks one protocol, calls the limiter, and knows neither stores nor other edges.

pub(crate) mod admin;
pub(crate) mod common;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod proxy_auth;
pub(crate) mod resp;
