//! Warns of limits and blocks that a reload removes, and of counts that start again from zero.
//!
//! Compares the policy in force with the previous one, from whatever source. Changes nothing, and does not know
//! whether the loss was intended.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::identity::keys::{Digest, KeyOwner, KeyTable};
use tidegate_core::units::Nanos;
use tidegate_rules::{LiftedLimits, ListEntry, Mode, Rule, RuleSet, lifted_blocks, lifted_descriptor_limits};
use tracing::warn;

use crate::config::LogSubjects;
use crate::decider::{DeciderControl, listed_subject};

/// Warnings about a reload. Removed or disabled rules and blocks, because an operator who lost a file of a rules
/// folder would not notice that its limits are gone. Reordered rates, because counts are stored by the index of a
/// rate in its list.
#[derive(Default)]
pub(super) struct ReloadWarnings {
    /// The rules and keys that were in force last.
    previous: Mutex<Option<RulesAndKeys>>,
}

type RulesAndKeys = (Arc<RuleSet>, Option<Arc<KeyTable>>);

impl ReloadWarnings {
    /// Maximum number of names in one warning.
    const MAX_NAMED: usize = 10;

    pub(super) fn warn(&self, decider: &DeciderControl) {
        let policy = decider.limiter.policy().get();
        let (rules, keys) = (&policy.rules, policy.keys.as_deref());
        let mut previous = self.previous.lock();
        let Some((rules_before, keys_before)) = previous.replace((Arc::clone(rules), policy.keys.clone())) else {
            return;
        };
        let now = decider.clock.now();
        if !Arc::ptr_eq(&rules_before, rules) {
            warn_of_lost_limits(&rules_before, rules);
            warn_of_lifted_blocks(&rules_before, rules, now, decider.log_subjects);
        }
        if let Some(before) = keys_before
            && !keys.is_some_and(|keys| std::ptr::eq(keys, &*before))
        {
            warn_of_unblocked_keys(rules, &before, keys, now);
        }
    }
}

/// Warns of rules of `before` that limit less in `after`, or start to count from zero. Limits of descriptors may
/// share a name: a warning about a rule applies to all rules that have its name now.
fn warn_of_lost_limits(before: &RuleSet, after: &RuleSet) {
    let mut found: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in after.rules() {
        found.entry(rule.name().as_str()).or_default().push(rule);
    }
    let warn_of = |what: &str, is_meant: &dyn Fn(&Rule, &[&Rule]) -> bool| {
        let new = |old: &Rule| found.get(old.name().as_str()).map_or(&[][..], |new| new);
        let chosen = before.rules().iter().filter(|old| is_meant(old, new(old)));
        let names: Vec<&str> = chosen.map(|old| old.name().as_str()).collect();
        if let count @ 1.. = names.len() {
            let rules = names[..count.min(ReloadWarnings::MAX_NAMED)].join(", ");
            warn!(count, rules, "{what}");
        }
    };
    warn_of("rules are no longer in force, their limits are gone", &|_, new| new.is_empty());
    warn_of("rules no longer deny, because their mode is now off or shadow", &|old, new| {
        old.mode() == Mode::Enforce && !new.is_empty() && new.iter().all(|new| new.mode() != Mode::Enforce)
    });
    let limits = LiftedLimits::new(before, after);
    warn_of(
        "rules no longer limit some or all of their clients, because a rate is gone or unlimited, `concurrent` is gone, \
         or an unlimited rule replaces them",
        &|old, new| !new.is_empty() && new.iter().all(|new| limits.lifts(old, new)),
    );
    let freed = lifted_descriptor_limits(before, after);
    warn_of(
        "limits of descriptors no longer hold for some values, because a descriptor without a limit comes first or an \
         unlimited one replaces them",
        &|old, new| {
            let denies = new.iter().any(|new| new.mode() == Mode::Enforce);
            denies && freed.names.contains(old.name().as_str())
        },
    );
    if freed.is_truncated {
        warn!("too many descriptors to find out whether a limit no longer holds for some values");
    }
    warn_of(
        "rates have changed their place in the list of a rule and begin anew; put new rates at the end",
        &|old, new| new.iter().any(|new| is_reordered(old, new)),
    );
}

/// Whether a rate of `old` is still there at another index.
fn is_reordered(old: &Rule, new: &Rule) -> bool {
    let windows = |rule: &Rule| -> Vec<Nanos> {
        let limits = rule.limits(None, "").iter();
        limits.map(|limit| limit.per()).collect()
    };
    let (old, new) = (windows(old), windows(new));
    let old = old.iter().enumerate();
    let mut moved = old.filter(|(place, window)| new.get(*place) != Some(window));
    moved.any(|(_, window)| new.contains(window))
}

/// Warns of clients that `before` blocks and `after` does not.
fn warn_of_lifted_blocks(before: &RuleSet, after: &RuleSet, now: Nanos, shown: LogSubjects) {
    let lifted = lifted_blocks(before, after, now);
    let texts = |entries: &[&ListEntry]| -> Vec<String> {
        let first = entries.iter().take(ReloadWarnings::MAX_NAMED);
        first.map(|entry| listed_subject(&entry.target, shown)).collect()
    };
    if let count @ 1.. = lifted.dropped.len() {
        let entries = texts(&lifted.dropped).join(", ");
        warn!(count, entries, "entries of `block` are no longer in force, these clients are no longer blocked");
    }
    if let count @ 1.. = lifted.allowed.len() {
        let entries = texts(&lifted.allowed).join(", ");
        warn!(count, entries, "new entries of `allow` override `block`, these clients are no longer blocked");
    }
}

/// Warns of keys that the lists blocked under their names in `before`, and no longer block.
fn warn_of_unblocked_keys(rules: &RuleSet, before: &KeyTable, after: Option<&KeyTable>, now: Nanos) {
    let is_unblocked = |(digest, holder): &(Digest, KeyOwner<'_>)| {
        let is_blocked = |name| rules.blocks_key(name, digest.as_bytes(), now);
        let name = || after.and_then(|keys| keys.get(digest)).map(|now| now.name);
        is_blocked(holder.name) && !is_blocked(name().unwrap_or_default())
    };
    let unblocked: Vec<_> = before.iter().filter(is_unblocked).collect();
    if let count @ 1.. = unblocked.len() {
        let first = unblocked.iter().take(ReloadWarnings::MAX_NAMED);
        let keys: Vec<_> = first.map(|(digest, _)| digest.to_string()).collect();
        warn!(
            count,
            keys = keys.join(", "),
            "keys are no longer blocked, because the keys file no longer lists them under the names in `block`, or lists them under one in `allow`; block them by their digests"
        );
    }
}
