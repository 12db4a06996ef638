//! Limits of the Envoy reference service: its files are read unchanged, checked, merged and looked up.
//!
//! Each source provides [`DomainConfig`]s, which are compiled into one tree per domain. The entries of a descriptor
//! are looked up in that tree. Native rules are never found this way, and descriptor limits are never found by the
//! attributes of a request. Counting and deciding belong to the engine.

mod compile;
mod diff;
mod entry_warnings;
mod reader;
mod scalar;
mod stats;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::sync::LazyLock;

pub use stats::stat_name;

pub(crate) use compile::{compile, rate_text, window};
pub(crate) use diff::{lifted_rules, sample};
pub(crate) use reader::{is_descriptor_file, read};
pub(crate) use stats::stats_key;
use tree::NodeLimit;
pub(crate) use tree::{DescriptorLevel, DescriptorLookup, DescriptorNode, Descriptors, Domain};

use crate::envoy::{Metadata, Unit};
use crate::language::diagnostics::SourceLocation;
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

/// A domain, or a part of one, as one source provides it, before any check. A YAML file and an xDS resource both become
/// one, so that both go through the same checks.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct DomainConfig {
    /// Source location: a file, or the name of a resource.
    pub location: SourceLocation,
    /// Name of the domain.
    pub domain: String,
    /// Top level of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// One node of the tree.
#[derive(Clone, PartialEq, Hash, Debug, Default)]
pub struct DescriptorConfig {
    /// Line of the node; 0 if the source has no lines.
    pub line: u32,
    /// Key of a descriptor entry.
    pub key: String,
    /// Value of the entry, or a pattern; empty for any value.
    pub value: String,
    /// Limit of the node, if it has one.
    pub limit: Option<LimitConfig>,
    /// Whether the node never denies.
    pub shadow_mode: bool,
    /// Whether the node is one of several budgets.
    pub quota_mode: bool,
    /// Whether the stats key has the request's value of every entry.
    pub detailed_metric: bool,
    /// Whether the stats key has the request's value of this entry.
    pub value_to_metric: bool,
    /// Whether all values that match the pattern share one counter.
    pub share_threshold: bool,
    /// Metadata that responses carry.
    pub metadata: Option<Metadata>,
    /// Nodes for the next entry.
    pub descriptors: Vec<DescriptorConfig>,
}

/// The limit of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct LimitConfig {
    /// Line of the limit; 0 if the source has no lines.
    pub line: u32,
    /// Requests per unit; 0 denies everything.
    pub requests_per_unit: u32,
    /// Name of the unit; empty if none is written.
    pub unit: String,
    /// Whether requests are unlimited.
    pub unlimited: bool,
    /// Name by which other limits replace this one and which responses carry; empty for none.
    pub name: String,
    /// Names of the limits that this one replaces.
    pub replaces: Vec<String>,
}

/// Prints a line for each limit, in the order of the files:
/// `domain.key_value: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false`.
#[derive(Clone, Copy, Debug)]
pub struct ConfigDump<'r>(pub(crate) &'r Descriptors);

impl fmt::Display for ConfigDump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.domains.iter().try_for_each(|domain| write_level(&domain.root, f))
    }
}

fn write_level(level: &DescriptorLevel, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    level.nodes.iter().try_for_each(|node| {
        node.limit.iter().try_for_each(|limited| write_limit(limited, f))?;
        write_level(&node.children, f)
    })
}

fn write_limit(limited: &NodeLimit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let unit = limited.counted.map_or("unknown", |counted| counted.unit.name());
    writeln!(
        f,
        "{}: unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}",
        limited.path,
        unit.to_ascii_uppercase(),
        limited.requests_per_unit,
        limited.shadow_mode,
        limited.quota_mode
    )
}
