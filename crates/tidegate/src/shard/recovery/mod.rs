//! Pings the store, and recovers after it lost counts.
//!
//! Each status from a ping goes into `recovery_state`, and this file runs the resulting [`RecoveryStep`]: restore the
//! mirror and the permits, wait for other nodes, or push and trust.

pub(crate) mod clock_watch;
pub(crate) mod membership;
mod permit_sync;
mod push;
pub(crate) mod recovery_state;
pub(crate) mod store_clock;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidegate_core::algorithms::CounterState;
use tidegate_core::store::{HashSlot, Probe, Restore, Store, StoreResult, StoreStatus};
use tidegate_core::units::Nanos;

use crate::owned_charge::OwnedCharge;
use crate::runtime::{Runtime, join_all, within};
use crate::shard::call::in_flight::CallInFlight;
use crate::shard::event::StoreEvent;
use crate::shard::recovery::recovery_state::{MissingCounts, RecoveryState, RecoveryStep};
use crate::shard::shared_shard::{MAX_CONCURRENT_CALLS, MAX_PER_CALL, SharedShard, by_hash_slot};

/// How long a late ping is awaited.
const LATE_PING_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Pings until the shard is dropped.
pub(crate) async fn run_pings<S: Store + Probe + 'static, R: Runtime>(shard: Weak<SharedShard<S, R>>, runtime: R) {
    while let Some(shard) = shard.upgrade() {
        if !shard.recovering.load(Ordering::Acquire) {
            shard.ping().await;
        }
        let every = shard.settings.ping_interval;
        let tenth = Nanos::new(every.get() / 10);
        drop(shard);
        let wait = every.since(tenth).plus(runtime.jitter(tenth).plus(runtime.jitter(tenth)));
        runtime.sleep(wait).await;
    }
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Sends a heartbeat and handles its reply: the only call that passes an open breaker. A late ping is awaited in the
    /// background.
    async fn ping(self: &Arc<Self>) {
        let Some(store) = self.store.clone() else {
            return;
        };
        let counters = self.node_state.mirror.take_evicted();
        if counters > 0 {
            (self.watcher)(StoreEvent::MirrorEvicted { counters });
        }
        let heartbeat = self.recovery_state.lock().heartbeat();
        let sent = self.runtime.now();
        self.calls.check_silence(sent);
        let call = self.calls.ping(sent);
        let mut pinging = Box::pin(async move { store.heartbeat(heartbeat).await });
        let timeout = self.settings.ping_interval.max(self.settings.budget);
        if let Some(reply) = within(&self.runtime, timeout, pinging.as_mut()).await {
            return self.ping_ended(call, sent, &reply);
        }
        self.calls.ping_missed(self.runtime.now());
        if self.breaker_is_open() {
            self.update_recovery_state(RecoveryState::mark_unreachable);
        }
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            match within(&shard.runtime, LATE_PING_TIMEOUT, pinging.as_mut()).await {
                Some(reply) => shard.ping_ended(call, sent, &reply),
                None => shard.update_recovery_state(RecoveryState::mark_unreachable),
            }
        });
    }

    fn ping_ended(self: &Arc<Self>, call: CallInFlight, sent: Nanos, reply: &StoreResult<StoreStatus>) {
        self.report(call, reply);
        match reply {
            Ok(status) => self.ping_replied(sent, status),
            Err(_) => self.update_recovery_state(RecoveryState::mark_unreachable),
        }
    }

    /// Handles the reply to a ping that was sent at `sent`. A reply older than the newest one is ignored.
    fn ping_replied(self: &Arc<Self>, sent: Nanos, status: &StoreStatus) {
        if self.last_ping_reply.fetch_max(sent.get(), Ordering::AcqRel) > sent.get() {
            return;
        }
        self.check_incomplete_slots();
        let now = self.runtime.now();
        let closing = self.calls.closed_at();
        let noticed = self.last_closed_at.swap(closing.get(), Ordering::AcqRel);
        let closed = noticed != closing.get();
        if closed {
            self.update_recovery_state(|state| state.mark_reachable(now));
        }
        self.clock.record(sent, now, status.at);
        self.check_clock(now.since(sent), status.at);
        // Computed before the lock is taken, because it may take a while.
        let missing_counts = {
            let state = self.recovery_state.lock();
            let is_unknown = state.epoch().is_none();
            is_unknown.then(|| state.missing_counts_after(status))
        };
        let has_any = missing_counts.is_some_and(|missing_counts| {
            !self.states_to_restore(&missing_counts, 1).is_empty() || self.may_lack_permits(&missing_counts, now)
        });
        let (was_known, next) = self.update_recovery_state(|state| {
            // A store without an earlier status that should hold counts of this node took over from another.
            let was_known = state.is_exact() || state.epoch().is_none();
            let next = state.on_status(status, now, || has_any);
            if !state.is_exact() {
                self.trusted.store(false, Ordering::Release);
            }
            (was_known, next)
        });
        match next {
            RecoveryStep::Nothing => {
                self.epoch_confirmed_at.store(sent.get(), Ordering::Release);
                self.sync_permits();
                if closed {
                    // A permit that was granted without the store may be synced after its release on another node.
                    self.release_again_later(MissingCounts::since(self.store_time()));
                    // After an outage many nodes have pending units.
                    self.push_after(self.runtime.jitter(self.settings.push_jitter));
                } else {
                    self.schedule_push(self.settings.push_delay); // no pending unit stays behind
                }
            }
            RecoveryStep::Trust { missing } => {
                if missing > 0 {
                    (self.watcher)(StoreEvent::TrustedEarly { missing });
                }
                self.push_then_trust();
            }
            RecoveryStep::Restore | RecoveryStep::Wait => {
                if next == RecoveryStep::Restore && was_known {
                    self.report_loss();
                }
                self.recover_soon();
            }
        }
    }

    /// A loss is suspected: checks the store's epoch without waiting for the next ping.
    pub(crate) fn ping_soon(self: &Arc<Self>) {
        if self.ping_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            shard.ping().await;
            shard.runtime.sleep(shard.settings.recovery_ping_interval).await;
            shard.ping_queued.store(false, Ordering::Release);
        });
    }

    pub(crate) fn recover_soon(self: &Arc<Self>) {
        if self.breaker_is_open() || self.recovering.swap(true, Ordering::AcqRel) {
            return;
        }
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            shard.recover().await;
            shard.recovering.store(false, Ordering::Release);
        });
    }

    /// Restores this node's counts and waits until the other nodes have restored theirs.
    async fn recover(self: &Arc<Self>) {
        while self.recovery_state.lock().is_recovering() && !self.breaker_is_open() {
            self.ping().await;
            let unrestored = {
                let state = self.recovery_state.lock();
                let epoch = state.epoch();
                let unrestored = state.is_recovering() && state.heartbeat().restored != epoch;
                epoch.filter(|_| unrestored).map(|epoch| (epoch, state.loss_count()))
            };
            if let Some((epoch, loss_count)) = unrestored
                && let Some(counters) = self.restore_all().await
                && self.epoch().is_none_or(|now| now == epoch)
            {
                self.update_recovery_state(|state| state.mark_restored(epoch, loss_count));
                if counters > 0 {
                    (self.watcher)(StoreEvent::Restored { epoch, counters });
                }
                continue; // so that the next heartbeat reports it
            }
            if self.recovery_state.lock().is_recovering() {
                self.runtime.sleep(self.settings.recovery_ping_interval).await;
            }
        }
    }

    /// Merges the mirror and the open permits into the store. Returns the number of counters, or `None` if the store
    /// failed.
    async fn restore_all(self: &Arc<Self>) -> Option<usize> {
        let missing_counts = self.recovery_state.lock().missing_counts().clone();
        let all = self.states_to_restore(&missing_counts, usize::MAX);
        for groups in by_hash_slot(&all).chunks(MAX_CONCURRENT_CALLS) {
            let restoring = groups.iter().map(|states| self.restore_hash_slot(states));
            let done = join_all(restoring).await;
            done.into_iter().collect::<Option<()>>()?;
        }
        self.restore_permits(&missing_counts).await.then_some(all.len())
    }

    /// Merges the counters of one hash slot.
    async fn restore_hash_slot(&self, states: &[(OwnedCharge, CounterState)]) -> Option<()> {
        for chunk in states.chunks(MAX_PER_CALL) {
            let restores: Vec<Restore<'_>> =
                chunk.iter().map(|(charge, state)| Restore { charge: charge.charge(), state: state.clone() }).collect();
            if let Err(error) = self.restore(&restores).await {
                if !self.is_record_error(&error) {
                    return None;
                }
                // The record of one counter cannot be used: the others are restored without it.
                for restore in restores.chunks(1) {
                    let alone = self.restore(restore).await;
                    alone.or_else(|error| if self.is_record_error(&error) { Ok(()) } else { Err(error) }).ok()?;
                }
            }
        }
        Some(())
    }

    /// Up to `max` counters that the store should hold and may lack.
    fn states_to_restore(&self, missing: &MissingCounts, max: usize) -> Vec<(HashSlot, (OwnedCharge, CounterState))> {
        let (at, now) = (self.store_time(), self.runtime.now());
        self.node_state.mirror.states_to_restore(|subject| self.hash_slot(subject), missing, at, now, max)
    }
}
