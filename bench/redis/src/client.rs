//! The clients that run in this process, each as a caller would use it.

use bench_load::BenchError;

use crate::calls::RedisCalls;
use crate::limitador::LimitadorRedis;
use crate::tidegate::{BareStore, ResilientStore, TidegateRedis};

/// The connections of every client with such a setting: the default of our store.
pub(crate) const CONNECTIONS: usize = 2;

/// The maximum number of keys.
pub(crate) const KEYS: usize = 10_000;

/// A client that decides about one key at a time.
pub(crate) enum RedisBenchClient {
    /// Commands by redis-rs, whose replies are not parsed further.
    Calls(RedisCalls),
    /// Our store.
    Bare(TidegateRedis<BareStore>),
    /// Our store with the resilience stack.
    Guarded(Box<TidegateRedis<ResilientStore>>),
    /// The crate `limitador` on its Redis storage.
    Limitador(LimitadorRedis),
}

impl bench_load::LoadClient for RedisBenchClient {
    /// A denial or a decision that is not exact is an error.
    async fn decide(&self, key: usize) -> Result<(), BenchError> {
        match self {
            RedisBenchClient::Calls(calls) => calls.decide(key).await,
            RedisBenchClient::Bare(store) => store.decide(key).await,
            RedisBenchClient::Guarded(store) => store.decide(key).await,
            RedisBenchClient::Limitador(limiter) => limiter.decide(key).await,
        }
    }
}
