//! Limits of the Envoy reference service: its files are read unchanged, checked, merged and looked up.
//!
//! Each source provides [`DomainConfig`]s, which are compiled into one tree per domain. The entries of a descriptor
//! are looked up in that tree. Native rules are never found this way, and descriptor limits are never found by the
//! attributes of a request. Counting and deciding belong to the engine.

mod compile;
mod config;
mod config_dump;
mod diff;
mod reader;
mod scalar;
mod stats;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::LazyLock;

pub use config::{DescriptorConfig, DomainConfig, LimitConfig};
pub use config_dump::ConfigDump;
pub use stats::stat_name;

pub(crate) use compile::{compile, rate_text, window};
pub(crate) use diff::lifted_rules;
pub(crate) use reader::{is_descriptor_file, read};
pub(crate) use stats::stats_key;
pub(crate) use tree::{DescriptorLookup, Descriptors, Domain};

use crate::envoy::Unit;
use tidegate_core::subject::RuleName;

/// Maximum number of levels in a tree, and so of entries that can match. The deepest of the published files has five
/// levels.
pub(crate) const MAX_LEVELS: usize = 12;

/// Maximum count of a window. Twice that must fit its counter, because debt is recorded.
const MAX_COUNT: u64 = (u32::MAX / 2) as u64;

/// The count of a window for a limit of `requests`.
pub(crate) fn window_count(requests: u32) -> u64 {
    u64::from(requests).clamp(1, MAX_COUNT)
}

/// Counter name of descriptors per `unit`. It is not the name of their rule: a limit that a request brings along
/// counts together with a written one of the same unit, and a count outlives the name and the size of the limit under
/// which it was made.
pub(crate) fn counter_name(unit: Unit) -> &'static RuleName {
    static NAMES: LazyLock<[RuleName; 7]> =
        LazyLock::new(|| Unit::ALL.map(|unit| RuleName::new(&format!("envoy/{}", unit.name()))));
    &NAMES[unit as usize]
}
