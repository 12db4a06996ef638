//! Descriptors of Envoy files that no request finds, because another of the same level is found first.

use crate::language::descriptors::{DescriptorLevel, DescriptorNode, sample};
use crate::language::diagnostics::{Warning, quoted};
use crate::language::rule_set::RuleSet;

/// The check stops after this many comparisons: a fraction of a second.
const MAX_STEPS: usize = 4_000_000;

pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let mut steps = MAX_STEPS;
    for domain in &set.descriptors.domains {
        check_level(&domain.root, &mut steps, &mut String::new(), warnings);
    }
}

fn check_level(level: &DescriptorLevel, steps: &mut usize, buffer: &mut String, warnings: &mut Vec<Warning>) {
    for node in &level.nodes {
        let Some(left) = steps.checked_sub(level.step_cost()) else { return };
        *steps = left;
        let (key, value) = sample(node);
        match level.find(key, &value, buffer) {
            Some(found) if !std::ptr::eq(found, node) && has_limits(node) => {
                let message = format!(
                    "{} is never found: {} matches all its values first; write it before that one, or remove it",
                    name(node),
                    name(found)
                );
                warnings.push(Warning::new(&node.location, message));
            }
            _ => check_level(&node.children, steps, buffer, warnings),
        }
    }
}

fn has_limits(node: &DescriptorNode) -> bool {
    node.limit.is_some() || node.children.has_limits()
}

/// A node as its file has it.
fn name(node: &DescriptorNode) -> String {
    let (key, value) = node.composite_key.split_at(node.key_len);
    match value.strip_prefix('_') {
        Some(value) => format!("{} with the value {}", quoted(key), quoted(value)),
        None => format!("{} without a value", quoted(key)),
    }
}
