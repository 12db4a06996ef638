//! Rules by the text of one attribute: whole texts by hash, patterns by their fixed parts.

use rustc_hash::FxHashMap;

use super::Rules;
use super::affix::AffixMap;
use super::trie::Trie;
use crate::rules::glob::Glob;

/// The rules that ask for texts of one attribute.
#[derive(Clone, Debug, Default)]
pub(super) struct TextIndex {
    literals: FxHashMap<Box<str>, Rules>,
    /// Patterns by segments.
    paths: Option<Box<Trie>>,
    /// Patterns in which `*` is any text.
    wholes: AffixMap<Rules>,
}

impl TextIndex {
    pub(super) fn add_literal(&mut self, literal: &str, rule: u32) {
        match self.literals.get_mut(literal) {
            Some(rules) => rules.push(rule),
            None => {
                let rules = Rules::from_slice(&[rule]);
                self.literals.insert(literal.into(), rules);
            }
        }
    }

    pub(super) fn add_glob(&mut self, glob: &Glob, rule: u32) {
        if glob.has_segments() {
            self.paths.get_or_insert_default().add(glob.as_str(), rule);
        } else {
            self.wholes.entry(glob.as_str()).push(rule);
        }
    }

    pub(super) fn find(&self, text: &str, tell: &mut impl FnMut(u32)) {
        if let Some(rules) = self.literals.get(text) {
            rules.iter().copied().for_each(&mut *tell);
        }
        if let Some(paths) = &self.paths {
            paths.find(text, tell);
        }
        self.wholes.find(text, &mut |rules| {
            rules.iter().copied().for_each(&mut *tell)
        });
    }
}
