//! The reservations that this node tracks: those made here, until their end, and settlements that the store has
//! not confirmed, until it does.
//!
//! Each kind is bounded by itself: settlements wait when the store is unavailable, and must find room however many
//! reservations are open then. Knows neither the store nor what a retry does.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use tidegate_core::store::Reserve;
use tidegate_core::units::Nanos;

use crate::receipt::{Actual, Receipt};

/// Maximum of tracked reservations, and of tracked settlements.
pub const MAX_PENDING_SETTLEMENTS: usize = 1 << 16;
/// Maximum of entries returned by one call of `due`, for each kind.
const MAX_RETRIES_PER_ROUND: usize = 1 << 12;
/// Entries handled under one lock. A divisor of [`MAX_RETRIES_PER_ROUND`].
const CHUNK: usize = 256;

/// A reservation that was made here, or a settlement that the store has not confirmed.
#[derive(Clone)]
pub(super) struct PendingSettlement {
    pub(super) receipt: Receipt,
    /// When to retry, and when a retry no longer helps, by the local clock.
    pub(super) due: Nanos,
    pub(super) expires_at: Nanos,
    /// The actual cost; `None` for a reservation that has not been settled.
    pub(super) actual: Option<Actual>,
}

/// All tracked reservations and settlements.
pub(super) struct SettlementRetries {
    max: usize,
    tables: Mutex<RetryTables>,
}

/// Both kinds by the id of the reservation. An id is in one of the two queues only.
#[derive(Default)]
struct RetryTables {
    reservations: PendingSettlementQueue,
    settlements: PendingSettlementQueue,
}

/// Entries by id, in the order in which they are due and in the order in which they expire. No operation takes
/// longer because there are many.
#[derive(Default)]
struct PendingSettlementQueue {
    by_id: HashMap<u128, PendingSettlement>,
    by_due: BTreeSet<(Nanos, u128)>,
    by_end: BTreeSet<(Nanos, u128)>,
}

impl PendingSettlementQueue {
    fn insert(&mut self, pending: PendingSettlement) {
        let id = pending.receipt.id();
        self.remove(id);
        self.by_due.insert((pending.due, id));
        self.by_end.insert((pending.expires_at, id));
        self.by_id.insert(id, pending);
    }

    fn remove(&mut self, id: u128) -> Option<PendingSettlement> {
        let pending = self.by_id.remove(&id)?;
        self.by_due.remove(&(pending.due, id));
        self.by_end.remove(&(pending.expires_at, id));
        Some(pending)
    }

    /// Removes one entry that has expired by `now`.
    fn pop_expired(&mut self, now: Nanos) -> Option<PendingSettlement> {
        let (end, id) = *self.by_end.first()?;
        if end > now {
            return None;
        }
        self.remove(id)
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

impl Default for SettlementRetries {
    fn default() -> Self {
        SettlementRetries::new(MAX_PENDING_SETTLEMENTS)
    }
}

impl SettlementRetries {
    fn new(max: usize) -> Self {
        SettlementRetries { max, tables: Mutex::default() }
    }

    /// Tracks one more entry. Returns whether there was room.
    pub(super) fn insert(&self, pending: PendingSettlement) -> bool {
        let mut tables = self.tables.lock();
        let (id, is_settled) = (pending.receipt.id(), pending.actual.is_some());
        let queue = tables.queue_for(&pending);
        let room = queue.by_id.len() < self.max || queue.by_id.contains_key(&id);
        if room {
            queue.insert(pending);
        }
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
        let id = pending.receipt.id();
        let is_current = |known: &PendingSettlement| known.actual == pending.actual;
        if tables.settlements.by_id.get(&id).is_some_and(is_current) {
            tables.settlements.remove(id);
            tables.reopen(pending.clone(), self.max, now);
        }
    }

    /// The entries that are due now, settlements first. Expired entries are dropped before. An expired settlement
    /// loses its actual cost and becomes a reservation again, because its estimate is still to be refunded. A
    /// returned entry is due after all others the next time, so that an entry without a reply holds up no other.
    ///
    /// The lock that reservations and settlements need is taken for [`CHUNK`] entries at a time.
    pub(super) fn due(&self, now: Nanos) -> Vec<PendingSettlement> {
        while self.drop_expired(now) == CHUNK {}
        let mut due = self.take_due(|tables| &mut tables.settlements, now);
        due.extend(self.take_due(|tables| &mut tables.reservations, now));
        due
    }

    fn drop_expired(&self, now: Nanos) -> usize {
        let mut tables = self.tables.lock();
        for dropped in 0..CHUNK {
            if let Some(settlement) = tables.settlements.pop_expired(now) {
                tables.reopen(settlement, self.max, now);
            } else if tables.reservations.pop_expired(now).is_none() {
                return dropped;
            }
        }
        CHUNK
    }

    fn take_due(
        &self,
        of: impl Fn(&mut RetryTables) -> &mut PendingSettlementQueue,
        now: Nanos,
    ) -> Vec<PendingSettlement> {
        let mut due = Vec::new();
        while due.len() < MAX_RETRIES_PER_ROUND {
            let mut tables = self.tables.lock();
            let queue = of(&mut tables);
            let before = due.len();
            due.extend(std::iter::from_fn(|| queue.next_due(now)).take(CHUNK));
            if due.len() < before + CHUNK {
                break;
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

    fn reopen(&mut self, pending: PendingSettlement, max: usize, now: Nanos) {
        if self.reservations.by_id.len() < max {
            self.reservations.insert(PendingSettlement {
                due: now,
                expires_at: now.plus(Reserve::MAX_TTL),
                actual: None,
                ..pending
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(100);

    fn pending(id: u128, due: Nanos, actual: Option<u64>) -> PendingSettlement {
        PendingSettlement {
            receipt: Receipt::of_no_charge(id),
            due,
            expires_at: NOW.plus(NOW),
            actual: actual.map(Actual::cost),
        }
    }

    fn ids(retries: &SettlementRetries, now: Nanos) -> Vec<u128> {
        let due = retries.due(now);
        due.iter().map(|entry| entry.receipt.id()).collect()
    }

    #[test]
    fn settlements_find_room_however_many_reservations_are_open() {
        let retries = SettlementRetries::new(2);
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
        let retries = SettlementRetries::new(2);
        retries.insert(pending(1, NOW, None));
        let due = retries.due(NOW);
        retries.insert(pending(1, NOW, Some(5)));
        retries.complete(&due[0]);
        assert_eq!(ids(&retries, NOW), [1]);
    }

    #[test]
    fn the_estimate_of_an_expired_settlement_is_still_refunded() {
        let retries = SettlementRetries::new(2);
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
        let retries = SettlementRetries::new(2);
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
        let retries = SettlementRetries::default();
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
