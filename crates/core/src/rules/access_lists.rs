//! The allow list and the block list: networks and keys, each until a time or for good.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::diagnostics::{SourceLocation, quoted};
use super::net_map::NetMap;
use crate::request::Request;
use crate::units::Nanos;

/// What a list says about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListDecision {
    /// It passes, whatever rules and the other list say.
    Allow,
    /// It is refused.
    Block {
        /// When the block ends; absent for good.
        until: Option<Nanos>,
    },
}

/// The entry that decides, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// Whom it is about, as written.
    pub target: Box<str>,
    /// When it ends; absent for good.
    pub until: Option<Nanos>,
    /// Where it stands.
    pub(crate) location: SourceLocation,
}

impl fmt::Display for ListEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&self.target))?;
        match self.until_text() {
            Some(until) => write!(f, " (until {until})"),
            None => Ok(()),
        }
    }
}

impl ListEntry {
    /// Whether it has not ended at `now`.
    pub(crate) fn is_in_force(&self, now: Nanos) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// When it ends, as a rules file would say it.
    pub fn until_text(&self) -> Option<String> {
        let nanos = i128::from(self.until?.get());
        let until = Timestamp::from_nanosecond(nanos).ok()?;
        Some(until.to_string())
    }
}

/// Whom an entry of a list is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListTarget {
    Net(IpNet),
    /// The key listed under this name.
    KeyNamed(Box<str>),
    /// The key with this SHA-256.
    KeyDigest([u8; 32]),
}

/// One list.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessList {
    nets: NetMap<Vec<ListEntry>>,
    names: FxHashMap<Box<str>, Vec<ListEntry>>,
    digests: FxHashMap<[u8; 32], Vec<ListEntry>>,
    entries: usize,
    /// Entries that may have no effect or too much of it, for warnings.
    pub(crate) lint_candidates: Vec<LintCandidate>,
}

/// An entry that ends, that names a key, or that holds every address.
#[derive(Clone, Debug)]
pub(crate) struct LintCandidate {
    pub(crate) entry: ListEntry,
    pub(crate) target: ListTarget,
}

/// Whether a network holds a large part of all addresses.
pub(crate) fn is_wide(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.prefix_len() < 8,
        IpNet::V6(net) => net.prefix_len() < 7, // fc00::/7 are private addresses
    }
}

impl AccessList {
    pub(crate) fn add(&mut self, target: ListTarget, entry: ListEntry) {
        let wide = matches!(target, ListTarget::Net(net) if is_wide(net));
        if wide || entry.until.is_some() || matches!(target, ListTarget::KeyNamed(_)) {
            self.lint_candidates.push(LintCandidate {
                entry: entry.clone(),
                target: target.clone(),
            });
        }
        let entries = match target {
            ListTarget::Net(net) => self.nets.entry(net),
            ListTarget::KeyNamed(name) => self.names.entry(name).or_default(),
            ListTarget::KeyDigest(digest) => self.digests.entry(digest).or_default(),
        };
        entries.push(entry);
        self.entries += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Every entry and whom it is about, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ListTarget, &ListEntry)> {
        fn each(
            target: ListTarget,
            entries: &[ListEntry],
        ) -> impl Iterator<Item = (ListTarget, &ListEntry)> {
            entries.iter().map(move |entry| (target.clone(), entry))
        }
        let nets = self.nets.iter();
        let nets = nets.flat_map(|(net, entries)| each(ListTarget::Net(net), entries));
        let names = self.names.iter();
        let names =
            names.flat_map(|(name, entries)| each(ListTarget::KeyNamed(name.clone()), entries));
        let digests = self.digests.iter();
        let digests =
            digests.flat_map(|(digest, entries)| each(ListTarget::KeyDigest(*digest), entries));
        nets.chain(names).chain(digests)
    }

    /// The entries about all of `target`: the same key, or the same network or a wider one.
    pub(crate) fn covering(&self, target: &ListTarget) -> impl Iterator<Item = &ListEntry> {
        let (net, name, digest) = match target {
            ListTarget::Net(net) => (Some(*net), None, None),
            ListTarget::KeyNamed(name) => (None, self.names.get(name), None),
            ListTarget::KeyDigest(digest) => (None, None, self.digests.get(digest)),
        };
        let nets = net.into_iter().flat_map(|net| self.nets.covering(net));
        nets.chain(name).chain(digest).flatten()
    }

    /// Whether an entry lists the key of this digest, or the name that it is listed under.
    pub(crate) fn contains_key(&self, name: &str, digest: &[u8; 32], now: Nanos) -> bool {
        let by_name = self.names.get(name).into_iter();
        let entries = by_name.chain(self.digests.get(digest)).flatten();
        entries.into_iter().any(|entry| entry.is_in_force(now))
    }

    /// The entry that lists `request` at `now`: of several the one that lasts longest.
    pub(crate) fn find(&self, request: &Request<'_>, now: Nanos) -> Option<&ListEntry> {
        let key = request.api_key.as_ref();
        let by_net = request
            .ip
            .into_iter()
            .flat_map(|ip| self.nets.containing(ip));
        let digest = key.map(|key| key.digest).or(request.unlisted_key);
        let by_digest = digest.and_then(|digest| self.digests.get(&digest));
        let by_name = key.and_then(|key| self.names.get(key.name?));
        let entries = by_net.chain(by_digest).chain(by_name).flatten();
        entries
            .filter(|entry| entry.is_in_force(now))
            .max_by_key(|entry| entry.until.unwrap_or(Nanos::MAX))
    }
}
