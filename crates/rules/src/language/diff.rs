//! Limits and blocks that a new rule set lifts.
//!
//! A reload that removes a limit or a block may be intended. Only a person can decide that: these functions find what
//! to name in a warning.

use std::collections::HashSet;

use super::access_lists::{AccessList, ListEntry, ListedClients};
use super::descriptors::lifted_rules;
use super::rule::{Mode, Purpose, Rule};
use super::rule_set::RuleSet;
use tidegate_core::units::Nanos;

/// List entries by which a new rule set blocks less, in file order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiftedBlocks<'s> {
    /// Entries of `block` that were in force and are gone. An entry that a wider one still covers is not among them.
    pub dropped: Vec<&'s ListEntry>,
    /// New entries of `allow` that cover clients that were blocked.
    pub allowed: Vec<&'s ListEntry>,
}

/// What `before` blocked at `now` and `after` no longer blocks.
pub fn lifted_blocks<'s>(before: &'s RuleSet, after: &'s RuleSet, now: Nanos) -> LiftedBlocks<'s> {
    let covers =
        |list: &AccessList, clients: &ListedClients| list.covering(clients).any(|entry| entry.is_in_force(now));
    let mut lifted = LiftedBlocks::default();
    for blocked in &before.block.entries {
        let clients = &blocked.clients;
        if !blocked.is_in_force(now) || covers(&before.allow, clients) {
            continue;
        }
        if !covers(&after.block, clients) {
            lifted.dropped.push(blocked);
        }
        let allowing = after.allow.covering(clients);
        lifted.allowed.extend(allowing.filter(|entry| entry.is_in_force(now)));
    }
    for allowed in &after.allow.entries {
        let was_blocked = covers(&before.block, &allowed.clients) && !covers(&before.allow, &allowed.clients);
        if allowed.is_in_force(now) && was_blocked {
            lifted.allowed.push(allowed);
        }
    }
    for entries in [&mut lifted.dropped, &mut lifted.allowed] {
        entries.sort_by(|a, b| (&a.location, &a.target).cmp(&(&b.location, &b.target)));
        entries.dedup();
    }
    lifted
}

/// Finds rules that no longer limit clients that they limited before.
pub struct LiftedLimits<'s> {
    before: &'s RuleSet,
    after: &'s RuleSet,
    unlimited_before: HashSet<&'s str>,
    unlimited_after: HashSet<&'s str>,
}

impl<'s> LiftedLimits<'s> {
    /// Compares the rules of two sets.
    pub fn new(before: &'s RuleSet, after: &'s RuleSet) -> Self {
        LiftedLimits {
            before,
            after,
            unlimited_before: replaced_by_unlimited(before),
            unlimited_after: replaced_by_unlimited(after),
        }
    }

    /// Whether `rule` of the new set limits less than `old`, the rule with the same name in the old set: a rate is
    /// `unlimited` now or gone, `concurrent` is gone, or an unlimited rule replaces it, directly or through other
    /// rules. A rule that is not enforced limits nobody, before or after.
    pub fn lifts(&self, old: &Rule, rule: &Rule) -> bool {
        if old.mode != Mode::Enforce || rule.mode != Mode::Enforce {
            return false;
        }
        let is_lifted = |old_tier: Option<u16>, tier: Option<u16>, subject: &str| {
            rule.limits(tier, subject).len() < old.limits(old_tier, subject).len()
        };
        let tier_position = |set: &RuleSet, name: &str| {
            let position = set.tiers().iter().position(|tier| **tier == *name)?;
            u16::try_from(position).ok()
        };
        let mut tiers = self.before.tiers().iter().chain(self.after.tiers());
        let mut overrides = old.overrides.keys().chain(rule.overrides.keys());
        let name = rule.name().as_str();
        self.unlimited_after.contains(name) && !self.unlimited_before.contains(name)
            || old.concurrent.is_some() && rule.concurrent.is_none()
            || is_lifted(None, None, "")
            || tiers.any(|name| {
                let (old_tier, tier) = (tier_position(self.before, name), tier_position(self.after, name));
                tier.is_some() && is_lifted(old_tier, tier, "")
            })
            || overrides.any(|subject| is_lifted(None, None, subject))
    }
}

/// Names of rules that an unlimited rule replaces for some requests, directly or through other replaced rules.
fn replaced_by_unlimited(set: &RuleSet) -> HashSet<&str> {
    let rules = set.rules();
    let is_unlimited = |rule: &&Rule| rule.limits(None, "").is_empty() && rule.concurrent.is_none();
    let mut open: Vec<&Rule> = rules.iter().filter(is_unlimited).collect();
    let mut replaced = HashSet::new();
    while let Some(rule) = open.pop() {
        for position in &rule.replaces {
            let other = &rules[*position as usize];
            let is_displaced = rule.displaces(other, *position, Purpose::Check);
            if is_displaced && replaced.insert(other.name().as_str()) {
                open.push(other);
            }
        }
    }
    replaced
}

/// Descriptor limits that no longer hold for all values that they held for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiftedDescriptorLimits<'s> {
    /// Names of the limits, including limits that are gone.
    pub names: HashSet<&'s str>,
    /// Whether there are too many descriptors to compare them all.
    pub is_truncated: bool,
}

/// The limits of `before` that `after` lifts: another descriptor hides a limit for some values, or an unlimited one
/// replaces it. Two patterns that overlap only in part are not compared.
pub fn lifted_descriptor_limits<'s>(before: &'s RuleSet, after: &RuleSet) -> LiftedDescriptorLimits<'s> {
    let lifted = lifted_rules(&before.descriptors, &after.descriptors);
    let rules = lifted.rules.iter().map(|rule| &before.rules()[*rule as usize]);
    LiftedDescriptorLimits {
        names: rules.map(|rule| rule.name().as_str()).collect(),
        is_truncated: lifted.is_truncated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{SourceFile, parse};

    fn set(text: &str) -> RuleSet {
        let text = format!("version: 1\n{text}\n");
        let file = SourceFile { name: "rules.yaml", text: &text };
        parse(&[file]).unwrap_or_else(|errors| panic!("{text}{errors}"))
    }

    #[track_caller]
    fn check_lists(before: &str, after: &str, dropped: &[&str], allowed: &[&str]) {
        let (old, new) = (set(&format!("rules: []\n{before}")), set(&format!("rules: []\n{after}")));
        // 2027-01-15
        let lifted = lifted_blocks(&old, &new, Nanos::from_secs(1_800_000_000));
        let names =
            |entries: &[&ListEntry]| -> Vec<String> { entries.iter().map(|entry| entry.target.to_string()).collect() };
        assert_eq!(names(&lifted.dropped), dropped, "{before} then {after}");
        assert_eq!(names(&lifted.allowed), allowed, "{before} then {after}");
    }

    #[test]
    fn blocks_that_are_gone_are_found() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let all = format!("block: [192.0.2.7, key:x, \"{digest}\", \"2001:db8::/64\"]");
        let names = ["192.0.2.7", "2001:db8::/64", "key:x", &digest];
        check_lists(&all, "", &names, &[]);
        check_lists(&all, "block: [192.0.2.7, \"2001:db8::/64\"]", &names[2..], &[]);
        check_lists(
            "block: [192.0.2.7]",
            "block: [{ match: 192.0.2.7, until: 2020-01-01T00:00:00Z }]",
            &["192.0.2.7"],
            &[],
        );
    }

    #[test]
    fn blocks_that_remain_or_had_no_effect_are_not_reported() {
        for (before, after) in [
            ("block: [192.0.2.7]", "block: [192.0.2.0/24]"),
            ("block: [192.0.2.7]", "block: [198.51.100.1, 192.0.2.7]"),
            ("block: [192.0.2.7]", "block: [{ match: 192.0.2.7, until: 2030-01-01T00:00:00Z }]"),
            ("block: [{ match: 192.0.2.7, until: 2020-01-01T00:00:00Z }]", ""),
            ("block: [192.0.2.7]\nallow: [192.0.2.0/24]", ""),
            ("block: [192.0.2.0/24]\nallow: [192.0.2.7]", "block: [192.0.2.0/24]\nallow: [192.0.2.7, 198.51.100.1]"),
            ("", "block: [192.0.2.7]\nallow: [192.0.2.7]"),
        ] {
            check_lists(before, after, &[], &[]);
        }
    }

    #[test]
    fn new_exceptions_from_blocks_are_found() {
        let block = "block: [192.0.2.7, 198.51.100.0/24, key:x]\n";
        for allow in ["192.0.2.7", "192.0.2.0/24", "198.51.100.1", "key:x"] {
            check_lists(block, &format!("{block}allow: [{allow}]"), &[], &[allow]);
        }
        let ended = "allow: [{ match: 192.0.2.7, until: 2020-01-01T00:00:00Z }]";
        check_lists(block, &format!("{block}{ended}"), &[], &[]);
    }

    #[track_caller]
    fn check_limits(before: &str, after: &str, want: bool) {
        let rules = |fields: &str| {
            set(&format!("tiers: [free, pro]\nkeys_file: k\nrules: [{{ name: r, by: user, {fields} }}]"))
        };
        let (old, new) = (rules(before), rules(after));
        let found = LiftedLimits::new(&old, &new).lifts(&old.rules()[0], &new.rules()[0]);
        assert_eq!(found, want, "{before} then {after}");
    }

    #[test]
    fn an_unlimited_rule_that_replaces_another_is_found() {
        let rule = "rules:\n  - { name: r, by: user, rate: 5/hour }\n";
        let other = |rate: &str| {
            let fields = format!("by: user, rate: {rate}, replaces: [r]");
            set(&format!("{rule}  - {{ name: s, match: {{ path: /a }}, {fields} }}"))
        };
        let (old, limited, unlimited) = (set(rule), other("9/hour"), other("unlimited"));
        let check = |before: &RuleSet, after: &RuleSet| {
            LiftedLimits::new(before, after).lifts(&before.rules()[0], &after.rules()[0])
        };
        assert!(check(&old, &unlimited) && check(&limited, &unlimited));
        assert!(!check(&old, &limited) && !check(&unlimited, &unlimited));
        let chain = "  - { name: s, by: user, rate: 9/hour, replaces: [r] }\n";
        let free = "  - { name: t, match: { path: /a }, rate: unlimited, replaces: [s] }\n";
        let [chained, freed] = ["", free].map(|last| set(&format!("{rule}{chain}{last}")));
        assert!(check(&old, &freed) && !check(&old, &chained));
    }

    #[test]
    fn rates_that_become_unlimited_are_found() {
        for (before, after) in [
            ("rate: 5/hour", "rate: unlimited"),
            ("rate: 5/hour, concurrent: 5", "rate: 5/hour"),
            ("concurrent: 5", "rate: unlimited"),
            ("rate: 5/hour", "rate: 5/hour, tiers: { pro: unlimited }"),
            ("rate: [5/second, 9/day]", "rate: 5/second"),
            ("rate: 5/hour", "rate: 5/hour, overrides: { ada: unlimited }"),
            ("rate: 5/hour, overrides: { ada: 1/hour }", "rate: 5/hour, overrides: { ada: unlimited }"),
        ] {
            check_limits(before, after, true);
            check_limits(after, before, false);
            check_limits(before, before, false);
        }
        check_limits("rate: 5/hour", "rate: 5000/hour", false);
        check_limits("rate: 5/hour, mode: shadow", "rate: unlimited", false);
    }
}
