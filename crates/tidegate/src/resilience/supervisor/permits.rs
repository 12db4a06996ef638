//! Telling the store of slots that were given, renewed or given back without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{Epoch, PermitReply, PermitRequest, Probe, Store, StoreError};
use tidegate_core::units::Nanos;

use super::{MAX_CONCURRENT_CALLS, ShardSupervisor};
use crate::resilience::join::join_all;
use crate::resilience::open_permits::PermitUpdate;
use crate::runtime::Runtime;

impl<S: Store + Probe + 'static, R: Runtime> ShardSupervisor<S, R> {
    /// Whether slots may be asked of the store.
    pub(in crate::resilience) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Acquire)
    }

    /// Whether the store may be asked for a slot. Slots that were renewed without it may have ended there:
    /// when it is back, the others are given the time to tell it of theirs, or it would find room where
    /// all is taken.
    pub(in crate::resilience) fn may_acquire(&self) -> bool {
        let closed = self.guard.closed_at();
        let waits = closed > Nanos::ZERO
            && self.runtime.now().since(closed) < self.settings.recovery_timeout;
        self.is_exact() && !waits
    }

    /// The life of the store that is asked about a slot, for `trusts_permits`.
    pub(in crate::resilience) fn known_epoch(&self) -> Option<Epoch> {
        self.membership.load().epoch
    }

    /// Whether the answer to what was asked in the life `requested_in` is that of a store which has lost no slot.
    /// One that has would find room where all is taken, and not know who is in.
    pub(in crate::resilience) fn trusts_permits(
        self: &Arc<Self>,
        requested_in: Option<Epoch>,
    ) -> bool {
        self.detect_loss();
        // A ping may have heard of the loss before.
        self.is_exact() && self.known_epoch() == requested_in
    }

    /// Makes a slot known to the store that is in use, whatever else is open. If it was given back
    /// meanwhile, so it is there.
    pub(in crate::resilience) async fn register_permit(
        &self,
        permit: &PermitRequest<'_>,
    ) -> Result<PermitReply, StoreError> {
        let forced = PermitRequest {
            max_permits: u32::MAX,
            ..*permit
        };
        let (permits, sent) = (&self.node_state.permits, self.runtime.now());
        let permit_reply = self.guard.acquire(&forced).await?;
        if permits.is_open(permit, self.runtime.now()) {
            permits.record_acquired(permit, sent);
            return Ok(permit_reply);
        }
        if self.guard.release(permit).await.is_ok() {
            permits.released(permit);
        }
        Ok(PermitReply {
            granted: false,
            ..permit_reply
        })
    }

    /// Tells the store what it has to hear, if anything.
    pub(super) fn sync_permits(self: &Arc<Self>) {
        let holds = |subject| self.guard.hash_slot(subject).is_some();
        let unsynced = self.node_state.permits.unsynced(holds, self.runtime.now());
        if unsynced.is_empty()
            || !self.is_exact()
            || self.syncing_permits.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let supervisor = Arc::clone(self);
        self.runtime.spawn(async move {
            supervisor.sync_each_permit(&unsynced).await;
            supervisor.syncing_permits.store(false, Ordering::Release);
        });
    }

    /// Puts back every slot that is open here; whether the store took them all.
    pub(super) async fn restore_permits(&self) -> bool {
        let holds = |subject| self.guard.hash_slot(subject).is_some();
        let open = self
            .node_state
            .permits
            .open_permits(holds, self.runtime.now());
        self.sync_each_permit(&open).await
    }

    async fn sync_each_permit(&self, updates: &[PermitUpdate]) -> bool {
        for chunk in updates.chunks(MAX_CONCURRENT_CALLS) {
            let syncing = chunk.iter().map(|update| self.sync_permit(update));
            if join_all(syncing).await.contains(&false) {
                return false;
            }
        }
        true
    }

    async fn sync_permit(&self, update: &PermitUpdate) -> bool {
        let permit = update.permit_request();
        if !update.releasing {
            return self.register_permit(&permit).await.is_ok();
        }
        let released = self.guard.release(&permit).await.is_ok();
        if released {
            self.node_state.permits.released(&permit);
        }
        released
    }
}
