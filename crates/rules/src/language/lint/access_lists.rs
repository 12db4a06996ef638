//! Entries of lists that cover no clients any more, or nearly all of them, or proxies instead of clients; and rules for
//! allowed clients, which no rule limits.

use super::keys::visit_overrides;
use crate::language::access_lists::{AccessList, ListEntry, ListedClients, is_wide, parse_digest};
use crate::language::condition::{Attribute, AttributeMatcher, Condition};
use crate::language::diagnostics::{Warning, quoted};
use crate::language::rule::Mode;
use crate::language::rule_set::RuleSet;
use crate::language::subject::digest_text;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_core::units::Nanos;

/// Proxies on this machine connect from here and are always trusted.
const LOOPBACK: [IpNet; 2] = [
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
];

/// Warns about entries of `trusted_proxies` and `allow` that cover a large part of all addresses.
pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let proxies = set.identity.trusted_proxies.iter();
    if let (Some(net), Some(location)) = (proxies.into_iter().find(|net| is_wide(**net)), &set.identity_location) {
        let message = format!(
            "has `{net}` in `trusted_proxies`, so that every client in it chooses its own address; write the \
             networks of your proxies"
        );
        warnings.push(Warning::new(location, message));
    }
    let wide = |entry: &&ListEntry| matches!(entry.clients, ListedClients::Net(net) if is_wide(net));
    for entry in set.allow.entries.iter().filter(wide) {
        let message = format!(
            "has {} in `allow`, so that none of these clients is limited; write smaller networks, or `mode: off` in \
             the rules",
            quoted(&entry.target)
        );
        warnings.push(Warning::new(&entry.location, message));
    }
    check_allowed_proxies(set, warnings);
    check_overridden(set, warnings);
    check_rules_of_allowed(set, warnings);
}

/// Warns about entries of `allow` that cover proxies. A proxy that does not name its client, or sees another proxy
/// instead of it, sends the requests of all clients from there.
fn check_allowed_proxies(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let overlap = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    let proxies = || LOOPBACK.iter().chain(&set.identity.trusted_proxies);
    for entry in &set.allow.entries {
        if let ListedClients::Net(net) = &entry.clients
            && !is_wide(*net)
            && proxies().any(|proxy| overlap(proxy, net))
        {
            let message = format!(
                "has {} in `allow`, where requests of all clients may come from through a proxy; write the addresses \
                 of clients",
                quoted(&entry.target)
            );
            warnings.push(Warning::new(&entry.location, message));
        }
    }
}

/// Warns about entries of `block` that `allow` leaves without effect. An `allow` within a blocked network, or one
/// that expires before the block does, is an intended exception.
fn check_overridden(set: &RuleSet, warnings: &mut Vec<Warning>) {
    for blocked in &set.block.entries {
        let mut allowing = set.allow.covering(&blocked.clients);
        warnings.extend(
            allowing.find(|allowed| outlasts(allowed, blocked)).map(|allowed| overridden(blocked, "", allowed)),
        );
    }
}

/// As [`check_overridden`], for a key that one list has by its name and the other by its digest.
pub(super) fn check_overridden_keys<'k>(
    set: &RuleSet,
    name_of: &impl Fn(&str) -> Option<&'k str>,
    warnings: &mut Vec<Warning>,
) {
    let named = |entry: &ListEntry| {
        let ListedClients::KeyDigest(digest) = &entry.clients else { return None };
        let name = name_of(&digest_text(digest)).filter(|name| !name.is_empty())?;
        Some(ListedClients::KeyNamed(name.into()))
    };
    for blocked in &set.block.entries {
        let name = named(blocked);
        let mut allowing = name.iter().flat_map(|name| set.allow.covering(name));
        warnings.extend(
            allowing.find(|allowed| outlasts(allowed, blocked)).map(|allowed| overridden(blocked, "", allowed)),
        );
    }
    for allowed in &set.allow.entries {
        let name = named(allowed);
        let blocking = name.iter().flat_map(|name| set.block.covering(name));
        let without_effect = blocking.filter(|blocked| outlasts(allowed, blocked));
        warnings.extend(without_effect.map(|blocked| overridden(blocked, " on one key of that name", allowed)));
    }
}

/// Whether `allowed` ends no earlier than `blocked`.
fn outlasts(allowed: &ListEntry, blocked: &ListEntry) -> bool {
    let end = |entry: &ListEntry| entry.until.unwrap_or(Nanos::MAX);
    end(allowed) >= end(blocked)
}

/// The warning about `blocked`, which has no effect on some keys or, if `on` is empty, on any client.
fn overridden(blocked: &ListEntry, on: &str, allowed: &ListEntry) -> Warning {
    let message = format!(
        "has in `block` {}, which has no effect{on}, because `allow` wins and has {}; remove one of them",
        quoted(&blocked.target),
        quoted(&allowed.target)
    );
    Warning::new(&blocked.location, message)
}

/// Warns about rules for allowed clients alone, and about overrides for an allowed client: rules do not apply to them.
fn check_rules_of_allowed(set: &RuleSet, warnings: &mut Vec<Warning>) {
    if set.allow.entries.is_empty() {
        return;
    }
    let is_allowed = |clients: &ListedClients| set.allow.covering(clients).any(|entry| entry.until.is_none());
    for rule in set.native_rules().filter(|rule| rule.mode != Mode::Off) {
        let mut conditions = rule.matching.all.iter();
        if let Some(condition) = conditions.find(|condition| covered_clients(condition, &is_allowed)) {
            let name = condition.attribute.name();
            let message = format!(
                "can never apply: its match requires {name} to be {}, which `allow` has; remove one of them",
                condition.matcher
            );
            warnings.push(super::warning(rule, message));
            continue;
        }
        visit_overrides(rule, &mut |text, value, alternatives| {
            let clients = match &alternatives[..] {
                [name] if **name == *"ip" => value.parse().ok().map(|ip: IpAddr| ListedClients::Net(ip.into())),
                [name] if **name == *"api_key" => match parse_digest(value) {
                    Some(digest) => digest.ok().map(ListedClients::KeyDigest),
                    None => Some(ListedClients::KeyNamed(value.into())),
                },
                _ => None,
            };
            if clients.is_some_and(|clients| is_allowed(&clients)) {
                let message = format!(
                    "overrides {}, which `allow` has, so that it has no effect; remove one of them",
                    quoted(text)
                );
                warnings.push(super::warning(rule, message));
            }
        });
    }
}

/// Whether a condition holds for some clients and `is_allowed` for all of them.
fn covered_clients(condition: &Condition, is_allowed: &impl Fn(&ListedClients) -> bool) -> bool {
    match (&condition.attribute, &condition.matcher) {
        (Attribute::Ip, AttributeMatcher::Nets(matcher)) => {
            !matcher.nets.is_empty() && matcher.nets.iter().all(|net| is_allowed(&ListedClients::Net(*net)))
        }
        (Attribute::ApiKey, AttributeMatcher::Texts(texts)) => {
            let mut names = texts.literals.iter();
            let has_names = !texts.literals.is_empty() && texts.globs.is_empty();
            has_names && names.all(|name| is_allowed(&ListedClients::KeyNamed(name.clone())))
        }
        _ => false,
    }
}

/// Warns about entries that have expired at `now`.
pub(super) fn check_ended(set: &RuleSet, now: Nanos, warnings: &mut Vec<Warning>) {
    for (field, list) in access_lists(set) {
        for entry in list.entries.iter().filter(|entry| !entry.is_in_force(now)) {
            let message = format!(
                "has in `{field}` {entry}, which has ended and has no effect; remove it, or write a later `until`"
            );
            warnings.push(Warning::new(&entry.location, message));
        }
    }
}

/// Both lists and their names.
pub(super) fn access_lists(set: &RuleSet) -> [(&'static str, &AccessList); 2] {
    [("allow", &set.allow), ("block", &set.block)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::lint::lint_with_keys;
    use crate::language::{SourceFile, parse};

    /// A keys file that lists the digest `aa...` as `acme`.
    #[track_caller]
    fn check(lists: &str, want: &[&str]) {
        let digest = format!("sha256:{}", "aa".repeat(32));
        let rules = "version: 1\nkeys_file: k\nrules: [{ name: r, by: ip, rate: 5/hour }]\n";
        let text = format!("{rules}{}", lists.replace("DIGEST", &digest));
        let set = parse(&[SourceFile { name: "rules.yaml", text: &text }]).unwrap();
        let name_of = |text: &str| (text == digest).then_some("acme");
        let found = lint_with_keys(&set, Nanos::ZERO, |_| true, name_of);
        let found: Vec<String> =
            found.iter().map(|found| found.message.replace(&quoted(&digest), "`DIGEST`")).collect();
        assert_eq!(found, want);
    }

    /// The entries were compared as written, so that a key listed by name in one list and by digest in the other was
    /// not found.
    #[test]
    fn a_blocked_key_that_is_allowed_by_its_other_form_has_no_effect() {
        check(
            "allow: ['key:acme']\nblock: ['DIGEST']\n",
            &[
                "has in `block` `DIGEST`, which has no effect, because `allow` wins and has `key:acme`; remove one of them",
            ],
        );
        check(
            "allow: ['DIGEST']\nblock: ['key:acme']\n",
            &["has in `block` `key:acme`, which has no effect on one key of that name, because `allow` wins and has \
                 `DIGEST`; remove one of them"],
        );
        check("allow: ['key:other']\nblock: ['DIGEST']\n", &[]);
        check("allow: [{ match: 'key:acme', until: 2030-01-01T00:00:00Z }]\nblock: ['DIGEST']\n", &[]);
        check("allow: [{ match: 'DIGEST', until: 2030-01-01T00:00:00Z }]\nblock: ['key:acme']\n", &[]);
    }
}
