//! Real servers and proxies for tests, and the means to break them.
//!
//! Each listens on a free loopback port, has a folder of its own and ends on drop. Nothing here knows
//! Tidegate. `layers` checks which modules of a crate use which others, and `rust_code` reads the code of a file.

#![allow(clippy::unwrap_used, reason = "a program that cannot be started fails its test")]

mod certificates;
mod cluster;
mod fault_proxy;
pub mod layers;
mod redis_server;
mod reverse_proxy;
pub mod rust_code;
mod sentinel;
mod shifted_clock;
mod upstream;

pub use certificates::{TestAuthority, TestCertificate};
pub use cluster::TestCluster;
pub use fault_proxy::{FaultProxy, ProxyFault};
pub use redis_server::{RedisProgram, TestRedis, free_port};
pub use reverse_proxy::{
    ProxyProduct, ProxyRelease, ReverseProxy, copy_edited, port_edits, replace_all, search_path, terminate,
};
pub use sentinel::{PRIMARY_NAME, SentinelGroup, TestSentinel};
pub use shifted_clock::ShiftedClock;
pub use upstream::{ReceivedRequest, Upstream};
