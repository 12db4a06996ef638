//! The reservations that this node tracks: those made here, until their end, and settlements that the store has
//! not confirmed, until it does.
//!
//! Each kind is bounded by itself, in bytes: settlements wait when the store is unavailable, and must find room however
//! many reservations are open then. Knows neither the store nor what a retry does.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tidegate_core::store::Reserve;
use tidegate_core::units::Nanos;

use crate::receipt::{Actual, PackedReceipt};

/// The part of the memory cap for tracked reservations, and the same part again for tracked settlements.
pub const PENDING_SETTLEMENTS_CAP_PART: u64 = 64;
/// The memory of an entry in both tables of a queue, with nodes of them that are half full.
const ENTRY_BYTES: u64 = 320;
/// Maximum of entries returned by one call of `due`, for each kind.
const MAX_RETRIES_PER_ROUND: usize = 1 << 12;
/// Entries handled under one lock.
const CHUNK: usize = 256;

/// A reservation that was made here, or a settlement that the store has not confirmed.
#[derive(Clone)]
pub(super) struct PendingSettlement {
    pub(super) receipt: PackedReceipt,
    /// When to retry, and when a retry no longer helps, by the local clock.
    pub(super) due: Nanos,
    pub(super) expires_at: Nanos,
    /// The actual cost; `None` for a reservation that has not been settled.
    pub(super) actual: Option<Actual>,
}

impl PendingSettlement {
    /// The memory of this entry.
    fn bytes(&self) -> u64 {
        let actual = self.actual.as_ref().map_or(0, Actual::heap_bytes);
        ENTRY_BYTES + self.receipt.heap_bytes() + actual
    }
}

/// All tracked reservations and settlements.
pub(super) struct SettlementRetries {
    /// Maximum of bytes of each kind.
    max_bytes: u64,
    tables: Mutex<RetryTables>,
}

/// Both kinds by the id of the reservation. An id is in one of the two queues only.
#[derive(Default)]
struct RetryTables {
    reservations: PendingSettlementQueue,
    settlements: PendingSettlementQueue,
}

/// Entries by id, and in the order in which they are due. No operation takes longer because there are many.
#[derive(Default)]
struct PendingSettlementQueue {
    by_id: BTreeMap<u128, PendingSettlement>,
    by_due: BTreeSet<(Nanos, u128)>,
    bytes: u64,
}

impl PendingSettlementQueue {
    /// Inserts or replaces an entry, if the queue then takes no more than `max_bytes`. Returns whether it did.
    fn insert(&mut self, pending: PendingSettlement, max_bytes: u64) -> bool {
        let (id, bytes) = (pending.receipt.id(), pending.bytes());
        let replaced = self.by_id.get(&id).map_or(0, PendingSettlement::bytes);
        if self.bytes - replaced + bytes > max_bytes {
            return false;
        }
        self.remove(id);
        self.bytes += bytes;
        self.by_due.insert((pending.due, id));
        self.by_id.insert(id, pending);
        true
    }

    fn remove(&mut self, id: u128) {
        if let Some(pending) = self.by_id.remove(&id) {
            self.by_due.remove(&(pending.due, id));
            self.bytes -= pending.bytes();
        }
    }

    /// The entry that has been due for the longest. It is due again after all entries that are due now.
    fn next_due(&mut self, now: Nanos) -> Option<PendingSettlement> {
        let (due, id) = *self.by_due.first()?;
        if due > now {
            return None;
        }
        let pending = self.by_id.get_mut(&id)?;
        pending.due = now.plus(Nanos::new(1));
        self.by_due.pop_first();
        self.by_due.insert((pending.due, id));
        Some(pending.clone())
    }
}

impl SettlementRetries {
    /// For a process that may use `memory_cap` bytes.
    pub(super) fn with_memory_cap(memory_cap: u64) -> Self {
        SettlementRetries { max_bytes: memory_cap / PENDING_SETTLEMENTS_CAP_PART, tables: Mutex::default() }
    }

    /// Tracks one more entry. Returns whether there was room.
    pub(super) fn insert(&self, pending: PendingSettlement) -> bool {
        let mut tables = self.tables.lock();
        let (id, is_settled) = (pending.receipt.id(), pending.actual.is_some());
        let room = tables.queue_for(&pending).insert(pending, self.max_bytes);
        if room && is_settled {
            tables.reservations.remove(id);
        }
        room
    }

    pub(super) fn forget(&self, id: u128) {
        let mut tables = self.tables.lock();
        tables.reservations.remove(id);
        tables.settlements.remove(id);
    }

    /// Forgets an entry that was retried, unless a newer actual cost has been recorded meanwhile.
    pub(super) fn complete(&self, pending: &PendingSettlement) {
        let mut tables = self.tables.lock();
        let (id, queue) = (pending.receipt.id(), tables.queue_for(pending));
        if queue.by_id.get(&id).is_some_and(|now| now.actual == pending.actual) {
            queue.remove(id);
        }
    }

    /// It is too late for the actual cost: the estimate is still to be refunded, as if it had not been settled.
    /// Without room here, the next reservation of the client refunds it.
    pub(super) fn revert_to_reservation(&self, pending: &PendingSettlement, now: Nanos) {
        let mut tables = self.tables.lock();
        let is_current = |known: &PendingSettlement| known.actual == pending.actual;
        if tables.settlements.by_id.get(&pending.receipt.id()).is_some_and(is_current) {
            tables.expire(pending.clone(), self.max_bytes, now);
        }
    }

    /// The entries that are due now, settlements first. Expired entries are dropped instead: they are due too. An
    /// expired settlement loses its actual cost and becomes a reservation again, because its estimate is still to be
    /// refunded. A returned entry is due after all others the next time, so that an entry without a reply holds up no
    /// other.
    ///
    /// The lock that reservations and settlements need is taken for [`CHUNK`] entries at a time.
    pub(super) fn due(&self, now: Nanos) -> Vec<PendingSettlement> {
        let mut due = self.take_due(|tables| &mut tables.settlements, now);
        due.extend(self.take_due(|tables| &mut tables.reservations, now));
        due
    }

    fn take_due(
        &self,
        of: impl Fn(&mut RetryTables) -> &mut PendingSettlementQueue,
        now: Nanos,
    ) -> Vec<PendingSettlement> {
        let mut due = Vec::new();
        while due.len() < MAX_RETRIES_PER_ROUND {
            let mut tables = self.tables.lock();
            for _ in 0..CHUNK.min(MAX_RETRIES_PER_ROUND - due.len()) {
                match of(&mut tables).next_due(now) {
                    Some(expired) if expired.expires_at <= now => tables.expire(expired, self.max_bytes, now),
                    Some(next) => due.push(next),
                    None => return due,
                }
            }
        }
        due
    }
}

impl RetryTables {
    fn queue_for(&mut self, pending: &PendingSettlement) -> &mut PendingSettlementQueue {
        match pending.actual {
            Some(_) => &mut self.settlements,
            None => &mut self.reservations,
        }
    }

    /// Drops an entry. A settlement becomes a reservation that has ended, if there is room.
    fn expire(&mut self, pending: PendingSettlement, max_bytes: u64, now: Nanos) {
        self.queue_for(&pending).remove(pending.receipt.id());
        if pending.actual.is_some() {
            let expires_at = now.plus(Reserve::MAX_TTL);
            self.reservations.insert(PendingSettlement { due: now, expires_at, actual: None, ..pending }, max_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(100);

    fn pending(id: u128, due: Nanos, actual: Option<u64>) -> PendingSettlement {
        PendingSettlement {
            receipt: PackedReceipt::of_no_charge(id),
            due,
            expires_at: NOW.plus(NOW),
            actual: actual.map(Actual::cost),
        }
    }

    /// Retries with room for two entries of each kind.
    fn room_for_two() -> SettlementRetries {
        SettlementRetries { max_bytes: 2 * pending(1, NOW, Some(5)).bytes(), tables: Mutex::default() }
    }

    fn ids(retries: &SettlementRetries, now: Nanos) -> Vec<u128> {
        let due = retries.due(now);
        due.iter().map(|entry| entry.receipt.id()).collect()
    }

    #[test]
    fn settlements_find_room_however_many_reservations_are_open() {
        let retries = room_for_two();
        let later = NOW.plus(Nanos::new(1));
        assert!(retries.insert(pending(1, later, None)) && retries.insert(pending(2, later, None)));
        assert!(!retries.insert(pending(3, later, None)));
        assert!(retries.insert(pending(4, NOW, Some(5))) && retries.insert(pending(1, NOW, Some(5))));
        assert!(!retries.insert(pending(5, NOW, Some(5))));
        assert!(retries.insert(pending(3, later, None)), "the settled reservation has made room");
        let mut waiting = ids(&retries, NOW);
        waiting.sort_unstable();
        assert_eq!(waiting, [1, 4]);
    }

    #[test]
    fn an_actual_cost_recorded_meanwhile_is_not_forgotten() {
        let retries = room_for_two();
        retries.insert(pending(1, NOW, None));
        let due = retries.due(NOW);
        retries.insert(pending(1, NOW, Some(5)));
        retries.complete(&due[0]);
        assert_eq!(ids(&retries, NOW), [1]);
    }

    #[test]
    fn the_estimate_of_an_expired_settlement_is_still_refunded() {
        let retries = room_for_two();
        let late = NOW.plus(NOW);
        retries.insert(pending(1, NOW, None));
        retries.insert(pending(1, NOW, Some(5)));
        assert_eq!(retries.due(NOW)[0].actual, Some(Actual::cost(5)));
        let due = retries.due(late);
        assert_eq!((due.len(), &due[0].actual), (1, &None));
        assert_eq!(ids(&retries, late.plus(Reserve::MAX_TTL)), [0; 0]);
    }

    #[test]
    fn a_newer_actual_cost_stands_when_the_earlier_one_came_too_late() {
        let retries = room_for_two();
        retries.insert(pending(1, NOW, Some(5)));
        let due = retries.due(NOW);
        retries.insert(pending(1, NOW, Some(6)));
        retries.revert_to_reservation(&due[0], NOW);
        let due = retries.due(NOW);
        assert_eq!((due.len(), &due[0].actual), (1, &Some(Actual::cost(6))));
    }

    /// Entries without a reply stay due. If they were returned first each time, the rest never were.
    #[test]
    fn every_pending_settlement_gets_its_turn() {
        let retries = SettlementRetries::with_memory_cap(1 << 30);
        let all = MAX_RETRIES_PER_ROUND as u128 + 100;
        for id in 0..all {
            retries.insert(pending(id, NOW, None));
        }
        let mut seen = ids(&retries, NOW);
        assert_eq!(seen.len(), MAX_RETRIES_PER_ROUND);
        seen.extend(ids(&retries, NOW.plus(Nanos::new(1))));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len() as u128, all);
    }
}
