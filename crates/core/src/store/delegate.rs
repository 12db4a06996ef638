//! Writes the verbs that a store around a store delegates unchanged to the inner store.

/// Implements verbs of a [`Store`](crate::store::Store) that go to the inner store unchanged:
/// `delegate_store!(self => self.store; restore, acquire, renew);`
#[doc(hidden)] // for the crates of this workspace, not a promise
#[macro_export]
macro_rules! delegate_store {
    ($self:ident => $store:expr; $($verb:ident),+ $(,)?) => {
        $($crate::delegate_store!(@ $verb $self $store);)+
    };
    (@ charge $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, charge, set: ChargeSet<'_>, Outcome);
    };
    (@ peek $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, peek, set: ChargeSet<'_>, Outcome);
    };
    (@ refund $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, refund, refund: Refund<'_>, Refunded);
    };
    (@ draw $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, draw, charge: Charge<'_>, LeaseReply);
    };
    (@ force $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, force, set: ChargeSet<'_>, Outcome);
    };
    (@ reserve $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, reserve, reserve: Reserve<'_>, Outcome);
    };
    (@ settle $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, settle, settle: Settle<'_>, Settled);
    };
    (@ acquire $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, acquire, permit: PermitRequest<'_>, PermitReply);
    };
    (@ renew $self:ident $store:expr) => {
        $crate::delegate_store!(@@ $self $store, renew, permit: PermitRequest<'_>, PermitReply);
    };
    (@ release $self:ident $store:expr) => {
        async fn release(
            &$self,
            permit: &$crate::store::PermitRequest<'_>,
        ) -> Result<(), $crate::store::StoreError> {
            $store.release(permit).await
        }
    };
    (@ restore $self:ident $store:expr) => {
        async fn restore(
            &$self,
            restores: &[$crate::store::Restore<'_>],
        ) -> Result<(), $crate::store::StoreError> {
            $store.restore(restores).await
        }
    };
    (@ inspect $self:ident $store:expr) => {
        async fn inspect(
            &$self,
            set: &$crate::store::ChargeSet<'_>,
        ) -> Result<Vec<Option<$crate::store::Inspection>>, $crate::store::StoreError> {
            $store.inspect(set).await
        }
    };
    (@ reset $self:ident $store:expr) => {
        async fn reset(
            &$self,
            set: &$crate::store::ChargeSet<'_>,
        ) -> Result<u64, $crate::store::StoreError> {
            $store.reset(set).await
        }
    };
    (@@ $self:ident $store:expr, $verb:ident, $what:ident: $type:ident<'_>, $reply:ident) => {
        async fn $verb(
            &$self,
            $what: &$crate::store::$type<'_>,
        ) -> Result<$crate::store::$reply, $crate::store::StoreError> {
            $store.$verb($what).await
        }
    };
}
