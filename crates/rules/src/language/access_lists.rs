//! The allow list and the block list: networks and keys, each until a time or for good. Reads them from rules files.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::diagnostics::{SourceLocation, quoted};
use super::fields::{MappingFields, Reporter, mapping_fields};
use super::net_map::NetMap;
use super::values::networks::parse_client_net;
use super::yaml::{YamlNode, YamlValue};
use crate::request::Request;
use tidegate_core::units::Nanos;

/// The decision of a list about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListDecision {
    /// The request passes, whatever the rules and the block list decide.
    Allow,
    /// The request is denied.
    Block {
        /// When the block expires; `None` for a permanent block.
        until: Option<Nanos>,
    },
}

/// The entry that decides, in a form for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The network or key, as written.
    pub target: Box<str>,
    /// When the entry expires; `None` for a permanent entry.
    pub until: Option<Nanos>,
    /// Source location of the entry.
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
    /// Whether the entry has not expired at `now`.
    pub(crate) fn is_in_force(&self, now: Nanos) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// The expiry in the form of a rules file.
    pub fn until_text(&self) -> Option<String> {
        let nanos = i128::from(self.until?.get());
        let until = Timestamp::from_nanosecond(nanos).ok()?;
        Some(until.to_string())
    }
}

/// The clients that an entry of a list covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListTarget {
    Net(IpNet),
    /// The key listed under this name.
    KeyNamed(Box<str>),
    /// The key with this SHA-256.
    KeyDigest([u8; 32]),
}

/// The entries of `allow` or of `block`, by network, key name and key digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessList {
    nets: NetMap<Vec<ListEntry>>,
    names: FxHashMap<Box<str>, Vec<ListEntry>>,
    digests: FxHashMap<[u8; 32], Vec<ListEntry>>,
    entries: usize,
    /// Entries that may have no effect or too wide an effect, for lint.
    pub(crate) lint_candidates: Vec<LintCandidate>,
}

/// An entry that expires, that names a key, or that covers every address.
#[derive(Clone, Debug)]
pub(crate) struct LintCandidate {
    pub(crate) entry: ListEntry,
    pub(crate) target: ListTarget,
}

/// Whether a network contains a large part of all addresses.
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
            self.lint_candidates.push(LintCandidate { entry: entry.clone(), target: target.clone() });
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

    /// Every entry and its target, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ListTarget, &ListEntry)> {
        fn each(target: ListTarget, entries: &[ListEntry]) -> impl Iterator<Item = (ListTarget, &ListEntry)> {
            entries.iter().map(move |entry| (target.clone(), entry))
        }
        let nets = self.nets.iter();
        let nets = nets.flat_map(|(net, entries)| each(ListTarget::Net(net), entries));
        let names = self.names.iter();
        let names = names.flat_map(|(name, entries)| each(ListTarget::KeyNamed(name.clone()), entries));
        let digests = self.digests.iter();
        let digests = digests.flat_map(|(digest, entries)| each(ListTarget::KeyDigest(*digest), entries));
        nets.chain(names).chain(digests)
    }

    /// The entries that cover all of `target`: the same key, the same network or a wider one.
    pub(crate) fn covering(&self, target: &ListTarget) -> impl Iterator<Item = &ListEntry> {
        let (net, name, digest) = match target {
            ListTarget::Net(net) => (Some(*net), None, None),
            ListTarget::KeyNamed(name) => (None, self.names.get(name), None),
            ListTarget::KeyDigest(digest) => (None, None, self.digests.get(digest)),
        };
        let nets = net.into_iter().flat_map(|net| self.nets.covering(net));
        nets.chain(name).chain(digest).flatten()
    }

    /// Whether an entry lists the key with this digest or with this name.
    pub(crate) fn contains_key(&self, name: &str, digest: &[u8; 32], now: Nanos) -> bool {
        let by_name = self.names.get(name).into_iter();
        let entries = by_name.chain(self.digests.get(digest)).flatten();
        entries.into_iter().any(|entry| entry.is_in_force(now))
    }

    /// The entry that covers `request` at `now`. Of several, the one that expires last.
    pub(crate) fn find(&self, request: &Request<'_>, now: Nanos) -> Option<&ListEntry> {
        let key = request.api_key.as_ref();
        let by_net = request.ip.into_iter().flat_map(|ip| self.nets.containing(ip));
        let digest = key.map(|key| key.digest).or(request.unlisted_key);
        let by_digest = digest.and_then(|digest| self.digests.get(&digest));
        let by_name = key.and_then(|key| self.names.get(key.name?));
        let entries = by_net.chain(by_digest).chain(by_name).flatten();
        entries.filter(|entry| entry.is_in_force(now)).max_by_key(|entry| entry.until.unwrap_or(Nanos::MAX))
    }
}

mapping_fields!(ListEntryFields { target: "match", until: "until" });

const EXPECTED: &str = "a list of networks such as [192.0.2.0/24], or { match: ..., until: ... }";

pub(crate) fn read(field: &str, node: YamlNode<'_>, ipv6_prefix: u8, list: &mut AccessList, report: &mut Reporter<'_>) {
    let YamlValue::List(items) = node.kind() else {
        report.error(node.line(), format!("has {} for `{field}`; write {EXPECTED}", node.describe()));
        return;
    };
    for item in items {
        let (target, until) = match item.kind() {
            YamlValue::Map(_) => {
                let what = format!("an entry of `{field}`");
                let Some(entry) = ListEntryFields::read(item, &what, report) else {
                    continue;
                };
                let until = entry.until.and_then(|node| read_until(field, node, report));
                let Some(target) = entry.target else {
                    report.error(item.line(), format!("{what} has no `match`; write `match: 192.0.2.7`"));
                    continue;
                };
                (target, until)
            }
            _ => (item, None),
        };
        if let Some(text) = report.text(field, target, EXPECTED) {
            match parse_target(text, ipv6_prefix) {
                Ok(target) => {
                    list.add(target, ListEntry { target: text.into(), until, location: report.location(item.line()) })
                }
                Err(wrong) => report.error(target.line(), format!("has in `{field}` {wrong}")),
            }
        }
    }
}

fn parse_target(text: &str, ipv6_prefix: u8) -> Result<ListTarget, String> {
    if let Some(name) = text.strip_prefix("key:") {
        return match name.trim() {
            "" => Err(format!("{}, which names no key; write key:NAME", quoted(text))),
            name => Ok(ListTarget::KeyNamed(name.into())),
        };
    }
    if let Some(hex) = text.strip_prefix("sha256:") {
        let digest = parse_digest(hex)
            .ok_or_else(|| format!("{}, which is no SHA-256; write sha256: and 64 hex digits", quoted(text)));
        return digest.map(ListTarget::KeyDigest);
    }
    parse_client_net(text, ipv6_prefix).map(ListTarget::Net)
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(digest)
}

fn read_until(field: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Nanos> {
    let text = report.text("until", node, "an instant such as 2030-01-31T00:00:00Z")?;
    let instant = text.parse::<Timestamp>().ok();
    let nanos = instant.and_then(|at| u64::try_from(at.as_nanosecond()).ok());
    if nanos.is_none() {
        let message =
            format!("has in `{field}` the end {}, which is no instant; write it as 2030-01-31T00:00:00Z", quoted(text));
        report.error(node.line(), message);
    }
    nanos.map(Nanos::new)
}
