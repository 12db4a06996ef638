//! Stores: memory, disk and Redis. Each implements the port of `tidegate_core::store`.

#[cfg(feature = "disk")]
pub mod disk;
pub mod memory;
#[cfg(any(feature = "redis", feature = "disk"))]
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "the scripts use more of it than the journal"))]
mod record;
#[cfg(feature = "redis")]
pub mod redis;

pub use memory::MemoryStore;
