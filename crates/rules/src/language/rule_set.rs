//! The rules that are in force together: parsed, checked and indexed. Only `parse` creates a set.
//!
//! A set knows the attributes that it reads, so that an edge need not carry the others, and finds attributes of a request
//! that no rule reads because their names differ from a known one by case. A rule cannot name such an attribute unless it
//! is declared. So the limit that the caller meant does not apply.

use std::collections::BTreeSet;

use ipnet::IpNet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::access_lists::{AccessList, ListDecision, ListEntry};
use super::descriptors::{ConfigDump, Descriptors};
use super::diagnostics::{SourceLocation, Warning};
use super::index::RuleIndex;
use super::names::{BUILT_IN, DeclaredNames, find_within_one_edit};
use super::rule::{Mode, Purpose, Rule, RuleKind};
use crate::request::{HEADER_PREFIX, PRIORITY, Request};
use tidegate_core::units::Nanos;

/// Rules that have been parsed, checked and indexed.
#[derive(Clone, Debug)]
pub struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    pub(crate) by_name: FxHashMap<Box<str>, u32>,
    /// Index of the rules that match by attributes.
    pub(crate) index: RuleIndex,
    pub(crate) descriptors: Descriptors,
    pub(crate) allow: AccessList,
    pub(crate) block: AccessList,
    pub(crate) tiers: Vec<Box<str>>,
    pub(crate) identity: Identity,
    /// Source location of `identity`.
    pub(crate) identity_location: Option<SourceLocation>,
    pub(crate) keys_file: Option<Box<str>>,
    /// Names declared at the top.
    pub(crate) declared: DeclaredNames,
    /// Lint warnings that only the source text shows.
    pub(crate) warnings: Vec<Warning>,
    /// Units that rules count in or declare.
    pub(crate) units: BTreeSet<Box<str>>,
    /// Whether the rules have a `timezone`.
    pub(crate) has_timezone: bool,
    /// Whether any rule delays before it denies.
    pub(crate) has_soft_limits: bool,
    /// Whether the client's address decides.
    pub(crate) uses_ip: bool,
    /// Whether the client's key decides.
    pub(crate) uses_api_key: bool,
    /// The name of the first file, for warnings about the rules as a whole.
    pub(crate) source: std::sync::Arc<str>,
}

/// A unit in the costs of a request that the rules do not know. Prints what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown unit, {advice}")]
pub struct UnknownUnitError<'q> {
    /// The unit.
    pub unit: &'q str,
    advice: String,
}

/// An attribute whose name differs by case from a built-in or declared one. Prints what to write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("differs from `{known}` by case, and no rule would look at it; write `{known}`")]
pub struct AttributeCaseError<'q> {
    /// The name in the request.
    pub name: &'q str,
    known: String,
}

/// How clients are identified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Peers that are trusted to state the client's address. None by default.
    pub trusted_proxies: Vec<IpNet>,
    /// Length of the prefix that identifies an IPv6 client: one household has a /64.
    pub ipv6_prefix: u8,
}

impl Default for Identity {
    fn default() -> Self {
        Identity { trusted_proxies: Vec::new(), ipv6_prefix: 64 }
    }
}

impl RuleSet {
    /// The rules that match by attributes.
    pub(crate) fn native_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(|rule| rule.kind == RuleKind::Match)
    }

    /// All rules, in file order: first those that match by attributes, then those of descriptors.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule with this `name`.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.position(name).map(|at| &self.rules[at])
    }

    /// Position of the rule with this `name` in [`RuleSet::rules`].
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|at| *at as usize)
    }

    /// Positions of the rules that apply to `request`, ascending. A rule applies if its match holds, it is not off,
    /// the request does not state a cost of 0 in its unit, and no other rule that applies replaces it.
    pub fn applicable_rules(&self, request: &Request<'_>, purpose: Purpose) -> SmallVec<[u32; 8]> {
        let mut found = self.matching_rules(request);
        let replacing = |at: &u32| !self.rules[*at as usize].replaces.is_empty();
        if found.iter().any(replacing) {
            let all = found.clone();
            found.retain(|at| self.replaced_by(*at, &all, purpose).is_none());
        }
        found
    }

    /// Positions of the rules that apply before replacements, ascending.
    pub(crate) fn matching_rules(&self, request: &Request<'_>) -> SmallVec<[u32; 8]> {
        let mut found = SmallVec::new();
        self.index.find(request, &mut |at| {
            if self.rules[at as usize].applies(request) {
                found.push(at);
            }
        });
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The rule of `others`, all of which apply, that replaces the rule at `position`.
    pub(crate) fn replaced_by(&self, position: u32, others: &[u32], purpose: Purpose) -> Option<&Rule> {
        let rule = &self.rules[position as usize];
        let mut others = others.iter().map(|at| &self.rules[*at as usize]);
        others.find(|other| other.displaces(rule, position, purpose))
    }

    /// Whether any rule delays before it denies.
    pub fn has_soft_limits(&self) -> bool {
        self.has_soft_limits
    }

    /// Whether a list has any entry.
    pub fn has_access_lists(&self) -> bool {
        !self.allow.entries.is_empty() || !self.block.entries.is_empty()
    }

    /// Whether the client's address decides: a rule matches or counts by it, or a list has an entry. Takes no time.
    pub fn uses_ip(&self) -> bool {
        self.uses_ip
    }

    /// Whether the client's key decides: a rule matches or counts by it or has rates for its tier, or a list has an
    /// entry. Takes no time.
    pub fn uses_api_key(&self) -> bool {
        self.uses_api_key
    }

    /// The decision of the lists about `request` at `now`. The allow list wins.
    pub fn list_decision(&self, request: &Request<'_>, now: Nanos) -> Option<ListDecision> {
        self.list_decision_with_entry(request, now).map(|(decision, _)| decision)
    }

    /// The decision of the lists, and the entry that makes it.
    pub(crate) fn list_decision_with_entry(
        &self,
        request: &Request<'_>,
        now: Nanos,
    ) -> Option<(ListDecision, &ListEntry)> {
        if let Some(entry) = self.allow.find(request, now) {
            return Some((ListDecision::Allow, entry));
        }
        let entry = self.block.find(request, now)?;
        Some((ListDecision::Block { until: entry.until }, entry))
    }

    /// The error for the first unit in the costs of `request` that no rule counts in or declares. It is probably
    /// misspelt, and nothing would be charged for it.
    pub fn unknown_unit<'q>(&self, request: &'q Request<'_>) -> Option<UnknownUnitError<'q>> {
        let mut named = request.costs.iter().map(|(unit, _)| &**unit);
        let unit = named.find(|unit| !self.units.contains(*unit))?;
        Some(UnknownUnitError { unit, advice: self.unknown_unit_advice(unit) })
    }

    fn unknown_unit_advice(&self, unit: &str) -> String {
        let known = || self.units.iter().map(|known| &**known);
        if unit == "requests" {
            return "requests are counted by `cost`".to_owned();
        }
        if let Some(near) = find_within_one_edit(unit, known()) {
            return format!("no rule counts it; write {near}");
        }
        let known: Vec<&str> = known().take(8).collect();
        if known.is_empty() {
            return "no rule counts in units; declare it in the rules (`units:`) or leave it out".to_owned();
        }
        format!("no rule counts it; write {}, or declare it in the rules (`units:`)", known.join(", "))
    }

    /// Whether the lists block the key with this digest at `now`. `name` is the name it is listed under; empty for
    /// none.
    pub fn blocks_key(&self, name: &str, digest: &[u8; 32], now: Nanos) -> bool {
        self.block.contains_key(name, digest, now) && !self.allow.contains_key(name, digest, now)
    }

    /// Names of the domains of descriptors.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &str> {
        self.descriptors.domains.iter().map(|domain| &*domain.name)
    }

    /// The limits of all domains, one per line, as the reference service lists them.
    pub fn config_dump(&self) -> ConfigDump<'_> {
        ConfigDump(&self.descriptors)
    }

    /// The names of the tiers, least first.
    pub fn tiers(&self) -> &[Box<str>] {
        &self.tiers
    }

    /// How clients are identified.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Names of API keys in rules and lists, in no particular order.
    pub fn key_names(&self) -> Vec<String> {
        super::lint::keys::names(self)
    }

    /// The file with the API keys, as the rules name it.
    pub fn keys_file(&self) -> Option<&str> {
        self.keys_file.as_deref()
    }

    /// Every attribute that a rule matches, counts by, or takes the priority from.
    pub fn attributes(&self) -> BTreeSet<&str> {
        let has_ceilings = self.rules.iter().any(|rule| rule.priority.is_some());
        let priority = has_ceilings.then_some(PRIORITY);
        self.rules.iter().flat_map(Rule::attribute_names).chain(priority).collect()
    }

    /// Every attribute that a rule in force matches or counts by. Without it such a rule would not apply, or would
    /// count clients together, and nobody would notice.
    pub fn enforced_attributes(&self) -> BTreeSet<&str> {
        self.native_rules().filter(|rule| rule.mode == Mode::Enforce).flat_map(Rule::attribute_names).collect()
    }

    /// The first attribute of `request` whose name differs from a known one by case. Only names with a capital letter
    /// are checked, so that most requests cost nothing.
    pub fn find_case_mismatch<'q>(&self, request: &'q Request<'_>) -> Option<AttributeCaseError<'q>> {
        let names = request.attributes.iter().map(|(name, _)| &**name);
        let mut with_uppercase = names.filter(|name| has_uppercase(name));
        with_uppercase.find_map(|name| Some(AttributeCaseError { name, known: self.known_spelling(name)? }))
    }

    fn known_spelling(&self, name: &str) -> Option<String> {
        let declared = &self.declared;
        if declared.knows_attribute(name) {
            return None;
        }
        let own = declared.attributes.iter().map(|known| &**known);
        let mut known = BUILT_IN.into_iter().chain(own);
        if let Some(known) = known.find(|known| known.eq_ignore_ascii_case(name)) {
            return Some(known.to_owned());
        }
        let lower = name.to_ascii_lowercase();
        lower.starts_with(HEADER_PREFIX).then_some(lower)
    }
}

/// Whether a request has an attribute that [`RuleSet::find_case_mismatch`] checks.
pub fn may_have_case_mismatch(request: &Request<'_>) -> bool {
    request.attributes.iter().any(|(name, _)| has_uppercase(name))
}

fn has_uppercase(name: &str) -> bool {
    name.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{SourceFile, parse};

    #[track_caller]
    fn check(name: &str, want: Option<&str>) {
        let text = "version: 1\nattributes: [org, Path, tenantId]\nrules: []\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let request = Request::default().with("user", "ada").with(name, "x");
        let found = rules.find_case_mismatch(&request);
        assert_eq!(found.map(|found| found.known).as_deref(), want, "{name}");
    }

    #[test]
    fn a_name_that_differs_by_case_only_is_found_unless_it_is_declared() {
        check("Method", Some("method"));
        check("Header.X-Team", Some("header.x-team"));
        check("ORG", Some("org"));
        check("TenantID", Some("tenantId"));
        check("tenantId", None);
        check("Path", None);
        check("regionId", None);
        check("method", None);
    }

    #[test]
    fn attributes_that_are_matched_excepted_or_counted_by_are_used() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x, not: { method: GET } }, by: [user, header.x-team|ip], rate: 1/hour }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.attributes().into_iter().collect();
        assert_eq!(used, ["header.x-team", "ip", "method", "path", "user"]);
    }

    #[test]
    fn rules_that_are_off_or_in_shadow_mode_are_not_in_force() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x }, by: user, rate: 1/hour }\n  - { name: b, \
                    match: { method: GET }, by: ip, rate: 1/hour, mode: shadow }\n  - { name: c, match: { host: \
                    a.example }, by: ip, rate: 1/hour, mode: off }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.enforced_attributes().into_iter().collect();
        assert_eq!(used, ["path", "user"]);
    }
}
