//! Deadline, bulkhead and breaker around a store: whoever asks has an answer or an error in time.
//!
//! A call waits no longer than its budget. A charge that is answered later counts as charged by then,
//! so it is given back: once, because a refund that may have arrived is never sent again. While the
//! breaker is open nothing is asked but pings.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tidegate_core::store::{
    Beat, Charge, ChargeSet, FailureCause, FailureKind, Granted, Held, Hold, Inspection, Life,
    Outcome, Probe, Refund, Refunded, Reserve, Seed, Settle, Settled, Slot, Store, StoreError,
    Vitals, one_reply_per_set,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::breaker::Change;
use super::bulkhead::Bulkhead;
use super::deadline::{budget_of, max_wait_of, within};
use super::event::Watcher;
use super::in_flight::{Barred, CallInFlight, InFlight};
use super::owned::OwnedSet;
use super::settings::Settings;
use super::undo::{Manner, refund_of, unused};
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// How long a late answer is waited for, to give back what it charged.
pub(super) const LATE: Nanos = Nanos::from_secs(60);

/// How long the answer to a debt, a seed or a grant is waited for.
const PATIENT: Nanos = Nanos::from_secs(1);

/// Why a store was not asked, or not heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Away {
    #[error("the breaker is open")]
    Open,
    #[error("too many calls are under way")]
    Full,
    #[error("the answer is late")]
    Late,
    #[error("no time is left to ask")]
    NoTime,
    #[error("the store left a question unanswered")]
    Silent,
    #[error("there is no store for it")]
    Nowhere,
    #[error("the store may have lost counts")]
    Doubtful,
}

fn away(why: Away, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}

fn late_cause() -> FailureCause {
    FailureCause::new(FailureKind::Timeout, "no reply within the budget")
}

/// The answer to whoever needs a store that has lost nothing.
pub(super) fn doubtful() -> StoreError {
    away(Away::Doubtful, Nanos::ZERO)
}

/// A store that answers in time or not at all.
pub(super) struct Guard<S, R> {
    /// Nothing: whoever asks is told that there is no store.
    store: Option<Arc<S>>,
    runtime: R,
    calls: Arc<InFlight>,
    late: Bulkhead,
    budget: Nanos,
}

/// Charges that go on by themselves.
type Charging = Pin<Box<dyn Future<Output = Charged> + Send>>;
type Charged = (Vec<OwnedSet>, Vec<Answer<Outcome>>);

impl<S: Store + Probe + 'static, R: Runtime> Guard<S, R> {
    pub(super) fn new(store: Option<S>, runtime: R, settings: &Settings, watcher: Watcher) -> Self {
        Guard {
            store: store.map(Arc::new),
            runtime,
            calls: InFlight::new(settings, watcher),
            late: Bulkhead::new(settings.in_flight),
            budget: settings.budget,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.calls.is_open()
    }

    /// The slot that a subject is in, if it is in this store.
    pub(super) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        self.store.as_ref()?.slot(subject)
    }

    /// The life the latest answers came from.
    pub(super) fn life(&self) -> Option<Life> {
        self.store.as_ref()?.life()
    }

    fn store(&self) -> Answer<&Arc<S>> {
        let store = self.store.as_ref();
        store.ok_or_else(|| away(Away::Nowhere, Nanos::ZERO))
    }

    /// Asks the store how it is. The only thing that is asked while the breaker is open.
    pub(super) async fn ping(&self, beat: Beat) -> (Option<Vitals>, Option<Change>) {
        let Ok(store) = self.store() else {
            return (None, None);
        };
        let ping = self.calls.ping(self.runtime.now());
        let reply = within(&self.runtime, self.budget, pin!(store.beat(beat))).await;
        let now = self.runtime.now();
        match reply {
            Some(Ok(vitals)) => (Some(vitals), ping.ping_replied(now)),
            Some(Err(error)) => (None, ping.ping_failed(now, || store.cause(&error))),
            None => (None, ping.ping_failed(now, late_cause)),
        }
    }

    fn enter(&self) -> Answer<CallInFlight> {
        let entered = self.calls.enter(self.runtime.now());
        entered.map_err(|barred| {
            let why = match barred {
                Barred::Open => Away::Open,
                Barred::Full => Away::Full,
            };
            away(why, Nanos::ZERO)
        })
    }

    /// Reports how a call ended.
    fn report<T>(&self, call: CallInFlight, answer: &Answer<T>) {
        let now = self.runtime.now();
        match answer {
            Err(error) if !error.is_unacknowledged() => call.failed(now, || self.cause(error)),
            Ok(_) | Err(_) => call.replied(now),
        };
    }

    /// Why a call failed, as the store sees it.
    fn cause(&self, error: &StoreError) -> FailureCause {
        match &self.store {
            Some(store) => store.cause(error),
            None => FailureCause::of(error),
        }
    }

    async fn call<T>(&self, call: impl Future<Output = Answer<T>> + Send) -> Answer<T> {
        self.call_by(Nanos::MAX, self.budget, call).await
    }

    async fn call_by<T>(
        &self,
        until: Nanos,
        budget: Nanos,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let in_flight = self.enter()?;
        let remains = self.remains(until, budget)?;
        let answer = within(&self.runtime, remains, pin!(call)).await;
        let Some(answer) = answer else {
            return self.late(in_flight, remains, budget);
        };
        self.report(in_flight, &answer);
        answer
    }

    /// A call about a slot, which has the budget of its rule.
    async fn call_of<T>(
        &self,
        hold: &Hold<'_>,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let budget = hold.terms.budget.unwrap_or(self.budget);
        self.call_by(Nanos::MAX, budget, call).await
    }

    /// Whether counters have left this store: that it does not have them is no failure of its own.
    fn left(&self, set: &ChargeSet<'_>) -> bool {
        let mut charges = set.charges.iter();
        charges.any(|charge| self.slot(charge.subject).is_none())
    }

    /// What remains of a budget until `until`, if anything.
    fn remains(&self, until: Nanos, budget: Nanos) -> Answer<Nanos> {
        match until.since(self.runtime.now()).min(budget) {
            Nanos::ZERO if budget > Nanos::ZERO => Err(away(Away::NoTime, Nanos::ZERO)),
            remains => Ok(remains),
        }
    }

    /// There was no answer. A store that had less than half of the budget is not to blame: the time went
    /// elsewhere.
    fn late<T>(&self, call: CallInFlight, waited: Nanos, budget: Nanos) -> Answer<T> {
        if waited >= Nanos::new(budget.get() / 2) {
            call.failed(self.runtime.now(), late_cause);
        }
        Err(away(Away::Late, waited))
    }

    /// Charges a set, as long as it is not `until` yet.
    pub(super) async fn charge_by(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
        manner: Manner,
    ) -> Answer<Outcome> {
        let mut answers = self.charge_all(until, &[set], manner).await?;
        let answer = answers.pop();
        answer.unwrap_or_else(|| Err(away(Away::Silent, Nanos::ZERO)))
    }

    /// What a charge would answer, as long as it is not `until` yet.
    pub(super) async fn peek_by(&self, until: Nanos, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let until = self.until(until, &[set]);
        let peeking = self.store()?.peek(set);
        self.call_by(until, self.budget, peeking).await
    }

    /// Charges a debt. No decision waits for it, so it has more time than those have: taken for lost,
    /// it would be charged once more. To the breaker it is late all the same, unless it was to be safe
    /// elsewhere and took no longer than that may.
    pub(super) async fn charge_debt(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.patiently(set, self.store()?.force(set)).await
    }

    /// Asks something of `set` that no decision waits for.
    async fn patiently<T>(
        &self,
        set: &ChargeSet<'_>,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let in_flight = self.enter()?;
        let sent = self.runtime.now();
        let answer = within(&self.runtime, PATIENT, pin!(call)).await;
        let answer = answer.unwrap_or_else(|| Err(away(Away::Late, PATIENT)));
        let waited = self.runtime.now().since(sent);
        let in_time = match set.waits() {
            true => self.budget_of(&[set]).max(self.budget),
            false => self.budget,
        };
        if waited <= in_time {
            self.report(in_flight, &answer);
        } else {
            in_flight.failed(self.runtime.now(), late_cause);
        }
        answer
    }

    /// How long a decision may wait for the store.
    fn budget_of(&self, sets: &[&ChargeSet<'_>]) -> Nanos {
        budget_of(sets, self.budget)
    }

    /// When the decision on `sets` must have been made: `until`, or sooner if a caller gives up sooner.
    /// A store that is given less time than its budget by a caller is not to blame for it.
    fn until(&self, until: Nanos, sets: &[&ChargeSet<'_>]) -> Nanos {
        let max_wait = max_wait_of(sets);
        if max_wait == Nanos::MAX {
            return until;
        }
        until.min(self.runtime.now().plus(max_wait))
    }

    /// Charges sets that will be waited for even if nobody does any more.
    fn charging(&self, sets: &[&ChargeSet<'_>], manner: Manner) -> Answer<Charging> {
        let store = Arc::clone(self.store()?);
        let owned: Vec<OwnedSet> = sets.iter().map(|set| OwnedSet::of(set)).collect();
        Ok(Box::pin(async move {
            let answers = match (owned.as_slice(), manner) {
                ([only], Manner::Charge) => vec![store.charge(&only.set()).await],
                ([only], Manner::Reserve { id, lasts }) => {
                    let set = only.set();
                    vec![store.reserve(&Reserve { id, lasts, set }).await]
                }
                (several, _) => {
                    let sets: Vec<ChargeSet<'_>> = several.iter().map(OwnedSet::set).collect();
                    let replies = store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
                    one_reply_per_set(sets.len(), replies)
                }
            };
            (owned, answers)
        }))
    }

    async fn charge_all(
        &self,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        manner: Manner,
    ) -> Answer<Vec<Answer<Outcome>>> {
        let in_flight = self.enter()?;
        let (budget, life) = (self.budget_of(sets), self.life());
        let remains = self.remains(self.until(until, sets), budget)?;
        let mut charging = self.charging(sets, manner)?;
        let Some((_, answers)) = within(&self.runtime, remains, charging.as_mut()).await else {
            self.wait_on(charging, life, manner);
            return self.late(in_flight, remains, budget);
        };
        self.report_all(in_flight, sets, &answers);
        Ok(answers)
    }

    /// Reports one call that charged several sets: as failed if all of them failed.
    fn report_all(&self, call: CallInFlight, sets: &[&ChargeSet<'_>], answers: &[Answer<Outcome>]) {
        let own = || {
            let pairs = sets.iter().zip(answers);
            pairs.filter(|(set, answer)| answer.is_ok() || !self.left(set))
        };
        let answered = own().find(|(_, answer)| answer.is_ok());
        match answered.or_else(|| own().next()) {
            Some((_, answer)) => self.report(call, answer),
            None => drop(call),
        }
    }

    /// Waits on for answers that nobody else waits for, and gives back what they charged.
    fn wait_on(&self, mut charging: Charging, life: Option<Life>, manner: Manner) {
        let (Some(permit), Some(store)) = (self.late.enter(), self.store.clone()) else {
            return; // it stays charged, which refuses too much rather than too little
        };
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            let charged = within(&runtime, LATE, charging.as_mut()).await;
            let (sets, answers) = charged.unwrap_or_default();
            for (set, answer) in sets.iter().zip(answers) {
                // A store that has lost the charge must not give it back.
                if let Ok(outcome) = answer
                    && outcome.admitted
                    && store.life() == life
                {
                    undo_once(&*store, &runtime, set, &outcome, manner).await;
                }
            }
            drop(permit);
        });
    }

    /// Gives a charge back that was made a moment ago, in the background: the request that it was for
    /// was refused elsewhere. What cannot be given back stays charged. `life` is the store's before the
    /// charge: one that has lost it must not give it back.
    pub(super) fn give_back(
        &self,
        set: &ChargeSet<'_>,
        outcome: Outcome,
        life: Option<Life>,
        manner: Manner,
    ) {
        if self.is_open() {
            return;
        }
        let (Some(permit), Some(store)) = (self.late.enter(), self.store.clone()) else {
            return;
        };
        let (runtime, set) = (self.runtime.clone(), OwnedSet::of(set));
        self.runtime.spawn(async move {
            if store.life() == life {
                undo_once(&*store, &runtime, &set, &outcome, manner).await;
            }
            drop(permit);
        });
    }
}

/// Lost or not, it is not sent again.
async fn undo_once<S: Store, R: Runtime>(
    store: &S,
    runtime: &R,
    set: &OwnedSet,
    outcome: &Outcome,
    manner: Manner,
) {
    match manner {
        Manner::Charge => {
            let refund = refund_of(runtime, set.set(), outcome);
            let _lost_or_done = within(runtime, LATE, pin!(store.refund(&refund))).await;
        }
        Manner::Reserve { id, lasts } => {
            let settle = unused(id, lasts, set.set(), outcome);
            let _lost_or_done = within(runtime, LATE, pin!(store.settle(&settle))).await;
        }
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Store for Guard<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.charge_by(Nanos::MAX, set, Manner::Charge).await
    }

    /// One deadline for all of them.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        match self.charge_all(Nanos::MAX, sets, Manner::Charge).await {
            Ok(answers) => answers,
            Err(StoreError::Unavailable { waited, .. }) => {
                let late = |_: &&ChargeSet<'_>| Err(away(Away::Late, waited));
                sets.iter().map(late).collect()
            }
            // One reply per set: the others were not sent either.
            Err(refused) => {
                let others = sets.iter().skip(1);
                let others = others.map(|_| Err(away(Away::Silent, Nanos::ZERO)));
                std::iter::once(Err(refused)).chain(others).collect()
            }
        }
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.peek_by(Nanos::MAX, set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let budget = self.budget_of(&[&refund.set]).max(self.budget);
        let until = self.until(Nanos::MAX, &[&refund.set]);
        let refunding = self.store()?.refund(refund);
        self.call_by(until, budget, refunding).await
    }

    /// No decision waits for it, and what is taken for lost stays charged: it has the time that debts
    /// have, and is late to the breaker like them.
    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        let set = ChargeSet::of_one(charge.clone());
        self.patiently(&set, self.store()?.grant(charge)).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let budget = self.budget_of(&[set]).max(self.budget);
        let until = self.until(Nanos::MAX, &[set]);
        let forcing = self.store()?.force(set);
        self.call_by(until, budget, forcing).await
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let manner = Manner::of(reserve);
        self.charge_by(Nanos::MAX, &reserve.set, manner).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let budget = self.budget_of(&[&settle.set]).max(self.budget);
        let settling = self.store()?.settle(settle);
        self.call_by(Nanos::MAX, budget, settling).await
    }

    /// No decision waits for it: it has the time that debts have.
    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        let in_flight = self.enter()?;
        let seeding = pin!(self.store()?.seed(seeds));
        let answer = within(&self.runtime, PATIENT, seeding).await;
        let answer = answer.unwrap_or_else(|| Err(away(Away::Late, PATIENT)));
        self.report(in_flight, &answer);
        answer
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.call_of(hold, self.store()?.hold(hold)).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.call_of(hold, self.store()?.renew(hold)).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.call_of(hold, self.store()?.release(hold)).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.call(self.store()?.inspect(set)).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        self.call(self.store()?.reset(set)).await
    }
}
