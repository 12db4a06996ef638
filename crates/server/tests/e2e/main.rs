//! The real binary, started on free ports and spoken to over real sockets.
//!
//! No test sleeps and hopes: what must happen is waited for, up to a deadline.

// Clippy knows tests by `#[test]` only; the helpers beside them may fail just as loudly.
#![allow(clippy::unwrap_used)]

mod admin;
mod auth;
mod check;
mod cli;
mod clock;
mod concurrent;
mod doctor;
mod drain;
mod durable;
mod envoy_calls;
mod envoy_descriptors;
mod envoy_doors;
mod envoy_real;
mod grpc;
mod hostile;
mod http;
mod http2;
mod logs;
mod pages;
mod proxies;
mod readers;
mod readme;
mod reload;
mod restart;
mod server;
mod shared;

#[path = "../messages/mod.rs"]
mod messages;
