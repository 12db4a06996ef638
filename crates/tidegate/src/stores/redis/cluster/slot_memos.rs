//! What is known of the data of each hash slot, whichever primary serves it.
//!
//! A replica that takes over continues with what is known of the primary before it: its heartbeats show whether data is
//! lost, see `acknowledged`. A hash slot that moves to another primary loses nothing, but the data of that primary is
//! then whole only since the later of both moments. If the primary before it cannot be reached, nothing was moved: its data
//! is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::store::{PartId, RestorePoint, Slot};

use super::map::SlotMap;
use super::slots::SLOTS;
use crate::stores::redis::memo::{Memo, SourceState};

/// The memo of the primary that served each hash slot last. A hash slot that nobody serves keeps it.
#[derive(Default)]
pub(super) struct SlotMemos {
    memos: Vec<Arc<Memo>>,
    /// For each hash slot the place of its memo. Shorter before the first map.
    places: Vec<Option<usize>>,
}

impl SlotMemos {
    /// The memos of the primaries of a new map. `before` has those of the primaries of the last one, and `state` says how
    /// these are.
    pub(super) fn take_over<'a>(
        &mut self,
        map: &SlotMap,
        before: impl Fn(PartId) -> Option<&'a Arc<Memo>>,
        state: impl Fn(&Arc<Memo>) -> SourceState,
    ) -> Vec<Arc<Memo>> {
        let kept: Vec<_> = map.primaries.iter().map(|now| before(now.part)).collect();
        let serves = |memo: &Arc<Memo>| kept.iter().flatten().any(|kept| Arc::ptr_eq(kept, memo));
        let mut free: Vec<bool> = self.memos.iter().map(|memo| !serves(memo)).collect();
        let mut taken = Vec::with_capacity(kept.len());
        for (primary, kept) in kept.iter().enumerate() {
            let sources = self.sources(map, primary);
            let failed_over = sources.iter().filter(|(place, _)| free[**place]);
            let failed_over = failed_over.max_by_key(|(_, slots)| slots.len());
            let memo = match (kept, failed_over) {
                (Some(kept), _) => Arc::clone(kept),
                (None, Some((place, _))) => {
                    free[*place] = false;
                    Arc::clone(&self.memos[*place])
                }
                (None, None) => {
                    let sources = sources.keys().map(|place| &self.memos[*place]);
                    let latest = sources.max_by_key(|memo| memo.data_since());
                    let whole = latest.filter(|memo| state(memo) == SourceState::Whole);
                    let memo = latest.map_or_else(Memo::default, |memo| memo.of_moved_data());
                    if whole.is_none() {
                        *memo.restore_point.lock() = RestorePoint::default();
                    }
                    Arc::new(memo)
                }
            };
            for (place, slots) in &sources {
                let source = &self.memos[*place];
                if Arc::ptr_eq(source, &memo) {
                    continue;
                }
                // Two shards became one, or one became two: heartbeats of the second show nothing here.
                let is_split = kept.is_none() && !serves(source);
                let state = if is_split {
                    SourceState::Unmet
                } else {
                    state(source)
                };
                memo.receive_slots(source, state, slots);
            }
            taken.push(memo);
        }
        self.record(map, &taken);
        taken
    }

    /// The memos of the hash slots that a primary serves, and of which each is.
    fn sources(&self, map: &SlotMap, primary: usize) -> BTreeMap<usize, Vec<Slot>> {
        let mut sources: BTreeMap<usize, Vec<Slot>> = BTreeMap::new();
        for (slot, place) in (0..SLOTS).zip(&self.places) {
            if let Some(place) = place
                && map.owner(Slot(slot)) == Some(primary)
            {
                sources.entry(*place).or_default().push(Slot(slot));
            }
        }
        sources
    }

    fn record(&mut self, map: &SlotMap, taken: &[Arc<Memo>]) {
        let mut memos = taken.to_vec();
        let mut keep = |memo: &Arc<Memo>| {
            let known = memos.iter().position(|known| Arc::ptr_eq(known, memo));
            known.unwrap_or_else(|| {
                memos.push(Arc::clone(memo));
                memos.len() - 1
            })
        };
        let last_place = |slot: u16| self.places.get(usize::from(slot)).copied().flatten();
        let places = (0..SLOTS).map(|slot| match map.owner(Slot(slot)) {
            Some(primary) => Some(primary),
            None => last_place(slot).map(|place| keep(&self.memos[place])),
        });
        self.places = places.collect();
        self.memos = memos;
    }
}

#[cfg(test)]
mod tests;
