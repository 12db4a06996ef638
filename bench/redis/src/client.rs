//! The clients that run in this process, each as a caller would use it.

use std::error::Error;

use crate::calls::Calls;
use crate::limitador::Limitador;
use crate::tidegate::{Bare, Guarded, Tidegate};

pub(crate) type BenchError = Box<dyn Error + Send + Sync>;

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

impl Client {
    /// Charges one unit to the key of this number.
    ///
    /// # Errors
    /// When it is refused or there is no exact answer: then something else was measured than asked for.
    pub(crate) async fn decide(&self, key: usize) -> Result<(), BenchError> {
        match self {
            Client::Calls(calls) => calls.decide(key).await,
            Client::Bare(store) => store.decide(key).await,
            Client::Guarded(store) => store.decide(key).await,
            Client::Limitador(limiter) => limiter.decide(key).await,
        }
    }
}
