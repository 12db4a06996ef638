//! The counters of the model store: plain states in a map, decided by the algorithms of `tidegate_core`.
//!
//! The implementation is slow and obvious. Invariants of every store: a charge set is spent in full or not at
//! all, a denial writes nothing, every record has an expiry.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidegate_core::algorithms::{CounterState, Limit, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, CounterSnapshot, LeaseReply, LimitReading, Outcome, Refund, Refunded, ReservationLedger,
    Reserve, Restore, Role, Settle, Settled, Source,
};
use tidegate_core::units::{Cost, Nanos};

/// How a charge set is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecideMode {
    /// Spend if it fits.
    Charge,
    /// Never spend.
    Peek,
    /// Spend, whether it fits or not.
    Force,
}

/// A counter as the store has it.
#[derive(Clone, PartialEq, Debug)]
struct StoredCounter {
    limit: Limit,
    state: CounterState,
    expires: Nanos,
}

/// The value before a write.
#[derive(Clone, Debug)]
enum UndoEntry {
    Counter(u128, Option<StoredCounter>),
    Reservations(ReservationLedger),
}

/// Counters, by their bits.
#[derive(Clone, Debug)]
pub struct ModelCounters {
    records: BTreeMap<u128, StoredCounter>,
    refunded: BTreeMap<u128, Nanos>,
    /// Reservations that wait for their settlement.
    pub(super) reserved: ReservationLedger,
    /// The value that each write replaced, for a replica that does not have the write yet.
    journal: Vec<UndoEntry>,
    /// The number of refunds of each counter.
    refunds: BTreeMap<u128, u64>,
}

impl Default for ModelCounters {
    fn default() -> Self {
        ModelCounters {
            records: BTreeMap::new(),
            refunded: BTreeMap::new(),
            reserved: ReservationLedger::new(usize::MAX),
            journal: Vec::new(),
            refunds: BTreeMap::new(),
        }
    }
}

struct OpenCounter {
    counter: u128,
    limit: Limit,
    state: CounterState,
    existed: bool,
    changed: bool,
}

impl ModelCounters {
    /// Decides a charge set at `now`.
    pub fn decide(&mut self, set: &ChargeSet<'_>, mode: DecideMode, now: Nanos) -> Outcome {
        let mut open: Vec<OpenCounter> = Vec::new();
        let of: Vec<usize> = set.charges.iter().map(|charge| self.open_counter(charge, &mut open, now)).collect();
        let before: Vec<CounterState> = open.iter().map(|o| o.state.clone()).collect();
        let mut verdicts = vec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let mut stepped = false;
        let mut judge = |open: &mut OpenCounter, charge: &Charge<'_>| {
            let limit = charge.limit.as_ref();
            let at = limit.advance(&mut open.state, now);
            stepped |= at.stepped_back();
            open.changed |= at.stepped_back();
            let verdict = limit.judge(&open.state, at, charge.cost);
            if verdict.allows() || mode == DecideMode::Force {
                limit.spend(&mut open.state, at, charge.cost);
                open.changed = true;
            }
            verdict
        };
        let shadow = |charge: &Charge<'_>| charge.role == Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !shadow(c)) {
            verdicts[i] = judge(&mut open[of[i]], charge);
        }
        let admitted = mode == DecideMode::Force || set.admits(|i| verdicts[i].allows());
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| shadow(c)) {
            verdicts[i] = judge(&mut open[of[i]], charge);
        }
        if !admitted || mode == DecideMode::Peek {
            for (open, state) in open.iter_mut().zip(before) {
                open.state = state;
                let at = open.limit.advance(&mut open.state, now);
                open.changed = at.stepped_back() && mode != DecideMode::Peek;
            }
        }
        for open in open.iter().filter(|open| open.changed) {
            self.write(open.counter, &open.limit, open.state.clone(), now);
        }
        let readings = set.charges.iter().enumerate().map(|(i, charge)| {
            let mut state = open[of[i]].state.clone();
            let at = charge.limit.advance(&mut state, now);
            LimitReading { verdict: verdicts[i], figures: charge.limit.figures(&state, at) }
        });
        Outcome {
            admitted,
            readings: readings.collect::<SmallVec<_>>(),
            snapshots: of
                .iter()
                .map(|i| CounterSnapshot { state: open[*i].state.clone(), existed: open[*i].existed })
                .collect(),
            at: now,
            source: Source::Exact,
            degraded: None,
            clock_stepped: stepped,
        }
    }

    fn open_counter(&mut self, charge: &Charge<'_>, open: &mut Vec<OpenCounter>, now: Nanos) -> usize {
        let counter = charge.counter();
        if let Some(at) = open.iter().position(|o| o.counter == counter) {
            return at;
        }
        let found = self.find(counter, &charge.limit, now);
        open.push(OpenCounter {
            counter,
            limit: charge.limit.as_ref().clone(),
            existed: found.is_some(),
            state: found.unwrap_or_else(|| charge.limit.fresh(now)),
            changed: false,
        });
        open.len() - 1
    }

    /// The state of a counter under `limit`; `None` if there is no record or it has expired.
    fn find(&mut self, counter: u128, limit: &Limit, now: Nanos) -> Option<CounterState> {
        let record = self.records.get(&counter)?;
        if record.expires <= now {
            let gone = self.records.remove(&counter);
            self.journal.push(UndoEntry::Counter(counter, gone));
            return None;
        }
        Some(limit.adopt(&record.limit, record.state.clone(), now))
    }

    fn write(&mut self, counter: u128, limit: &Limit, mut state: CounterState, now: Nanos) {
        let at = limit.advance(&mut state, now);
        // A refund may have happened since the expiry was last set.
        let previous_expiry = self.records.get(&counter).map(|record| record.expires);
        let record = StoredCounter {
            limit: limit.clone(),
            expires: limit.fresh_at(&state, at).max(previous_expiry.unwrap_or(now)),
            state,
        };
        let previous = self.records.insert(counter, record);
        self.journal.push(UndoEntry::Counter(counter, previous));
    }

    /// Refunds an earlier charge, once.
    pub fn refund(&mut self, refund: &Refund<'_>, now: Nanos) -> Refunded {
        self.refunded.retain(|_, until| *until > now);
        if refund.expires_at <= now {
            return Refunded::Lapsed;
        }
        if self.refunded.insert(refund.id, refund.expires_at).is_some() {
            return Refunded::Already;
        }
        self.refund_units(&refund.set, refund.charged_at, now);
        Refunded::Done
    }

    fn refund_units(&mut self, set: &ChargeSet<'_>, charged: Nanos, now: Nanos) {
        for charge in &set.charges {
            let limit = charge.limit.as_ref();
            *self.refunds.entry(charge.counter()).or_default() += 1;
            if let Some(mut state) = self.find(charge.counter(), limit, now) {
                let at = limit.advance(&mut state, now);
                limit.refund(&mut state, at, charged, charge.cost);
                self.rewrite(charge.counter(), limit, state);
            }
        }
    }

    /// Charges an estimate, after a refund of expired reservations.
    pub fn reserve(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        self.return_expired(&reserve.set, now, now);
        self.charge_estimate(reserve, now)
    }

    /// Refunds the estimates of these counters that had expired at `expired_at`.
    pub(super) fn return_expired(&mut self, set: &ChargeSet<'_>, expired_at: Nanos, now: Nanos) {
        self.journal.push(UndoEntry::Reservations(self.reserved.clone()));
        for charge in &set.charges {
            for abandoned in self.reserved.take_expired(charge, expired_at) {
                let mut estimate = charge.clone();
                estimate.cost = abandoned.reserved;
                self.refund_units(&ChargeSet::of_one(estimate), abandoned.charged_at, now);
            }
        }
    }

    /// Charges an estimate and records the reservation.
    pub(super) fn charge_estimate(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        let outcome = self.decide(&reserve.set, DecideMode::Charge, now);
        if outcome.admitted {
            self.reserved.record_all(reserve, &outcome);
        }
        outcome
    }

    /// Corrects an estimate to the used units, once.
    pub fn settle(&mut self, settle: &Settle<'_>, now: Nanos) -> Settled {
        if settle.is_too_late(now) {
            return Settled::Lapsed;
        }
        self.journal.push(UndoEntry::Reservations(self.reserved.clone()));
        let found = self.reserved.close(settle);
        self.decide(&settle.extra_charges(&found), DecideMode::Force, now);
        let charged = settle.refunds_charged_at(&found);
        self.refund_units(&settle.refunds(&found), charged, now);
        settle.outcome(&found, now)
    }

    /// Corrects estimates as if they had been charged at `now`.
    pub(super) fn correct_in_full(&mut self, set: &ChargeSet<'_>, used: &[u64], now: Nanos) {
        for (charge, used) in set.charges.iter().zip(used) {
            let (estimate, mut change) = (charge.cost.get(), charge.clone());
            if let Some(refunded) = Cost::new(estimate.saturating_sub(*used)) {
                change.cost = refunded;
                self.refund_units(&ChargeSet::of_one(change), now, now);
            } else if let Some(more) = Cost::new(used.saturating_sub(estimate)) {
                change.cost = more;
                self.decide(&ChargeSet::of_one(change), DecideMode::Force, now);
            }
        }
    }

    /// Merges remembered states by maximum.
    pub fn restore(&mut self, snapshots: &[Restore<'_>], now: Nanos) {
        for snapshot in snapshots {
            let charge = &snapshot.charge;
            self.merge_state(charge.counter(), &charge.limit, &snapshot.state, now);
        }
    }

    /// Merges a remembered state of one counter.
    pub fn merge_state(&mut self, counter: u128, limit: &Limit, known: &CounterState, now: Nanos) {
        let found = self.find(counter, limit, now);
        let mut state = found.unwrap_or_else(|| limit.fresh(now));
        limit.merge(&mut state, known, now);
        self.write(counter, limit, state, now);
    }

    /// Draws a lease.
    pub fn draw(&mut self, charge: &Charge<'_>, now: Nanos) -> LeaseReply {
        let limit = charge.limit.as_ref();
        let found = self.find(charge.counter(), limit, now);
        let existed = found.is_some();
        let mut state = found.unwrap_or_else(|| limit.fresh(now));
        let at = limit.advance(&mut state, now);
        let units = limit.draw(&mut state, at, charge.cost);
        let figures = limit.figures(&state, at);
        let snapshot = CounterSnapshot { state: state.clone(), existed };
        self.write(charge.counter(), limit, state, now);
        LeaseReply { units, figures, snapshot: Some(snapshot), at: now }
    }

    /// Units in use of a counter.
    pub fn used(&mut self, counter: u128, limit: &Limit, now: Nanos) -> u64 {
        self.find(counter, limit, now).map_or(0, |mut state| {
            let at = limit.advance(&mut state, now);
            limit.used(&state, at)
        })
    }

    /// Empties a counter. The record keeps its expiry: only a loss removes a record before it expires.
    pub fn reset(&mut self, counter: u128, limit: &Limit, now: Nanos) -> bool {
        let used = self.used(counter, limit, now) > 0;
        self.rewrite(counter, limit, limit.fresh(now));
        self.reserved.remove_counter(counter);
        used
    }

    /// Writes a smaller state under the existing expiry.
    fn rewrite(&mut self, counter: u128, limit: &Limit, state: CounterState) {
        if let Some(record) = self.records.get_mut(&counter) {
            let previous = record.clone();
            (record.limit, record.state) = (limit.clone(), state);
            self.journal.push(UndoEntry::Counter(counter, Some(previous)));
        }
    }

    /// The number of refunds of a counter.
    pub fn refunds(&self, counter: u128) -> u64 {
        self.refunds.get(&counter).copied().unwrap_or(0)
    }

    /// Moves a counter to another store, with its refunds and reservations.
    pub fn move_counter(&mut self, counter: u128, to: &mut ModelCounters) {
        let record = self.records.remove(&counter);
        self.journal.push(UndoEntry::Counter(counter, record.clone()));
        if let Some(record) = record {
            let previous = to.records.insert(counter, record);
            to.journal.push(UndoEntry::Counter(counter, previous));
        }
        to.refunded.extend(&self.refunded);
        self.reserved.move_counter(counter, &mut to.reserved);
    }

    /// Loses everything.
    pub fn clear(&mut self) {
        *self = ModelCounters::default();
    }

    /// The number of writes since the last call to `mark_replicated`.
    pub fn unreplicated(&self) -> usize {
        self.journal.len()
    }

    /// The replica has received the oldest `writes`.
    pub fn mark_replicated(&mut self, writes: usize) {
        self.journal.drain(..writes.min(self.journal.len()));
    }

    /// Rolls back to the state of the replica and returns the number of lost writes.
    pub fn fail_over(&mut self) -> usize {
        let lost = self.journal.len();
        for previous in std::mem::take(&mut self.journal).into_iter().rev() {
            match previous {
                UndoEntry::Counter(counter, Some(record)) => {
                    self.records.insert(counter, record);
                }
                UndoEntry::Counter(counter, None) => {
                    self.records.remove(&counter);
                }
                UndoEntry::Reservations(reserved) => self.reserved = reserved,
            }
        }
        lost
    }

    /// Extends the expiry of every denied counter as if it had just been written. A store that renews an
    /// expiry on every request does this.
    pub fn refresh(&mut self, set: &ChargeSet<'_>, now: Nanos) {
        for charge in &set.charges {
            let limit = charge.limit.as_ref();
            if let Some(mut state) = self.find(charge.counter(), limit, now) {
                let at = limit.advance(&mut state, now);
                let used = limit.used(&state, at);
                self.write(charge.counter(), limit, limit.with_used(used, now), now);
            }
        }
    }
}
