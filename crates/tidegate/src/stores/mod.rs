//! Places that keep counters. Each fills the port of `tidegate_core::store`.

#[cfg(feature = "disk")]
pub mod disk;
pub mod memory;
#[cfg(any(feature = "redis", feature = "disk"))]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "scripts need more of it than a journal")
)]
mod record;
#[cfg(feature = "redis")]
pub mod redis;

pub use memory::MemoryStore;
