//! Places that keep counters. Each fills the port of `tidegate_core::store`.

pub mod memory;

pub use memory::MemoryStore;
