//! The state of each hash slot's data, independent of the primary that serves it.
//!
//! A replica that takes over inherits the state of its primary: its heartbeats show whether data is lost, see
//! `acknowledged_writes`. A hash slot that moves to another primary loses nothing, but the data of that primary is
//! then whole only since the later of both moments. If the previous primary cannot be reached, nothing was moved: its
//! data is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::store::{HashSlot, RestorePoint, ShardId};

use super::hash_slot_map::HashSlotMap;
use super::hash_slots::HASH_SLOTS;
use crate::stores::redis::server_state::{ServerState, SourceState};

/// The state of the primary that last served each hash slot. A hash slot without a primary keeps its state.
#[derive(Default)]
pub(super) struct HashSlotStates {
    server_states: Vec<Arc<ServerState>>,
    /// For each hash slot, the index of its state. Shorter before the first map.
    indices: Vec<Option<usize>>,
}

impl HashSlotStates {
    /// The states of the primaries of a new map. `before` returns those of the primaries of the last map, and `state`
    /// whether they are whole.
    pub(super) fn take_over<'a>(
        &mut self,
        map: &HashSlotMap,
        before: impl Fn(ShardId) -> Option<&'a Arc<ServerState>>,
        state: impl Fn(&Arc<ServerState>) -> SourceState,
    ) -> Vec<Arc<ServerState>> {
        let previous: Vec<_> = map.primaries.iter().map(|now| before(now.shard_id)).collect();
        let serves = |server_state: &Arc<ServerState>| {
            previous.iter().flatten().any(|previous| Arc::ptr_eq(previous, server_state))
        };
        let mut free: Vec<bool> = self.server_states.iter().map(|server_state| !serves(server_state)).collect();
        let mut taken = Vec::with_capacity(previous.len());
        for (primary, previous) in previous.iter().enumerate() {
            let sources = self.sources(map, primary);
            let failed_over = sources.iter().filter(|(index, _)| free[**index]);
            let failed_over = failed_over.max_by_key(|(_, hash_slots)| hash_slots.len());
            let server_state = match (previous, failed_over) {
                (Some(previous), _) => Arc::clone(previous),
                (None, Some((index, _))) => {
                    free[*index] = false;
                    Arc::clone(&self.server_states[*index])
                }
                (None, None) => {
                    let sources = sources.keys().map(|index| &self.server_states[*index]);
                    let latest = sources.max_by_key(|server_state| server_state.data_since());
                    let whole = latest.filter(|server_state| state(server_state) == SourceState::Whole);
                    let server_state =
                        latest.map_or_else(ServerState::default, |server_state| server_state.of_moved_data());
                    if whole.is_none() {
                        *server_state.restore_point.lock() = RestorePoint::default();
                    }
                    Arc::new(server_state)
                }
            };
            for (index, hash_slots) in &sources {
                let source = &self.server_states[*index];
                if Arc::ptr_eq(source, &server_state) {
                    continue;
                }
                // Two shards became one, or one became two: heartbeats of the second show nothing here.
                let is_split = previous.is_none() && !serves(source);
                let state = if is_split { SourceState::Unverified } else { state(source) };
                server_state.receive_hash_slots(source, state, hash_slots);
            }
            taken.push(server_state);
        }
        self.record(map, &taken);
        taken
    }

    /// The indices of the states of a primary's hash slots, each with its hash slots.
    fn sources(&self, map: &HashSlotMap, primary: usize) -> BTreeMap<usize, Vec<HashSlot>> {
        let mut sources: BTreeMap<usize, Vec<HashSlot>> = BTreeMap::new();
        for (hash_slot, index) in (0..HASH_SLOTS).zip(&self.indices) {
            if let Some(index) = index
                && map.owner(HashSlot(hash_slot)) == Some(primary)
            {
                sources.entry(*index).or_default().push(HashSlot(hash_slot));
            }
        }
        sources
    }

    fn record(&mut self, map: &HashSlotMap, taken: &[Arc<ServerState>]) {
        let mut server_states = taken.to_vec();
        let mut keep = |server_state: &Arc<ServerState>| {
            let known = server_states.iter().position(|known| Arc::ptr_eq(known, server_state));
            known.unwrap_or_else(|| {
                server_states.push(Arc::clone(server_state));
                server_states.len() - 1
            })
        };
        let last_index = |hash_slot: u16| self.indices.get(usize::from(hash_slot)).copied().flatten();
        let indices = (0..HASH_SLOTS).map(|hash_slot| match map.owner(HashSlot(hash_slot)) {
            Some(primary) => Some(primary),
            None => last_index(hash_slot).map(|index| keep(&self.server_states[index])),
        });
        self.indices = indices.collect();
        self.server_states = server_states;
    }
}

#[cfg(test)]
mod tests;
