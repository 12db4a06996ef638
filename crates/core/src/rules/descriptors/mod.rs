//! The limits of the Envoy reference service: its files read unchanged, checked, merged and found.
//!
//! Each source gives [`DomainConfig`]s, which are put together into one tree per domain. Whoever is
//! described by entries is led down that tree; native rules are never found this way, nor these by the
//! attributes of a request. What they count and what they decide is the engine's business.

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
pub(crate) use stats::stat_key as stats_key;
pub(crate) use tree::{DescriptorLookup, Descriptors, Domain};

use crate::envoy::Unit;
use crate::subject::RuleName;

/// The most levels of a tree, and so the most entries that find anything. Of the files people
/// publish the deepest has five.
pub(crate) const MAX_LEVELS: usize = 12;

/// The most that a window counts: twice that must fit its counter, because debt is kept.
const MAX_COUNT: u64 = (u32::MAX / 2) as u64;

/// How many of `requests` a window counts.
pub(crate) fn window_count(requests: u32) -> u64 {
    u64::from(requests).clamp(1, MAX_COUNT)
}

/// Under which name descriptors are counted per `unit`. It is not that of their rule: a limit that
/// comes with a request counts together with a written one of the same unit, and a count outlives the
/// name and the size of the limit it was made under.
pub(crate) fn counter_name(unit: Unit) -> &'static RuleName {
    static NAMES: LazyLock<[RuleName; 7]> =
        LazyLock::new(|| Unit::ALL.map(|unit| RuleName::new(&format!("envoy/{}", unit.name()))));
    &NAMES[unit as usize]
}
