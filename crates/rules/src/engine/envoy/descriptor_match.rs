//! The limit of each descriptor: found in the tree of its domain, or provided by the request.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::engine::subject;
use crate::envoy::{DescribedRequest, Descriptor, DescriptorEntry, DescriptorOverride, Metadata, Unit};
use crate::language::{DescriptorLookup, Domain, RateClass, RuleSet, stats_key, window};
use tidegate_core::algorithms::Limit;
use tidegate_core::subject::{Fingerprint, FingerprintKey};

/// The limit found for a descriptor.
#[derive(Debug)]
pub(super) enum DescriptorMatch<'r> {
    /// No limit, because no node matches.
    Unmatched,
    /// No limit, because a node exempts it or another limit replaces it.
    Exempt,
    /// A limit without bounds.
    Unlimited,
    /// A limit.
    Limited(MatchedLimit<'r>),
}

/// A limit that counts, for one descriptor.
#[derive(Debug)]
pub(super) struct MatchedLimit<'r> {
    pub(super) subject: Fingerprint,
    pub(super) requests: u32,
    pub(super) unit: Unit,
    pub(super) limit: Cow<'r, Limit>,
    /// The position of its rule.
    pub(super) rule: u32,
    pub(super) name: Option<&'r str>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    pub(super) metadata: Option<&'r Metadata>,
    pub(super) stats: Cow<'r, str>,
}

impl MatchedLimit<'_> {
    /// Whether it denies everything, so that no store call is needed.
    pub(super) fn denies_all(&self) -> bool {
        self.requests == 0
    }
}

/// The match of each descriptor of a request, in order; `None` if no file names its domain.
pub(super) fn match_each<'r>(
    rules: &'r RuleSet,
    key: &FingerprintKey,
    described: &DescribedRequest<'_>,
) -> Option<SmallVec<[DescriptorMatch<'r>; 4]>> {
    let domain = rules.descriptors.domain(described.domain)?;
    let mut search = Search { rules, domain, key, joined: String::new(), replaced: SmallVec::new() };
    let each = described.descriptors.iter();
    let mut matches: SmallVec<[DescriptorMatch<'r>; 4]> =
        each.map(|descriptor| search.find_match(descriptor)).collect();
    if !search.replaced.is_empty() {
        for matched in &mut matches {
            let replaced = |name: &str| search.replaced.contains(&name);
            if matches!(matched, DescriptorMatch::Limited(limited) if limited.name.is_some_and(replaced)) {
                *matched = DescriptorMatch::Exempt;
            }
        }
    }
    Some(matches)
}

struct Search<'r, 's> {
    rules: &'r RuleSet,
    domain: &'r Domain,
    key: &'s FingerprintKey,
    /// A buffer for a joined key and value.
    joined: String,
    /// The names of replaced limits.
    replaced: SmallVec<[&'r str; 2]>,
}

impl<'r> Search<'r, '_> {
    fn find_match(&mut self, descriptor: &Descriptor<'_>) -> DescriptorMatch<'r> {
        let entries = &descriptor.entries;
        if let Some(limit_override) = descriptor.limit_override {
            return DescriptorMatch::Limited(self.override_limit(limit_override, entries));
        }
        let hit = match self.domain.find(entries, &mut self.joined) {
            DescriptorLookup::NotFound => return DescriptorMatch::Unmatched,
            DescriptorLookup::Exempt => return DescriptorMatch::Exempt,
            DescriptorLookup::Limit(hit) => hit,
        };
        let limited = hit.limit;
        let names = limited.replaces.iter().map(|name| &**name);
        self.replaced.extend(names);
        let Some(counted) = limited.counted else { return DescriptorMatch::Unlimited };
        let rule = &self.rules.rules()[counted.rule as usize];
        DescriptorMatch::Limited(MatchedLimit {
            subject: self.subject(entries, &hit.shared_patterns),
            requests: limited.requests_per_unit,
            unit: counted.unit,
            limit: Cow::Borrowed(&rule.rates(RateClass::default()).limits()[0]),
            rule: counted.rule,
            name: limited.name.as_deref(),
            shadow: limited.shadow_mode,
            quota: limited.quota_mode,
            metadata: hit.metadata,
            stats: match hit.stats_key {
                Some(values) => values.into(),
                None => (&*limited.path).into(),
            },
        })
    }

    fn subject(&self, entries: &[DescriptorEntry<'_>], shared: &[(usize, &str)]) -> Fingerprint {
        let prefix = &self.rules.descriptors.prefix;
        subject::descriptor_fingerprint(self.key, prefix, &self.domain.name, entries, shared)
    }

    /// A limit from the request. It has no name and no mode.
    fn override_limit(&self, limit_override: DescriptorOverride, entries: &[DescriptorEntry<'_>]) -> MatchedLimit<'r> {
        let precision = self.rules.descriptors.precision;
        // Values from clients are no stats keys: they may be personal, and their number is unbounded.
        let keys = entries.iter().map(|(key, _)| (*key, None));
        MatchedLimit {
            subject: self.subject(entries, &[]),
            requests: limit_override.requests,
            unit: limit_override.unit,
            limit: Cow::Owned(window(limit_override.requests, limit_override.unit, precision)),
            rule: self.domain.override_rule,
            name: None,
            shadow: false,
            quota: false,
            metadata: None,
            stats: stats_key(&self.domain.name, keys).into(),
        }
    }
}
