//! The edges: each parses one protocol, makes one call to the `Decider` and renders the decision. No edge knows stores or
//! other edges.

pub(crate) mod admin;
pub(crate) mod common;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod proxy_auth;
pub(crate) mod resp;
