//! Descriptor limits that a new rule set lifts for some descriptors.
//!
//! Both trees are searched for one sample descriptor per node of either tree. A limit is lifted where the old tree
//! limits the sample and the new one does not: the limit is gone, another node hides it, or an unlimited node
//! replaces it.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{DescriptorLevel, DescriptorNode, Descriptors, Domain, NodeLimit};

/// The comparison stops after this many nodes, patterns included: a fraction of a second.
const MAX_STEPS: usize = 4_000_000;

/// Stands for a value, or a part of one, that no file contains.
const ANY_VALUE: &str = "\0";

/// The limits that were lifted.
#[derive(Debug, Default)]
pub(crate) struct LiftedRules {
    /// The rules of these limits in the old trees.
    pub(crate) rules: BTreeSet<u32>,
    /// Whether the trees were too large to be compared completely.
    pub(crate) is_truncated: bool,
}

/// The limits of `before` that `after` lifts. Two patterns that overlap only in part are not compared.
pub(crate) fn lifted_rules(before: &Descriptors, after: &Descriptors) -> LiftedRules {
    let mut diff =
        TreeDiff { lifted: LiftedRules::default(), replaced: BTreeSet::new(), steps: MAX_STEPS, buffer: String::new() };
    for domain in &before.domains {
        let new = after.domain(&domain.name);
        let replacers = new.map(replacers).unwrap_or_default();
        let known = self::replacers(domain);
        let added = replacers.difference(&known);
        diff.replaced = added.map(|(name, _)| *name).collect();
        diff.compare(&domain.root, new.map(|new| &new.root));
    }
    diff.lifted
}

struct TreeDiff<'a> {
    lifted: LiftedRules,
    /// Names of limits that one more unlimited node replaces in this domain.
    replaced: BTreeSet<&'a str>,
    steps: usize,
    buffer: String,
}

impl TreeDiff<'_> {
    fn compare(&mut self, before: &DescriptorLevel, after: Option<&DescriptorLevel>) {
        let added = after.map_or(&[][..], |level| &level.nodes);
        let added = added.iter().filter(|node| !before.has(node));
        for node in before.nodes.iter().chain(added) {
            let (key, value) = sample(node);
            let cost = before.step_cost() + after.map_or(0, DescriptorLevel::step_cost);
            let Some(left) = self.steps.checked_sub(cost) else {
                self.lifted.is_truncated = true;
                return;
            };
            self.steps = left;
            let Some(old) = before.find(key, &value, &mut self.buffer) else { continue };
            let new = after.and_then(|level| level.find(key, &value, &mut self.buffer));
            if let Some((rule, limited)) = enforced(old) {
                let name = limited.name.as_deref();
                let is_replaced = name.is_some_and(|name| self.replaced.contains(name));
                if is_replaced || new.and_then(enforced).is_none() {
                    self.lifted.rules.insert(rule);
                }
            }
            self.compare(&old.children, new.map(|new| &new.children));
        }
    }
}

/// Key and value of an entry that matches a node, unless another node hides it.
pub(crate) fn sample(node: &DescriptorNode) -> (&str, String) {
    let (key, rest) = node.composite_key.split_at(node.key_len);
    let value = rest.strip_prefix('_').unwrap_or(ANY_VALUE);
    (key, value.replace('*', ANY_VALUE))
}

/// The rule and the limit of a node that denies.
fn enforced(node: &DescriptorNode) -> Option<(u32, &NodeLimit)> {
    let limited = node.limit.as_ref().filter(|limited| !limited.shadow_mode)?;
    Some((limited.counted?.rule, limited))
}

/// Names of limits that a node which does not deny replaces, directly or through other replaced limits, each with the
/// path of the node that replaces it.
fn replacers(domain: &Domain) -> BTreeSet<(&str, &str)> {
    fn collect<'a>(level: &'a DescriptorLevel, into: &mut Vec<&'a NodeLimit>, open: &mut Vec<&'a NodeLimit>) {
        for node in &level.nodes {
            if let Some(limited) = &node.limit {
                match enforced(node) {
                    Some(_) => into.push(limited),
                    None => open.push(limited),
                }
            }
            collect(&node.children, into, open);
        }
    }
    let (mut limits, mut open) = (Vec::new(), Vec::new());
    collect(&domain.root, &mut limits, &mut open);
    let mut by_name: BTreeMap<&str, Vec<&NodeLimit>> = BTreeMap::new();
    for limited in limits {
        if let Some(name) = &limited.name {
            by_name.entry(name).or_default().push(limited);
        }
    }
    let mut found = BTreeSet::new();
    while let Some(replacer) = open.pop() {
        for name in &replacer.replaces {
            found.insert((&**name, &*replacer.path));
            open.extend(by_name.remove(&**name).into_iter().flatten());
        }
    }
    found
}
