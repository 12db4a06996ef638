//! The limits of all domains as trees, and the way down them.
//!
//! Each level is a hash of joined keys, and a list of those with a `*` in the order of the files. There
//! is one step per entry and no way back: a value of its own that leads nowhere hides the pattern and
//! the bare key beside it, as in the reference service.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::algorithms::Precision;
use crate::described::{DescriptorEntry, Metadata, Unit};
use crate::rules::dialect::Dialect;
use crate::rules::fault::Place;
use crate::rules::glob::segment_matches;

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
    pub(crate) place: Place,
    pub(crate) top: Level,
    /// The rule that stands for limits which come with a request.
    pub(crate) brought: u32,
}

/// The nodes for one entry, in the order of the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    pub(crate) nodes: Vec<Node>,
    by_key: FxHashMap<Box<str>, u32>,
    /// Those with a `*`.
    patterns: Vec<u32>,
}

impl Level {
    /// Whether any node of it, or below, has a limit that counts.
    pub(crate) fn limits(&self) -> bool {
        let counts = |limited: &Limited| limited.quantity.is_some();
        let limits = |node: &Node| node.limited.as_ref().is_some_and(counts) || node.below.limits();
        self.nodes.iter().any(limits)
    }
}

/// One node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its key, or key and value joined by `_`.
    pub(crate) joined: Box<str>,
    /// How much of that is the key.
    pub(crate) key_len: usize,
    pub(crate) place: Place,
    pub(crate) limited: Option<Limited>,
    pub(crate) below: Level,
    pub(crate) value_to_metric: bool,
    pub(crate) shares: bool,
    pub(crate) metadata: Option<Metadata>,
}

/// What a node says about requests that end on it.
#[derive(Clone, Debug)]
pub(crate) struct Limited {
    /// Domain and joined keys, separated by dots.
    pub(crate) path: Box<str>,
    /// How much; nothing if it is unlimited.
    pub(crate) quantity: Option<Quantity>,
    /// As written, also where it means nothing.
    pub(crate) requests: u32,
    pub(crate) name: Option<Box<str>>,
    pub(crate) replaces: Box<[Box<str>]>,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    pub(crate) detailed: bool,
}

/// A limit that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quantity {
    pub(crate) unit: Unit,
    /// The rule that stands for it.
    pub(crate) rule: u32,
}

/// The end of the way down.
#[derive(Debug)]
pub(crate) enum Found<'r> {
    /// No limit: no node, or one that has none and leads on.
    Nothing,
    /// A node without a limit and without nodes below it: it lets pass what others would stop.
    Exempt,
    /// A limit.
    Limit(Hit<'r>),
}

/// A limit that was found for the entries of a descriptor.
#[derive(Debug)]
pub(crate) struct Hit<'r> {
    pub(crate) limited: &'r Limited,
    /// The patterns that stand for values in the counter's name, by entry.
    pub(crate) shared: SmallVec<[(usize, &'r str); 2]>,
    /// Its metadata, unless the way it is counted under loses it.
    pub(crate) metadata: Option<&'r Metadata>,
    /// The text it is counted under, if that is not its path.
    pub(crate) counted_under: Option<String>,
}

impl Descriptors {
    pub(crate) fn new(dialect: &Dialect) -> Self {
        Descriptors {
            domains: Vec::new(),
            by_name: FxHashMap::default(),
            precision: dialect.store.precision,
            prefix: Arc::clone(&dialect.prefix),
        }
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        let at = *self.by_name.get(name)?;
        Some(&self.domains[at as usize])
    }
}

impl Level {
    /// Adds a node, unless there is one of its key: then that.
    pub(crate) fn add(&mut self, node: Node) -> Result<(), &Node> {
        if let Some(known) = self.by_key.get(&node.joined) {
            return Err(&self.nodes[*known as usize]);
        }
        let at = self.nodes.len() as u32; // a file has fewer nodes than that
        if node.joined.contains('*') {
            self.patterns.push(at);
        }
        self.by_key.insert(node.joined.clone(), at);
        self.nodes.push(node);
        Ok(())
    }

    /// The node for one entry. `joined` is room to join it in.
    pub(crate) fn node_of(&self, key: &str, value: &str, joined: &mut String) -> Option<&Node> {
        self.step(key, value, joined).map(|(node, _)| node)
    }

    /// How many keys are compared to find it if none of its own is there.
    pub(crate) fn step_cost(&self) -> usize {
        1 + self.patterns.len()
    }

    /// Whether there is a node of the same key and value.
    pub(crate) fn has(&self, node: &Node) -> bool {
        let same = self.by_key.get(&node.joined);
        same.is_some_and(|at| self.nodes[*at as usize].key_len == node.key_len)
    }

    /// As `node_of`, and how the node was found.
    fn step(&self, key: &str, value: &str, joined: &mut String) -> Option<(&Node, By)> {
        joined.clear();
        joined.extend([key, "_", value]);
        let node = |at: &u32| &self.nodes[*at as usize];
        if let Some(at) = self.by_key.get(joined.as_str()) {
            return Some((node(at), By::Value));
        }
        let mut patterns = self.patterns.iter().map(node);
        if let Some(found) = patterns.find(|node| segment_matches(&node.joined, joined)) {
            return Some((found, By::Pattern));
        }
        let bare = self.by_key.get(key)?;
        Some((node(bare), By::Key))
    }
}

/// How a node was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Value,
    Pattern,
    Key,
}

impl Domain {
    /// The limit of a descriptor with these entries.
    pub(crate) fn find(&self, entries: &[DescriptorEntry<'_>], joined: &mut String) -> Found<'_> {
        let mut way = Way::default();
        let (mut level, mut last) = (&self.top, None);
        for (key, value) in entries {
            let Some((node, by)) = level.step(key, value, joined) else {
                return Found::Nothing;
            };
            way.take(node, by, (key, value));
            (level, last) = (&node.below, Some(node));
        }
        let Some(node) = last else {
            return Found::Nothing; // no entries
        };
        match &node.limited {
            Some(limited) => Found::Limit(way.end(&self.name, node, limited, entries)),
            None if node.below.nodes.is_empty() => Found::Exempt,
            None => Found::Nothing,
        }
    }
}

/// What the way down has to remember.
#[derive(Default)]
struct Way<'r> {
    shared: SmallVec<[(usize, &'r str); 2]>,
    /// What each entry is counted under, if not under its node's key.
    shown: SmallVec<[Shown<'r>; 4]>,
    renamed: bool,
}

/// The value that the name of a counter of events has for one entry.
#[derive(Clone, Copy)]
enum Shown<'r> {
    /// None: only the key.
    Key,
    /// The request's own.
    Value,
    /// A pattern.
    Pattern(&'r str),
}

impl<'r> Way<'r> {
    fn take(&mut self, node: &'r Node, by: By, (key, value): (&str, &str)) {
        let of_pattern = || {
            let rest = node.joined.strip_prefix(key);
            let rest = rest.and_then(|rest| rest.strip_prefix('_'));
            rest.unwrap_or(&node.joined)
        };
        let shown = match by {
            By::Pattern if node.shares => {
                self.shared.push((self.shown.len(), of_pattern()));
                Shown::Pattern(of_pattern())
            }
            By::Pattern if !node.value_to_metric => Shown::Pattern(of_pattern()),
            By::Key if !node.value_to_metric => Shown::Key,
            _ if value.is_empty() => Shown::Key,
            _ => Shown::Value,
        };
        self.renamed |= match shown {
            Shown::Key => *node.joined != *key,
            Shown::Value => by != By::Value,
            Shown::Pattern(text) => text.len() == node.joined.len(),
        };
        self.shown.push(shown);
    }

    fn end(
        self,
        domain: &str,
        node: &'r Node,
        limited: &'r Limited,
        entries: &[DescriptorEntry<'_>],
    ) -> Hit<'r> {
        let values = entries.iter().zip(&self.shown);
        let counted_under = if limited.detailed {
            let whole = entries.iter().enumerate().map(|(i, (key, value))| {
                let shared = self.shared.iter().find(|(at, _)| *at == i);
                match shared {
                    Some((_, pattern)) => (*key, Some(*pattern)),
                    None if self.shared.is_empty() => (*key, Some(&**value)),
                    None => (*key, Some(&**value).filter(|value| !value.is_empty())),
                }
            });
            Some(super::stats::key(domain, whole))
        } else if self.renamed {
            let shown = values.map(|((key, value), shown)| match shown {
                Shown::Key => (*key, None),
                Shown::Value => (*key, Some(&**value)),
                Shown::Pattern(pattern) => (*key, Some(*pattern)),
            });
            Some(super::stats::key(domain, shown))
        } else {
            None
        };
        // The reference service makes such a limit anew for the name it counts under, and forgets this.
        let leaf = node.below.nodes.is_empty();
        let lost = if limited.detailed { leaf } else { self.renamed };
        Hit {
            limited,
            shared: self.shared,
            metadata: node.metadata.as_ref().filter(|_| !lost),
            counted_under,
        }
    }
}
