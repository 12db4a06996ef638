//! Limits that still stand in new trees, but no longer hold for all whom they held for.
//!
//! Descriptors are led down both trees: for every node of either, one that ends on it. What the old tree limits and the new
//! one does not was freed, by a node that hides a limit or by an unlimited one that replaces it.

use std::collections::BTreeSet;

use super::tree::{Descriptors, Level, Limited, Node};

/// So many nodes are compared at most. It is a fraction of a second, for trees of a million nodes.
const MAX_STEPS: usize = 2_000_000;

/// Stands for a value, or a part of one, that no file has.
const ANY_VALUE: &str = "\0";

/// The rules of limits in `before` that `after` does not apply to some descriptors that they applied to. Limits that are
/// gone altogether are among them.
pub(crate) fn freed(before: &Descriptors, after: &Descriptors) -> BTreeSet<u32> {
    let mut walk = Walk {
        freed: BTreeSet::new(),
        replaced: &replaced_by_unlimited(after) - &replaced_by_unlimited(before),
        steps: MAX_STEPS,
        joined: String::new(),
    };
    for domain in &before.domains {
        let new = after.domain(&domain.name).map(|new| &new.top);
        walk.compare(&domain.top, new);
    }
    walk.freed
}

struct Walk<'a> {
    freed: BTreeSet<u32>,
    /// Names of limits that an unlimited one takes the place of since.
    replaced: BTreeSet<&'a str>,
    steps: usize,
    joined: String,
}

impl Walk<'_> {
    fn compare(&mut self, before: &Level, after: Option<&Level>) {
        let added = after.map_or(&[][..], |level| &level.nodes);
        for node in before.nodes.iter().chain(added) {
            let (key, value) = sample(node);
            let cost = before.step_cost() + after.map_or(0, Level::step_cost);
            let Some(left) = self.steps.checked_sub(cost) else {
                return;
            };
            self.steps = left;
            let Some(old) = before.node_of(key, &value, &mut self.joined) else {
                continue;
            };
            let new = after.and_then(|level| level.node_of(key, &value, &mut self.joined));
            if let Some((rule, limited)) = enforced(old) {
                let name = limited.name.as_deref();
                let is_replaced = name.is_some_and(|name| self.replaced.contains(name));
                if is_replaced || new.and_then(enforced).is_none() {
                    self.freed.insert(rule);
                }
            }
            self.compare(&old.below, new.map(|new| &new.below));
        }
    }
}

/// The key and a value of an entry that ends on a node, unless another one hides it.
fn sample(node: &Node) -> (&str, String) {
    let (key, rest) = node.joined.split_at(node.key_len);
    let value = rest.strip_prefix('_').unwrap_or(ANY_VALUE);
    (key, value.replace('*', ANY_VALUE))
}

/// The rule and the limit of a node that denies.
fn enforced(node: &Node) -> Option<(u32, &Limited)> {
    let limited = node.limited.as_ref().filter(|limited| !limited.shadow)?;
    Some((limited.quantity?.rule, limited))
}

/// Names of limits that an unlimited one takes the place of, for requests of both.
fn replaced_by_unlimited(descriptors: &Descriptors) -> BTreeSet<&str> {
    fn collect<'a>(level: &'a Level, names: &mut BTreeSet<&'a str>) {
        for node in &level.nodes {
            let limited = node.limited.iter();
            let unlimited = limited.filter(|limited| limited.quantity.is_none());
            names.extend(unlimited.flat_map(|limited| limited.replaces.iter().map(|name| &**name)));
            collect(&node.below, names);
        }
    }
    let mut names = BTreeSet::new();
    for domain in &descriptors.domains {
        collect(&domain.top, &mut names);
    }
    names
}
