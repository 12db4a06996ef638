//! Index from a request to the rules that may apply to it.
//!
//! Each rule is indexed once, under its most selective condition: the one whose values the fewest other rules share.
//! A candidate still has to be checked in full, because a pattern is indexed by a part of its text only. Rules
//! without an indexable condition are candidates for every request.

#[cfg(test)]
mod tests;
mod trie;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use self::trie::Trie;
use super::condition::{Attribute, AttributeMatcher, Condition, Match};
use super::glob::Glob;
use super::net_map::NetMap;
use crate::request::Request;

/// Positions of rules. Most values belong to a few rules.
pub(crate) type RulePositions = SmallVec<[u32; 4]>;

/// Rules by the values that their conditions accept.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleIndex {
    unindexed: Vec<u32>,
    nets: NetMap<RulePositions>,
    keys: TextIndex,
    texts: Vec<(Arc<str>, TextIndex)>,
    by_name: FxHashMap<Arc<str>, usize>,
}

impl RuleIndex {
    /// Indexes the rules with these matches, by position.
    pub(crate) fn new<'m>(matches: impl Iterator<Item = &'m Match> + Clone) -> Self {
        let frequencies = ValueFrequencies::new(matches.clone());
        let mut index = RuleIndex::default();
        for (rule, matching) in (0..).zip(matches) {
            // Every request has a priority, whether or not it has the attribute.
            let is_indexable = |c: &&Condition| c.attribute != Attribute::Priority;
            let ranked = matching.all.iter().filter(is_indexable);
            let ranked = ranked.map(|c| (frequencies.max_frequency(c), c));
            match ranked.min_by_key(|(frequency, _)| *frequency) {
                Some((Some(frequency), condition)) if frequency < MATCH_ALL_WEIGHT => {
                    index.insert(rule, condition);
                }
                _ => index.unindexed.push(rule),
            }
        }
        index
    }

    /// Visits the rules that may apply to `request`, in any order, some of them more than once.
    pub(crate) fn find(&self, request: &Request<'_>, visit: &mut impl FnMut(u32)) {
        self.unindexed.iter().copied().for_each(&mut *visit);
        if let Some(ip) = request.ip {
            self.nets.containing(ip).flatten().copied().for_each(&mut *visit);
        }
        if let Some(name) = request.api_key.and_then(|key| key.name) {
            self.keys.find(name, visit);
        }
        if self.texts.len() <= request.attributes.len() {
            for (name, texts) in &self.texts {
                if let Some(text) = request.text(name) {
                    texts.find(text, visit);
                }
            }
        } else {
            for (name, text) in &request.attributes {
                if let Some(at) = self.by_name.get(&**name) {
                    self.texts[*at].1.find(text, visit);
                }
            }
        }
    }

    fn insert(&mut self, rule: u32, condition: &Condition) {
        match &condition.matcher {
            AttributeMatcher::Nets(nets) => {
                for net in &nets.nets {
                    self.nets.entry(*net).push(rule);
                }
            }
            AttributeMatcher::Texts(texts) => {
                let index = self.text_index(&condition.attribute);
                for literal in &texts.literals {
                    index.add_literal(literal, rule);
                }
                for glob in &texts.globs {
                    index.add_glob(glob, rule);
                }
            }
        }
    }

    fn text_index(&mut self, attribute: &Attribute) -> &mut TextIndex {
        let Attribute::Text(name) = attribute else { return &mut self.keys };
        let next = self.texts.len();
        let at = *self.by_name.entry(Arc::clone(name)).or_insert(next);
        if at == next {
            self.texts.push((Arc::clone(name), TextIndex::default()));
        }
        &mut self.texts[at].1
    }
}

/// Weight of a pattern that matches everything.
const MATCH_ALL_WEIGHT: u32 = u32::MAX;
/// Weight of other patterns. They are indexed by a part of their text, so a lookup also finds some that do not match.
const GLOB_WEIGHT: u32 = 8;

/// How many rules accept each value. Values are compared by hash: a collision costs time, not correctness.
struct ValueFrequencies(FxHashMap<u64, u32>);

impl ValueFrequencies {
    fn new<'m>(matches: impl Iterator<Item = &'m Match>) -> Self {
        let mut sizes = FxHashMap::default();
        for condition in matches.flat_map(|matching| matching.all.iter()) {
            for_each_value(condition, |value, _| *sizes.entry(value).or_insert(0) += 1);
        }
        ValueFrequencies(sizes)
    }

    /// The largest weighted number of rules that share one value of `condition`.
    fn max_frequency(&self, condition: &Condition) -> Option<u32> {
        let mut max_weight = None;
        for_each_value(condition, |value, weight| {
            let frequency = self.0.get(&value).copied().unwrap_or(1);
            max_weight = max_weight.max(Some(frequency.saturating_mul(weight)));
        });
        max_weight
    }
}

/// Visits the hash and the weight of every value that a condition accepts.
fn for_each_value(condition: &Condition, mut visit: impl FnMut(u64, u32)) {
    let name = condition.attribute.name();
    let hashed = |value: &dyn Fn(&mut FxHasher)| {
        let mut hasher = FxHasher::default();
        name.hash(&mut hasher);
        value(&mut hasher);
        hasher.finish()
    };
    match &condition.matcher {
        AttributeMatcher::Nets(nets) => {
            for net in &nets.nets {
                let weight = if net.prefix_len() == 0 { MATCH_ALL_WEIGHT } else { 1 };
                visit(hashed(&|hasher| net.hash(hasher)), weight);
            }
        }
        AttributeMatcher::Texts(texts) => {
            for literal in &texts.literals {
                visit(hashed(&|hasher| literal.hash(hasher)), 1);
            }
            for glob in &texts.globs {
                let weight = if glob.matches_everything() { MATCH_ALL_WEIGHT } else { GLOB_WEIGHT };
                visit(hashed(&|hasher| glob.as_str().hash(hasher)), weight);
            }
        }
    }
}

/// The rules that accept texts of one attribute: whole texts by hash, patterns by their fixed parts.
#[derive(Clone, Debug, Default)]
struct TextIndex {
    literals: FxHashMap<Box<str>, RulePositions>,
    /// Patterns matched by segments.
    path_globs: Option<Box<Trie>>,
    /// Patterns in which `*` is any text.
    text_globs: AffixMap<RulePositions>,
}

impl TextIndex {
    fn add_literal(&mut self, literal: &str, rule: u32) {
        match self.literals.get_mut(literal) {
            Some(rules) => rules.push(rule),
            None => {
                let rules = RulePositions::from_slice(&[rule]);
                self.literals.insert(literal.into(), rules);
            }
        }
    }

    fn add_glob(&mut self, glob: &Glob, rule: u32) {
        if glob.has_segments() {
            self.path_globs.get_or_insert_default().add(glob.as_str(), rule);
        } else {
            self.text_globs.entry(glob.as_str()).push(rule);
        }
    }

    fn find(&self, text: &str, visit: &mut impl FnMut(u32)) {
        if let Some(rules) = self.literals.get(text) {
            rules.iter().copied().for_each(&mut *visit);
        }
        if let Some(paths) = &self.path_globs {
            paths.find(text, visit);
        }
        self.text_globs.find(text, &mut |rules| rules.iter().copied().for_each(&mut *visit));
    }
}

/// Values keyed by a pattern with `*`, indexed by the longer fixed end of the pattern. Patterns without a fixed end share
/// one value. A hit matches the fixed part only. There is one hash lookup per distinct length of fixed parts, and at most
/// as many as the text is long.
#[derive(Clone, Debug)]
struct AffixMap<T> {
    prefixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    suffixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    unanchored: Option<T>,
}

impl<T> Default for AffixMap<T> {
    fn default() -> Self {
        AffixMap { prefixes: Vec::new(), suffixes: Vec::new(), unanchored: None }
    }
}

impl<T: Default> AffixMap<T> {
    /// The value for patterns with the same fixed part as `pattern`, created if absent.
    fn entry(&mut self, pattern: &str) -> &mut T {
        let start = pattern.split('*').next().unwrap_or("");
        let end = pattern.rsplit('*').next().unwrap_or("");
        let (levels, fixed) =
            if start.len() >= end.len() { (&mut self.prefixes, start) } else { (&mut self.suffixes, end) };
        if fixed.is_empty() {
            return self.unanchored.get_or_insert_default();
        }
        let at = levels.partition_point(|(length, _)| *length < fixed.len());
        if levels.get(at).is_none_or(|(length, _)| *length != fixed.len()) {
            levels.insert(at, (fixed.len(), FxHashMap::default()));
        }
        levels[at].1.entry(fixed.into()).or_default()
    }
}

impl<T> AffixMap<T> {
    /// Visits the values of all patterns whose fixed start or end `text` has.
    fn find<'m>(&'m self, text: &str, visit: &mut impl FnMut(&'m T)) {
        self.unanchored.iter().for_each(&mut *visit);
        for (length, values) in &self.prefixes {
            let Some(start) = text.get(..*length) else { continue };
            values.get(start).into_iter().for_each(&mut *visit);
        }
        for (length, values) in &self.suffixes {
            let from = text.len().checked_sub(*length);
            let Some(end) = from.and_then(|from| text.get(from..)) else { continue };
            values.get(end).into_iter().for_each(&mut *visit);
        }
    }
}
