//! Writes the verbs of a store for tests that go to an inner store unchanged:
//! `delegate!(self => self.memory; charge, peek);`

macro_rules! delegate {
    ($self:ident => $store:expr; $($verb:ident),+) => {
        $(delegate!(@ $verb $self $store);)+
    };
    (@ refund $self:ident $store:expr) => { delegate!(@@ refund $self $store, &tidegate_core::store::Refund<'_> => tidegate_core::store::Refunded); };
    (@ draw $self:ident $store:expr) => { delegate!(@@ draw $self $store, &tidegate_core::store::Charge<'_> => tidegate_core::store::LeaseReply); };
    (@ restore $self:ident $store:expr) => { delegate!(@@ restore $self $store, &[tidegate_core::store::Restore<'_>] => ()); };
    (@ inspect $self:ident $store:expr) => { delegate!(@@ inspect $self $store, &tidegate_core::store::ChargeSet<'_> => Vec<Option<tidegate_core::store::Inspection>>); };
    (@ reset $self:ident $store:expr) => { delegate!(@@ reset $self $store, &tidegate_core::store::ChargeSet<'_> => u64); };
    (@ acquire $self:ident $store:expr) => { delegate!(@@ acquire $self $store, &tidegate_core::store::PermitRequest<'_> => tidegate_core::store::PermitReply); };
    (@ renew $self:ident $store:expr) => { delegate!(@@ renew $self $store, &tidegate_core::store::PermitRequest<'_> => tidegate_core::store::PermitReply); };
    (@ release $self:ident $store:expr) => { delegate!(@@ release $self $store, &tidegate_core::store::PermitRequest<'_> => ()); };
    (@ reserve $self:ident $store:expr) => { delegate!(@@ reserve $self $store, &tidegate_core::store::Reserve<'_> => tidegate_core::store::Outcome); };
    (@ settle $self:ident $store:expr) => { delegate!(@@ settle $self $store, &tidegate_core::store::Settle<'_> => tidegate_core::store::Settled); };
    (@ $verb:ident $self:ident $store:expr) => { delegate!(@@ $verb $self $store, &tidegate_core::store::ChargeSet<'_> => tidegate_core::store::Outcome); };
    (@@ $verb:ident $self:ident $store:expr, $argument:ty => $reply:ty) => {
        async fn $verb(&$self, argument: $argument) -> tidegate_core::store::StoreResult<$reply> {
            $store.$verb(argument).await
        }
    };
}
