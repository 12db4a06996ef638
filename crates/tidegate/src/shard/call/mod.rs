//! Calls to one shard. A deadline, a bulkhead and the breaker are around each call that a decision or a verb makes.
//!
//! A call waits no longer than its budget. A charge is a [`SentCharge`]: when its reply is late it is decided without
//! the store, and the reply is awaited in the background. Every other late call is abandoned. To the breaker a late
//! call is neither a reply nor a failure, only a part of its silence. While the breaker is open only pings are sent: they
//! pass the breaker and have no place in the bulkhead. Refunds in the background have a bulkhead of their own, and the
//! breaker does not count them.

pub(crate) mod breaker;
pub(crate) mod deadline;
pub(crate) mod failure_counts;
pub(crate) mod in_flight;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tidegate_core::store::{
    ChargeSet, Epoch, FailureCause, FailureKind, HashSlot, Outcome, Probe, Refund, Reserve, Store, StoreError,
    StoreResult,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use crate::owned_charge::{OwnedCharge, OwnedSet};
use crate::runtime::{InFlightGuard, Runtime, random_id, within};
use crate::shard::call::deadline::max_wait_of;
use crate::shard::call::in_flight::CallInFlight;
use crate::shard::refund::{ChargeKind, refund_of, settle_as_unused};
use crate::shard::shared_shard::{RequestStamp, SharedShard};

/// The maximum time for which a late reply is awaited. After that it counts as lost. The reply timeout of a connection
/// is shorter and usually ends the wait.
pub(crate) const LATE_REPLY_TIMEOUT: Nanos = Nanos::from_secs(60);

/// How long the reply to a write-back, a restore or a draw is awaited. No decision waits for these, so it is longer than
/// any budget: a write-back whose reply is taken for lost is charged once more, and units of a draw whose reply is lost
/// stay charged.
pub(crate) const BACKGROUND_TIMEOUT: Nanos = Nanos::from_secs(1);

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

/// Charges in flight that do not borrow from their request: one reply per set, in order.
type ChargeFuture = Pin<Box<dyn Future<Output = Vec<StoreResult<Outcome>>> + Send>>;

/// A charge that was sent, and whose reply is in time or late.
pub(crate) struct SentCharge {
    pub(crate) charging: ChargeFuture,
    pub(crate) call: CallInFlight,
    pub(crate) stamp: RequestStamp,
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Whether the breaker is open.
    pub(crate) fn breaker_is_open(&self) -> bool {
        self.calls.breaker_is_open()
    }

    /// The hash slot of a subject, if this shard holds it.
    pub(crate) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        self.store.as_ref()?.hash_slot(subject)
    }

    pub(crate) fn holds(&self, subject: Fingerprint) -> bool {
        self.hash_slot(subject).is_some()
    }

    /// The epoch of the latest replies.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.store.as_ref()?.epoch()
    }

    fn store(&self) -> Result<&Arc<S>, StoreCallError> {
        self.store.as_ref().ok_or(StoreCallError::NoStore)
    }

    fn enter(&self, sets: usize) -> Result<CallInFlight, StoreCallError> {
        self.calls.enter(self.runtime.now(), sets)
    }

    /// Reports how a call ended. A client library that stops waiting proves nothing about the store.
    pub(crate) fn report<T>(&self, call: CallInFlight, reply: &StoreResult<T>) {
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
        self.store.as_ref().map_or_else(|| FailureCause::of(error), |store| store.failure_cause(error))
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
        let in_flight = self.enter(1)?;
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
        self.call(until, self.settings.follow_up_wait(own.max()), operation).await
    }

    /// Whether counters have moved away from this store: their absence is no failure of the store.
    fn has_moved(&self, set: &ChargeSet<'_>) -> bool {
        set.charges.iter().any(|charge| !self.holds(charge.subject))
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
        if max_wait == Nanos::MAX { until } else { until.min(self.runtime.now().plus(max_wait)) }
    }

    /// Charges sets with a future that outlives the request.
    fn charge_future(&self, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Result<ChargeFuture, StoreCallError> {
        let store = Arc::clone(self.store()?);
        let owned: Vec<OwnedSet> = sets.iter().map(|set| OwnedSet::of(set)).collect();
        Ok(Box::pin(async move {
            match (kind, owned.as_slice()) {
                (ChargeKind::Reserve { id, ttl }, sets) => {
                    let mut replies = Vec::with_capacity(sets.len());
                    for set in sets {
                        replies.push(store.reserve(&Reserve { id, ttl, set: set.set() }).await);
                    }
                    replies
                }
                (ChargeKind::Charge, [only]) => vec![store.charge(&only.set()).await],
                (ChargeKind::Charge, several) => {
                    let sets: Vec<ChargeSet<'_>> = several.iter().map(OwnedSet::set).collect();
                    store.charge_each(&sets.iter().collect::<Vec<_>>()).await
                }
            }
        }))
    }

    /// Charges sets with one deadline for all of them, which is not after `until`. Returns how long to wait for the reply.
    ///
    /// Dropped before the reply, what was sent stays charged, which denies too much rather than too little. The
    /// breaker counts the call as abandoned.
    pub(crate) fn send_charges(
        &self,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        kind: ChargeKind,
    ) -> Result<(SentCharge, Nanos), StoreCallError> {
        let stamp = self.sent_now();
        let remains = self.remaining_time(self.deadline_of(until, sets), self.settings.budget_of(sets, kind))?;
        Ok((SentCharge { charging: self.charge_future(sets, kind)?, call: self.enter(sets.len())?, stamp }, remains))
    }

    /// Awaits late replies to `sets`: one per set, in order, or none if they are lost.
    pub(crate) async fn await_late_replies(
        &self,
        mut sent: SentCharge,
        sets: &[&ChargeSet<'_>],
    ) -> Vec<StoreResult<Outcome>> {
        let Some(replies) = within(&self.runtime, LATE_REPLY_TIMEOUT, sent.charging.as_mut()).await else {
            return Vec::new();
        };
        self.report_all(sent.call, sets, &replies);
        replies
    }

    /// Reports one call that charged several sets. It failed if all of them failed.
    pub(crate) fn report_all(&self, call: CallInFlight, sets: &[&ChargeSet<'_>], replies: &[StoreResult<Outcome>]) {
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
        self.spawn_once(epoch, async move |store, runtime| match kind {
            ChargeKind::Charge => drop(store.refund(&refund_of(random_id(&runtime), set.set(), &outcome)).await),
            ChargeKind::Reserve { id, ttl } => {
                drop(store.settle(&settle_as_unused(id, ttl, set.set(), &outcome)).await)
            }
        });
    }

    /// Refunds units that the store counts since `charged_at`, in the background and once.
    pub(crate) fn refund_units(&self, charge: OwnedCharge, charged_at: Nanos, epoch: Option<Epoch>) {
        let expires_at = charged_at.plus(LATE_REPLY_TIMEOUT);
        self.spawn_once(epoch, async move |store, runtime| {
            let (id, set) = (random_id(&runtime), ChargeSet::of_one(charge.charge()));
            drop(store.refund(&Refund { id, charged_at, expires_at, set }).await);
        });
    }

    /// Spawns a call that is sent once, lost or not: nothing depends on its reply. If the epoch has changed it is not
    /// sent at all.
    fn spawn_once<F>(&self, epoch: Option<Epoch>, call: impl FnOnce(Arc<S>, R) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.breaker_is_open() {
            return;
        }
        let in_flight = InFlightGuard::begin_below(self.settings.max_in_flight, 1, &self.refunds_in_flight);
        let (Some(in_flight), Some(store)) = (in_flight, self.store.clone()) else {
            return; // it stays charged, which denies too much rather than too little
        };
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            if store.epoch() == epoch {
                within(&runtime, LATE_REPLY_TIMEOUT, pin!(call(store, runtime.clone()))).await;
            }
            drop(in_flight);
        });
    }
}
