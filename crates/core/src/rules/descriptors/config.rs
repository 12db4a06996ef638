//! What a source says of a domain, before anything is checked.
//!
//! A file in YAML and a resource of xDS both become this, so that both go through the same checks.

use crate::envoy::Metadata;
use crate::rules::diagnostics::SourceLocation;

/// A domain, or a part of one, from one source.
#[derive(Clone, PartialEq, Debug)]
pub struct DomainConfig {
    /// Where it stands: a file, or the name of a resource.
    pub location: SourceLocation,
    /// Its name.
    pub domain: String,
    /// The top of its tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// One node of the tree.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DescriptorConfig {
    /// The line it stands on; 0 if there are no lines.
    pub line: u32,
    /// The key of an entry.
    pub key: String,
    /// Its value, or a pattern; empty for any value.
    pub value: String,
    /// Its limit, if it has one.
    pub limit: Option<LimitConfig>,
    /// Whether it never refuses.
    pub shadow_mode: bool,
    /// Whether it is one of several budgets.
    pub quota_mode: bool,
    /// Whether it is counted under every value of a request.
    pub detailed_metric: bool,
    /// Whether it is counted under its own value of a request.
    pub value_to_metric: bool,
    /// Whether all values that match its pattern share one counter.
    pub share_threshold: bool,
    /// What callers are told along.
    pub metadata: Option<Metadata>,
    /// The nodes for the entry that follows.
    pub descriptors: Vec<DescriptorConfig>,
}

/// The limit of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitConfig {
    /// The line it stands on; 0 if there are no lines.
    pub line: u32,
    /// Requests per unit; none at all refuses everything.
    pub requests_per_unit: u32,
    /// The name of the unit; empty if none is written.
    pub unit: String,
    /// Whether there is no limit after all.
    pub unlimited: bool,
    /// By which others replace it, and callers are told of it; empty for none.
    pub name: String,
    /// The names of those it takes the place of.
    pub replaces: Vec<String>,
}
