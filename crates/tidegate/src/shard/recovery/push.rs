//! Pushes pending units to the store: paced, counters with the most units first.
//!
//! A push starts after a recovery (`push_then_trust`), after a late reply and while the store replies
//! (`schedule_push`), and when the breaker has closed (`push_after`). Invariant: one push at a time (`pushing`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Probe, Store};
use tidegate_core::units::Nanos;

use crate::runtime::{Runtime, join_all};
use crate::shard::call::BACKGROUND_TIMEOUT;
use crate::shard::event::StoreEvent;
use crate::shard::node::write_back::{OutgoingCharge, PendingCause};
use crate::shard::shared_shard::{MAX_CONCURRENT_CALLS, MAX_PER_CALL, ShardState, SharedShard, by_hash_slot};

/// The result of a push of some counters.
#[derive(Clone, PartialEq, Eq)]
enum PushResult {
    /// Charged; per counter, the units that a restore will lose.
    Charged(Vec<u64>),
    /// The store cannot use a record.
    Rejected,
    Failed,
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Pushes pending units after `wait`, if there are any and the store can be called. Those of a late reply are pushed
    /// at once, others after `push_delay`.
    pub(crate) fn schedule_push(self: &Arc<Self>, wait: Nanos) {
        let units = self.node_state.write_back.take_dropped();
        if units > 0 {
            (self.watcher)(StoreEvent::PendingDropped { units });
        }
        if self.state() == ShardState::Exact {
            self.push_after(wait);
        }
    }

    /// Pushes the bulk of the pending units, and trusts the store after that: the first exact decision is to count
    /// them. The time is bounded, because decisions are local meanwhile.
    pub(crate) fn push_then_trust(self: &Arc<Self>) {
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            if !shard.pushing.swap(true, Ordering::AcqRel) {
                let until = shard.runtime.now().plus(shard.settings.push_jitter);
                shard.push_pending(until).await;
                shard.pushing.store(false, Ordering::Release);
            }
            if shard.node_state.restarted_without_store.swap(false, Ordering::AcqRel) {
                shard.reached_at.store(shard.runtime.now().get(), Ordering::Release);
            }
            let exact = {
                let recovery_state = shard.recovery_state.lock();
                shard.trusted.store(recovery_state.is_exact(), Ordering::Release);
                recovery_state.is_exact()
            };
            if exact {
                (shard.watcher)(StoreEvent::Exact);
                shard.push_after(Nanos::ZERO);
            }
        });
    }

    /// Pushes after `wait`, if anything is pending and no push is running.
    pub(super) fn push_after(self: &Arc<Self>, wait: Nanos) {
        if self.node_state.write_back.is_empty() || self.pushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            shard.runtime.sleep(wait).await;
            shard.push_all().await;
            shard.pushing.store(false, Ordering::Release);
        });
    }

    /// Pushes until nothing is pending.
    async fn push_all(self: &Arc<Self>) {
        while self.may_push() && self.push_pending(Nanos::MAX).await {
            self.runtime.sleep(self.settings.push_pause).await;
        }
    }

    fn may_push(&self) -> bool {
        self.recovery_state.lock().is_exact() && !self.breaker_is_open()
    }

    /// Pushes the present pending units, largest counters first, and starts no batch after `until`. False if there was
    /// nothing to push.
    async fn push_pending(self: &Arc<Self>, until: Nanos) -> bool {
        let ready = self.node_state.write_back.list_ready(|subject| self.hash_slot(subject), self.store_time());
        for (i, batch) in ready.chunks(self.settings.push_batch).enumerate() {
            if i > 0 {
                self.runtime.sleep(self.settings.push_pause).await;
            }
            if !self.may_push() || self.runtime.now() >= until {
                break;
            }
            for groups in by_hash_slot(batch).chunks(MAX_CONCURRENT_CALLS) {
                let pushing = groups.iter().map(|counters| self.push_hash_slot(counters));
                if join_all(pushing).await.contains(&false) {
                    break;
                }
            }
        }
        !ready.is_empty()
    }

    /// Pushes counters of one hash slot. True if the store has charged all of them.
    async fn push_hash_slot(self: &Arc<Self>, counters: &[u128]) -> bool {
        for some in counters.chunks(MAX_PER_CALL) {
            if !self.push(some).await {
                return false;
            }
        }
        true
    }

    async fn push(self: &Arc<Self>, counters: &[u128]) -> bool {
        let now = self.store_time();
        let begin = |counter: &u128| self.node_state.write_back.begin_push(*counter, now);
        let outgoing = counters.iter().filter_map(begin);
        // Durable charges may have to wait for an acknowledgement; the others must not wait with them.
        let (durable, plain): (Vec<OutgoingCharge>, Vec<OutgoingCharge>) =
            outgoing.partition(|item| item.charge.requires_durability());
        let pushed = self.push_together(&plain).await;
        self.push_together(&durable).await;
        pushed
    }

    /// Pushes counters in one call. If the store cannot use one of their records, pushes each on its own, so that the
    /// others do not wait with that one. True if the store is up.
    async fn push_together(self: &Arc<Self>, outgoing: &[OutgoingCharge]) -> bool {
        if outgoing.is_empty() {
            return true; // expired in the meantime
        }
        match self.push_once(outgoing).await {
            PushResult::Charged(_) => true,
            PushResult::Failed => false,
            PushResult::Rejected => {
                if outgoing.len() > 1 {
                    for item in outgoing {
                        self.push_once(std::slice::from_ref(item)).await;
                    }
                }
                true
            }
        }
    }

    async fn push_once(self: &Arc<Self>, outgoing: &[OutgoingCharge]) -> PushResult {
        let set = ChargeSet::of(outgoing.iter().map(|item| item.charge.with_cost(item.cost)));
        let sent = self.sent_now();
        let reply = self.call(Nanos::MAX, push_timeout(&set), |store| store.force(&set)).await;
        let pushed = match reply {
            Ok(outcome) => {
                self.units_lost_on_restore(&set, &outcome, sent).map_or(PushResult::Failed, PushResult::Charged)
            }
            Err(error) if self.is_record_error(&error) => PushResult::Rejected,
            Err(_) => PushResult::Failed,
        };
        let (write_back, now) = (&self.node_state.write_back, self.store_time());
        for (i, item) in outgoing.iter().enumerate() {
            match &pushed {
                PushResult::Charged(lost_units) => write_back.push_partly_lost(item.counter, lost_units[i], now),
                PushResult::Rejected if outgoing.len() == 1 => write_back.push_rejected(item.counter, now),
                // They are pushed again at once, each on its own.
                PushResult::Rejected => {}
                PushResult::Failed => write_back.push_failed(item.counter, now),
            }
        }
        if let PushResult::Charged(lost_units) = &pushed {
            let units: u64 = outgoing.iter().map(|item| item.cost.get()).sum();
            let units = units - lost_units.iter().sum::<u64>();
            let late = outgoing.iter().all(|item| item.cause == PendingCause::Late);
            (self.watcher)(if late {
                StoreEvent::LateWrittenBack { units }
            } else {
                let counters = outgoing.len();
                StoreEvent::WrittenBack { counters, units }
            });
        } else if pushed == PushResult::Failed {
            self.report_unconfirmed(&set);
        }
        pushed
    }
}

/// How long the reply to a push is awaited. That to a durable charge arrives when its units are acknowledged, or when its
/// budget has passed.
fn push_timeout(set: &ChargeSet<'_>) -> Nanos {
    let durable = set.charges.iter().filter(|charge| charge.options.durability.is_required());
    let acknowledged_within = durable.filter_map(|charge| charge.options.budget).max();
    BACKGROUND_TIMEOUT.plus(acknowledged_within.unwrap_or(Nanos::ZERO))
}
