//! The allow list and the block list: networks and keys, each until a time or for good. Reads them from rules files.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

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
    /// The same, parsed.
    pub(crate) clients: ListedClients,
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
        Some(Timestamp::from_nanosecond(nanos).ok()?.to_string())
    }
}

/// The clients that an entry of a list covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListedClients {
    Net(IpNet),
    /// The key listed under this name.
    KeyNamed(Box<str>),
    /// The key with this SHA-256.
    KeyDigest([u8; 32]),
}

/// Positions of entries. Most clients have one.
type EntryPositions = SmallVec<[u32; 2]>;

/// The entries of `allow` or of `block`, and where those for a network, key name or key digest are among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessList {
    /// In file order.
    pub(crate) entries: Vec<ListEntry>,
    nets: NetMap<EntryPositions>,
    names: FxHashMap<Box<str>, EntryPositions>,
    digests: FxHashMap<[u8; 32], EntryPositions>,
}

/// Whether a network contains a large part of all addresses.
pub(crate) fn is_wide(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.prefix_len() < 8,
        IpNet::V6(net) => net.prefix_len() < 7, // fc00::/7 are private addresses
    }
}

impl AccessList {
    fn add(&mut self, entry: ListEntry) {
        let positions = match &entry.clients {
            ListedClients::Net(net) => self.nets.entry(*net),
            ListedClients::KeyNamed(name) => self.names.entry(name.clone()).or_default(),
            ListedClients::KeyDigest(digest) => self.digests.entry(*digest).or_default(),
        };
        positions.push(self.entries.len() as u32); // a file has fewer values than `u32::MAX`
        self.entries.push(entry);
    }

    fn at<'l>(&'l self, positions: impl Iterator<Item = &'l EntryPositions>) -> impl Iterator<Item = &'l ListEntry> {
        positions.flatten().map(|at| &self.entries[*at as usize])
    }

    /// The entries that cover all of `clients`: the same key, the same network or a wider one.
    pub(crate) fn covering(&self, clients: &ListedClients) -> impl Iterator<Item = &ListEntry> {
        let (net, key) = match clients {
            ListedClients::Net(net) => (Some(*net), None),
            ListedClients::KeyNamed(name) => (None, self.names.get(name)),
            ListedClients::KeyDigest(digest) => (None, self.digests.get(digest)),
        };
        self.at(net.into_iter().flat_map(|net| self.nets.covering(net)).chain(key))
    }

    /// Whether an entry lists the key with this digest or with this name.
    pub(crate) fn contains_key(&self, name: &str, digest: &[u8; 32], now: Nanos) -> bool {
        let mut entries = self.at(self.names.get(name).into_iter().chain(self.digests.get(digest)));
        entries.any(|entry| entry.is_in_force(now))
    }

    /// The entry that covers `request` at `now`. Of several, the one that expires last.
    pub(crate) fn find(&self, request: &Request<'_>, now: Nanos) -> Option<&ListEntry> {
        let key = request.api_key.as_ref();
        let by_net = request.ip.into_iter().flat_map(|ip| self.nets.containing(ip));
        let digest = key.map(|key| key.digest).or(request.unlisted_key);
        let by_digest = digest.and_then(|digest| self.digests.get(&digest));
        let by_name = key.and_then(|key| self.names.get(key.name?));
        let entries = self.at(by_net.chain(by_digest).chain(by_name));
        entries.filter(|entry| entry.is_in_force(now)).max_by_key(|entry| entry.until.unwrap_or(Nanos::MAX))
    }
}

mapping_fields!(ListEntryFields { target: "match", until });

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
                let Some(entry) = ListEntryFields::read(item, &what, report) else { continue };
                let until = entry.until.and_then(|node| read_until(field, node, report));
                let Some(target) = entry.target else {
                    report.error(item.line(), format!("{what} has no `match`; write `match: 192.0.2.7`"));
                    continue;
                };
                (target, until)
            }
            _ => (item, None),
        };
        let parse = |text| match parse_target(text, ipv6_prefix) {
            Ok(clients) => Ok((clients, text)),
            Err(wrong) => Err(format!("has in `{field}` {wrong}")),
        };
        if let Some((clients, text)) = report.parse(field, target, EXPECTED, parse) {
            list.add(ListEntry { target: text.into(), until, clients, location: report.location(item.line()) });
        }
    }
}

fn parse_target(text: &str, ipv6_prefix: u8) -> Result<ListedClients, String> {
    if let Some(name) = text.strip_prefix("key:") {
        return match name.trim() {
            "" => Err(format!("{}, which names no key; write key:NAME", quoted(text))),
            name => Ok(ListedClients::KeyNamed(name.into())),
        };
    }
    if let Some(digest) = parse_digest(text) {
        return digest.map(ListedClients::KeyDigest).map_err(|wrong| format!("{}, {wrong}", quoted(text)));
    }
    parse_client_net(text, ipv6_prefix).map(ListedClients::Net)
}

/// The digest of a key, if `text` is written as one, or the error for it: `sha256:` and 64 hex digits, in any case.
pub(super) fn parse_digest(text: &str) -> Option<Result<[u8; 32], &'static str>> {
    let (scheme, hex) = text.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("sha256") {
        return None;
    }
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Some(Err("which is no SHA-256; write sha256: and 64 hex digits"));
    }
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap_or_default();
    Some(Ok(std::array::from_fn(byte)))
}

fn read_until(field: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Nanos> {
    report.parse("until", node, "an instant such as 2030-01-31T00:00:00Z", |text| {
        let instant = text.parse::<Timestamp>().ok();
        let nanos = instant.and_then(|at| u64::try_from(at.as_nanosecond()).ok());
        nanos.map(Nanos::new).ok_or_else(|| {
            let text = quoted(text);
            format!("has in `{field}` the end {text}, which is no instant; write it as 2030-01-31T00:00:00Z")
        })
    })
}
