//! Patterns with segments (`/a/*/b-*/**/z`), filed segment by segment.
//!
//! An edge takes one segment: a fixed one by hash, one with `*` by its fixed start or end. At the
//! first `**` filing ends: what follows may begin anywhere, so that the rule is filed there by the
//! last segment of its pattern. Each pattern stands in one place and is found at most once.

use rustc_hash::FxHashMap;

use super::Rules;
use super::affix::AffixMap;
use crate::rules::glob::head;

/// Nodes by number; the first is the root.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    nodes: Vec<Step>,
}

/// What may follow the segments so far.
#[derive(Clone, Debug, Default)]
struct Step {
    fixed: FxHashMap<Box<str>, u32>,
    /// Patterns that end here.
    ends: Rules,
    /// Patterns that end in `**` here.
    open_ended: Rules,
    rare: Option<Box<Rare>>,
}

/// What few steps have.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// Segments with a `*`. Zero, the root, stands for none yet.
    wild: AffixMap<u32>,
    /// Patterns with a `**` here, by their last segment.
    last_fixed: FxHashMap<Box<str>, Rules>,
    last_wild: AffixMap<Rules>,
}

impl Default for Trie {
    fn default() -> Self {
        Trie {
            nodes: vec![Step::default()],
        }
    }
}

impl Trie {
    pub(super) fn add(&mut self, pattern: &str, rule: u32) {
        let mut at = 0;
        let mut left = Some(pattern);
        while let Some((segment, rest)) = left.map(head) {
            if segment == "**" {
                self.nodes[at].add_open(rest, rule);
                return;
            }
            at = self.step(at, segment);
            left = rest;
        }
        self.nodes[at].ends.push(rule);
    }

    fn step(&mut self, at: usize, segment: &str) -> usize {
        let next = self.nodes.len() as u32; // as many as segments in a file of 16 MiB
        let here = &mut self.nodes[at];
        let known = if segment.contains('*') {
            let wild = here.rare.get_or_insert_default().wild.entry(segment);
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
            self.nodes.push(Step::default());
        }
        known as usize
    }

    pub(super) fn find(&self, text: &str, tell: &mut impl FnMut(u32)) {
        let last = text.rsplit('/').next().unwrap_or("");
        self.walk(0, Some(text), last, tell);
    }

    fn walk(&self, at: usize, left: Option<&str>, last: &str, tell: &mut impl FnMut(u32)) {
        let here = &self.nodes[at];
        here.open_ended.iter().copied().for_each(&mut *tell);
        if let Some(rare) = &here.rare {
            let mut tell_all = |rules: &Rules| rules.iter().copied().for_each(&mut *tell);
            rare.last_fixed
                .get(last)
                .into_iter()
                .for_each(&mut tell_all);
            rare.last_wild.find(last, &mut tell_all);
        }
        let Some((segment, rest)) = left.map(head) else {
            here.ends.iter().copied().for_each(tell);
            return;
        };
        if let Some(next) = here.fixed.get(segment) {
            self.walk(*next as usize, rest, last, tell);
        }
        if let Some(rare) = &here.rare {
            rare.wild.find(segment, &mut |next| {
                self.walk(*next as usize, rest, last, tell);
            });
        }
    }
}

impl Step {
    fn add_open(&mut self, rest: Option<&str>, rule: u32) {
        match rest.and_then(|rest| rest.rsplit('/').next()) {
            None | Some("**") => self.open_ended.push(rule),
            Some(last) if last.contains('*') => {
                let rare = self.rare.get_or_insert_default();
                rare.last_wild.entry(last).push(rule);
            }
            Some(last) => {
                let rare = self.rare.get_or_insert_default();
                rare.last_fixed.entry(last.into()).or_default().push(rule);
            }
        }
    }
}
