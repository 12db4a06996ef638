//! Descriptor limits of all domains as trees, and the lookup in them.
//!
//! Each level is a hash of composite keys, and a list of those with a `*` in file order. A lookup takes one step per
//! entry and never backtracks: an exact value that leads nowhere hides the pattern and the bare key beside it, as in
//! the reference service.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::envoy::{DescriptorEntry, Metadata, Unit};
use crate::language::ParseOptions;
use crate::language::diagnostics::SourceLocation;
use crate::language::glob::segment_matches;
use tidegate_core::algorithms::Precision;

/// All domains.
#[derive(Clone, Debug)]
pub(crate) struct Descriptors {
    pub(crate) domains: Vec<Domain>,
    pub(crate) by_name: FxHashMap<Box<str>, u32>,
    /// Precision of limits that come with a request.
    pub(crate) precision: Precision,
    /// Prefix that keeps their counters apart from others in the same store; empty for none.
    pub(crate) prefix: Arc<str>,
}

/// One domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) name: Box<str>,
    /// The first source location that names the domain.
    pub(crate) location: SourceLocation,
    pub(crate) root: DescriptorLevel,
    /// The rule for limits that come with a request.
    pub(crate) override_rule: u32,
}

/// Nodes for one entry, in file order.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorLevel {
    pub(crate) nodes: Vec<DescriptorNode>,
    by_key: FxHashMap<Box<str>, u32>,
    /// Nodes with a `*`.
    patterns: Vec<u32>,
}

impl DescriptorLevel {
    /// Whether a node of this level, or below it, has a limit that counts.
    pub(crate) fn has_limits(&self) -> bool {
        let counts = |limited: &NodeLimit| limited.counted.is_some();
        let limits = |node: &DescriptorNode| node.limit.as_ref().is_some_and(counts) || node.children.has_limits();
        self.nodes.iter().any(limits)
    }
}

/// One node of a tree.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorNode {
    /// The key, or key and value joined by `_`.
    pub(crate) composite_key: Box<str>,
    /// Length of the key within `composite_key`, in bytes.
    pub(crate) key_len: usize,
    pub(crate) location: SourceLocation,
    pub(crate) limit: Option<NodeLimit>,
    pub(crate) children: DescriptorLevel,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) metadata: Option<Metadata>,
}

/// The limit for descriptors that end on a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeLimit {
    /// Domain and composite keys, joined by dots.
    pub(crate) path: Box<str>,
    /// The limit that counts; `None` if unlimited.
    pub(crate) counted: Option<CountedLimit>,
    /// As written, even where it has no meaning.
    pub(crate) requests_per_unit: u32,
    pub(crate) name: Option<Box<str>>,
    pub(crate) replaces: Box<[Box<str>]>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
}

/// A limit that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedLimit {
    pub(crate) unit: Unit,
    /// Position of its rule.
    pub(crate) rule: u32,
}

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum DescriptorLookup<'r> {
    /// No limit: no node matches, or the node has no limit but has children.
    NotFound,
    /// A node without a limit and without children: it exempts descriptors that other nodes would limit.
    Exempt,
    /// A limit.
    Limit(LimitMatch<'r>),
}

/// The limit that the entries of a descriptor match.
#[derive(Debug)]
pub(crate) struct LimitMatch<'r> {
    pub(crate) limit: &'r NodeLimit,
    /// Patterns that replace values in the counter's name, by entry.
    pub(crate) shared_patterns: SmallVec<[(usize, &'r str); 2]>,
    /// Metadata of the node, unless the reference service drops it because of the stats key.
    pub(crate) metadata: Option<&'r Metadata>,
    /// Its stats key, if that is not its path.
    pub(crate) stats_key: Option<String>,
}

impl Descriptors {
    pub(crate) fn new(options: &ParseOptions) -> Self {
        Descriptors {
            domains: Vec::new(),
            by_name: FxHashMap::default(),
            precision: options.store.precision,
            prefix: Arc::clone(&options.prefix),
        }
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        let at = *self.by_name.get(name)?;
        Some(&self.domains[at as usize])
    }
}

impl DescriptorLevel {
    /// Adds a node. The error is the existing node with the same composite key.
    pub(crate) fn add(&mut self, node: DescriptorNode) -> Result<(), &DescriptorNode> {
        if let Some(known) = self.by_key.get(&node.composite_key) {
            return Err(&self.nodes[*known as usize]);
        }
        let at = self.nodes.len() as u32; // a file has fewer nodes than `u32::MAX`
        if node.composite_key.contains('*') {
            self.patterns.push(at);
        }
        self.by_key.insert(node.composite_key.clone(), at);
        self.nodes.push(node);
        Ok(())
    }

    /// The node for one entry. `buffer` is scratch space for joining key and value.
    pub(crate) fn find(&self, key: &str, value: &str, buffer: &mut String) -> Option<&DescriptorNode> {
        self.step(key, value, buffer).map(|(node, _)| node)
    }

    /// Number of keys compared in a lookup without an exact match.
    pub(crate) fn step_cost(&self) -> usize {
        1 + self.patterns.len()
    }

    /// Whether there is a node with the same key and value.
    pub(crate) fn has(&self, node: &DescriptorNode) -> bool {
        self.by_key.get(&node.composite_key).is_some_and(|at| self.nodes[*at as usize].key_len == node.key_len)
    }

    /// As `find`, with how the node was matched.
    fn step(&self, key: &str, value: &str, buffer: &mut String) -> Option<(&DescriptorNode, MatchedBy)> {
        buffer.clear();
        buffer.extend([key, "_", value]);
        let node = |at: &u32| &self.nodes[*at as usize];
        if let Some(at) = self.by_key.get(buffer.as_str()) {
            return Some((node(at), MatchedBy::Value));
        }
        let mut patterns = self.patterns.iter().map(node);
        if let Some(found) = patterns.find(|node| segment_matches(&node.composite_key, buffer)) {
            return Some((found, MatchedBy::Pattern));
        }
        Some((node(self.by_key.get(key)?), MatchedBy::Key))
    }
}

/// How a node was matched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchedBy {
    Value,
    Pattern,
    Key,
}

impl Domain {
    /// The limit for a descriptor with these entries.
    pub(crate) fn find(&self, entries: &[DescriptorEntry<'_>], buffer: &mut String) -> DescriptorLookup<'_> {
        let mut walk = DescriptorWalk::default();
        let (mut level, mut last) = (&self.root, None);
        for (key, value) in entries {
            let Some((node, by)) = level.step(key, value, buffer) else { return DescriptorLookup::NotFound };
            walk.record_step(node, by, (key, value));
            (level, last) = (&node.children, Some(node));
        }
        let Some(node) = last else {
            return DescriptorLookup::NotFound; // no entries
        };
        match &node.limit {
            Some(limited) => DescriptorLookup::Limit(walk.finish(&self.name, node, limited, entries)),
            None if node.children.nodes.is_empty() => DescriptorLookup::Exempt,
            None => DescriptorLookup::NotFound,
        }
    }
}

/// State of one lookup.
#[derive(Default)]
struct DescriptorWalk<'r> {
    shared_patterns: SmallVec<[(usize, &'r str); 2]>,
    /// The value that the stats key has for each entry.
    stat_values: SmallVec<[StatValue<'r>; 4]>,
    renamed: bool,
}

/// The value that the stats key has for one entry.
#[derive(Clone, Copy)]
enum StatValue<'r> {
    /// No value, only the key.
    Key,
    /// The request's own value.
    Value,
    /// A pattern.
    Pattern(&'r str),
}

impl<'r> DescriptorWalk<'r> {
    fn record_step(&mut self, node: &'r DescriptorNode, by: MatchedBy, (key, value): (&str, &str)) {
        let of_pattern = || {
            let rest = node.composite_key.strip_prefix(key);
            rest.and_then(|rest| rest.strip_prefix('_')).unwrap_or(&node.composite_key)
        };
        let stat_value = match by {
            MatchedBy::Pattern if node.share_threshold => {
                self.shared_patterns.push((self.stat_values.len(), of_pattern()));
                StatValue::Pattern(of_pattern())
            }
            MatchedBy::Pattern if !node.value_to_metric => StatValue::Pattern(of_pattern()),
            MatchedBy::Key if !node.value_to_metric => StatValue::Key,
            _ if value.is_empty() => StatValue::Key,
            _ => StatValue::Value,
        };
        self.renamed |= match stat_value {
            StatValue::Key => *node.composite_key != *key,
            StatValue::Value => by != MatchedBy::Value,
            StatValue::Pattern(text) => text.len() == node.composite_key.len(),
        };
        self.stat_values.push(stat_value);
    }

    fn finish(
        self,
        domain: &str,
        node: &'r DescriptorNode,
        limited: &'r NodeLimit,
        entries: &[DescriptorEntry<'_>],
    ) -> LimitMatch<'r> {
        let shown = entries.iter().zip(&self.stat_values).enumerate().map(|(i, ((key, value), shown))| {
            let shared = self.shared_patterns.iter().find(|(at, _)| *at == i).map(|(_, pattern)| *pattern);
            let value = Some(&**value);
            let shown = match shown {
                _ if limited.detailed_metric && self.shared_patterns.is_empty() => value,
                _ if limited.detailed_metric => shared.or(value.filter(|value| !value.is_empty())),
                StatValue::Key => None,
                StatValue::Value => value,
                StatValue::Pattern(pattern) => Some(*pattern),
            };
            (*key, shown)
        });
        let is_own = limited.detailed_metric || self.renamed;
        let stats_key = is_own.then(|| super::stats::stats_key(domain, shown));
        // The reference service creates a new limit for such a stats key, and drops the metadata.
        let leaf = node.children.nodes.is_empty();
        let lost = if limited.detailed_metric { leaf } else { self.renamed };
        LimitMatch {
            limit: limited,
            shared_patterns: self.shared_patterns,
            metadata: node.metadata.as_ref().filter(|_| !lost),
            stats_key,
        }
    }
}
