//! Syncs permits to the store that were granted, renewed or released without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{Epoch, PermitReply, PermitRequest, Probe, Store, StoreError};
use tidegate_core::units::Nanos;

use crate::runtime::{Runtime, join_all};
use crate::shard::node::open_permits::PermitUpdate;
use crate::shard::shared_shard::{MAX_CONCURRENT_CALLS, SharedShard};

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Whether the store may be called to acquire a permit. Permits that were renewed without it may have expired
    /// there: when it is back, all nodes first have time to sync theirs, or it would grant permits beyond the limit. For a
    /// node that ended without the store it is back when the node first trusts it.
    pub(crate) fn may_acquire(&self) -> bool {
        let back = self.calls.closed_at().max(Nanos::new(self.reached_at.load(Ordering::Acquire)));
        let waits = back > Nanos::ZERO && self.runtime.now().since(back) < self.settings.recovery_timeout;
        self.is_trusted() && !waits
    }

    /// The epoch of the store when a permit is requested, for `trusts_permits`.
    pub(crate) fn known_epoch(&self) -> Option<Epoch> {
        self.membership.load().epoch
    }

    /// Whether the reply to a request of the epoch `requested_in` is from a store that has lost no permit. A store that
    /// has would grant permits beyond the limit, and not know the holders.
    pub(crate) fn trusts_permits(self: &Arc<Self>, requested_in: Option<Epoch>) -> bool {
        self.detect_loss();
        // A ping may have discovered the loss before.
        self.is_trusted() && self.known_epoch() == requested_in
    }

    /// Registers a permit that is in use with the store, however many others are open. If it was released in the
    /// meantime, releases it there too.
    pub(crate) async fn register_permit(&self, permit: &PermitRequest<'_>) -> Result<PermitReply, StoreError> {
        let forced = PermitRequest { max_permits: u32::MAX, ..*permit };
        let (permits, sent) = (&self.node_state.permits, self.runtime.now());
        let permit_reply = self.acquire_in_store(&forced).await?;
        if permits.is_open(permit, self.runtime.now()) {
            permits.record_acquired(permit, permit_reply.in_use, sent);
            return Ok(permit_reply);
        }
        let _synced_later = self.release_in_store(permit).await;
        Ok(PermitReply { granted: false, ..permit_reply })
    }

    /// Syncs the permits that the store does not know as they are, if there are any.
    pub(crate) fn sync_permits(self: &Arc<Self>) {
        let unsynced = self.node_state.permits.unsynced(|subject| self.holds(subject), self.runtime.now());
        if unsynced.is_empty() || !self.is_trusted() || self.syncing_permits.swap(true, Ordering::AcqRel) {
            return;
        }
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            shard.sync_each_permit(&unsynced).await;
            shard.syncing_permits.store(false, Ordering::Release);
        });
    }

    /// Restores every permit that is open here; true unless the store failed.
    pub(crate) async fn restore_permits(&self) -> bool {
        let open = self.node_state.permits.open_permits(|subject| self.holds(subject), self.runtime.now());
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

    /// Syncs one permit; true unless the store failed. Where its record cannot be used, the others are synced without
    /// it.
    async fn sync_permit(&self, update: &PermitUpdate) -> bool {
        let permit = update.permit_request();
        let synced = if update.releasing {
            self.release_in_store(&permit).await
        } else {
            self.register_permit(&permit).await.map(drop)
        };
        synced.map_or_else(|error| self.is_record_error(&error), |()| true)
    }
}
