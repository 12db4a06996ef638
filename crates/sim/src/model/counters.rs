//! The counters of the model store: plain states in a map, judged by the algorithms themselves.
//!
//! Slow and obvious. It keeps what every store promises: all or nothing, a refusal writes nothing,
//! every record has an expiry.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Limit, State, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Granted, Ledger, Outcome, Reading, Refund, Refunded, Reserve, Role, Seed,
    Seen, Settle, Settled, Source,
};
use tidegate_core::units::{Cost, Nanos};

/// What is to become of a charge set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Spent if it fits.
    Charge,
    /// Never spent.
    Peek,
    /// Spent whether it fits or not.
    Force,
}

/// A counter as it is stored.
#[derive(Clone, PartialEq, Debug)]
struct Record {
    limit: Limit,
    state: State,
    expires: Nanos,
}

/// What was there before a write.
#[derive(Clone, Debug)]
enum Was {
    Record(u128, Option<Record>),
    Reserved(Ledger),
}

/// Counters by the bits that identify them.
#[derive(Clone, Debug)]
pub struct Counters {
    records: BTreeMap<u128, Record>,
    refunded: BTreeMap<u128, Nanos>,
    /// Estimates that wait to be settled.
    pub(super) reserved: Ledger,
    /// What each write replaced, for a replica that has not heard of it.
    journal: Vec<Was>,
    /// How often something of a counter was given back.
    refunds: BTreeMap<u128, u64>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            records: BTreeMap::new(),
            refunded: BTreeMap::new(),
            reserved: Ledger::new(usize::MAX),
            journal: Vec::new(),
            refunds: BTreeMap::new(),
        }
    }
}

struct Open {
    counter: u128,
    limit: Limit,
    state: State,
    was_there: bool,
    changed: bool,
}

impl Counters {
    /// Decides a charge set at `now`.
    pub fn decide(&mut self, set: &ChargeSet<'_>, intent: Intent, now: Nanos) -> Outcome {
        let mut open: Vec<Open> = Vec::new();
        let of: Vec<usize> = set
            .charges
            .iter()
            .map(|charge| self.open(charge, &mut open, now))
            .collect();
        let before: Vec<State> = open.iter().map(|o| o.state.clone()).collect();
        let mut verdicts = vec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let mut stepped = false;
        let mut judge = |open: &mut Open, charge: &Charge<'_>| {
            let limit = charge.limit.as_ref();
            let at = limit.advance(&mut open.state, now);
            stepped |= at.stepped_back();
            open.changed |= at.stepped_back();
            let verdict = limit.judge(&open.state, at, charge.cost);
            if verdict.allows() || intent == Intent::Force {
                limit.spend(&mut open.state, at, charge.cost);
                open.changed = true;
            }
            verdict
        };
        let shadow = |charge: &Charge<'_>| charge.role == Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !shadow(c)) {
            verdicts[i] = judge(&mut open[of[i]], charge);
        }
        let admitted = intent == Intent::Force || set.admits(|i| verdicts[i].allows());
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| shadow(c)) {
            verdicts[i] = judge(&mut open[of[i]], charge);
        }
        if !admitted || intent == Intent::Peek {
            for (open, state) in open.iter_mut().zip(before) {
                open.state = state;
                let at = open.limit.advance(&mut open.state, now);
                open.changed = at.stepped_back() && intent != Intent::Peek;
            }
        }
        for open in open.iter().filter(|open| open.changed) {
            self.write(open.counter, &open.limit, open.state.clone(), now);
        }
        let readings = set.charges.iter().enumerate().map(|(i, charge)| {
            let mut state = open[of[i]].state.clone();
            let at = charge.limit.advance(&mut state, now);
            Reading {
                verdict: verdicts[i],
                figures: charge.limit.figures(&state, at),
            }
        });
        Outcome {
            admitted,
            readings: readings.collect::<SmallVec<_>>(),
            seen: of
                .iter()
                .map(|i| Seen {
                    state: open[*i].state.clone(),
                    was_there: open[*i].was_there,
                })
                .collect(),
            at: now,
            source: Source::Exact,
            clock_stepped: stepped,
        }
    }

    fn open(&mut self, charge: &Charge<'_>, open: &mut Vec<Open>, now: Nanos) -> usize {
        let counter = charge.counter();
        if let Some(at) = open.iter().position(|o| o.counter == counter) {
            return at;
        }
        let found = self.find(counter, &charge.limit, now);
        open.push(Open {
            counter,
            limit: charge.limit.as_ref().clone(),
            was_there: found.is_some(),
            state: found.unwrap_or_else(|| charge.limit.fresh(now)),
            changed: false,
        });
        open.len() - 1
    }

    /// The state of a counter under `limit`; nothing if there is no record or it has expired.
    fn find(&mut self, counter: u128, limit: &Limit, now: Nanos) -> Option<State> {
        let record = self.records.get(&counter)?;
        if record.expires <= now {
            let gone = self.records.remove(&counter);
            self.journal.push(Was::Record(counter, gone));
            return None;
        }
        Some(limit.adopt(&record.limit, record.state.clone(), now))
    }

    fn write(&mut self, counter: u128, limit: &Limit, mut state: State, now: Nanos) {
        let at = limit.advance(&mut state, now);
        // Something may have been given back since it was last told when to expire.
        let told = self.records.get(&counter).map(|record| record.expires);
        let record = Record {
            limit: limit.clone(),
            expires: limit.fresh_at(&state, at).max(told.unwrap_or(now)),
            state,
        };
        let was = self.records.insert(counter, record);
        self.journal.push(Was::Record(counter, was));
    }

    /// Gives back an earlier charge, once.
    pub fn refund(&mut self, refund: &Refund<'_>, now: Nanos) -> Refunded {
        self.refunded.retain(|_, until| *until > now);
        if refund.until <= now {
            return Refunded::Lapsed;
        }
        if self.refunded.insert(refund.id, refund.until).is_some() {
            return Refunded::Already;
        }
        self.give_back(&refund.set, refund.charged, now);
        Refunded::Done
    }

    fn give_back(&mut self, set: &ChargeSet<'_>, charged: Nanos, now: Nanos) {
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

    /// Charges an estimate, after those that nobody settled in time came back.
    pub fn reserve(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        self.bring_back(&reserve.set, now, now);
        self.charge_estimate(reserve, now)
    }

    /// Gives back the estimates of these counters that were over at `over`.
    pub(super) fn bring_back(&mut self, set: &ChargeSet<'_>, over: Nanos, now: Nanos) {
        self.journal.push(Was::Reserved(self.reserved.clone()));
        for charge in &set.charges {
            for abandoned in self.reserved.abandoned(charge, over) {
                let mut estimate = charge.clone();
                estimate.cost = abandoned.estimate;
                self.give_back(&ChargeSet::of_one(estimate), abandoned.charged, now);
            }
        }
    }

    /// Charges an estimate and remembers it.
    pub(super) fn charge_estimate(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        let outcome = self.decide(&reserve.set, Intent::Charge, now);
        if outcome.admitted {
            self.reserved.enter_all(reserve, &outcome);
        }
        outcome
    }

    /// Corrects an estimate to what was used, once.
    pub fn settle(&mut self, settle: &Settle<'_>, now: Nanos) -> Settled {
        if settle.is_too_late(now) {
            return Settled::Lapsed;
        }
        self.journal.push(Was::Reserved(self.reserved.clone()));
        let found = self.reserved.close(settle);
        self.decide(&settle.charged_on_top(&found), Intent::Force, now);
        let charged = settle.given_back_of(&found);
        self.give_back(&settle.given_back(&found), charged, now);
        settle.outcome(&found, now)
    }

    /// Corrects estimates as if they had just been charged.
    pub(super) fn correct_in_full(&mut self, set: &ChargeSet<'_>, used: &[u64], now: Nanos) {
        for (charge, used) in set.charges.iter().zip(used) {
            let (estimate, mut change) = (charge.cost.get(), charge.clone());
            if let Some(back) = Cost::new(estimate.saturating_sub(*used)) {
                change.cost = back;
                self.give_back(&ChargeSet::of_one(change), now, now);
            } else if let Some(more) = Cost::new(used.saturating_sub(estimate)) {
                change.cost = more;
                self.decide(&ChargeSet::of_one(change), Intent::Force, now);
            }
        }
    }

    /// Merges known states by maximum.
    pub fn seed(&mut self, seeds: &[Seed<'_>], now: Nanos) {
        for seed in seeds {
            let charge = &seed.charge;
            self.raise(charge.counter(), &charge.limit, &seed.state, now);
        }
    }

    /// Merges a known state of one counter.
    pub fn raise(&mut self, counter: u128, limit: &Limit, known: &State, now: Nanos) {
        let found = self.find(counter, limit, now);
        let mut state = found.unwrap_or_else(|| limit.fresh(now));
        limit.merge(&mut state, known, now);
        self.write(counter, limit, state, now);
    }

    /// Takes units in advance.
    pub fn grant(&mut self, charge: &Charge<'_>, now: Nanos) -> Granted {
        let limit = charge.limit.as_ref();
        let found = self.find(charge.counter(), limit, now);
        let was_there = found.is_some();
        let mut state = found.unwrap_or_else(|| limit.fresh(now));
        let at = limit.advance(&mut state, now);
        let units = limit.draw(&mut state, at, charge.cost);
        let figures = limit.figures(&state, at);
        let seen = Seen {
            state: state.clone(),
            was_there,
        };
        self.write(charge.counter(), limit, state, now);
        Granted {
            units,
            figures,
            seen: Some(seen),
            at: now,
        }
    }

    /// Units in use of a counter.
    pub fn used(&mut self, counter: u128, limit: &Limit, now: Nanos) -> u64 {
        self.find(counter, limit, now).map_or(0, |mut state| {
            let at = limit.advance(&mut state, now);
            limit.used(&state, at)
        })
    }

    /// Forgets what a counter holds. The record stays for as long as it would have: only a loss makes
    /// one go before its time.
    pub fn reset(&mut self, counter: u128, limit: &Limit, now: Nanos) -> bool {
        let used = self.used(counter, limit, now) > 0;
        self.rewrite(counter, limit, limit.fresh(now));
        self.reserved.forget(counter);
        used
    }

    /// Writes a smaller state under the expiry that there is.
    fn rewrite(&mut self, counter: u128, limit: &Limit, state: State) {
        if let Some(record) = self.records.get_mut(&counter) {
            let was = record.clone();
            (record.limit, record.state) = (limit.clone(), state);
            self.journal.push(Was::Record(counter, Some(was)));
        }
    }

    /// How often something of a counter was given back.
    pub fn refunds(&self, counter: u128) -> u64 {
        self.refunds.get(&counter).copied().unwrap_or(0)
    }

    /// Hands a counter over to another store, and what is known of refunds and reservations.
    pub fn hand_over(&mut self, counter: u128, to: &mut Counters) {
        let record = self.records.remove(&counter);
        self.journal.push(Was::Record(counter, record.clone()));
        if let Some(record) = record {
            let was = to.records.insert(counter, record);
            to.journal.push(Was::Record(counter, was));
        }
        to.refunded.extend(&self.refunded);
        self.reserved.hand_over(counter, &mut to.reserved);
    }

    /// Loses everything.
    pub fn clear(&mut self) {
        *self = Counters::default();
    }

    /// How many writes there have been since the last call to `heard`.
    pub fn unheard(&self) -> usize {
        self.journal.len()
    }

    /// The replica has heard of the oldest `writes`.
    pub fn heard(&mut self, writes: usize) {
        self.journal.drain(..writes.min(self.journal.len()));
    }

    /// Becomes what the replica has heard of; how many writes are lost.
    pub fn fall_back(&mut self) -> usize {
        let lost = self.journal.len();
        for was in std::mem::take(&mut self.journal).into_iter().rev() {
            match was {
                Was::Record(counter, Some(record)) => {
                    self.records.insert(counter, record);
                }
                Was::Record(counter, None) => {
                    self.records.remove(&counter);
                }
                Was::Reserved(reserved) => self.reserved = reserved,
            }
        }
        lost
    }

    /// Makes the record of every refused counter as if it had just been written, as a store does
    /// that renews an expiry on every request.
    pub fn refresh(&mut self, set: &ChargeSet<'_>, now: Nanos) {
        for charge in &set.charges {
            let limit = charge.limit.as_ref();
            if let Some(mut state) = self.find(charge.counter(), limit, now) {
                let at = limit.advance(&mut state, now);
                let used = limit.used(&state, at);
                self.write(charge.counter(), limit, limit.holding(used, now), now);
            }
        }
    }
}
