//! The hash slot map: the primary that serves each hash slot, as one server of the cluster reported it.
//!
//! Pure: parses the reply to `CLUSTER SLOTS`, and applies the move of one hash slot. A hash slot may have no owner.
//! Knows no connections.

use std::sync::Arc;

use redis::Value;
use tidegate_core::store::{HashSlot, ShardId};
use tidegate_core::subject::FingerprintKey;

use super::hash_slots::HASH_SLOTS;
use crate::runtime::mix;
use crate::stores::redis::access::RedisAddress;
use crate::stores::redis::reply_parts::{list, text};

/// Parses `HOST:PORT` of a redirect. An empty host means the host that was queried. An IPv6 address has no
/// brackets there, so the port follows the last colon.
pub(super) fn parse_address(text: &str, queried_host: &str) -> Option<RedisAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(RedisAddress::Tcp {
        host: if host.is_empty() { queried_host } else { host }.to_owned(),
        port: port.parse().ok().filter(|port| *port > 0)?,
    })
}

/// A server that serves hash slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::stores::redis) struct Primary {
    /// Its name in the cluster, which does not change with its address.
    pub(super) id: String,
    pub(super) shard_id: ShardId,
    pub(in crate::stores::redis) address: RedisAddress,
}

/// A reply that is no map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum HashSlotMapError {
    #[error("the reply to `CLUSTER SLOTS` has an unknown shape")]
    Shape,
    #[error("no hash slot of the cluster is served")]
    Empty,
}

/// No primary serves the hash slot.
const UNOWNED: u16 = u16::MAX;

/// The hash slots and their primaries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::stores::redis) struct HashSlotMap {
    /// In order of their ids.
    pub(in crate::stores::redis) primaries: Arc<[Primary]>,
    /// Servers that serve no hash slot now; they can be queried for the map too.
    pub(super) replicas: Arc<[RedisAddress]>,
    /// For each hash slot, the index of its primary.
    owners: Box<[u16]>,
}

impl HashSlotMap {
    /// Parses the reply of the server that was reached at `queried_host`.
    pub(super) fn parse(reply: &Value, queried_host: &str) -> Result<HashSlotMap, HashSlotMapError> {
        let ranges = list(reply).ok_or(HashSlotMapError::Shape)?.iter();
        let ranges = ranges.map(|range| HashSlotRange::parse(range, queried_host).ok_or(HashSlotMapError::Shape));
        let ranges: Vec<HashSlotRange> = ranges.collect::<Result<_, _>>()?;
        let mut primaries: Vec<Primary> = ranges.iter().filter_map(|range| range.primary.clone()).collect();
        primaries.sort_by(|a, b| a.id.cmp(&b.id));
        primaries.dedup_by(|a, b| a.id == b.id);
        if primaries.is_empty() {
            return Err(HashSlotMapError::Empty);
        }
        let mut owners = vec![UNOWNED; usize::from(HASH_SLOTS)].into_boxed_slice();
        for range in &ranges {
            let serves = |known: &Primary| range.primary.as_ref().is_some_and(|p| p.id == known.id);
            if let Some(owner) = primaries.iter().position(serves) {
                let owner = u16::try_from(owner).map_err(|_| HashSlotMapError::Shape)?;
                owners[usize::from(range.first)..=usize::from(range.last)].fill(owner);
            }
        }
        let mut replicas: Vec<RedisAddress> = Vec::new();
        for address in ranges.into_iter().flat_map(|range| range.replicas) {
            if !replicas.contains(&address) {
                replicas.push(address);
            }
        }
        Ok(HashSlotMap { primaries: primaries.into(), replicas: replicas.into(), owners })
    }

    /// The index of the primary that serves a hash slot.
    pub(in crate::stores::redis) fn owner(&self, hash_slot: HashSlot) -> Option<usize> {
        let owner = *self.owners.get(usize::from(hash_slot.0))?;
        (owner != UNOWNED).then_some(usize::from(owner))
    }

    /// The number of hash slots of an owner; without one, of those that no primary serves.
    pub(in crate::stores::redis) fn count(&self, owner: Option<usize>) -> usize {
        let hash_slots = (0..HASH_SLOTS).map(HashSlot);
        hash_slots.filter(|hash_slot| self.owner(*hash_slot) == owner).count()
    }

    /// The map with one hash slot moved to the primary at `address`; none if no known primary is there.
    pub(super) fn moved(&self, hash_slot: HashSlot, address: &RedisAddress) -> Option<HashSlotMap> {
        let owner = self.primaries.iter().position(|p| p.address == *address)?;
        let mut map = self.clone();
        *map.owners.get_mut(usize::from(hash_slot.0))? = u16::try_from(owner).ok()?;
        Some(map)
    }

    /// The hash slot of a primary's register, excluding those in `without`: the one of its hash slots with the highest
    /// hash. Nodes with the same map choose the same one, and keep it when a replica takes over. A hash slot that
    /// comes or goes is rarely the chosen one.
    pub(in crate::stores::redis) fn register_hash_slot(
        &self,
        primary: usize,
        without: &[HashSlot],
    ) -> Option<HashSlot> {
        let owners = (0..HASH_SLOTS).zip(&self.owners);
        let own = owners.filter(|(_, owner)| usize::from(**owner) == primary);
        let own = own.map(|(hash_slot, _)| HashSlot(hash_slot));
        own.filter(|hash_slot| !without.contains(hash_slot)).max_by_key(|hash_slot| mix(u64::from(hash_slot.0)))
    }
}

/// The shard id of the server with this name. Nodes compare it, so it is the same in every build.
fn shard_id_of(id: &str) -> ShardId {
    ShardId(FingerprintKey::new([0; 16]).fingerprint(id.as_bytes()).seed())
}

/// One entry of the reply: first and last hash slot, their primary, its replicas.
struct HashSlotRange {
    first: u16,
    last: u16,
    primary: Option<Primary>,
    replicas: Vec<RedisAddress>,
}

impl HashSlotRange {
    fn parse(value: &Value, queried_host: &str) -> Option<HashSlotRange> {
        let [first, last, servers @ ..] = list(value)? else {
            return None;
        };
        let hash_slot = |value| number(value).filter(|hash_slot| *hash_slot < HASH_SLOTS);
        let (first, last) = (hash_slot(first)?, hash_slot(last)?);
        let address_of = |server: &Value| parse_server(list(server)?, queried_host);
        // A primary without a name or an address serves nothing; the other hash slots are still served.
        let primary = servers.first().and_then(|server| {
            let id = text(list(server)?.get(2)?).filter(|id| !id.is_empty())?;
            Some(Primary { shard_id: shard_id_of(id), id: id.to_owned(), address: address_of(server)? })
        });
        Some(HashSlotRange {
            first,
            last: Some(last).filter(|last| first <= *last)?,
            primary,
            replicas: servers.iter().skip(1).filter_map(address_of).collect(),
        })
    }
}

/// The address of a server in the reply: host, port, id, and metadata. An empty host means the host that was
/// queried. `?` means that the server does not know its name; then its IP address is in the metadata.
fn parse_server(server: &[Value], queried_host: &str) -> Option<RedisAddress> {
    let [host, port, more @ ..] = server else {
        return None;
    };
    let host = match host {
        Value::Nil => queried_host,
        host => match text(host)? {
            "" => queried_host,
            "?" => find_ip(more.get(1)?)?,
            host => host,
        },
    };
    Some(RedisAddress::Tcp { host: host.to_owned(), port: number(port).filter(|port| *port > 0)? })
}

/// The `ip` in a list of names and values, or in a map.
fn find_ip(about: &Value) -> Option<&str> {
    if let Value::Map(pairs) = about {
        let ip = pairs.iter().find(|(name, _)| text(name) == Some("ip"));
        return text(&ip?.1);
    }
    let mut pairs = list(about)?.chunks_exact(2);
    text(&pairs.find(|pair| text(&pair[0]) == Some("ip"))?[1])
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
