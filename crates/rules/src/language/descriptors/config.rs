//! Domain configs as a source provides them, before any check.
//!
//! A YAML file and an xDS resource both become a [`DomainConfig`], so that both go through the same checks.

use crate::envoy::Metadata;
use crate::language::diagnostics::SourceLocation;

/// A domain, or a part of one, from one source.
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
