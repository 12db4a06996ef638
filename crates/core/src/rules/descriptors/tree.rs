//! The limits of all domains as trees, and the way down them.
//!
//! Each level is a hash of joined keys, and a list of those with a `*` in the order of the files. There
//! is one step per entry and no way back: a value of its own that leads nowhere hides the pattern and
//! the bare key beside it, as in the reference service.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::algorithms::Precision;
use crate::envoy::{DescriptorEntry, Metadata, Unit};
use crate::rules::diagnostics::SourceLocation;
use crate::rules::glob::segment_matches;
use crate::rules::parse_options::ParseOptions;

/// Every domain.
#[derive(Clone, Debug)]
pub(crate) struct Descriptors {
    pub(crate) domains: Vec<Domain>,
    pub(crate) by_name: FxHashMap<Box<str>, u32>,
    /// How limits that come with a request are computed.
    pub(crate) precision: Precision,
    /// What their counters are kept apart by, if anything.
    pub(crate) prefix: Arc<str>,
}

/// One domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) name: Box<str>,
    /// The first place that names it.
    pub(crate) location: SourceLocation,
    pub(crate) root: DescriptorLevel,
    /// The rule that stands for limits which come with a request.
    pub(crate) override_rule: u32,
}

/// The nodes for one entry, in the order of the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorLevel {
    pub(crate) nodes: Vec<DescriptorNode>,
    by_key: FxHashMap<Box<str>, u32>,
    /// Those with a `*`.
    patterns: Vec<u32>,
}

impl DescriptorLevel {
    /// Whether any node of it, or below, has a limit that counts.
    pub(crate) fn has_limits(&self) -> bool {
        let counts = |limited: &NodeLimit| limited.counted.is_some();
        let limits = |node: &DescriptorNode| {
            node.limit.as_ref().is_some_and(counts) || node.children.has_limits()
        };
        self.nodes.iter().any(limits)
    }
}

/// One node.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorNode {
    /// Its key, or key and value joined by `_`.
    pub(crate) composite_key: Box<str>,
    /// How much of that is the key.
    pub(crate) key_len: usize,
    pub(crate) location: SourceLocation,
    pub(crate) limit: Option<NodeLimit>,
    pub(crate) children: DescriptorLevel,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) metadata: Option<Metadata>,
}

/// What a node says about requests that end on it.
#[derive(Clone, Debug)]
pub(crate) struct NodeLimit {
    /// Domain and joined keys, separated by dots.
    pub(crate) path: Box<str>,
    /// How much; nothing if it is unlimited.
    pub(crate) counted: Option<CountedLimit>,
    /// As written, also where it means nothing.
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
    /// The rule that stands for it.
    pub(crate) rule: u32,
}

/// The end of the way down.
#[derive(Debug)]
pub(crate) enum DescriptorLookup<'r> {
    /// No limit: no node, or one that has none and leads on.
    NotFound,
    /// A node without a limit and without nodes below it: it lets pass what others would stop.
    Exempt,
    /// A limit.
    Limit(LimitMatch<'r>),
}

/// A limit that was found for the entries of a descriptor.
#[derive(Debug)]
pub(crate) struct LimitMatch<'r> {
    pub(crate) limit: &'r NodeLimit,
    /// The patterns that stand for values in the counter's name, by entry.
    pub(crate) shared_patterns: SmallVec<[(usize, &'r str); 2]>,
    /// Its metadata, unless the way it is counted under loses it.
    pub(crate) metadata: Option<&'r Metadata>,
    /// The text it is counted under, if that is not its path.
    pub(crate) stat_key: Option<String>,
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
    /// Adds a node, unless there is one of its key: then that.
    pub(crate) fn add(&mut self, node: DescriptorNode) -> Result<(), &DescriptorNode> {
        if let Some(known) = self.by_key.get(&node.composite_key) {
            return Err(&self.nodes[*known as usize]);
        }
        let at = self.nodes.len() as u32; // a file has fewer nodes than that
        if node.composite_key.contains('*') {
            self.patterns.push(at);
        }
        self.by_key.insert(node.composite_key.clone(), at);
        self.nodes.push(node);
        Ok(())
    }

    /// The node for one entry. `joined` is room to join it in.
    pub(crate) fn find(
        &self,
        key: &str,
        value: &str,
        buffer: &mut String,
    ) -> Option<&DescriptorNode> {
        self.step(key, value, buffer).map(|(node, _)| node)
    }

    /// How many keys are compared to find it if none of its own is there.
    pub(crate) fn step_cost(&self) -> usize {
        1 + self.patterns.len()
    }

    /// Whether there is a node of the same key and value.
    pub(crate) fn has(&self, node: &DescriptorNode) -> bool {
        let same = self.by_key.get(&node.composite_key);
        same.is_some_and(|at| self.nodes[*at as usize].key_len == node.key_len)
    }

    /// As `find`, and how the node was found.
    fn step(
        &self,
        key: &str,
        value: &str,
        buffer: &mut String,
    ) -> Option<(&DescriptorNode, MatchedBy)> {
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
        let bare = self.by_key.get(key)?;
        Some((node(bare), MatchedBy::Key))
    }
}

/// How a node was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchedBy {
    Value,
    Pattern,
    Key,
}

impl Domain {
    /// The limit of a descriptor with these entries.
    pub(crate) fn find(
        &self,
        entries: &[DescriptorEntry<'_>],
        buffer: &mut String,
    ) -> DescriptorLookup<'_> {
        let mut walk = DescriptorWalk::default();
        let (mut level, mut last) = (&self.root, None);
        for (key, value) in entries {
            let Some((node, by)) = level.step(key, value, buffer) else {
                return DescriptorLookup::NotFound;
            };
            walk.record_step(node, by, (key, value));
            (level, last) = (&node.children, Some(node));
        }
        let Some(node) = last else {
            return DescriptorLookup::NotFound; // no entries
        };
        match &node.limit {
            Some(limited) => {
                DescriptorLookup::Limit(walk.finish(&self.name, node, limited, entries))
            }
            None if node.children.nodes.is_empty() => DescriptorLookup::Exempt,
            None => DescriptorLookup::NotFound,
        }
    }
}

/// What the way down has to remember.
#[derive(Default)]
struct DescriptorWalk<'r> {
    shared_patterns: SmallVec<[(usize, &'r str); 2]>,
    /// What each entry is counted under, if not under its node's key.
    stat_values: SmallVec<[StatValue<'r>; 4]>,
    renamed: bool,
}

/// The value that the name of a counter of events has for one entry.
#[derive(Clone, Copy)]
enum StatValue<'r> {
    /// None: only the key.
    Key,
    /// The request's own.
    Value,
    /// A pattern.
    Pattern(&'r str),
}

impl<'r> DescriptorWalk<'r> {
    fn record_step(&mut self, node: &'r DescriptorNode, by: MatchedBy, (key, value): (&str, &str)) {
        let of_pattern = || {
            let rest = node.composite_key.strip_prefix(key);
            let rest = rest.and_then(|rest| rest.strip_prefix('_'));
            rest.unwrap_or(&node.composite_key)
        };
        let stat_value = match by {
            MatchedBy::Pattern if node.share_threshold => {
                self.shared_patterns
                    .push((self.stat_values.len(), of_pattern()));
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
        let values = entries.iter().zip(&self.stat_values);
        let stat_key = if limited.detailed_metric {
            let whole = entries.iter().enumerate().map(|(i, (key, value))| {
                let shared = self.shared_patterns.iter().find(|(at, _)| *at == i);
                match shared {
                    Some((_, pattern)) => (*key, Some(*pattern)),
                    None if self.shared_patterns.is_empty() => (*key, Some(&**value)),
                    None => (*key, Some(&**value).filter(|value| !value.is_empty())),
                }
            });
            Some(super::stats::stat_key(domain, whole))
        } else if self.renamed {
            let shown = values.map(|((key, value), shown)| match shown {
                StatValue::Key => (*key, None),
                StatValue::Value => (*key, Some(&**value)),
                StatValue::Pattern(pattern) => (*key, Some(*pattern)),
            });
            Some(super::stats::stat_key(domain, shown))
        } else {
            None
        };
        // The reference service makes such a limit anew for the name it counts under, and forgets this.
        let leaf = node.children.nodes.is_empty();
        let lost = if limited.detailed_metric {
            leaf
        } else {
            self.renamed
        };
        LimitMatch {
            limit: limited,
            shared_patterns: self.shared_patterns,
            metadata: node.metadata.as_ref().filter(|_| !lost),
            stat_key,
        }
    }
}
