//! Which primary serves which slot, as one server of a cluster told it.
//!
//! Pure: reads the answer to `CLUSTER SLOTS`, and takes note of a slot that is said to have moved. A
//! slot may have nobody. Knows no connections.

use std::sync::Arc;

use redis::Value;
use tidegate_core::store::{HashSlot, ShardId};
use tidegate_core::subject::FingerprintKey;

use super::hash_slots::HASH_SLOTS;
use crate::runtime::mix;
use crate::stores::redis::access::RedisAddress;

/// Reads `HOST:PORT_HINT` of a redirect; without a host it is the one that was asked. An IPv6 address has no
/// brackets there, so the port follows the last colon.
pub(super) fn parse_address(text: &str, queried_host: &str) -> Option<RedisAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(RedisAddress::Tcp {
        host: if host.is_empty() { queried_host } else { host }.to_owned(),
        port: port.parse().ok().filter(|port| *port > 0)?,
    })
}

/// A server that serves slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Primary {
    /// Its name in the cluster, which it keeps as long as it lives, whatever its address.
    pub(super) id: String,
    pub(super) shard_id: ShardId,
    pub(super) address: RedisAddress,
}

/// An answer that tells no map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum HashSlotMapError {
    #[error("the server answered `CLUSTER SLOTS` in a shape that is not known")]
    Shape,
    #[error("no slot of the cluster is served")]
    Empty,
}

/// Nobody serves the slot.
const UNOWNED: u16 = u16::MAX;

/// Slots and who serves them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HashSlotMap {
    /// In order of their ids.
    pub(super) primaries: Arc<[Primary]>,
    /// Servers that serve nothing now; they can be asked for the map too.
    pub(super) replicas: Arc<[RedisAddress]>,
    /// For each slot, the place of its primary among them.
    owners: Box<[u16]>,
}

impl HashSlotMap {
    /// Reads the answer of the server that was reached at `queried_host`.
    pub(super) fn parse(
        reply: &Value,
        queried_host: &str,
    ) -> Result<HashSlotMap, HashSlotMapError> {
        let ranges: Option<Vec<HashSlotRange>> = list(reply)
            .map(|ranges| {
                ranges
                    .iter()
                    .map(|range| HashSlotRange::parse(range, queried_host))
            })
            .and_then(Iterator::collect);
        let ranges = ranges.ok_or(HashSlotMapError::Shape)?;
        let mut primaries: Vec<Primary> = Vec::new();
        for primary in ranges.iter().filter_map(|range| range.primary.as_ref()) {
            if !primaries.iter().any(|known| known.id == primary.id) {
                primaries.push(primary.clone());
            }
        }
        if primaries.is_empty() {
            return Err(HashSlotMapError::Empty);
        }
        primaries.sort_by(|a, b| a.id.cmp(&b.id));
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
        Ok(HashSlotMap {
            primaries: primaries.into(),
            replicas: replicas.into(),
            owners,
        })
    }

    /// Who serves a slot, by its place among the primaries.
    pub(super) fn owner(&self, hash_slot: HashSlot) -> Option<usize> {
        let owner = *self.owners.get(usize::from(hash_slot.0))?;
        (owner != UNOWNED).then_some(usize::from(owner))
    }

    /// How many slots an owner has; without one, how many nobody serves.
    pub(super) fn count(&self, owner: Option<usize>) -> usize {
        let hash_slots = (0..HASH_SLOTS).map(HashSlot);
        hash_slots
            .filter(|hash_slot| self.owner(*hash_slot) == owner)
            .count()
    }

    /// The same with one slot at the primary that is at `parse_server`; none if nobody known is there.
    pub(super) fn moved(&self, hash_slot: HashSlot, address: &RedisAddress) -> Option<HashSlotMap> {
        let owner = self.primaries.iter().position(|p| p.address == *address)?;
        let mut map = self.clone();
        *map.owners.get_mut(usize::from(hash_slot.0))? = u16::try_from(owner).ok()?;
        Some(map)
    }

    /// The slot in which the nodes of a primary sign in, but for those in `without`: the highest of
    /// its slots by a hash. Nodes that have the same map choose the same, and go on with it when a replica takes over. One
    /// slot that comes or goes is rarely the chosen one.
    pub(super) fn register_hash_slot(
        &self,
        primary: usize,
        without: &[HashSlot],
    ) -> Option<HashSlot> {
        let owners = (0..HASH_SLOTS).zip(&self.owners);
        let own = owners.filter(|(_, owner)| usize::from(**owner) == primary);
        let own = own.map(|(hash_slot, _)| HashSlot(hash_slot));
        own.filter(|hash_slot| !without.contains(hash_slot))
            .max_by_key(|hash_slot| mix(u64::from(hash_slot.0)))
    }
}

/// The id of the part that a server of this name is. Nodes compare it, so it is the same in every build.
fn shard_id_of(id: &str) -> ShardId {
    ShardId(
        FingerprintKey::new([0; 16])
            .fingerprint(id.as_bytes())
            .seed(),
    )
}

/// One entry of the answer: from slot, to slot, who serves them, who replicates that.
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
        // A primary that cannot be named or reached serves nobody; the other slots are still served.
        let primary = servers.first().and_then(|server| {
            let id = text(list(server)?.get(2)?).filter(|id| !id.is_empty())?;
            Some(Primary {
                shard_id: shard_id_of(id),
                id: id.to_owned(),
                address: address_of(server)?,
            })
        });
        Some(HashSlotRange {
            first,
            last: Some(last).filter(|last| first <= *last)?,
            primary,
            replicas: servers.iter().skip(1).filter_map(address_of).collect(),
        })
    }
}

/// Where a server of the answer is: host, port, id, and more about it. No host means the one that was
/// asked; `?` that it does not know its name, and then its address is among what follows.
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
    Some(RedisAddress::Tcp {
        host: host.to_owned(),
        port: number(port).filter(|port| *port > 0)?,
    })
}

/// The `ip` among names and values, or in a map of them.
fn find_ip(about: &Value) -> Option<&str> {
    if let Value::Map(pairs) = about {
        let ip = pairs.iter().find(|(name, _)| text(name) == Some("ip"));
        return text(&ip?.1);
    }
    let mut pairs = list(about)?.chunks_exact(2);
    text(&pairs.find(|pair| text(&pair[0]) == Some("ip"))?[1])
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
