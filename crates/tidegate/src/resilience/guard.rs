//! Deadline, bulkhead and breaker around a store: callers have a reply or an error in time.
//!
//! A call waits no longer than its budget. A charge whose reply is late is handed on: somebody else waits for
//! the reply, and decides meanwhile. Every other call that is late is given up. Lateness says nothing to the
//! breaker. While the breaker is open only pings are sent.

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

use super::bulkhead::Bulkhead;
use super::deadline::{Budgets, max_wait_of, within};
use super::event::Watcher;
use super::in_flight::{Barred, CallInFlight, InFlight};
use super::owned::{OwnedCharge, OwnedSet};
use super::settings::Settings;
use super::undo::{Manner, refund_of, refund_units, unused};
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// How long a late reply is waited for. Then it counts as lost.
pub(super) const LATE: Nanos = Nanos::from_secs(60);

/// How long the reply to a debt, a seed or a grant is waited for.
const PATIENT: Nanos = Nanos::from_secs(1);

/// How long a late ping is waited for.
const LATE_PING: Nanos = Nanos::from_secs(5);

/// Why a store was not called, or did not reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Away {
    #[error("the breaker is open")]
    Open,
    #[error("too many calls are in flight")]
    Full,
    #[error(
        "the store did not reply within the budget; if this lasts, find out what slows it down or raise \
         `--store-budget`"
    )]
    Late,
    #[error("no time is left for a call")]
    NoTime,
    #[error("there is no store for it")]
    Nowhere,
    #[error("the store may have lost counts")]
    Doubtful,
}

impl From<Barred> for Away {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::Open => Away::Open,
            Barred::Full => Away::Full,
        }
    }
}

impl From<Away> for StoreError {
    fn from(why: Away) -> Self {
        away(why, Nanos::ZERO)
    }
}

fn away(why: Away, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}

/// The answer to whoever needs a store that has lost nothing.
pub(super) fn doubtful() -> StoreError {
    away(Away::Doubtful, Nanos::ZERO)
}

/// A store that replies in time or not at all.
pub(super) struct Guard<S, R> {
    /// Nothing: there is no store to call.
    store: Option<Arc<S>>,
    runtime: R,
    calls: Arc<InFlight>,
    /// Refunds in the background.
    refunds: Bulkhead,
    budgets: Budgets,
    /// How long a ping may take before it is late.
    ping_within: Nanos,
}

/// Charges that go on by themselves.
type Charging = Pin<Box<dyn Future<Output = Vec<Answer<Outcome>>> + Send>>;

/// What came back of a charge that was sent.
pub(super) enum ChargeReply {
    /// One reply per set, in order.
    InTime(Vec<Answer<Outcome>>),
    /// The budget is over and there is no reply.
    Late(LateReply),
}

/// The reply of a charge that is still in flight.
pub(super) struct LateReply {
    charging: Charging,
    call: CallInFlight,
    /// The store's epoch before the charge.
    pub(super) epoch: Option<Life>,
    pub(super) sent: Nanos,
}

/// What came back of a ping.
pub(super) enum PingReply {
    InTime(Vitals),
    Late(LatePing),
    Failed,
}

/// A ping that is still in flight.
pub(super) struct LatePing {
    pinging: Pin<Box<dyn Future<Output = Answer<Vitals>> + Send>>,
    call: CallInFlight,
}

impl<S: Store + Probe + 'static, R: Runtime> Guard<S, R> {
    pub(super) fn new(store: Option<S>, runtime: R, settings: &Settings, watcher: Watcher) -> Self {
        Guard {
            store: store.map(Arc::new),
            runtime,
            calls: InFlight::new(settings, watcher),
            refunds: Bulkhead::new(settings.in_flight),
            ping_within: settings.ping_every.max(settings.budget),
            budgets: Budgets::of(settings),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.calls.is_open()
    }

    /// When the breaker last closed; zero if it never opened.
    pub(super) fn closed_at(&self) -> Nanos {
        self.calls.closed_at()
    }

    /// The slot that a subject is in, if it is in this store.
    pub(super) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        self.store.as_ref()?.slot(subject)
    }

    /// The life the latest answers came from.
    pub(super) fn life(&self) -> Option<Life> {
        self.store.as_ref()?.life()
    }

    /// The slots that have come to the store since this was last called, and may be incomplete.
    pub(super) fn take_lacking(&self) -> Vec<Slot> {
        let store = self.store.as_ref();
        store.map(|store| store.take_lacking()).unwrap_or_default()
    }

    fn store(&self) -> Result<&Arc<S>, Away> {
        self.store.as_ref().ok_or(Away::Nowhere)
    }

    /// Sends a heartbeat. The only call that passes an open breaker.
    pub(super) async fn ping(&self, beat: Beat) -> PingReply {
        let Ok(store) = self.store() else {
            return PingReply::Failed;
        };
        let now = self.runtime.now();
        self.calls.check_silence(now);
        let (store, call) = (Arc::clone(store), self.calls.ping(now));
        let mut ping = LatePing {
            pinging: Box::pin(async move { store.beat(beat).await }),
            call,
        };
        match within(&self.runtime, self.ping_within, ping.pinging.as_mut()).await {
            Some(reply) => self
                .pinged(ping.call, reply)
                .map_or(PingReply::Failed, PingReply::InTime),
            None => {
                self.calls.ping_missed(self.runtime.now());
                PingReply::Late(ping)
            }
        }
    }

    /// Waits on for a late ping.
    pub(super) async fn late_ping(&self, mut ping: LatePing) -> Option<Vitals> {
        let reply = within(&self.runtime, LATE_PING, ping.pinging.as_mut()).await?;
        self.pinged(ping.call, reply)
    }

    fn pinged(&self, call: CallInFlight, reply: Answer<Vitals>) -> Option<Vitals> {
        let now = self.runtime.now();
        match reply {
            Ok(vitals) => {
                call.ping_replied(now);
                Some(vitals)
            }
            Err(error) if error.is_not_joined() => {
                call.unsent();
                None
            }
            Err(error) => {
                let cause = self.cause(&error);
                if cause.kind == FailureKind::Timeout {
                    drop(call);
                } else {
                    call.ping_failed(now, cause);
                }
                None
            }
        }
    }

    fn enter(&self) -> Result<CallInFlight, Away> {
        Ok(self.calls.enter(self.runtime.now())?)
    }

    /// Reports how a call ended. A client library that stops waiting says nothing about the store.
    fn report<T>(&self, call: CallInFlight, answer: &Answer<T>) {
        let now = self.runtime.now();
        match answer {
            Err(error) if error.is_not_joined() => call.unsent(),
            Err(error) if !error.is_unacknowledged() => {
                let cause = self.cause(error);
                match cause.kind {
                    FailureKind::Timeout => self.late(call),
                    FailureKind::Record => call.refused(now, cause),
                    _ => call.failed(now, cause),
                }
            }
            Ok(_) | Err(_) => call.replied(now),
        }
    }

    /// Nobody waits for the reply any more.
    fn late(&self, call: CallInFlight) {
        drop(call);
        self.calls.check_silence(self.runtime.now());
    }

    /// Whether the store serves and cannot use a record.
    pub(super) fn is_refused(&self, error: &StoreError) -> bool {
        self.cause(error).kind == FailureKind::Record
    }

    /// Why a call failed, as the store sees it.
    fn cause(&self, error: &StoreError) -> FailureCause {
        match &self.store {
            Some(store) => store.cause(error),
            None => FailureCause::of(error),
        }
    }

    async fn call_by<T>(
        &self,
        until: Nanos,
        budget: Nanos,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let remains = self.remains(until, budget)?;
        let in_flight = self.enter()?;
        let Some(answer) = within(&self.runtime, remains, pin!(call)).await else {
            self.late(in_flight);
            return Err(away(Away::Late, remains));
        };
        self.report(in_flight, &answer);
        answer
    }

    /// Whether counters have left this store: that it does not have them is no failure of its own.
    fn left(&self, set: &ChargeSet<'_>) -> bool {
        let mut charges = set.charges.iter();
        charges.any(|charge| self.slot(charge.subject).is_none())
    }

    /// What remains of a budget until `until`, if anything.
    fn remains(&self, until: Nanos, budget: Nanos) -> Result<Nanos, Away> {
        match until.since(self.runtime.now()).min(budget) {
            Nanos::ZERO if budget > Nanos::ZERO => Err(Away::NoTime),
            remains => Ok(remains),
        }
    }

    /// What a charge would answer, as long as it is not `until` yet.
    pub(super) async fn peek_by(&self, until: Nanos, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let until = self.until(until, &[set]);
        let peeking = self.store()?.peek(set);
        self.call_by(until, self.budgets.decision, peeking).await
    }

    /// Charges a debt. No decision waits for it, so it has more time than those have: taken for lost,
    /// it would be charged once more.
    pub(super) async fn charge_debt(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.patiently(self.store()?.force(set)).await
    }

    /// A call that follows the decision on `set`.
    async fn follow_up<T>(
        &self,
        set: &ChargeSet<'_>,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let own = set.charges.iter().filter_map(|charge| charge.terms.budget);
        let budget = self.budgets.follow_up(own.max());
        let until = self.until(Nanos::MAX, &[set]);
        self.call_by(until, budget, call).await
    }

    /// Sends something that no decision waits for.
    async fn patiently<T>(&self, call: impl Future<Output = Answer<T>> + Send) -> Answer<T> {
        self.call_by(Nanos::MAX, PATIENT, call).await
    }

    /// When the decision on `sets` must have been made: `until`, or sooner if a caller gives up sooner.
    fn until(&self, until: Nanos, sets: &[&ChargeSet<'_>]) -> Nanos {
        let max_wait = max_wait_of(sets);
        if max_wait == Nanos::MAX {
            return until;
        }
        until.min(self.runtime.now().plus(max_wait))
    }

    /// Charges sets that are waited for even if the request is answered by then.
    fn charging(&self, sets: &[&ChargeSet<'_>], manner: Manner) -> Result<Charging, Away> {
        let store = Arc::clone(self.store()?);
        let owned: Vec<OwnedSet> = sets.iter().map(|set| OwnedSet::of(set)).collect();
        Ok(Box::pin(async move {
            match (owned.as_slice(), manner) {
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
            }
        }))
    }

    /// Charges sets with one deadline for all of them, which is not after `until`.
    ///
    /// Dropped before the reply, what was sent stays charged, which denies too much rather than too little. The
    /// breaker counts the call as abandoned.
    pub(super) async fn charge_all(
        &self,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        manner: Manner,
    ) -> Result<ChargeReply, Away> {
        let sent = self.runtime.now();
        let remains = self.remains(self.until(until, sets), self.budgets.of_sets(sets, manner))?;
        let mut late = LateReply {
            charging: self.charging(sets, manner)?,
            call: self.enter()?,
            epoch: self.life(),
            sent,
        };
        match within(&self.runtime, remains, late.charging.as_mut()).await {
            Some(answers) => {
                self.report_all(late.call, sets, &answers);
                Ok(ChargeReply::InTime(answers))
            }
            None => {
                self.calls.check_silence(self.runtime.now());
                Ok(ChargeReply::Late(late))
            }
        }
    }

    /// Waits on for late replies to `sets`: one per set, in order, or none if they are lost.
    pub(super) async fn late_replies(
        &self,
        mut late: LateReply,
        sets: &[ChargeSet<'_>],
    ) -> Vec<Answer<Outcome>> {
        let Some(answers) = within(&self.runtime, LATE, late.charging.as_mut()).await else {
            return Vec::new();
        };
        let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
        self.report_all(late.call, &sets, &answers);
        answers
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
        let set = OwnedSet::of(set);
        self.in_background(life, async move |store, runtime| match manner {
            Manner::Charge => {
                let refund = refund_of(&runtime, set.set(), &outcome);
                let _lost_or_done = within(&runtime, LATE, pin!(store.refund(&refund))).await;
            }
            Manner::Reserve { id, lasts } => {
                let settle = unused(id, lasts, set.set(), &outcome);
                let _lost_or_done = within(&runtime, LATE, pin!(store.settle(&settle))).await;
            }
        });
    }

    /// Refunds units that the store has counted since `charged`, in the background and once.
    pub(super) fn refund_units(&self, charge: OwnedCharge, charged: Nanos, epoch: Option<Life>) {
        let set = OwnedSet::of_one(charge);
        self.in_background(epoch, async move |store, runtime| {
            let refund = refund_units(&runtime, set.set(), charged);
            let _lost_or_done = within(&runtime, LATE, pin!(store.refund(&refund))).await;
        });
    }

    /// Lost or not, it is not sent again. What belongs to another epoch is not sent at all.
    fn in_background<F>(
        &self,
        epoch: Option<Life>,
        task: impl FnOnce(Arc<S>, R) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.is_open() {
            return;
        }
        let (Some(permit), Some(store)) = (self.refunds.enter(), self.store.clone()) else {
            return; // it stays charged, which refuses too much rather than too little
        };
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            if store.life() == epoch {
                task(store, runtime).await;
            }
            drop(permit);
        });
    }

    pub(super) async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        self.follow_up(&refund.set, self.store()?.refund(refund))
            .await
    }

    /// No decision waits for it, and what is taken for lost stays charged: it has the time that debts have.
    pub(super) async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.patiently(self.store()?.grant(charge)).await
    }

    pub(super) async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let budgets = &self.budgets;
        let budget = budgets.of_sets(&[set], Manner::Charge);
        let until = self.until(Nanos::MAX, &[set]);
        let forcing = self.store()?.force(set);
        self.call_by(until, budget.max(budgets.decision), forcing)
            .await
    }

    pub(super) async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.follow_up(&settle.set, self.store()?.settle(settle))
            .await
    }

    /// No decision waits for it: it has the time that debts have.
    pub(super) async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.patiently(self.store()?.seed(seeds)).await
    }

    pub(super) async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        let budget = hold.terms.budget.unwrap_or(self.budgets.long_work);
        self.call_by(Nanos::MAX, budget, self.store()?.hold(hold))
            .await
    }

    pub(super) async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        let budget = self.budgets.follow_up(hold.terms.budget);
        self.call_by(Nanos::MAX, budget, self.store()?.renew(hold))
            .await
    }

    pub(super) async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        let budget = self.budgets.follow_up(hold.terms.budget);
        self.call_by(Nanos::MAX, budget, self.store()?.release(hold))
            .await
    }

    pub(super) async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        let (budget, call) = (self.budgets.follow_up(None), self.store()?.inspect(set));
        self.call_by(Nanos::MAX, budget, call).await
    }

    pub(super) async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let (budget, call) = (self.budgets.follow_up(None), self.store()?.reset(set));
        self.call_by(Nanos::MAX, budget, call).await
    }
}
