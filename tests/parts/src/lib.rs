//! The real parts tests run against, and the ways to break them.
//!
//! Everything listens on a free loopback port, lives in a folder of its own and ends when it is
//! dropped. Nothing here knows Tidegate.

#![allow(
    clippy::unwrap_used,
    reason = "a part that cannot be started fails its test"
)]

mod certificates;
mod cluster;
mod fault_proxy;
mod redis_server;
mod reverse_proxy;
mod sentinel;
mod shifted_clock;
mod upstream;

pub use certificates::{TestAuthority, TestCertificate};
pub use cluster::TestCluster;
pub use fault_proxy::{FaultProxy, ProxyFault};
pub use redis_server::{RedisProgram, TestRedis, free_port};
pub use reverse_proxy::{
    ProxyProduct, ProxyRelease, ReverseProxy, copy_edited, port_edits, replace_all, search_path,
    terminate,
};
pub use sentinel::{PRIMARY_NAME, SentinelGroup, TestSentinel};
pub use shifted_clock::ShiftedClock;
pub use upstream::{ReceivedRequest, Upstream};
