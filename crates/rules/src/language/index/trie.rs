//! Patterns with segments (`/a/*/b-*/**/z`), indexed segment by segment.
//!
//! A step to a child consumes one segment: a fixed one by hash, one with `*` by its fixed start or end. Indexing ends at the
//! first `**`, because what follows may begin anywhere: the rule is stored there by the last segment of its pattern.
//! Each pattern is stored in one place and is found at most once.

use rustc_hash::FxHashMap;

use super::{AffixMap, RulePositions};
use crate::language::glob::split_first_segment;

/// Nodes by number; the first is the root.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    nodes: Vec<TrieNode>,
}

/// The continuations after the segments so far.
#[derive(Clone, Debug, Default)]
struct TrieNode {
    fixed: FxHashMap<Box<str>, u32>,
    /// Patterns that end here.
    terminal: RulePositions,
    /// Patterns that end in `**` here.
    open_ended: RulePositions,
    wildcards: Option<Box<TrieWildcards>>,
}

/// Fields that few nodes have.
#[derive(Clone, Debug, Default)]
struct TrieWildcards {
    /// Segments with a `*`. Zero, the root, means none yet.
    wild: AffixMap<u32>,
    /// Patterns with a `**` here, by their last segment.
    last_fixed: FxHashMap<Box<str>, RulePositions>,
    last_wild: AffixMap<RulePositions>,
}

impl Default for Trie {
    fn default() -> Self {
        Trie { nodes: vec![TrieNode::default()] }
    }
}

impl Trie {
    pub(super) fn add(&mut self, pattern: &str, rule: u32) {
        let mut at = 0;
        let mut remaining = Some(pattern);
        while let Some((segment, rest)) = remaining.map(split_first_segment) {
            if segment == "**" {
                self.nodes[at].add_double_star(rest, rule);
                return;
            }
            at = self.child(at, segment);
            remaining = rest;
        }
        self.nodes[at].terminal.push(rule);
    }

    fn child(&mut self, at: usize, segment: &str) -> usize {
        let next = self.nodes.len() as u32; // at most the segments in a file of 16 MiB
        let here = &mut self.nodes[at];
        let known = if segment.contains('*') {
            let wild = here.wildcards.get_or_insert_default().wild.entry(segment);
            if *wild == 0 {
                *wild = next;
            }
            *wild
        } else if let Some(known) = here.fixed.get(segment) {
            *known
        } else {
            here.fixed.insert(segment.into(), next);
            next
        };
        if known == next {
            self.nodes.push(TrieNode::default());
        }
        known as usize
    }

    pub(super) fn find(&self, text: &str, visit: &mut impl FnMut(u32)) {
        let last = text.rsplit('/').next().unwrap_or("");
        self.walk(0, Some(text), last, visit);
    }

    fn walk(&self, at: usize, remaining: Option<&str>, last: &str, visit: &mut impl FnMut(u32)) {
        let here = &self.nodes[at];
        here.open_ended.iter().copied().for_each(&mut *visit);
        if let Some(wildcards) = &here.wildcards {
            let mut visit_all = |rules: &RulePositions| rules.iter().copied().for_each(&mut *visit);
            wildcards.last_fixed.get(last).into_iter().for_each(&mut visit_all);
            wildcards.last_wild.find(last, &mut visit_all);
        }
        let Some((segment, rest)) = remaining.map(split_first_segment) else {
            here.terminal.iter().copied().for_each(visit);
            return;
        };
        if let Some(next) = here.fixed.get(segment) {
            self.walk(*next as usize, rest, last, visit);
        }
        if let Some(wildcards) = &here.wildcards {
            wildcards.wild.find(segment, &mut |next| {
                self.walk(*next as usize, rest, last, visit);
            });
        }
    }
}

impl TrieNode {
    fn add_double_star(&mut self, rest: Option<&str>, rule: u32) {
        match rest.and_then(|rest| rest.rsplit('/').next()) {
            None | Some("**") => self.open_ended.push(rule),
            Some(last) if last.contains('*') => {
                self.wildcards.get_or_insert_default().last_wild.entry(last).push(rule);
            }
            Some(last) => {
                self.wildcards.get_or_insert_default().last_fixed.entry(last.into()).or_default().push(rule);
            }
        }
    }
}
