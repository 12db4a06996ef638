//! Verbs that a store around a store leaves to the one behind, written once.

/// Writes verbs of a [`Store`](crate::store::Store) that are for the store behind, as they are:
/// `pass_on!(self => self.store; seed, hold, renew);`
#[doc(hidden)] // for the crates of this workspace, not a promise
#[macro_export]
macro_rules! pass_on {
    ($self:ident => $store:expr; $($verb:ident),+ $(,)?) => {
        $($crate::pass_on!(@ $verb $self $store);)+
    };
    (@ charge $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, charge, set: ChargeSet<'_>, Outcome);
    };
    (@ peek $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, peek, set: ChargeSet<'_>, Outcome);
    };
    (@ refund $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, refund, refund: Refund<'_>, Refunded);
    };
    (@ grant $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, grant, charge: Charge<'_>, Granted);
    };
    (@ force $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, force, set: ChargeSet<'_>, Outcome);
    };
    (@ reserve $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, reserve, reserve: Reserve<'_>, Outcome);
    };
    (@ settle $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, settle, settle: Settle<'_>, Settled);
    };
    (@ hold $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, hold, hold: Hold<'_>, Held);
    };
    (@ renew $self:ident $store:expr) => {
        $crate::pass_on!(@@ $self $store, renew, hold: Hold<'_>, Held);
    };
    (@ release $self:ident $store:expr) => {
        async fn release(
            &$self,
            hold: &$crate::store::Hold<'_>,
        ) -> Result<(), $crate::store::StoreError> {
            $store.release(hold).await
        }
    };
    (@ seed $self:ident $store:expr) => {
        async fn seed(
            &$self,
            seeds: &[$crate::store::Seed<'_>],
        ) -> Result<(), $crate::store::StoreError> {
            $store.seed(seeds).await
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
    (@@ $self:ident $store:expr, $verb:ident, $what:ident: $type:ident<'_>, $answer:ident) => {
        async fn $verb(
            &$self,
            $what: &$crate::store::$type<'_>,
        ) -> Result<$crate::store::$answer, $crate::store::StoreError> {
            $store.$verb($what).await
        }
    };
}
