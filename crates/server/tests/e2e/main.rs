//! The real binary, started on free ports, with clients over real sockets.
//!
//! No test relies on a sleep: each waits for its condition, up to a deadline.

// Clippy recognizes tests by `#[test]` only. Helpers beside them may panic, too.
#![allow(clippy::unwrap_used)]

mod abandoned_permits;
mod admin;
mod auth;
mod background_client;
mod check;
mod cli;
mod clock;
mod concurrent;
mod control_plane;
mod counting;
mod docs_pages;
mod doctor;
mod drain;
mod durable;
mod edges;
mod envoy_calls;
mod envoy_compat;
mod envoy_deadline;
mod envoy_descriptors;
mod envoy_files;
mod envoy_listeners;
mod envoy_real;
mod envoy_statistics;
mod envoy_variables;
mod grpc;
mod grpc_clients;
mod hostile;
mod http;
mod http2;
mod leases;
mod logs;
mod memory;
mod no_configuration;
mod oversized;
mod permits;
mod proxies;
mod readme;
mod reload;
mod reserve;
mod resp;
mod resp_clients;
mod resp_commands;
mod resp_docs;
mod resp_oracle;
mod resp_pipeline;
mod resp_throttle;
mod restart;
mod server;
mod shared;
mod shedding;
mod store_failures;
mod unread_responses;
mod window;
mod xds;

#[path = "../messages/mod.rs"]
mod messages;
