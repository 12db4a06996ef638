//! The real parts tests run against, and the ways to break them.
//!
//! Everything listens on a free loopback port, lives in a folder of its own and ends when it is
//! dropped. Nothing here knows Tidegate.

#![allow(
    clippy::unwrap_used,
    reason = "a part that cannot be started fails its test"
)]

mod authority;
mod cluster;
mod proxy;
mod reverse_proxy;
mod sentinel;
mod servers;
mod shifted_clock;
mod upstream;

pub use authority::{Authority, Certificate};
pub use cluster::Cluster;
pub use proxy::{Fault, Proxy};
pub use reverse_proxy::{Make, Release, ReverseProxy, copy, end, moved, replaced, search_path};
pub use sentinel::{Sentinel, Sentinels, WATCHED};
pub use servers::{Program, Server, free_port};
pub use shifted_clock::ShiftedClock;
pub use upstream::{Arrived, Upstream};
