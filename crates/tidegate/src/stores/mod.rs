//! Places that keep counters. Each fills the port of `tidegate_core::store`.

pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

pub use memory::MemoryStore;
