//! The clients that run in this process, each as a caller would use it.

use bench_load::BenchError;

use crate::calls::Calls;
use crate::limitador::Limitador;
use crate::tidegate::{Bare, Guarded, Tidegate};

/// Connections of every client that can be told how many: what our store opens unless told otherwise.
pub(crate) const CONNECTIONS: usize = 2;

/// The most keys that take part.
pub(crate) const KEYS: usize = 10_000;

/// A client that decides about one key at a time.
pub(crate) enum Client {
    /// Commands by redis-rs, of whose answers nothing is made.
    Calls(Calls),
    /// Our store.
    Bare(Tidegate<Bare>),
    /// Our store with everything around it that copes with its failure.
    Guarded(Box<Tidegate<Guarded>>),
    /// The crate `limitador` on its Redis storage.
    Limitador(Limitador),
}

impl bench_load::Client for Client {
    /// A refusal and an answer that is not exact are errors.
    async fn decide(&self, key: usize) -> Result<(), BenchError> {
        match self {
            Client::Calls(calls) => calls.decide(key).await,
            Client::Bare(store) => store.decide(key).await,
            Client::Guarded(store) => store.decide(key).await,
            Client::Limitador(limiter) => limiter.decide(key).await,
        }
    }
}
