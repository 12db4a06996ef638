//! Which primary serves which slot, as one server of a cluster told it.
//!
//! Pure: reads the answer to `CLUSTER SLOTS`, and takes note of a slot that is said to have moved. A
//! slot may have nobody. Knows no connections.

use std::sync::Arc;

use redis::Value;
use tidegate_core::store::{PartId, Slot};
use tidegate_core::subject::FingerprintKey;

use super::slots::SLOTS;
use crate::runtime::mix;
use crate::stores::redis::access::Place;

/// Reads `HOST:PORT` of a redirect; without a host it is the one that was asked. An IPv6 address has no
/// brackets there, so the port follows the last colon.
pub(super) fn place_of(told: &str, asked: &str) -> Option<Place> {
    let (host, port) = told.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Place::Port {
        host: if host.is_empty() { asked } else { host }.to_owned(),
        port: port.parse().ok().filter(|port| *port > 0)?,
    })
}

/// A server that serves slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Primary {
    /// Its name in the cluster, which it keeps as long as it lives, whatever its address.
    pub(super) id: String,
    pub(super) part: PartId,
    pub(super) place: Place,
}

/// An answer that tells no map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoMap {
    #[error("the server answered `CLUSTER SLOTS` in a shape that is not known")]
    Shape,
    #[error("no slot of the cluster is served")]
    Empty,
}

/// Nobody serves the slot.
const NOBODY: u16 = u16::MAX;

/// Slots and who serves them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlotMap {
    /// In order of their ids.
    pub(super) primaries: Arc<[Primary]>,
    /// Servers that serve nothing now; they can be asked for the map too.
    pub(super) replicas: Arc<[Place]>,
    /// For each slot, the place of its primary among them.
    owners: Box<[u16]>,
}

impl SlotMap {
    /// Reads the answer of the server that was reached at `asked`.
    pub(super) fn read(answer: &Value, asked: &str) -> Result<SlotMap, NoMap> {
        let ranges: Option<Vec<Range>> = list(answer)
            .map(|ranges| ranges.iter().map(|range| Range::read(range, asked)))
            .and_then(Iterator::collect);
        let ranges = ranges.ok_or(NoMap::Shape)?;
        let mut primaries: Vec<Primary> = Vec::new();
        for primary in ranges.iter().filter_map(|range| range.primary.as_ref()) {
            if !primaries.iter().any(|known| known.id == primary.id) {
                primaries.push(primary.clone());
            }
        }
        if primaries.is_empty() {
            return Err(NoMap::Empty);
        }
        primaries.sort_by(|a, b| a.id.cmp(&b.id));
        let mut owners = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        for range in &ranges {
            let serves = |known: &Primary| range.primary.as_ref().is_some_and(|p| p.id == known.id);
            if let Some(owner) = primaries.iter().position(serves) {
                let owner = u16::try_from(owner).map_err(|_| NoMap::Shape)?;
                owners[usize::from(range.first)..=usize::from(range.last)].fill(owner);
            }
        }
        let mut replicas: Vec<Place> = Vec::new();
        for place in ranges.into_iter().flat_map(|range| range.replicas) {
            if !replicas.contains(&place) {
                replicas.push(place);
            }
        }
        Ok(SlotMap {
            primaries: primaries.into(),
            replicas: replicas.into(),
            owners,
        })
    }

    /// Who serves a slot, by its place among the primaries.
    pub(super) fn owner(&self, slot: Slot) -> Option<usize> {
        let owner = *self.owners.get(usize::from(slot.0))?;
        (owner != NOBODY).then_some(usize::from(owner))
    }

    /// How many slots an owner has; without one, how many nobody serves.
    pub(super) fn count(&self, owner: Option<usize>) -> usize {
        let slots = (0..SLOTS).map(Slot);
        slots.filter(|slot| self.owner(*slot) == owner).count()
    }

    /// The same with one slot at the primary that is at `place`; none if nobody known is there.
    pub(super) fn moved(&self, slot: Slot, place: &Place) -> Option<SlotMap> {
        let owner = self.primaries.iter().position(|p| p.place == *place)?;
        let mut map = self.clone();
        *map.owners.get_mut(usize::from(slot.0))? = u16::try_from(owner).ok()?;
        Some(map)
    }

    /// The slot in which the nodes of a primary sign in, but for those in `without`: the highest of
    /// its slots by a hash. Nodes that have the same map choose the same, and go on with it when a replica takes over. One
    /// slot that comes or goes is rarely the chosen one.
    pub(super) fn register_slot(&self, primary: usize, without: &[Slot]) -> Option<Slot> {
        let owners = (0..SLOTS).zip(&self.owners);
        let own = owners.filter(|(_, owner)| usize::from(**owner) == primary);
        let own = own.map(|(slot, _)| Slot(slot));
        own.filter(|slot| !without.contains(slot))
            .max_by_key(|slot| mix(u64::from(slot.0)))
    }
}

/// The id of the part that a server of this name is. Nodes compare it, so it is the same in every build.
fn part_of(id: &str) -> PartId {
    PartId(FingerprintKey::new([0; 16]).only(id.as_bytes()).seed())
}

/// One entry of the answer: from slot, to slot, who serves them, who replicates that.
struct Range {
    first: u16,
    last: u16,
    primary: Option<Primary>,
    replicas: Vec<Place>,
}

impl Range {
    fn read(value: &Value, asked: &str) -> Option<Range> {
        let [first, last, servers @ ..] = list(value)? else {
            return None;
        };
        let slot = |value| number(value).filter(|slot| *slot < SLOTS);
        let (first, last) = (slot(first)?, slot(last)?);
        let place_of = |server: &Value| place(list(server)?, asked);
        // A primary that cannot be named or reached serves nobody; the other slots are still served.
        let primary = servers.first().and_then(|server| {
            let id = text(list(server)?.get(2)?).filter(|id| !id.is_empty())?;
            Some(Primary {
                part: part_of(id),
                id: id.to_owned(),
                place: place_of(server)?,
            })
        });
        Some(Range {
            first,
            last: Some(last).filter(|last| first <= *last)?,
            primary,
            replicas: servers.iter().skip(1).filter_map(place_of).collect(),
        })
    }
}

/// Where a server of the answer is: host, port, id, and more about it. No host means the one that was
/// asked; `?` that it does not know its name, and then its address is among what follows.
fn place(server: &[Value], asked: &str) -> Option<Place> {
    let [host, port, more @ ..] = server else {
        return None;
    };
    let host = match host {
        Value::Nil => asked,
        host => match text(host)? {
            "" => asked,
            "?" => address(more.get(1)?)?,
            host => host,
        },
    };
    Some(Place::Port {
        host: host.to_owned(),
        port: number(port).filter(|port| *port > 0)?,
    })
}

/// The `ip` among names and values, or in a map of them.
fn address(about: &Value) -> Option<&str> {
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
