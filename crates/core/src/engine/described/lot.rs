//! The limit of each descriptor: found in the tree of its domain, or brought along.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::algorithms::Limit;
use crate::described::{Described, Descriptor, DescriptorEntry, Metadata, OwnLimit, Unit};
use crate::engine::subject;
use crate::rules::{Class, Domain, Found, RuleSet, stats_key, window, written};
use crate::subject::{Fingerprint, FingerprintKey};

/// What there is for a descriptor.
#[derive(Debug)]
pub(super) enum Lot<'r> {
    /// No limit, because nothing is known of it.
    Unmatched,
    /// No limit, because a node says so or another limit takes the place of its own.
    Exempt,
    /// A limit without bounds.
    Unlimited,
    /// A limit.
    Limited(Limited<'r>),
}

/// A limit that counts, for one descriptor.
#[derive(Debug)]
pub(super) struct Limited<'r> {
    pub(super) subject: Fingerprint,
    pub(super) requests: u32,
    pub(super) unit: Unit,
    pub(super) limit: Cow<'r, Limit>,
    /// Where its rule stands.
    pub(super) rule: u32,
    pub(super) name: Option<&'r str>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    pub(super) metadata: Option<&'r Metadata>,
    pub(super) stats: Cow<'r, str>,
}

impl Limited<'_> {
    /// Whether it refuses everything, so that no store need be asked.
    pub(super) fn is_nothing(&self) -> bool {
        self.requests == 0
    }
}

/// What there is for each descriptor of a request, in order; nothing if no file names its domain.
pub(super) fn of_each<'r>(
    rules: &'r RuleSet,
    key: &FingerprintKey,
    described: &Described<'_>,
) -> Option<SmallVec<[Lot<'r>; 4]>> {
    let domain = rules.descriptors.domain(described.domain)?;
    let mut search = Search {
        rules,
        domain,
        key,
        joined: String::new(),
        replaced: SmallVec::new(),
    };
    let each = described.descriptors.iter();
    let mut lots: SmallVec<[Lot<'r>; 4]> = each.map(|descriptor| search.lot(descriptor)).collect();
    if !search.replaced.is_empty() {
        for lot in &mut lots {
            let replaced = |name: &str| search.replaced.contains(&name);
            if matches!(lot, Lot::Limited(limited) if limited.name.is_some_and(replaced)) {
                *lot = Lot::Exempt;
            }
        }
    }
    Some(lots)
}

struct Search<'r, 's> {
    rules: &'r RuleSet,
    domain: &'r Domain,
    key: &'s FingerprintKey,
    /// Room to join a key and a value in.
    joined: String,
    /// The names of limits whose place another takes.
    replaced: SmallVec<[&'r str; 2]>,
}

impl<'r> Search<'r, '_> {
    fn lot(&mut self, descriptor: &Descriptor<'_>) -> Lot<'r> {
        let entries = &descriptor.entries;
        if let Some(own) = descriptor.own {
            return Lot::Limited(self.brought(own, entries));
        }
        let hit = match self.domain.find(entries, &mut self.joined) {
            Found::Nothing => return Lot::Unmatched,
            Found::Exempt => return Lot::Exempt,
            Found::Limit(hit) => hit,
        };
        let limited = hit.limited;
        let names = limited.replaces.iter().map(|name| &**name);
        self.replaced.extend(names);
        let Some(quantity) = limited.quantity else {
            return Lot::Unlimited;
        };
        let rule = &self.rules.rules()[quantity.rule as usize];
        Lot::Limited(Limited {
            subject: self.subject(entries, &hit.shared),
            requests: limited.requests,
            unit: quantity.unit,
            limit: Cow::Borrowed(&rule.rates(Class::default()).limits()[0]),
            rule: quantity.rule,
            name: limited.name.as_deref(),
            shadow: limited.shadow,
            quota: limited.quota,
            metadata: hit.metadata,
            stats: match hit.counted_under {
                Some(values) => values.into(),
                None => (&*limited.path).into(),
            },
        })
    }

    fn subject(&self, entries: &[DescriptorEntry<'_>], shared: &[(usize, &str)]) -> Fingerprint {
        let prefix = &self.rules.descriptors.prefix;
        subject::described(self.key, prefix, &self.domain.name, entries, shared)
    }

    /// A limit of the request's own. It has no name and no mode.
    fn brought(&self, own: OwnLimit, entries: &[DescriptorEntry<'_>]) -> Limited<'r> {
        let precision = self.rules.descriptors.precision;
        // Values of clients are no names of statistics: they may be personal, and there is no end to them.
        let keys = entries.iter().map(|(key, _)| (*key, None));
        Limited {
            subject: self.subject(entries, &[]),
            requests: own.requests,
            unit: own.unit,
            limit: Cow::Owned(window(own.requests, own.unit, precision)),
            rule: self.domain.brought,
            name: None,
            shadow: false,
            quota: false,
            metadata: None,
            stats: stats_key(&self.domain.name, keys).into(),
        }
    }
}

/// As people would write the rate.
pub(super) fn rate(limited: &Limited<'_>) -> Box<str> {
    written(limited.requests, limited.unit)
}
