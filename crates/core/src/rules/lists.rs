//! The allow list and the block list: networks and keys, each until a time or for good.

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::nets::NetMap;
use crate::engine::Request;
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
    nets: NetMap<Vec<Option<Nanos>>>,
    names: FxHashMap<Box<str>, Vec<Option<Nanos>>>,
    digests: FxHashMap<[u8; 32], Vec<Option<Nanos>>>,
    entries: usize,
}

impl List {
    pub(crate) fn add(&mut self, whom: Whom, until: Option<Nanos>) {
        let ends = match whom {
            Whom::Net(net) => self.nets.entry(net),
            Whom::KeyNamed(name) => self.names.entry(name).or_default(),
            Whom::KeyDigest(digest) => self.digests.entry(digest).or_default(),
        };
        ends.push(until);
        self.entries += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Until when `request` is listed at `now`: the end of the entry that lasts longest.
    pub(crate) fn holds(&self, request: &Request<'_>, now: Nanos) -> Option<Option<Nanos>> {
        let key = request.api_key.as_ref();
        let by_net = request.ip.into_iter().flat_map(|ip| self.nets.holding(ip));
        let shown = key.map(|key| key.digest).or(request.unlisted_key);
        let by_digest = shown.and_then(|digest| self.digests.get(&digest));
        let by_name = key.and_then(|key| self.names.get(key.name?));
        let ends = by_net.chain(by_digest).chain(by_name).flatten().copied();
        ends.filter(|until| until.is_none_or(|until| now < until))
            .max_by_key(|until| until.unwrap_or(Nanos::MAX))
    }
}
