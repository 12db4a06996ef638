//! Entries of lists that cover no clients any more, or nearly all of them, or proxies instead of clients.

use crate::language::access_lists::{AccessList, ListEntry, ListedClients, is_wide};
use crate::language::diagnostics::{Warning, quoted};
use crate::language::rule_set::RuleSet;
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
    let end = |entry: &ListEntry| entry.until.unwrap_or(Nanos::MAX);
    for blocked in &set.block.entries {
        let mut allowing = set.allow.covering(&blocked.clients);
        if let Some(allowed) = allowing.find(|allowed| end(allowed) >= end(blocked)) {
            let message = format!(
                "has in `block` {}, which has no effect, because `allow` wins and has {}; remove one of them",
                quoted(&blocked.target),
                quoted(&allowed.target)
            );
            warnings.push(Warning::new(&blocked.location, message));
        }
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
