//! A store that always decides: exactly while the store behind it is trusted, by this node's share otherwise.
//!
//! One charge takes one of four ways. The reply is in time: it decides, and if it denies, credits may pay. The reply is
//! late: the newest state decides (`Source::Late`) and the reply is awaited. No time or no room is left for a call: the
//! newest state decides and the units are pending at once. The store is not trusted, the breaker is open, the call
//! fails, or the counter has units to write back: the share decides (`Source::Fallback`).
//!
//! Bounds: without the store all nodes together admit at most the share of each limit. Where an outage begins or
//! ends, a window may hold exactly admitted units as well. The share decides for a counter with pending units until
//! the store has charged them.

use std::sync::Arc;

use smallvec::smallvec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Degraded, Epoch, HashSlot, Inspection, LeaseReply, LimitReading, NodeId,
    OnStoreFailure, Outcome, PermitReply, PermitRequest, Permits, Probe, Refund, Refunded, ReservationState,
    Reservations, Reserve, Restore, Role, Settle, Settled, Source, Store, StoreError, StoreResult,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::clock_watch::ClockReading;
use super::event::Watcher;
use super::guard::{ChargeReply, LATE_REPLY_TIMEOUT, LateReply, StoreCallError, untrusted};
use super::late::{LateId, Payment, Payments};
use super::local_fallback::permit_share;
use super::node_state::NodeState;
use super::owned_charge::{OwnedCharge, OwnedSet};
use super::refund::{ChargeKind, Readings, readings_before, refund_of, settle_as_unused};
use super::settings::ResilienceSettings;
use super::supervisor::{OutstandingRequest, RequestStamp, ShardSupervisor};
use crate::runtime::Runtime;

/// A decision, and what is outstanding of it.
pub(super) struct FallbackDecision {
    pub(super) outcome: Outcome,
    late: LateTicket,
}

enum LateTicket {
    None,
    /// The reply is outstanding.
    Outstanding(LateId),
    /// The request was not sent. How its charges were paid for.
    Unsent(Payments),
}

impl From<Outcome> for FallbackDecision {
    fn from(outcome: Outcome) -> Self {
        FallbackDecision { outcome, late: LateTicket::None }
    }
}

/// A store and its fallback. Clones share their state.
pub struct FallbackStore<S, R> {
    supervisor: Arc<ShardSupervisor<S, R>>,
}

impl<S, R> Clone for FallbackStore<S, R> {
    fn clone(&self) -> Self {
        FallbackStore { supervisor: Arc::clone(&self.supervisor) }
    }
}

impl<S: Store + Probe + 'static, R: Runtime> FallbackStore<S, R> {
    /// A fallback for `store`, as the node `me`. Starts without the store.
    pub fn new(store: S, runtime: R, me: NodeId, settings: ResilienceSettings, watcher: Watcher) -> Self {
        // The wall clock has to do until the store reports its time.
        let wall = runtime.wall();
        let node_state = Arc::new(NodeState::new(wall, &settings));
        FallbackStore::with_shared_state(store, node_state, runtime, me, wall, settings, watcher)
    }

    /// A fallback for one shard of several, which share `node_state`.
    pub(super) fn with_shared_state(
        store: S,
        node_state: Arc<NodeState>,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: ResilienceSettings,
        watcher: Watcher,
    ) -> Self {
        let supervisor = ShardSupervisor::new(Some(store), node_state, runtime, me, wall, settings, watcher);
        supervisor.start();
        FallbackStore { supervisor }
    }

    /// A fallback without any store behind it.
    pub(super) fn without_store(
        node_state: Arc<NodeState>,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: ResilienceSettings,
    ) -> Self {
        let no_watcher = Arc::new(|_| {});
        FallbackStore { supervisor: ShardSupervisor::new(None, node_state, runtime, me, wall, settings, no_watcher) }
    }

    /// The hash slot of a subject, if this store holds it.
    pub(super) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        self.supervisor.guard.hash_slot(subject)
    }

    /// The store's present epoch.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.supervisor.guard.epoch()
    }

    /// The store's epoch while it is trusted about the counter of `charge`, `None` otherwise. A store that reports no
    /// epoch has a constant one.
    pub(super) fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch> {
        let trusted = !self.supervisor.decides_locally(&ChargeSet::of_one(charge.clone()));
        trusted.then(|| self.epoch().unwrap_or(Epoch(0)))
    }

    /// Whether the store is reachable and trusted to hold every count.
    pub(super) fn is_exact(&self) -> bool {
        self.supervisor.is_exact() && !self.supervisor.guard.is_open()
    }

    /// Counters have moved to this store that it may never have held.
    pub(super) fn mark_counts_missing(&self) {
        self.supervisor.mark_counts_missing();
    }

    /// The store's time, as this node estimates it.
    pub(super) fn store_time(&self) -> Nanos {
        self.supervisor.store_time()
    }

    /// The members as last listed, to be saved for the next start; none until the list is complete.
    pub fn members(&self) -> Vec<NodeId> {
        self.supervisor.members()
    }

    /// The offset between the store's clock and this node's, once there was a reply.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.supervisor.clock_reading()
    }

    /// Charges a set. Decides without the store if the reply is not in time or cannot be by `until`.
    pub(super) async fn charge_with_deadline(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
        kind: ChargeKind,
    ) -> FallbackDecision {
        if self.supervisor.decides_locally(set) {
            return self.decide_locally(set, kind).into();
        }
        let decided = self.charge_all(until, &[set], kind).await.pop();
        decided.unwrap_or_else(|| self.decide_locally(set, kind).into())
    }

    /// Charges sets for which the store decides, each independently.
    async fn charge_all(&self, until: Nanos, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Vec<FallbackDecision> {
        let supervisor = &self.supervisor;
        let sent = supervisor.sent_now();
        match supervisor.guard.charge_all(until, sets, kind).await {
            Ok(ChargeReply::InTime(replies)) => {
                let mut replies = replies.into_iter();
                let decided = sets.iter().map(|set| self.decide_in_time(set, replies.next(), sent, kind));
                decided.collect()
            }
            Ok(ChargeReply::Late(late)) => self.decide_late(sets, late, kind),
            Err(StoreCallError::BulkheadFull | StoreCallError::NoTime) if supervisor.is_exact() => {
                let decided = sets.iter().map(|set| self.decide_unsent(set, kind));
                decided.collect()
            }
            Err(_) => {
                let decided = sets.iter().map(|set| self.decide_locally(set, kind));
                decided.map(FallbackDecision::from).collect()
            }
        }
    }

    /// The reply is in time: it decides, and if it denies, credits may pay.
    fn decide_in_time(
        &self,
        set: &ChargeSet<'_>,
        reply: Option<StoreResult<Outcome>>,
        sent: RequestStamp,
        kind: ChargeKind,
    ) -> FallbackDecision {
        let supervisor = &self.supervisor;
        let was_sent = reply.as_ref().is_some_and(was_sent);
        let outcome = reply.and_then(Result::ok);
        let outcome = outcome.filter(|outcome| supervisor.still_trusts_reply(set, outcome, sent));
        let Some(mut outcome) = outcome else {
            if was_sent {
                supervisor.report_unconfirmed(set);
            }
            return self.decide_locally(set, kind).into();
        };
        if !outcome.admitted && kind == ChargeKind::Charge && supervisor.pays_by_credits(set) {
            outcome.admitted = true;
            outcome.source = Source::Late;
            for (charge, reading) in set.charges.iter().zip(&mut outcome.readings) {
                if charge.role != Role::Shadow && !reading.verdict.allows() {
                    reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                }
            }
        }
        outcome.into()
    }

    /// The replies are late: the newest states decide, and a task awaits the replies.
    fn decide_late(&self, sets: &[&ChargeSet<'_>], late: LateReply, kind: ChargeKind) -> Vec<FallbackDecision> {
        let supervisor = &self.supervisor;
        let trusted = supervisor.is_exact() && !supervisor.guard.is_open();
        let mut requests = Vec::with_capacity(sets.len());
        let decided = sets.iter().map(|set| {
            let unpaid = || set.charges.iter().map(|_| Payment::None).collect();
            let (mut decided, payments) = match kind {
                _ if !trusted => (self.decide_locally(set, kind).into(), unpaid()),
                ChargeKind::Charge => {
                    let (outcome, payments) = supervisor.decide_late(set);
                    (FallbackDecision::from(outcome), payments)
                }
                // It may be settled before the reply arrives: this node holds it, and what the store reserves is
                // settled with zero used.
                ChargeKind::Reserve { .. } => (self.decide_unsent(set, kind), unpaid()),
            };
            let charges = set.charges.iter().map(OwnedCharge::of);
            let (late, at) = (&supervisor.node_state.late, decided.outcome.at);
            let id = late.update(|ledger| ledger.insert_request(charges, payments, at));
            supervisor.report_unconfirmed(set);
            let set = OwnedSet::of(set);
            requests.push(OutstandingRequest { id, set });
            if trusted && kind == ChargeKind::Charge {
                decided.late = LateTicket::Outstanding(id);
            }
            decided
        });
        let decided = decided.collect();
        supervisor.await_late(late, requests, kind);
        decided
    }

    /// No time or no room is left for a call: decides as if the reply were late. The units are pending at once.
    fn decide_unsent(&self, set: &ChargeSet<'_>, kind: ChargeKind) -> FallbackDecision {
        let supervisor = &self.supervisor;
        let (outcome, payments) = supervisor.decide_late(set);
        if outcome.admitted {
            supervisor.write_back_unsent(set, &payments);
            supervisor.reserve_here(set, &outcome, kind);
        }
        FallbackDecision { outcome, late: LateTicket::Unsent(payments) }
    }

    /// What `charge_with_deadline` would return.
    pub(super) async fn peek_with_deadline(&self, until: Nanos, set: &ChargeSet<'_>) -> Outcome {
        let supervisor = &self.supervisor;
        if !supervisor.decides_locally(set) {
            if let Ok(outcome) = supervisor.guard.peek_with_deadline(until, set).await {
                return outcome;
            }
            if supervisor.is_exact() && !supervisor.guard.is_open() {
                return supervisor.peek_late(set);
            }
        }
        let (node_state, division) = (&supervisor.node_state, |counter| supervisor.division(counter));
        let now = supervisor.store_time();
        node_state.local_fallback.peek(set, division, &node_state.mirror, now)
    }

    /// Refunds a charge wherever it was made, because another shard denied the request. Returns the readings as they
    /// were before it.
    pub(super) fn refund_decided(
        &self,
        set: &ChargeSet<'_>,
        decided: FallbackDecision,
        epoch: Option<Epoch>,
        kind: ChargeKind,
    ) -> Readings {
        let FallbackDecision { outcome, late } = decided;
        match (outcome.source, late) {
            (Source::Late, LateTicket::Outstanding(id)) => self.refund_late(set, id, outcome, epoch, kind),
            (Source::Late, LateTicket::Unsent(payments)) => {
                let (write_back, now) =
                    (&self.supervisor.node_state.local_fallback.write_back, self.supervisor.store_time());
                if let ChargeKind::Reserve { id, ttl } = kind {
                    let settle = settle_as_unused(id, ttl, set.clone(), &outcome);
                    self.supervisor.node_state.reservations.close(&settle);
                }
                for (charge, payment) in set.charges.iter().zip(payments) {
                    if payment == Payment::Share {
                        write_back.cancel(&OwnedCharge::of(charge), now);
                    }
                }
                self.supervisor.peek_late(set).readings
            }
            (Source::Fallback, _) => self.refund_locally(set, &outcome, kind),
            _ => {
                let readings = readings_before(set, &outcome);
                self.supervisor.guard.refund_in_background(set, outcome, epoch, kind);
                readings
            }
        }
    }

    fn refund_late(
        &self,
        set: &ChargeSet<'_>,
        id: LateId,
        outcome: Outcome,
        epoch: Option<Epoch>,
        kind: ChargeKind,
    ) -> Readings {
        let supervisor = &self.supervisor;
        let now = (supervisor.runtime.now(), supervisor.store_time());
        let outstanding = supervisor.node_state.late.update(|ledger| ledger.withdraw(id, now));
        if !outstanding {
            supervisor.guard.refund_in_background(set, outcome, epoch, kind);
        }
        supervisor.peek_late(set).readings
    }

    fn refund_locally(&self, set: &ChargeSet<'_>, outcome: &Outcome, kind: ChargeKind) -> Readings {
        let (supervisor, node_state) = (&self.supervisor, &self.supervisor.node_state);
        if let ChargeKind::Reserve { id, ttl } = kind {
            node_state.reservations.close(&settle_as_unused(id, ttl, set.clone(), outcome));
        }
        let division = |counter| supervisor.division(counter);
        let now = supervisor.store_time();
        let refund = refund_of(&supervisor.runtime, set.clone(), outcome);
        node_state.local_fallback.refund(&refund, division, now);
        let peeked = node_state.local_fallback.peek(set, division, &node_state.mirror, now);
        peeked.readings
    }

    /// Decides by this node's shares, which count unconfirmed units.
    pub(super) fn decide_locally(&self, set: &ChargeSet<'_>, kind: ChargeKind) -> Outcome {
        let (supervisor, node_state) = (&self.supervisor, &self.supervisor.node_state);
        supervisor.count_unconfirmed(set);
        let division = |counter| supervisor.division(counter);
        let (mirror, now) = (&node_state.mirror, supervisor.store_time());
        let outcome = node_state.local_fallback.charge(set, division, mirror, now);
        if outcome.admitted {
            supervisor.schedule_push();
            supervisor.reserve_here(set, &outcome, kind);
        }
        outcome
    }

    /// Corrects a reservation that was admitted without the store: locally while the store does not count it, at the
    /// store once it does. Units whose refund is lost stay charged.
    async fn correct_estimate(&self, settle: &Settle<'_>, found: &[ReservationState]) -> StoreResult<()> {
        let more = settle.extra_charges(found);
        if !more.charges.is_empty() {
            self.force(&more).await?;
        }
        let refundable = settle.refunds(found);
        if !refundable.charges.is_empty() {
            let refund = Refund {
                id: settle.id,
                charged_at: settle.refunds_charged_at(found),
                expires_at: self.store_time().plus(LATE_REPLY_TIMEOUT),
                set: refundable,
            };
            let _lost_or_done = self.refund_estimate(&refund).await;
        }
        Ok(())
    }

    /// Refunds the unused units of a reservation that only this node holds.
    async fn refund_estimate(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let supervisor = &self.supervisor;
        if !supervisor.decides_locally(&refund.set) {
            return supervisor.guard.refund(refund).await;
        }
        let division = |counter| supervisor.division(counter);
        let local = &supervisor.node_state.local_fallback;
        Ok(local.refund(refund, division, supervisor.store_time()))
    }
}

/// A drawn lease as a charge and its outcome.
fn as_charge<'a>(charge: &Charge<'a>, lease: &LeaseReply) -> (ChargeSet<'a>, Outcome) {
    let units = Cost::new(lease.units);
    let set = ChargeSet::of_one(Charge { cost: units.unwrap_or(charge.cost), ..charge.clone() });
    let reading = LimitReading { verdict: Verdict::Allow { delay: Nanos::ZERO }, figures: lease.figures };
    let outcome = Outcome {
        admitted: units.is_some(),
        readings: smallvec![reading],
        snapshots: lease.snapshot.iter().cloned().collect(),
        at: lease.at,
        source: Source::Exact,
        degraded: None,
        clock_stepped: false,
    };
    (set, outcome)
}

/// Whether the store may have executed the call. A call that was rejected at once was not sent: a flood of those
/// must not be recorded.
fn was_sent<T>(reply: &StoreResult<T>) -> bool {
    match reply {
        Ok(_) | Err(StoreError::Rejected { .. }) => true,
        Err(StoreError::Unavailable { waited, .. }) => *waited > Nanos::ZERO,
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Counters for FallbackStore<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let decided = self.charge_with_deadline(Nanos::MAX, set, ChargeKind::Charge).await;
        Ok(decided.outcome)
    }

    /// Charges the sets that need the store in one call.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let supervisor = &self.supervisor;
        let remote: Vec<usize> = (0..sets.len()).filter(|i| !supervisor.decides_locally(sets[*i])).collect();
        let sent: Vec<&ChargeSet<'_>> = remote.iter().map(|i| sets[*i]).collect();
        let mut outcomes: Vec<Option<Outcome>> = sets.iter().map(|_| None).collect();
        if !sent.is_empty() {
            let decided = self.charge_all(Nanos::MAX, &sent, ChargeKind::Charge).await;
            for (i, decided) in remote.into_iter().zip(decided) {
                outcomes[i] = Some(decided.outcome);
            }
        }
        let decided = outcomes.into_iter().zip(sets);
        let decided =
            decided.map(|(outcome, set)| Ok(outcome.unwrap_or_else(|| self.decide_locally(set, ChargeKind::Charge))));
        decided.collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.peek_with_deadline(Nanos::MAX, set).await)
    }

    /// Only the store knows whether an id was refunded before: every node would refund it once. While the store cannot
    /// be called this is an error, and may be sent again.
    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        if self.supervisor.decides_locally(&refund.set) {
            return Err(untrusted());
        }
        self.supervisor.guard.refund(refund).await
    }

    /// Leases are drawn from the store only, never from a share. Their units are in the mirror like any charge, and so
    /// are restored into a store that lost them.
    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        let supervisor = &self.supervisor;
        if supervisor.decides_locally(&ChargeSet::of_one(charge.clone())) {
            return Err(untrusted());
        }
        let sent = supervisor.sent_now();
        let lease = supervisor.guard.draw(charge).await?;
        let (set, outcome) = as_charge(charge, &lease);
        if supervisor.still_trusts_reply(&set, &outcome, sent) { Ok(lease) } else { Err(untrusted()) }
    }

    /// Forced units cannot be denied locally: they are pending until the store can be called.
    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let supervisor = &self.supervisor;
        if !supervisor.decides_locally(set) {
            let sent = supervisor.sent_now();
            let reply = supervisor.guard.force(set).await;
            let was_sent = was_sent(&reply);
            if let Ok(outcome) = reply
                && supervisor.still_trusts_reply(set, &outcome, sent)
            {
                return Ok(outcome);
            }
            if was_sent {
                supervisor.report_unconfirmed(set);
            }
        }
        let division = |counter| supervisor.division(counter);
        let now = supervisor.store_time();
        let outcome = supervisor.node_state.local_fallback.force(set, division, &supervisor.node_state.mirror, now);
        supervisor.schedule_push();
        Ok(outcome)
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.supervisor.guard.restore(restores).await
    }

    /// Local counts are no substitute: a client that has used up its limit would seem to have used nothing.
    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.supervisor.guard.inspect(set).await
    }

    /// Local state is removed only after the store has replied: after an error nothing is lost.
    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let (supervisor, node_state) = (&self.supervisor, &self.supervisor.node_state);
        let in_store = supervisor.guard.reset(set).await?;
        for charge in &set.charges {
            node_state.mirror.forget(charge.counter());
            node_state.permits.forget(charge.counter());
        }
        node_state.reservations.forget(set);
        Ok(in_store.max(node_state.local_fallback.reset(set, supervisor.store_time())))
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Permits for FallbackStore<S, R> {
    /// This node records a permit that the store has granted: it is restored if the store loses it, and counts toward
    /// this node's share while the store is down.
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let (supervisor, permits) = (&self.supervisor, &self.supervisor.node_state.permits);
        let (sent, epoch) = (supervisor.runtime.now(), supervisor.known_epoch());
        let mut was_requested = false;
        if supervisor.may_acquire() {
            let reply = supervisor.guard.acquire(permit).await;
            was_requested = was_sent(&reply);
            if let Ok(permit_reply) = reply
                && supervisor.trusts_permits(epoch)
            {
                if permit_reply.granted {
                    permits.record_acquired(permit, permit_reply.in_use, sent);
                }
                return Ok(permit_reply);
            }
        }
        let share = permit_share(permit, supervisor.division(permit.counter()));
        let mut permit_reply = permits.acquire(permit, share, supervisor.runtime.now());
        if !permit_reply.granted && permit.options.on_failure == OnStoreFailure::Deny {
            permit_reply.degraded = Some(Degraded::DeniedByPolicy { charge: 0 });
        }
        if was_requested && !permit_reply.granted {
            permits.begin_release(permit, supervisor.runtime.now()); // its reply may only be late
        }
        Ok(permit_reply)
    }

    /// Without the store, a permit that this node knows is renewed. For other permits this is an error.
    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let (supervisor, permits) = (&self.supervisor, &self.supervisor.node_state.permits);
        let (sent, epoch) = (supervisor.runtime.now(), supervisor.known_epoch());
        let was_open = permits.is_open(permit, sent);
        let reply = if !supervisor.is_exact() {
            Err(untrusted())
        } else if permits.is_local_only(permit, sent) {
            supervisor.register_permit(permit).await
        } else {
            supervisor.guard.renew(permit).await
        };
        let now = supervisor.runtime.now();
        let trusted = reply.is_ok() && supervisor.trusts_permits(epoch);
        match reply {
            Ok(permit_reply) if trusted => {
                match (permit_reply.granted, was_open && !permits.is_open(permit, now)) {
                    (true, false) => permits.record_acquired(permit, permit_reply.in_use, sent),
                    (true, true) => {} // released in the meantime
                    (false, _) => permits.released(permit),
                }
                Ok(permit_reply)
            }
            Ok(_) => permits.renew(permit, now).ok_or_else(untrusted),
            Err(error) => permits.renew(permit, now).ok_or(error),
        }
    }

    /// Releases a permit wherever it was acquired. If the store cannot be called now, the release is synced later.
    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        let (supervisor, permits) = (&self.supervisor, &self.supervisor.node_state.permits);
        permits.begin_release(permit, supervisor.runtime.now());
        if supervisor.is_exact() && supervisor.guard.release(permit).await.is_ok() {
            permits.released(permit);
        }
        Ok(())
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Reservations for FallbackStore<S, R> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let kind = ChargeKind::of(reserve);
        let decided = self.charge_with_deadline(Nanos::MAX, &reserve.set, kind).await;
        Ok(decided.outcome)
    }

    /// Only the store can settle a reservation that it holds: while it cannot be called this is an error, and may be
    /// sent again.
    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let reserved = &self.supervisor.node_state.reservations;
        if reserved.is_settled(settle) {
            return Ok(Settled::Already);
        }
        let found = reserved.settle(settle, self.store_time());
        if found.iter().all(|reservation| *reservation == ReservationState::Unknown) {
            return self.supervisor.guard.settle(settle).await;
        }
        self.correct_estimate(settle, &found).await?;
        Ok(settle.outcome(&found, self.store_time()))
    }
}
