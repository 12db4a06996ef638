//! Finds the rules that may apply to a request without looking at the others.
//!
//! Each rule is filed once, under its most selective condition: the one whose values the fewest
//! other rules share. What is found still has to be checked in full, because a pattern is filed by
//! a part of its text only. Rules without a condition that can be filed are looked at every time.

mod affix;
#[cfg(test)]
mod tests;
mod text;
mod trie;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use self::text::TextIndex;
use super::condition::{Attribute, Condition, Match, Wanted};
use super::nets::NetMap;
use crate::request::Request;

/// Positions of rules. Most values belong to a few rules.
pub(crate) type Rules = SmallVec<[u32; 4]>;

/// Rules by what their conditions ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    always: Vec<u32>,
    nets: NetMap<Rules>,
    keys: TextIndex,
    texts: Vec<(Arc<str>, TextIndex)>,
    by_name: FxHashMap<Arc<str>, usize>,
}

impl Index {
    /// Files the rules with these matches, by position.
    pub(crate) fn new<'m>(matches: impl Iterator<Item = &'m Match> + Clone) -> Self {
        let crowds = Crowds::new(matches.clone());
        let mut index = Index::default();
        for (rule, matching) in (0..).zip(matches) {
            // Every request has a priority, whether or not it has the attribute.
            let filed = |c: &&Condition| c.attribute != Attribute::Priority;
            let ranked = matching.all.iter().filter(filed);
            let ranked = ranked.map(|c| (crowds.largest(c), c));
            match ranked.min_by_key(|(crowd, _)| *crowd) {
                Some((Some(crowd), condition)) if crowd < EVERYTHING => {
                    index.file(rule, condition);
                }
                _ => index.always.push(rule),
            }
        }
        index
    }

    /// Tells the rules that may apply to `request`, in any order, some of them more than once.
    pub(crate) fn find(&self, request: &Request<'_>, tell: &mut impl FnMut(u32)) {
        self.always.iter().copied().for_each(&mut *tell);
        if let Some(ip) = request.ip {
            self.nets
                .holding(ip)
                .flatten()
                .copied()
                .for_each(&mut *tell);
        }
        if let Some(name) = request.api_key.and_then(|key| key.name) {
            self.keys.find(name, tell);
        }
        if self.texts.len() <= request.attributes.len() {
            for (name, texts) in &self.texts {
                if let Some(text) = request.text(name) {
                    texts.find(text, tell);
                }
            }
        } else {
            for (name, text) in &request.attributes {
                if let Some(at) = self.by_name.get(&**name) {
                    self.texts[*at].1.find(text, tell);
                }
            }
        }
    }

    fn file(&mut self, rule: u32, condition: &Condition) {
        match &condition.wanted {
            Wanted::Nets(nets) => {
                for net in nets.iter() {
                    self.nets.entry(*net).push(rule);
                }
            }
            Wanted::Texts(texts) => {
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
        let Attribute::Text(name) = attribute else {
            return &mut self.keys;
        };
        let next = self.texts.len();
        let at = *self.by_name.entry(Arc::clone(name)).or_insert(next);
        if at == next {
            self.texts.push((Arc::clone(name), TextIndex::default()));
        }
        &mut self.texts[at].1
    }
}

/// The crowd of a pattern that matches everything.
const EVERYTHING: u32 = u32::MAX;
/// A pattern is filed by a part of its text and so drags others along: weigh it.
const GLOB_WEIGHT: u32 = 8;

/// How many rules ask for each value. Values meet by hash: a collision costs time, not truth.
struct Crowds(FxHashMap<u64, u32>);

impl Crowds {
    fn new<'m>(matches: impl Iterator<Item = &'m Match>) -> Self {
        let mut sizes = FxHashMap::default();
        for condition in matches.flat_map(|matching| matching.all.iter()) {
            each_value(condition, |value, _| *sizes.entry(value).or_insert(0) += 1);
        }
        Crowds(sizes)
    }

    /// The largest crowd a rule filed under `condition` would stand in.
    fn largest(&self, condition: &Condition) -> Option<u32> {
        let mut largest = None;
        each_value(condition, |value, weight| {
            let crowd = self.0.get(&value).copied().unwrap_or(1);
            largest = largest.max(Some(crowd.saturating_mul(weight)));
        });
        largest
    }
}

/// Tells the hash and the weight of every value that a condition asks for.
fn each_value(condition: &Condition, mut tell: impl FnMut(u64, u32)) {
    let name = condition.attribute.name();
    let hashed = |value: &dyn Fn(&mut FxHasher)| {
        let mut hasher = FxHasher::default();
        name.hash(&mut hasher);
        value(&mut hasher);
        hasher.finish()
    };
    match &condition.wanted {
        Wanted::Nets(nets) => {
            for net in nets.iter() {
                let weight = if net.prefix_len() == 0 { EVERYTHING } else { 1 };
                tell(hashed(&|hasher| net.hash(hasher)), weight);
            }
        }
        Wanted::Texts(texts) => {
            for literal in &texts.literals {
                tell(hashed(&|hasher| literal.hash(hasher)), 1);
            }
            for glob in &texts.globs {
                let weight = if glob.is_anything() {
                    EVERYTHING
                } else {
                    GLOB_WEIGHT
                };
                tell(hashed(&|hasher| glob.as_str().hash(hasher)), weight);
            }
        }
    }
}
