//! Deadline, bulkhead and breaker around a store: whoever asks has an answer or an error in time.
//!
//! A call waits no longer than its budget. A charge that is answered later counts as charged by then,
//! so it is given back: once, because a refund that may have arrived is never sent again. While the
//! breaker is open nothing is asked but pings.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::{
    Beat, Charge, ChargeSet, Granted, Held, Hold, Inspection, Life, Outcome, Probe, Refund,
    Refunded, Seed, Store, StoreError, Vitals,
};
use tidegate_core::units::Nanos;

use super::breaker::{Breaker, Change};
use super::bulkhead::{Bulkhead, Place};
use super::deadline::within;
use super::event::{Event, Watcher};
use super::owned::OwnedSet;
use super::settings::Settings;
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// How long a late answer is waited for, to give back what it charged.
const LATE: Nanos = Nanos::from_secs(60);

/// Why a store was not asked, or not heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Away {
    #[error("the breaker is open")]
    Open,
    #[error("too many calls are under way")]
    Full,
    #[error("the answer is late")]
    Late,
    #[error("the store left a question unanswered")]
    Silent,
}

fn away(why: Away, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}

/// A store that answers in time or not at all.
pub(super) struct Guard<S, R> {
    store: Arc<S>,
    runtime: R,
    breaker: Mutex<Breaker>,
    calls: Bulkhead,
    late: Bulkhead,
    budget: Nanos,
    watcher: Watcher,
}

/// Charges that go on by themselves.
type Charging = Pin<Box<dyn Future<Output = Charged> + Send>>;
type Charged = (Vec<OwnedSet>, Vec<Answer<Outcome>>);

impl<S: Store + Probe + 'static, R: Runtime> Guard<S, R> {
    pub(super) fn new(store: S, runtime: R, settings: &Settings, watcher: Watcher) -> Self {
        Guard {
            store: Arc::new(store),
            runtime,
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            calls: Bulkhead::new(settings.in_flight),
            late: Bulkhead::new(settings.in_flight),
            budget: settings.budget,
            watcher,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.lock().is_open()
    }

    /// The life the latest answers came from.
    pub(super) fn life(&self) -> Option<Life> {
        self.store.life()
    }

    /// Asks the store how it is. The only thing that is asked while the breaker is open.
    pub(super) async fn ping(&self, beat: Beat) -> (Option<Vitals>, Option<Change>) {
        let call = pin!(self.store.beat(beat));
        let vitals = within(&self.runtime, self.budget, call).await;
        let vitals = vitals.and_then(Result::ok);
        let change = self
            .breaker
            .lock()
            .pinged(self.runtime.now(), vitals.is_some());
        self.tell(change);
        (vitals, change)
    }

    fn tell(&self, change: Option<Change>) {
        match change {
            Some(Change::Opened) => (self.watcher)(Event::BreakerOpened),
            Some(Change::Closed) => (self.watcher)(Event::BreakerClosed),
            None => {}
        }
    }

    fn enter(&self) -> Answer<Place> {
        if self.is_open() {
            return Err(away(Away::Open, Nanos::ZERO));
        }
        let place = self.calls.enter();
        place.ok_or_else(|| away(Away::Full, Nanos::ZERO))
    }

    fn counted<T>(&self, answer: Answer<T>) -> Answer<T> {
        let now = self.runtime.now();
        match &answer {
            Ok(_) => self.breaker.lock().succeeded(now),
            Err(error) if error.is_unacknowledged() => self.breaker.lock().succeeded(now),
            Err(_) => {
                let change = self.breaker.lock().failed(now);
                self.tell(change);
            }
        }
        answer
    }

    async fn call<T>(&self, call: impl Future<Output = Answer<T>> + Send) -> Answer<T> {
        self.call_within(self.budget, call).await
    }

    async fn call_within<T>(
        &self,
        budget: Nanos,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let _place = self.enter()?;
        let answer = within(&self.runtime, budget, pin!(call)).await;
        self.counted(answer.unwrap_or_else(|| Err(away(Away::Late, budget))))
    }

    /// The shortest that any rule allows. Beside a durable one, a rule that does not say waits with it:
    /// a set is answered as a whole, and an acknowledgement takes longer than is usual.
    fn budget_of(&self, sets: &[&ChargeSet<'_>]) -> Nanos {
        let charges = || sets.iter().flat_map(|set| &set.charges);
        let said = charges().filter_map(|charge| charge.terms.budget).min();
        let silent = charges().any(|charge| charge.terms.budget.is_none());
        match said {
            Some(said) if silent && !sets.iter().any(|set| set.waits()) => said.min(self.budget),
            Some(said) => said,
            None => self.budget,
        }
    }

    /// Charges sets that will be waited for even if nobody does any more.
    fn charging(&self, sets: &[&ChargeSet<'_>]) -> Charging {
        let store = Arc::clone(&self.store);
        let owned: Vec<OwnedSet> = sets.iter().map(|set| OwnedSet::of(set)).collect();
        Box::pin(async move {
            let answers = match owned.as_slice() {
                [only] => vec![store.charge(&only.set()).await],
                several => {
                    let sets: Vec<ChargeSet<'_>> = several.iter().map(OwnedSet::set).collect();
                    store.charge_each(&sets.iter().collect::<Vec<_>>()).await
                }
            };
            (owned, answers)
        })
    }

    async fn charge_all(&self, sets: &[&ChargeSet<'_>]) -> Answer<Vec<Answer<Outcome>>> {
        let _place = self.enter()?;
        let (budget, life) = (self.budget_of(sets), self.store.life());
        let mut charging = self.charging(sets);
        match within(&self.runtime, budget, charging.as_mut()).await {
            Some((_, answers)) => {
                let counted = answers.into_iter().map(|answer| self.counted(answer));
                Ok(counted.collect())
            }
            None => {
                self.wait_on(charging, life);
                self.counted(Err(away(Away::Late, budget)))
            }
        }
    }

    /// Waits on for answers that nobody else waits for, and gives back what they charged.
    fn wait_on(&self, mut charging: Charging, life: Option<Life>) {
        let Some(place) = self.late.enter() else {
            return; // it stays charged, which refuses too much rather than too little
        };
        let (store, runtime) = (Arc::clone(&self.store), self.runtime.clone());
        self.runtime.spawn(async move {
            let charged = within(&runtime, LATE, charging.as_mut()).await;
            let (sets, answers) = charged.unwrap_or_default();
            for (set, answer) in sets.iter().zip(answers) {
                // A store that has lost the charge must not give it back.
                if let Ok(outcome) = answer
                    && outcome.admitted
                    && store.life() == life
                {
                    let id = u128::from(runtime.random()) << 64 | u128::from(runtime.random());
                    let refund = refund_of(id, set, &outcome);
                    let refunding = pin!(store.refund(&refund));
                    // Lost or not, it is not sent again.
                    let _lost_or_done = within(&runtime, LATE, refunding).await;
                }
            }
            drop(place);
        });
    }
}

fn refund_of<'a>(id: u128, set: &'a OwnedSet, outcome: &Outcome) -> Refund<'a> {
    let mut charged = set.set();
    let mut readings = outcome.readings.iter();
    let allowed = |_: &mut Charge<'_>| readings.next().is_some_and(|r| r.verdict.allows());
    charged.charges.retain(allowed);
    let resets = outcome.readings.iter().map(|r| r.figures.reset_after);
    Refund {
        id,
        charged: outcome.at,
        until: outcome.at.plus(resets.max().unwrap_or(Nanos::ZERO)),
        set: charged,
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Store for Guard<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let mut answers = self.charge_all(&[set]).await?;
        let answer = answers.pop();
        answer.unwrap_or_else(|| Err(away(Away::Silent, Nanos::ZERO)))
    }

    /// One deadline for all of them.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        match self.charge_all(sets).await {
            Ok(answers) => answers,
            Err(StoreError::Unavailable { waited, .. }) => {
                let late = |_: &&ChargeSet<'_>| Err(away(Away::Late, waited));
                sets.iter().map(late).collect()
            }
            Err(refused) => vec![Err(refused)],
        }
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.call(self.store.peek(set)).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let budget = self.budget_of(&[&refund.set]).max(self.budget);
        self.call_within(budget, self.store.refund(refund)).await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.call(self.store.grant(charge)).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let budget = self.budget_of(&[set]).max(self.budget);
        self.call_within(budget, self.store.force(set)).await
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.call(self.store.seed(seeds)).await
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.call(self.store.hold(hold)).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.call(self.store.release(hold)).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.call(self.store.inspect(set)).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        self.call(self.store.reset(set)).await
    }
}
