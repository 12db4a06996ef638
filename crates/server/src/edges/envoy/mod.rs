//! The Envoy rate limit service, version 3, over gRPC, and its JSON form `POST /json`.
//!
//! `wire` and `json` parse requests into descriptors, `native` derives the attributes for native rules, and `deadline`
//! is the time that a caller waits. `response` and `json` write the response, `headers` and `metadata` its extra parts.
//! `frame` is the gRPC framing, `serve` the routes and the health check, `statistics` the counters of the
//! reference service, and `error` the errors. Does not know how a limit is found or charged. No generated code: the
//! messages are few, and each is read once, from the body, without copies.

pub(crate) mod deadline;
mod error;
mod frame;
mod headers;
pub(crate) mod json;
#[cfg(test)]
#[path = "../../../tests/messages/mod.rs"]
mod messages;
mod metadata;
mod native;
mod response;
pub(crate) mod serve;
mod statistics;
pub(crate) mod wire;
