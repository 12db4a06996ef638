//! One node's link to the store. Every message takes time, some are lost, and the node knows only the replies
//! that arrive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::algorithms::{CounterState, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Epoch, HashSlot, Heartbeat, Inspection, LeaseReply, NodeId, Outcome, PermitReply,
    PermitRequest, Permits, Probe, Refund, Refunded, Reservations, Reserve, Restore, Settle, Settled, Source,
    StoreError, StoreResult, StoreStatus,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::cluster::{ModelRedirect, ShardView};
use super::store_log::{OpKind, PermitVerb, ReservationEventKind, StoreLog, StoreOp};
use super::{DecideMode, Model, SharedModel};
use crate::executor::Sim;
use crate::variant::Variant;

/// A connection without a reply is closed after this time.
pub const CONNECTION_TIMEOUT: Nanos = Nanos::from_secs(2);
/// How often calls to a hung store check whether it is still hung.
const HANG_POLL_INTERVAL: Nanos = Nanos::from_millis(20);

/// No process has this number.
const UNCONNECTED: u64 = u64::MAX;

/// A charge that a node sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkCharge {
    /// When it was sent.
    pub at: Nanos,
    /// The node that sent it.
    pub node: usize,
    /// The shard to which it was sent.
    pub shard: usize,
}

/// One node's connection to one store.
#[derive(Clone)]
pub struct ModelLink {
    pub(super) sim: Sim,
    pub(super) model: SharedModel,
    shard: usize,
    /// The position in the cluster; `None` if this is the only store.
    view: Option<ShardView>,
    pub(super) node: usize,
    /// The difference between the node's clock and the store's, for the variant that uses the wrong clock.
    skew: Nanos,
    pub(super) variant: Variant,
    epoch: Arc<AtomicU64>,
    /// The store process to which the link is connected.
    process: Arc<AtomicU64>,
    /// Acknowledged heartbeats.
    heartbeats: Arc<AtomicU64>,
    charges_sent: Arc<Mutex<Vec<LinkCharge>>>,
    /// States that the node has seen, for the variants that misuse them.
    seen: Arc<Mutex<BTreeMap<u128, (Limit, CounterState)>>>,
    /// The log of operations for this node.
    pub(super) log: StoreLog,
    /// One-way latency in addition to that of a store in the same zone.
    extra_latency: Nanos,
}

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("connection refused")]
    ConnectionRefused,
    #[error("connection timed out")]
    TimedOut,
    #[error("{0:?}")]
    Redirect(ModelRedirect),
}

fn unavailable(error: LinkError) -> StoreError {
    StoreError::Unavailable { waited: Nanos::ZERO, source: Box::new(error) }
}

impl ModelLink {
    /// The link of `node` to the store.
    pub fn new(
        sim: &Sim,
        model: &SharedModel,
        node: usize,
        skew: Nanos,
        variant: Variant,
        charges_sent: &Arc<Mutex<Vec<LinkCharge>>>,
    ) -> Self {
        ModelLink {
            sim: sim.clone(),
            model: Arc::clone(model),
            shard: 0,
            view: None,
            node,
            skew,
            variant,
            epoch: Arc::default(),
            process: Arc::new(AtomicU64::new(UNCONNECTED)),
            heartbeats: Arc::default(),
            charges_sent: Arc::clone(charges_sent),
            seen: Arc::default(),
            log: StoreLog::default(),
            extra_latency: Nanos::ZERO,
        }
    }

    /// The same link with `extra_latency`, logged in `log`.
    #[must_use]
    pub fn at_distance(self, extra_latency: Nanos, log: &StoreLog) -> ModelLink {
        let log = log.clone();
        ModelLink { extra_latency, log, ..self }
    }

    /// A link of the same node to another store.
    pub(super) fn connect_to(&self, model: &SharedModel, shard: usize, view: Option<ShardView>) -> ModelLink {
        ModelLink {
            model: Arc::clone(model),
            shard,
            view,
            epoch: Arc::default(),
            process: Arc::new(AtomicU64::new(UNCONNECTED)),
            heartbeats: Arc::default(),
            seen: Arc::default(),
            ..self.clone()
        }
    }

    /// A round trip for a call that names subjects. A shard that does not own them replies with a redirect.
    pub(super) async fn call_for<T>(
        &self,
        subjects: Vec<Fingerprint>,
        run: impl FnOnce(&mut Model, Nanos) -> T + Send,
    ) -> StoreResult<T> {
        let view = self.view.as_ref();
        let served = self.call(|model, now| {
            let serves = view.map_or(Ok(()), |view| view.serves(&subjects));
            serves.map(|()| run(model, now))
        });
        match served.await? {
            Ok(reply) => Ok(reply),
            Err(redirect) => {
                if let (Some(view), ModelRedirect::Moved(hash_slot)) = (view, redirect) {
                    view.learn_moved(hash_slot);
                }
                Err(unavailable(LinkError::Redirect(redirect)))
            }
        }
    }

    /// A round trip, with every fault that can happen on the way.
    async fn call<T>(&self, run: impl FnOnce(&mut Model, Nanos) -> T + Send) -> StoreResult<T> {
        self.deliver().await?;
        if self.is_lost(|conditions| conditions.requests_lost) {
            return self.time_out().await;
        }
        let (reply, epoch, down) = {
            let mut model = self.model.lock();
            let mut now = model.time(self.sim.now());
            if self.variant == Variant::NodeClock {
                now = now.plus(self.skew);
            }
            let epoch = if model.reports_epoch { model.store_epoch } else { 0 };
            (run(&mut model, now), epoch, model.conditions.down)
        };
        if down || self.is_lost(|conditions| conditions.replies_lost) {
            return self.time_out().await;
        }
        self.travel().await;
        self.delay_reply().await?;
        self.epoch.store(epoch, Ordering::Relaxed);
        Ok(reply)
    }

    /// A connection belongs to one process. A message on a connection whose process has ended reaches no
    /// other process. A new connection first learns the number of its process.
    async fn deliver(&self) -> StoreResult<()> {
        let before = self.process.load(Ordering::Relaxed);
        self.travel().await;
        loop {
            let (conditions, process, epoch) = {
                let model = self.model.lock();
                let epoch = if model.reports_epoch { model.store_epoch } else { 0 };
                (model.conditions, model.process, epoch)
            };
            if conditions.down {
                return Err(unavailable(LinkError::ConnectionRefused));
            }
            if conditions.hung {
                self.sim.sleep(HANG_POLL_INTERVAL).await;
                continue;
            }
            self.process.store(process, Ordering::Relaxed);
            if before == process || before == UNCONNECTED {
                return Ok(());
            }
            self.epoch.store(epoch, Ordering::Relaxed);
            return Err(unavailable(LinkError::ConnectionRefused));
        }
    }

    async fn travel(&self) {
        let conditions = self.model.lock().conditions;
        let jitter = self.sim.with_rng(|rng| rng.below(conditions.jitter.get() + 1));
        self.sim.sleep(conditions.min_latency.plus(Nanos::new(jitter)).plus(self.extra_latency)).await;
    }

    /// Delays the reply, if the network conditions say so.
    async fn delay_reply(&self) -> StoreResult<()> {
        let lateness = self.model.lock().conditions.lateness;
        let here = lateness.node.is_none_or(|node| node == self.node);
        if !here || lateness.per_mille == 0 || !self.sim.with_rng(|rng| rng.chance(lateness.per_mille)) {
            return Ok(());
        }
        if self.variant == Variant::LosesLateReplies {
            return self.time_out().await;
        }
        let more = lateness.max.since(lateness.min).get() + 1;
        let more = self.sim.with_rng(|rng| rng.below(more));
        self.sim.sleep(lateness.min.plus(Nanos::new(more))).await;
        Ok(())
    }

    /// Logs an operation that the store performs for this node now, and when it was sent.
    pub(super) fn log_op(&self, counter: u128, sent: Nanos, at: Option<Nanos>, kind: OpKind) -> usize {
        self.log.push_op(StoreOp { node: self.node, counter, sent, at, replied_at: None, kind })
    }

    /// Logs charges.
    fn log_charges(&self, set: &ChargeSet<'_>, sent: Nanos, at: Nanos) {
        for charge in &set.charges {
            let kind = OpKind::Charged(charge.cost.get());
            self.log_op(charge.counter(), sent, Some(at), kind);
        }
    }

    fn is_lost(&self, of: impl Fn(&super::NetworkConditions) -> u32) -> bool {
        let per_mille = of(&self.model.lock().conditions);
        per_mille > 0 && self.sim.with_rng(|rng| rng.chance(per_mille))
    }

    async fn time_out<T>(&self) -> StoreResult<T> {
        self.sim.sleep(CONNECTION_TIMEOUT).await;
        Err(unavailable(LinkError::TimedOut))
    }

    fn remember(&self, set: &ChargeSet<'_>, outcome: &Outcome) {
        let mut seen = self.seen.lock();
        for (charge, now) in set.charges.iter().zip(&outcome.snapshots) {
            let known = (charge.limit.as_ref().clone(), now.state.clone());
            seen.insert(charge.counter(), known);
        }
    }

    /// Pending units plus this node's part of the units that the store had when the node last saw it.
    fn with_restored_units<'a>(&self, charge: &Charge<'a>) -> Charge<'a> {
        let seen = self.seen.lock();
        let known = seen.get(&charge.counter());
        let used = known.map_or(0, |(limit, state)| units_in(limit, state));
        let cost = charge.cost.get() + used / 2;
        Charge { cost: Cost::new(cost).unwrap_or(charge.cost), ..charge.clone() }
    }
}

pub(super) fn subjects_of(set: &ChargeSet<'_>) -> Vec<Fingerprint> {
    set.charges.iter().map(|charge| charge.subject).collect()
}

/// The units of a state, however old it is.
fn units_in(limit: &Limit, state: &CounterState) -> u64 {
    match state {
        CounterState::Fixed(window) => u64::from(window.count),
        CounterState::Sliding(window) => u64::from(window.current) + u64::from(window.previous),
        _ => {
            let mut state = state.clone();
            let at = limit.advance(&mut state, Nanos::ZERO);
            limit.used(&state, at)
        }
    }
}

impl Counters for ModelLink {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.charges_sent.lock().push(LinkCharge { at: self.sim.now(), node: self.node, shard: self.shard });
        let sent = self.sim.now();
        let mut outcome = self
            .call_for(subjects_of(set), |model, now| {
                let outcome = model.counters.decide(set, DecideMode::Charge, now);
                if outcome.admitted {
                    self.log_charges(set, sent, now);
                }
                if self.variant == Variant::DenialRefreshes && !outcome.admitted {
                    model.counters.refresh(set, now);
                }
                if self.variant == Variant::ChargesTwiceOnNoScript && model.no_script {
                    model.counters.decide(set, DecideMode::Charge, now);
                    model.no_script = false;
                }
                outcome
            })
            .await?;
        self.remember(set, &outcome);
        if self.variant == Variant::RemembersTooLong {
            for reading in &mut outcome.readings {
                if let Verdict::Deny { retry: Retry::After(wait) } = &mut reading.verdict {
                    *wait = wait.plus(*wait);
                }
            }
        }
        Ok(outcome)
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.call_for(subjects_of(set), |model, now| model.counters.decide(set, DecideMode::Peek, now)).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        self.call_refund(refund).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.call_draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let more = ChargeSet::of(set.charges.iter().map(|c| self.with_restored_units(c)));
        let sent = self.sim.now();
        let mut logged = None;
        let mut outcome = self
            .call_for(subjects_of(set), |model, now| match self.variant {
                Variant::SyncsTwice => {
                    model.counters.decide(set, DecideMode::Force, now);
                    model.counters.decide(set, DecideMode::Force, now)
                }
                Variant::WritesBackRestored => model.counters.decide(&more, DecideMode::Force, now),
                Variant::NeverWritesBack => model.counters.decide(set, DecideMode::Peek, now),
                _ => {
                    self.log_charges(set, sent, now);
                    let outcome = model.counters.decide(set, DecideMode::Force, now);
                    logged = self.log_forced(model, set, now);
                    outcome
                }
            })
            .await?;
        if let Some(index) = logged {
            self.log.acknowledge_write_back(index);
        }
        self.remember(set, &outcome);
        if self.variant == Variant::IgnoresSyncReplies {
            for (charge, seen) in set.charges.iter().zip(&mut outcome.snapshots) {
                seen.state = charge.limit.fresh(outcome.at);
            }
        }
        Ok(outcome)
    }

    async fn restore(&self, snapshots: &[Restore<'_>]) -> StoreResult<()> {
        let subjects = snapshots.iter().map(|snapshot| snapshot.charge.subject).collect();
        self.call_for(subjects, |model, now| match self.variant {
            Variant::NeverRestores => {}
            Variant::MergesBySum => {
                for snapshot in snapshots {
                    let limit = snapshot.charge.limit.as_ref();
                    let mut state = snapshot.state.clone();
                    let at = limit.advance(&mut state, now);
                    if let Some(cost) = Cost::new(limit.used(&state, at)) {
                        let charge = Charge { cost, ..snapshot.charge.clone() };
                        let set = ChargeSet::of([charge]);
                        model.counters.decide(&set, DecideMode::Force, now);
                    }
                }
            }
            Variant::CarriesWindows => {
                for (counter, (limit, state)) in self.seen.lock().iter() {
                    let carried = limit.with_used(units_in(limit, state), now);
                    model.counters.merge_state(*counter, limit, &carried, now);
                }
            }
            _ => {
                model.counters.restore(snapshots, now);
                self.log_reservation(model, &ChargeSet::default(), ReservationEventKind::Restored, now);
            }
        })
        .await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.call_for(subjects_of(set), |model, now| {
            let each = set.charges.iter().map(|charge| {
                let one = ChargeSet::of([charge.clone()]);
                let peeked = model.counters.decide(&one, DecideMode::Peek, now);
                let figures = peeked.readings.first()?.figures;
                (figures.reset_after > Nanos::ZERO).then(|| Inspection {
                    used: model.counters.used(charge.counter(), &charge.limit, now),
                    figures,
                    source: Source::Exact,
                })
            });
            each.collect()
        })
        .await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        self.call_for(subjects_of(set), |model, now| {
            let forgotten = |c: &Charge<'_>| {
                let used = model.counters.reset(c.counter(), &c.limit, now);
                u64::from(used) + model.permits.release_all(c.counter(), now)
            };
            set.charges.iter().map(forgotten).sum()
        })
        .await
    }
}

impl Permits for ModelLink {
    async fn acquire(&self, request: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.call_permit(request, PermitVerb::Acquire).await
    }

    async fn renew(&self, request: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.call_permit(request, PermitVerb::Renew).await
    }

    async fn release(&self, request: &PermitRequest<'_>) -> StoreResult<()> {
        self.call_permit(request, PermitVerb::Release).await?;
        Ok(())
    }
}

impl Reservations for ModelLink {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let set = &reserve.set;
        let outcome = self.call_reserve(reserve).await?;
        self.remember(set, &outcome);
        Ok(outcome)
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.call_settle(settle).await
    }
}

impl Probe for ModelLink {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> StoreResult<StoreStatus> {
        let now = self.sim.clone();
        let mut status = self.call(|model, _| model.record_heartbeat(heartbeat, now.now())).await?;
        self.heartbeats.fetch_add(1, Ordering::Relaxed);
        if self.variant == Variant::IgnoresPeers {
            status.heartbeats.retain(|known| known.node == heartbeat.node);
        }
        if self.variant == Variant::ImaginesPeers {
            let imagined = status.heartbeats.clone().into_iter().flat_map(|heartbeat| {
                [1, 2].map(|more| Heartbeat { node: NodeId(heartbeat.node.0.wrapping_add(more)), ..heartbeat })
            });
            status.heartbeats.extend(imagined);
        }
        Ok(status)
    }

    fn epoch(&self) -> Option<Epoch> {
        match self.epoch.load(Ordering::Relaxed) {
            0 => None,
            epoch => Some(Epoch(epoch)),
        }
    }

    fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        let unmet = self.heartbeats.load(Ordering::Relaxed) < 2;
        match &self.view {
            None => Some(HashSlot(0)),
            // The node skips the restore of a shard that it has just discovered.
            Some(_) if self.variant == Variant::TrustsNewShards && unmet => None,
            Some(view) => view.hash_slot(subject),
        }
    }
}
