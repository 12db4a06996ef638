//! The clients that run in this process, each as a caller would use it.

use bench_load::BenchError;

use crate::calls::RedisCalls;
use crate::limitador::LimitadorRedis;
use crate::tidegate::{BareStore, ResilientStore, TidegateRedis};

/// Connections of every client that can be told how many: what our store opens unless told otherwise.
pub(crate) const CONNECTIONS: usize = 2;

/// The most keys that take part.
pub(crate) const KEYS: usize = 10_000;

/// A client that decides about one key at a time.
pub(crate) enum RedisBenchClient {
    /// Commands by redis-rs, of whose answers nothing is made.
    Calls(RedisCalls),
    /// Our store.
    Bare(TidegateRedis<BareStore>),
    /// Our store with everything around it that copes with its failure.
    Guarded(Box<TidegateRedis<ResilientStore>>),
    /// The crate `limitador` on its Redis storage.
    Limitador(LimitadorRedis),
}

impl bench_load::LoadClient for RedisBenchClient {
    /// A refusal and an answer that is not exact are errors.
    async fn decide(&self, key: usize) -> Result<(), BenchError> {
        match self {
            RedisBenchClient::Calls(calls) => calls.decide(key).await,
            RedisBenchClient::Bare(store) => store.decide(key).await,
            RedisBenchClient::Guarded(store) => store.decide(key).await,
            RedisBenchClient::Limitador(limiter) => limiter.decide(key).await,
        }
    }
}
