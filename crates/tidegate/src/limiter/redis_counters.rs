//! The counters of a limiter that is connected to Redis, as programs see them: nothing of the layers they are made of.

use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, RunId, Settle, Settled, SingleOutcomes, StoreResult,
};

use crate::resilience::Resilient;
use crate::runtime::TokioRuntime;
use crate::stores::redis::Redis;

/// Counters in Redis or Valkey, see [`LimiterBuilder::connect`](crate::LimiterBuilder::connect). Clones share them.
#[derive(Clone, Debug)]
pub struct RedisCounters(pub(super) Resilient<Redis, TokioRuntime>);

impl RedisCounters {
    /// Shuts down cleanly: returns all leases and syncs all lenient charges. From then on the store decides everything.
    /// Done when the store has replied, or after a few seconds.
    pub async fn drain(&self) {
        self.0.drain().await;
    }
}

macro_rules! forward {
    ($($verb:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {$(
        async fn $verb(&self, $($argument: $type),*) -> $reply {
            self.0.$verb($($argument),*).await
        }
    )*};
}

impl Counters for RedisCounters {
    forward! {
        charge(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        charge_batch(sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>>;
        charge_singles(charges: &[Charge<'_>], replies: &mut SingleOutcomes) -> ();
        peek(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        refund(refund: &Refund<'_>) -> StoreResult<Refunded>;
        draw(charge: &Charge<'_>) -> StoreResult<LeaseReply>;
        force(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        restore(restores: &[Restore<'_>]) -> StoreResult<()>;
        inspect(set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>>;
        reset(set: &ChargeSet<'_>) -> StoreResult<u64>;
    }

    fn run_id(&self, options: &RuleOptions) -> Option<RunId> {
        self.0.run_id(options)
    }

    fn evict_expired(&self) {
        self.0.evict_expired();
    }
}

impl Permits for RedisCounters {
    forward! {
        acquire(permit: &PermitRequest<'_>) -> StoreResult<PermitReply>;
        renew(permit: &PermitRequest<'_>) -> StoreResult<PermitReply>;
        release(permit: &PermitRequest<'_>) -> StoreResult<()>;
    }
}

impl Reservations for RedisCounters {
    forward! {
        reserve(reserve: &Reserve<'_>) -> StoreResult<Outcome>;
        settle(settle: &Settle<'_>) -> StoreResult<Settled>;
    }
}
