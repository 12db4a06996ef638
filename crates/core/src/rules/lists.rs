//! The allow list and the block list: networks and keys, each until a time or for good.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::fault::{Place, shown};
use super::nets::NetMap;
use crate::request::Request;
use crate::units::Nanos;

/// What a list says about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
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
pub struct Entry {
    /// Whom it is about, as written.
    pub whom: Box<str>,
    /// When it ends; absent for good.
    pub until: Option<Nanos>,
    /// Where it stands.
    pub(crate) place: Place,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.whom))?;
        match self.until_text() {
            Some(until) => write!(f, " (until {until})"),
            None => Ok(()),
        }
    }
}

impl Entry {
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
pub(crate) enum Whom {
    Net(IpNet),
    /// The key listed under this name.
    KeyNamed(Box<str>),
    /// The key with this SHA-256.
    KeyDigest([u8; 32]),
}

/// One list.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    nets: NetMap<Vec<Entry>>,
    names: FxHashMap<Box<str>, Vec<Entry>>,
    digests: FxHashMap<[u8; 32], Vec<Entry>>,
    entries: usize,
    /// Entries that may have no effect or too much of it, for warnings.
    pub(crate) notable: Vec<Notable>,
}

/// An entry that ends, that names a key, or that holds every address.
#[derive(Clone, Debug)]
pub(crate) struct Notable {
    pub(crate) entry: Entry,
    pub(crate) whom: Whom,
}

/// Whether a network holds a large part of all addresses.
pub(crate) fn is_wide(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.prefix_len() < 8,
        IpNet::V6(net) => net.prefix_len() < 7, // fc00::/7 are private addresses
    }
}

impl List {
    pub(crate) fn add(&mut self, whom: Whom, entry: Entry) {
        let wide = matches!(whom, Whom::Net(net) if is_wide(net));
        if wide || entry.until.is_some() || matches!(whom, Whom::KeyNamed(_)) {
            self.notable.push(Notable {
                entry: entry.clone(),
                whom: whom.clone(),
            });
        }
        let entries = match whom {
            Whom::Net(net) => self.nets.entry(net),
            Whom::KeyNamed(name) => self.names.entry(name).or_default(),
            Whom::KeyDigest(digest) => self.digests.entry(digest).or_default(),
        };
        entries.push(entry);
        self.entries += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Every entry and whom it is about, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Whom, &Entry)> {
        fn each(whom: Whom, entries: &[Entry]) -> impl Iterator<Item = (Whom, &Entry)> {
            entries.iter().map(move |entry| (whom.clone(), entry))
        }
        let nets = self.nets.iter();
        let nets = nets.flat_map(|(net, entries)| each(Whom::Net(net), entries));
        let names = self.names.iter();
        let names = names.flat_map(|(name, entries)| each(Whom::KeyNamed(name.clone()), entries));
        let digests = self.digests.iter();
        let digests = digests.flat_map(|(digest, entries)| each(Whom::KeyDigest(*digest), entries));
        nets.chain(names).chain(digests)
    }

    /// The entries about all of `whom`: the same key, or the same network or a wider one.
    pub(crate) fn covering(&self, whom: &Whom) -> impl Iterator<Item = &Entry> {
        let (net, name, digest) = match whom {
            Whom::Net(net) => (Some(*net), None, None),
            Whom::KeyNamed(name) => (None, self.names.get(name), None),
            Whom::KeyDigest(digest) => (None, None, self.digests.get(digest)),
        };
        let nets = net.into_iter().flat_map(|net| self.nets.covering(net));
        nets.chain(name).chain(digest).flatten()
    }

    /// Whether an entry lists the key of this digest, or the name that it is listed under.
    pub(crate) fn holds_key(&self, name: &str, digest: &[u8; 32], now: Nanos) -> bool {
        let by_name = self.names.get(name).into_iter();
        let entries = by_name.chain(self.digests.get(digest)).flatten();
        entries.into_iter().any(|entry| entry.is_in_force(now))
    }

    /// The entry that lists `request` at `now`: of several the one that lasts longest.
    pub(crate) fn holds(&self, request: &Request<'_>, now: Nanos) -> Option<&Entry> {
        let key = request.api_key.as_ref();
        let by_net = request.ip.into_iter().flat_map(|ip| self.nets.holding(ip));
        let shown = key.map(|key| key.digest).or(request.unlisted_key);
        let by_digest = shown.and_then(|digest| self.digests.get(&digest));
        let by_name = key.and_then(|key| self.names.get(key.name?));
        let entries = by_net.chain(by_digest).chain(by_name).flatten();
        entries
            .filter(|entry| entry.is_in_force(now))
            .max_by_key(|entry| entry.until.unwrap_or(Nanos::MAX))
    }
}
