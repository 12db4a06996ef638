//! The state of each hash slot's data, independent of the primary that serves it.
//!
//! A replica that takes over inherits the state of its primary: its heartbeats show whether data is lost, see
//! `acknowledged_writes`. A hash slot that moves to another primary loses nothing, but the data of that primary is
//! then whole only since the later of both moments. If the previous primary cannot be reached, nothing was moved: its
//! data is lost.

use std::sync::Arc;

use tidegate_core::store::{HashSlot, RestorePoint, ShardId};

use super::hash_slot_map::HashSlotMap;
use super::hash_slots::HASH_SLOTS;
use crate::stores::redis::server_state::{ServerState, SourceState};

/// The state of the primary that last served each hash slot. A hash slot without a primary keeps its state. Empty
/// before the first map.
#[derive(Default)]
pub(super) struct HashSlotStates(Vec<Option<Arc<ServerState>>>);

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
        let mut taken: Vec<Arc<ServerState>> = Vec::with_capacity(previous.len());
        for (primary, previous) in previous.iter().enumerate() {
            let sources = self.sources(map, primary);
            let is_free = |(source, _): &&(Arc<ServerState>, Vec<HashSlot>)| {
                !serves(source) && !taken.iter().any(|taken| Arc::ptr_eq(taken, source))
            };
            let failed_over = sources.iter().filter(is_free).max_by_key(|(_, hash_slots)| hash_slots.len());
            let server_state = match (previous, failed_over) {
                (Some(previous), _) => Arc::clone(previous),
                (None, Some((source, _))) => Arc::clone(source),
                (None, None) => {
                    let latest = sources.iter().map(|(source, _)| source).max_by_key(|source| source.data_since());
                    let whole = latest.filter(|source| state(source) == SourceState::Whole);
                    let server_state = latest.map_or_else(ServerState::default, |source| source.of_moved_data());
                    if whole.is_none() {
                        *server_state.restore_point.lock() = RestorePoint::default();
                    }
                    Arc::new(server_state)
                }
            };
            for (source, hash_slots) in sources.iter().filter(|(source, _)| !Arc::ptr_eq(source, &server_state)) {
                // Two shards became one, or one became two: heartbeats of the second show nothing here.
                let is_split = previous.is_none() && !serves(source);
                let state = if is_split { SourceState::Unverified } else { state(source) };
                server_state.receive_hash_slots(source, state, hash_slots);
            }
            taken.push(server_state);
        }
        let state_of = |hash_slot: u16| match map.owner(HashSlot(hash_slot)) {
            Some(primary) => Some(Arc::clone(&taken[primary])),
            None => self.0.get(usize::from(hash_slot)).cloned().flatten(),
        };
        self.0 = (0..HASH_SLOTS).map(state_of).collect();
        taken
    }

    /// The states that a primary's hash slots had, each with its hash slots.
    fn sources(&self, map: &HashSlotMap, primary: usize) -> Vec<(Arc<ServerState>, Vec<HashSlot>)> {
        let mut sources: Vec<(Arc<ServerState>, Vec<HashSlot>)> = Vec::new();
        let hash_slots = (0..HASH_SLOTS).map(HashSlot).zip(&self.0);
        for (hash_slot, source) in hash_slots.filter(|(hash_slot, _)| map.owner(*hash_slot) == Some(primary)) {
            let Some(source) = source else { continue };
            match sources.iter_mut().find(|(known, _)| Arc::ptr_eq(known, source)) {
                Some((_, hash_slots)) => hash_slots.push(hash_slot),
                None => sources.push((Arc::clone(source), vec![hash_slot])),
            }
        }
        sources
    }
}

#[cfg(test)]
mod tests;
