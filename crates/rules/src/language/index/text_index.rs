//! Rules by the text of one attribute: whole texts by hash, patterns by their fixed parts.

use rustc_hash::FxHashMap;

use super::RulePositions;
use super::affix::AffixMap;
use super::trie::Trie;
use crate::language::glob::Glob;

/// The rules that accept texts of one attribute.
#[derive(Clone, Debug, Default)]
pub(super) struct TextIndex {
    literals: FxHashMap<Box<str>, RulePositions>,
    /// Patterns matched by segments.
    path_globs: Option<Box<Trie>>,
    /// Patterns in which `*` is any text.
    text_globs: AffixMap<RulePositions>,
}

impl TextIndex {
    pub(super) fn add_literal(&mut self, literal: &str, rule: u32) {
        match self.literals.get_mut(literal) {
            Some(rules) => rules.push(rule),
            None => {
                let rules = RulePositions::from_slice(&[rule]);
                self.literals.insert(literal.into(), rules);
            }
        }
    }

    pub(super) fn add_glob(&mut self, glob: &Glob, rule: u32) {
        if glob.has_segments() {
            self.path_globs.get_or_insert_default().add(glob.as_str(), rule);
        } else {
            self.text_globs.entry(glob.as_str()).push(rule);
        }
    }

    pub(super) fn find(&self, text: &str, visit: &mut impl FnMut(u32)) {
        if let Some(rules) = self.literals.get(text) {
            rules.iter().copied().for_each(&mut *visit);
        }
        if let Some(paths) = &self.path_globs {
            paths.find(text, visit);
        }
        self.text_globs.find(text, &mut |rules| rules.iter().copied().for_each(&mut *visit));
    }
}
