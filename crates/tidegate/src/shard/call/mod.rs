//! Deadline, bulkhead and breaker around a store: callers get a reply or an error in time.
//!
//! A call waits no longer than its budget. The caller of a charge whose reply is late receives a [`LateReply`],
//! decides without the store and awaits the reply in the background. Every other late call is abandoned. Lateness
//! does not reach the breaker. While the breaker is open only pings are sent.

pub(crate) mod breaker;
pub(crate) mod bulkhead;
pub(crate) mod deadline;
pub(crate) mod failure_counts;
mod in_flight;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tidegate_core::store::{
    ChargeSet, Epoch, FailureCause, FailureKind, HashSlot, Heartbeat, Outcome, Probe, Reserve, Store, StoreError,
    StoreResult, StoreStatus,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;
use crate::shard::call::bulkhead::Bulkhead;
use crate::shard::call::deadline::{Budgets, max_wait_of, within};
use crate::shard::call::in_flight::{CallBlockedError, CallInFlight, InFlight};
use crate::shard::event::Watcher;
use crate::shard::owned_charge::{OwnedCharge, OwnedSet};
use crate::shard::refund::{ChargeKind, refund_of, refund_units, settle_as_unused};
use crate::shard::settings::ResilienceSettings;

/// How long a late reply is awaited. After that it counts as lost.
pub(crate) const LATE_REPLY_TIMEOUT: Nanos = Nanos::from_secs(60);

/// How long the reply to a write-back, a restore or a draw is awaited.
const BACKGROUND_TIMEOUT: Nanos = Nanos::from_secs(1);

/// How long a late ping is awaited.
const LATE_PING_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Why a store was not called, or did not reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum StoreCallError {
    #[error("the breaker is open")]
    BreakerOpen,
    #[error("too many calls are in flight")]
    BulkheadFull,
    #[error(
        "the store did not reply within the budget; if this lasts, find out what slows it down or raise \
         `--store-budget`"
    )]
    Timeout,
    #[error("no time is left for a call to the store")]
    NoTime,
    #[error("no shard serves this counter")]
    NoStore,
    #[error("the store may have lost counts")]
    Untrusted,
}

impl From<CallBlockedError> for StoreCallError {
    fn from(error: CallBlockedError) -> Self {
        match error {
            CallBlockedError::BreakerOpen => StoreCallError::BreakerOpen,
            CallBlockedError::BulkheadFull => StoreCallError::BulkheadFull,
        }
    }
}

impl From<StoreCallError> for StoreError {
    fn from(error: StoreCallError) -> Self {
        unavailable(error, Nanos::ZERO)
    }
}

fn unavailable(error: StoreCallError, waited: Nanos) -> StoreError {
    StoreError::Unavailable { waited, source: Box::new(error) }
}

/// The error of calls that need a store that has lost nothing.
pub(crate) fn untrusted() -> StoreError {
    unavailable(StoreCallError::Untrusted, Nanos::ZERO)
}

/// A store that replies in time or not at all.
pub(crate) struct StoreGuard<S, R> {
    /// `None`: there is no store to call.
    store: Option<Arc<S>>,
    runtime: R,
    calls: Arc<InFlight>,
    /// Refunds in the background.
    refunds: Bulkhead,
    pub(crate) budgets: Budgets,
    /// How long a ping may take before it is late.
    ping_timeout: Nanos,
}

/// Charges in flight that do not borrow from their request.
type ChargeFuture = Pin<Box<dyn Future<Output = Vec<StoreResult<Outcome>>> + Send>>;

/// The result of a charge that was sent.
pub(crate) enum ChargeReply {
    /// One reply per set, in order.
    InTime(Vec<StoreResult<Outcome>>),
    /// The budget has passed without a reply.
    Late(LateReply),
}

/// A charge in flight whose reply is late.
pub(crate) struct LateReply {
    charging: ChargeFuture,
    call: CallInFlight,
    /// The store's epoch before the charge.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) sent: Nanos,
}

/// The result of a ping.
pub(crate) enum PingReply {
    InTime(StoreStatus),
    Late(LatePing),
    Failed,
}

/// A ping that is still in flight.
pub(crate) struct LatePing {
    pinging: Pin<Box<dyn Future<Output = StoreResult<StoreStatus>> + Send>>,
    call: CallInFlight,
}

impl<S: Store + Probe + 'static, R: Runtime> StoreGuard<S, R> {
    pub(crate) fn new(store: Option<S>, runtime: R, settings: &ResilienceSettings, watcher: Watcher) -> Self {
        StoreGuard {
            store: store.map(Arc::new),
            runtime,
            calls: InFlight::new(settings, watcher),
            refunds: Bulkhead::new(settings.max_in_flight),
            ping_timeout: settings.ping_interval.max(settings.budget),
            budgets: Budgets::of(settings),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.calls.is_open()
    }

    /// When the breaker last closed; zero if it never opened.
    pub(crate) fn closed_at(&self) -> Nanos {
        self.calls.closed_at()
    }

    /// The hash slot of a subject, if this store holds it.
    pub(crate) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        self.store.as_ref()?.hash_slot(subject)
    }

    /// The epoch of the latest replies.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.store.as_ref()?.epoch()
    }

    /// The hash slots that have moved to the store since the last call of this method, and may be incomplete.
    pub(crate) fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        let store = self.store.as_ref();
        store.map(|store| store.take_incomplete_hash_slots()).unwrap_or_default()
    }

    fn store(&self) -> Result<&Arc<S>, StoreCallError> {
        self.store.as_ref().ok_or(StoreCallError::NoStore)
    }

    /// Sends a heartbeat. The only call that passes an open breaker.
    pub(crate) async fn ping(&self, heartbeat: Heartbeat) -> PingReply {
        let Ok(store) = self.store() else {
            return PingReply::Failed;
        };
        let now = self.runtime.now();
        self.calls.check_silence(now);
        let (store, call) = (Arc::clone(store), self.calls.ping(now));
        let mut ping = LatePing { pinging: Box::pin(async move { store.heartbeat(heartbeat).await }), call };
        match within(&self.runtime, self.ping_timeout, ping.pinging.as_mut()).await {
            Some(reply) => self.report_ping(ping.call, reply).map_or(PingReply::Failed, PingReply::InTime),
            None => {
                self.calls.ping_missed(self.runtime.now());
                PingReply::Late(ping)
            }
        }
    }

    /// Awaits a late ping.
    pub(crate) async fn await_late_ping(&self, mut ping: LatePing) -> Option<StoreStatus> {
        let reply = within(&self.runtime, LATE_PING_TIMEOUT, ping.pinging.as_mut()).await?;
        self.report_ping(ping.call, reply)
    }

    fn report_ping(&self, call: CallInFlight, reply: StoreResult<StoreStatus>) -> Option<StoreStatus> {
        self.report(call, &reply);
        reply.ok()
    }

    fn enter(&self) -> Result<CallInFlight, StoreCallError> {
        Ok(self.calls.enter(self.runtime.now())?)
    }

    /// Reports how a call ended. A client library that stops waiting proves nothing about the store.
    fn report<T>(&self, call: CallInFlight, reply: &StoreResult<T>) {
        let now = self.runtime.now();
        match reply {
            Err(error) if error.is_not_joined() => call.unsent(),
            Err(error) if !error.is_unacknowledged() => {
                let cause = self.cause(error);
                match cause.kind {
                    FailureKind::Timeout => self.abandon(call),
                    FailureKind::Record if !call.is_ping() => call.record_rejected(now, cause),
                    _ => call.failed(now, cause),
                }
            }
            Ok(_) | Err(_) => call.replied(now),
        }
    }

    /// Drops a call whose reply is no longer awaited.
    fn abandon(&self, call: CallInFlight) {
        drop(call);
        self.calls.check_silence(self.runtime.now());
    }

    /// Whether the store is up and cannot use one of its records.
    pub(crate) fn is_record_error(&self, error: &StoreError) -> bool {
        self.cause(error).kind == FailureKind::Record
    }

    /// The cause of a failure, as the store classifies it.
    fn cause(&self, error: &StoreError) -> FailureCause {
        match &self.store {
            Some(store) => store.failure_cause(error),
            None => FailureCause::of(error),
        }
    }

    /// Makes one call. Waits for its reply until `until`, and no longer than `budget`.
    pub(crate) async fn call<'s, T, F>(
        &'s self,
        until: Nanos,
        budget: Nanos,
        operation: impl FnOnce(&'s S) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let reply = pin!(operation(self.store()?));
        let remains = self.remaining_time(until, budget)?;
        let in_flight = self.enter()?;
        let Some(reply) = within(&self.runtime, remains, reply).await else {
            self.abandon(in_flight);
            return Err(unavailable(StoreCallError::Timeout, remains));
        };
        self.report(in_flight, &reply);
        reply
    }

    /// A call that follows the decision on `set`.
    pub(crate) async fn follow_up<'s, T, F>(
        &'s self,
        set: &ChargeSet<'_>,
        operation: impl FnOnce(&'s S) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let own = set.charges.iter().filter_map(|charge| charge.options.budget);
        let until = self.deadline_of(Nanos::MAX, &[set]);
        self.call(until, self.budgets.follow_up(own.max()), operation).await
    }

    /// A call that no decision waits for, so its deadline is longer: a write-back whose reply is taken for lost is
    /// charged once more, and units of a draw whose reply is lost stay charged.
    pub(crate) async fn background<'s, T, F>(&'s self, operation: impl FnOnce(&'s S) -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        self.call(Nanos::MAX, BACKGROUND_TIMEOUT, operation).await
    }

    /// Whether counters have moved away from this store: their absence is no failure of the store.
    fn has_moved(&self, set: &ChargeSet<'_>) -> bool {
        let mut charges = set.charges.iter();
        charges.any(|charge| self.hash_slot(charge.subject).is_none())
    }

    /// What remains of a budget until `until`; an error if nothing does.
    fn remaining_time(&self, until: Nanos, budget: Nanos) -> Result<Nanos, StoreCallError> {
        match until.since(self.runtime.now()).min(budget) {
            Nanos::ZERO if budget > Nanos::ZERO => Err(StoreCallError::NoTime),
            remains => Ok(remains),
        }
    }

    /// When the decision on `sets` is due: `until`, or sooner if a caller stops waiting sooner.
    pub(crate) fn deadline_of(&self, until: Nanos, sets: &[&ChargeSet<'_>]) -> Nanos {
        let max_wait = max_wait_of(sets);
        if max_wait == Nanos::MAX {
            return until;
        }
        until.min(self.runtime.now().plus(max_wait))
    }

    /// Charges sets with a future that outlives the request.
    fn charge_future(&self, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Result<ChargeFuture, StoreCallError> {
        let store = Arc::clone(self.store()?);
        let owned: Vec<OwnedSet> = sets.iter().map(|set| OwnedSet::of(set)).collect();
        Ok(Box::pin(async move {
            match (owned.as_slice(), kind) {
                ([only], ChargeKind::Charge) => vec![store.charge(&only.set()).await],
                ([only], ChargeKind::Reserve { id, ttl }) => {
                    let set = only.set();
                    vec![store.reserve(&Reserve { id, ttl, set }).await]
                }
                (several, _) => {
                    let sets: Vec<ChargeSet<'_>> = several.iter().map(OwnedSet::set).collect();
                    store.charge_each(&sets.iter().collect::<Vec<_>>()).await
                }
            }
        }))
    }

    /// Charges sets with one deadline for all of them, which is not after `until`.
    ///
    /// Dropped before the reply, what was sent stays charged, which denies too much rather than too little. The
    /// breaker counts the call as abandoned.
    pub(crate) async fn charge_all(
        &self,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        kind: ChargeKind,
    ) -> Result<ChargeReply, StoreCallError> {
        let sent = self.runtime.now();
        let remains = self.remaining_time(self.deadline_of(until, sets), self.budgets.of_sets(sets, kind))?;
        let mut late =
            LateReply { charging: self.charge_future(sets, kind)?, call: self.enter()?, epoch: self.epoch(), sent };
        match within(&self.runtime, remains, late.charging.as_mut()).await {
            Some(replies) => {
                self.report_all(late.call, sets, &replies);
                Ok(ChargeReply::InTime(replies))
            }
            None => {
                self.calls.check_silence(self.runtime.now());
                Ok(ChargeReply::Late(late))
            }
        }
    }

    /// Awaits late replies to `sets`: one per set, in order, or none if they are lost.
    pub(crate) async fn await_late_replies(
        &self,
        mut late: LateReply,
        sets: &[ChargeSet<'_>],
    ) -> Vec<StoreResult<Outcome>> {
        let Some(replies) = within(&self.runtime, LATE_REPLY_TIMEOUT, late.charging.as_mut()).await else {
            return Vec::new();
        };
        let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
        self.report_all(late.call, &sets, &replies);
        replies
    }

    /// Reports one call that charged several sets. It failed if all of them failed.
    fn report_all(&self, call: CallInFlight, sets: &[&ChargeSet<'_>], replies: &[StoreResult<Outcome>]) {
        let own = || {
            let pairs = sets.iter().zip(replies);
            pairs.filter(|(set, reply)| reply.is_ok() || !self.has_moved(set))
        };
        let replied = own().find(|(_, reply)| reply.is_ok());
        match replied.or_else(|| own().next()) {
            Some((_, reply)) => self.report(call, reply),
            None => drop(call),
        }
    }

    /// Refunds a charge in the background because another shard denied the request. Units that cannot be refunded
    /// stay charged. `epoch` is the store's epoch before the charge: in another epoch the charge is lost and must
    /// not be refunded.
    pub(crate) fn refund_in_background(
        &self,
        set: &ChargeSet<'_>,
        outcome: Outcome,
        epoch: Option<Epoch>,
        kind: ChargeKind,
    ) {
        let set = OwnedSet::of(set);
        self.in_background(epoch, async move |store, runtime| match kind {
            ChargeKind::Charge => {
                let refund = refund_of(&runtime, set.set(), &outcome);
                let _lost_or_done = within(&runtime, LATE_REPLY_TIMEOUT, pin!(store.refund(&refund))).await;
            }
            ChargeKind::Reserve { id, ttl } => {
                let settle = settle_as_unused(id, ttl, set.set(), &outcome);
                let _lost_or_done = within(&runtime, LATE_REPLY_TIMEOUT, pin!(store.settle(&settle))).await;
            }
        });
    }

    /// Refunds units that the store counts since `charged`, in the background and once.
    pub(crate) fn refund_units(&self, charge: OwnedCharge, charged: Nanos, epoch: Option<Epoch>) {
        let set = OwnedSet::of_one(charge);
        self.in_background(epoch, async move |store, runtime| {
            let refund = refund_units(&runtime, set.set(), charged);
            let _lost_or_done = within(&runtime, LATE_REPLY_TIMEOUT, pin!(store.refund(&refund))).await;
        });
    }

    /// Spawns a call that is sent once, lost or not. If the epoch has changed it is not sent at all.
    fn in_background<F>(&self, epoch: Option<Epoch>, task: impl FnOnce(Arc<S>, R) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.is_open() {
            return;
        }
        let (Some(permit), Some(store)) = (self.refunds.enter(), self.store.clone()) else {
            return; // it stays charged, which denies too much rather than too little
        };
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            if store.epoch() == epoch {
                task(store, runtime).await;
            }
            drop(permit);
        });
    }
}
