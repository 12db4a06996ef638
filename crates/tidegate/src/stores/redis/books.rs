//! What a script decided, told from what it found.
//!
//! A script answers with the records as it found them and the time; from these the same decision
//! follows here, by the same algorithms, with every figure that a client may be told. So a script
//! computes no more than whether to write what, and nothing it says can differ from what is stored.

use tidegate_core::algorithms::{Figures, Limit, Moment, State, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Granted, Inspection, Outcome, Reading, Role, Seen, Source,
};
use tidegate_core::units::Nanos;

use super::plan::Plan;
use super::record::{self, Counter, Garbled, Header};

/// What is to become of the charges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Intent {
    /// They are spent if the request is admitted.
    Charge,
    /// Nothing is spent.
    Peek,
    /// They are spent whether they fit or not.
    Force,
}

/// One counter of a request.
pub(super) struct Account<'c> {
    /// Which record it is of.
    pub(super) key: usize,
    /// As its record had it.
    pub(super) was: Option<Counter>,
    pub(super) held: Held<'c>,
    /// As it was found, for a request that is not charged.
    found: Held<'c>,
}

/// A state, and the limit that it is under.
#[derive(Clone)]
pub(super) struct Held<'c> {
    pub(super) header: &'c Header,
    pub(super) limit: &'c Limit,
    pub(super) state: State,
    /// Whether it is to be written.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "scripts write; tests compare what")
    )]
    pub(super) changed: bool,
}

/// The counters of a request.
pub(super) struct Books<'c> {
    charges: &'c [Charge<'c>],
    plan: &'c Plan,
    now: Nanos,
    pub(super) accounts: Vec<Account<'c>>,
    /// For each charge, its account.
    of: Vec<usize>,
    /// Whether a stored time was so far ahead that it had to be set back.
    stepped: bool,
}

impl<'c> Books<'c> {
    /// Opens the counters of `charges`, of whose records the bytes are given in the plan's order.
    pub(super) fn open(
        charges: &'c [Charge<'c>],
        plan: &'c Plan,
        records: &[Option<impl AsRef<[u8]>>],
        now: Nanos,
    ) -> Result<Self, Garbled> {
        let mut counters = Vec::with_capacity(records.len());
        for bytes in records {
            let found = bytes.as_ref().map(|bytes| record::read(bytes.as_ref()));
            counters.push(found.transpose()?.unwrap_or_default());
        }
        let mut books = Books {
            charges,
            plan,
            now,
            accounts: Vec::with_capacity(charges.len()),
            of: Vec::with_capacity(charges.len()),
            stepped: false,
        };
        for (i, charge) in charges.iter().enumerate() {
            let key = plan.of[i];
            let rate = charge.rate;
            let known = books
                .accounts
                .iter()
                .position(|account| account.key == key && account.held.header.rate() == rate);
            let account = known.unwrap_or_else(|| {
                let was = counters.get(key).into_iter().flatten();
                let was = was.clone().find(|counter| counter.header.rate() == rate);
                books.enter(key, &plan.headers[i], &charge.limit, was.cloned())
            });
            books.of.push(account);
        }
        Ok(books)
    }

    fn enter(
        &mut self,
        key: usize,
        header: &'c Header,
        limit: &'c Limit,
        was: Option<Counter>,
    ) -> usize {
        let mut changed = false;
        let mut state = match &was {
            None => limit.fresh(self.now),
            Some(counter) if counter.header == *header => counter.state.clone(),
            Some(counter) => {
                let mut moved = counter.state.clone();
                changed = counter.limit.advance(&mut moved, self.now).stepped_back();
                limit.adopt(&counter.limit, counter.state.clone(), self.now)
            }
        };
        let mut moved = state.clone();
        if limit.advance(&mut moved, self.now).stepped_back() {
            (state, changed) = (moved, true);
        }
        self.stepped |= changed;
        let held = Held {
            header,
            limit,
            state,
            changed,
        };
        self.accounts.push(Account {
            key,
            was,
            found: held.clone(),
            held,
        });
        self.accounts.len() - 1
    }

    /// A copy of the counter of a charge, under its limit and at the present.
    pub(super) fn under(&self, charge: usize) -> (State, Moment) {
        let held = &self.accounts[self.of[charge]].held;
        let limit = self.charges[charge].limit.as_ref();
        let mut state = held.state.clone();
        if *held.header != self.plan.headers[charge] {
            state = limit.adopt(held.limit, state, self.now);
        }
        let at = limit.advance(&mut state, self.now);
        (state, at)
    }

    pub(super) fn take(&mut self, charge: usize, state: State) {
        self.accounts[self.of[charge]].held = Held {
            header: &self.plan.headers[charge],
            limit: &self.charges[charge].limit,
            state,
            changed: true,
        };
    }

    fn restore(&mut self) {
        for account in &mut self.accounts {
            account.held = account.found.clone();
        }
    }

    /// Judges a charge and, if it fits or is forced, spends it.
    fn judge(&mut self, charge: usize, intent: Intent) -> Verdict {
        let (mut state, at) = self.under(charge);
        let (limit, cost) = (&self.charges[charge].limit, self.charges[charge].cost);
        let verdict = limit.judge(&state, at, cost);
        if verdict.allows() || intent == Intent::Force {
            limit.spend(&mut state, at, cost);
            self.take(charge, state);
        }
        verdict
    }

    /// The decision on the whole set.
    pub(super) fn decide(&mut self, set: &ChargeSet<'_>, intent: Intent) -> Outcome {
        let count = self.charges.len();
        let is_shadow = |charge: &Charge<'_>| charge.role == Role::Shadow;
        let mut verdicts = vec![Verdict::Allow { delay: Nanos::ZERO }; count];
        for i in (0..count).filter(|i| !is_shadow(&self.charges[*i])) {
            verdicts[i] = self.judge(i, intent);
        }
        let admitted = intent == Intent::Force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.restore();
        }
        for i in (0..count).filter(|i| is_shadow(&self.charges[*i])) {
            verdicts[i] = self.judge(i, intent);
            if !admitted {
                self.restore();
            }
        }
        if intent == Intent::Peek {
            self.restore();
        }
        let readings = verdicts.iter().enumerate().map(|(i, verdict)| Reading {
            verdict: *verdict,
            figures: self.figures(i),
        });
        Outcome {
            admitted,
            readings: readings.collect(),
            seen: (0..count).map(|i| self.seen(i)).collect(),
            at: self.now,
            source: Source::Exact,
            clock_stepped: self.stepped,
        }
    }

    /// Takes units of the only charge in advance.
    pub(super) fn grant(&mut self) -> Granted {
        let (mut state, at) = self.under(0);
        let (limit, cost) = (&self.charges[0].limit, self.charges[0].cost);
        let units = limit.draw(&mut state, at, cost);
        if units > 0 {
            self.take(0, state);
        }
        Granted {
            units,
            figures: self.figures(0),
            seen: Some(self.seen(0)),
            at: self.now,
        }
    }

    /// How a counter stands, unless it is as good as none.
    pub(super) fn inspection(&self, charge: usize) -> Option<Inspection> {
        let limit = &self.charges[charge].limit;
        let (state, at) = self.under(charge);
        let figures = limit.figures(&state, at);
        (figures.reset_after > Nanos::ZERO).then(|| Inspection {
            used: limit.used(&state, at),
            figures,
            source: Source::Exact,
        })
    }

    fn figures(&self, charge: usize) -> Figures {
        let (state, at) = self.under(charge);
        self.charges[charge].limit.figures(&state, at)
    }

    fn seen(&self, charge: usize) -> Seen {
        let (state, _) = self.under(charge);
        let was_there = self.accounts[self.of[charge]].was.is_some();
        Seen { state, was_there }
    }
}
