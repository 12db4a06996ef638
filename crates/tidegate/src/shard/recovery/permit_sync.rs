//! Syncs permits to the store that were granted, renewed or released without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{Epoch, PermitReply, PermitRequest, Probe, Store, StoreError};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use crate::runtime::{Runtime, join_all};
use crate::shard::node::open_permits::PermitUpdate;
use crate::shard::recovery::recovery_state::MissingCounts;
use crate::shard::shared_shard::{MAX_CONCURRENT_CALLS, SharedShard};

/// How far the estimate of the store's time at a grant may be off. The reply does not contain the time.
const GRANT_TIME_ERROR: Nanos = Nanos::from_secs(1);

/// The same for a release. Longer: what a node restores because of its error, the others release again.
const RELEASE_TIME_ERROR: Nanos = Nanos::from_secs(2);

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
            permits.record_acquired(permit, permit_reply.in_use, sent, self.store_time());
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

    /// Restores the permits that are open here and that the store may lack; true unless the store failed. Other nodes may
    /// restore permits that were released here: these are released again, once the store is trusted, and once more
    /// when no node restores permits any longer.
    pub(crate) async fn restore_permits(self: &Arc<Self>, missing: &MissingCounts) -> bool {
        let permits = &self.node_state.permits;
        let is_granted = |subject, at| self.may_lack(missing, subject, at, GRANT_TIME_ERROR);
        let open = permits.open_permits(is_granted, self.runtime.now());
        if !self.sync_each_permit(&open).await {
            return false;
        }
        self.release_again(missing);
        self.release_again_later(missing.clone());
        true
    }

    /// Releases the permits again that were released here, when all nodes have restored or synced theirs.
    pub(crate) fn release_again_later(self: &Arc<Self>, missing: MissingCounts) {
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            let wait = shard.settings.recovery_timeout;
            shard.runtime.sleep(wait.plus(wait)).await;
            shard.release_again(&missing);
        });
    }

    /// The next sync releases the permits again that were released here and that other nodes may have restored.
    fn release_again(&self, missing: &MissingCounts) {
        let is_released = |subject, at| self.may_lack(missing, subject, at, RELEASE_TIME_ERROR);
        self.node_state.permits.release_again(is_released);
    }

    /// Whether the store may lack a permit or a release of this node.
    pub(crate) fn may_lack_permits(&self, missing: &MissingCounts, now: Nanos) -> bool {
        let is_missing = |subject, at| self.may_lack(missing, subject, at, RELEASE_TIME_ERROR);
        self.node_state.permits.any_own(is_missing, now)
    }

    /// Whether the store may lack what it did for a subject at its time `at`, which is known to within `error`.
    fn may_lack(&self, missing: &MissingCounts, subject: Fingerprint, at: Nanos, error: Nanos) -> bool {
        let hash_slot = self.hash_slot(subject);
        hash_slot.is_some_and(|hash_slot| missing.includes(hash_slot, at.plus(error)))
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
