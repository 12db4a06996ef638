//! The Envoy rate limit service, version 3, over gRPC, and its JSON twin `POST /json`.
//!
//! `wire` and `json` turn bytes into descriptors, `native` makes attributes of them for native rules,
//! `deadline` is how long a caller waits,
//! `response` and `json` write the answer, `headers` and `metadata` what is told along; `frame` is gRPC's
//! envelope, `health` its health check, `serve` the routes, `statistics` the counts of the reference
//! service, `error` what is refused and how. How a limit is found or charged is not known here. No
//! generated code: the messages are few, and each is read once, from the body, without copies.

pub(crate) mod deadline;
mod error;
mod frame;
mod headers;
mod health;
pub(crate) mod json;
#[cfg(test)]
#[path = "../../../tests/messages/mod.rs"]
mod messages;
mod metadata;
mod native;
mod options;
mod response;
pub(crate) mod serve;
mod statistics;
pub(crate) mod wire;

pub(crate) use options::{EnvoyOptions, LimitHeaders, ReferenceHeaderNames};
pub(crate) use statistics::EnvoyStatistics;
