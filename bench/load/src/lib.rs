//! Load on a client that decides in a server: as fast as answers come or at a steady pace, and the
//! figures of it.
//!
//! Knows neither the server nor what is decided.

mod figures;
mod tasks;

use std::error::Error;
use std::future::Future;

pub use figures::{LoadEffort, LoadFigures, LoadWaits, at_pace, by_tasks, figures, median_figures};
pub use tasks::{Concurrency, DecisionCount};

/// Whatever ends a measurement.
pub type BenchError = Box<dyn Error + Send + Sync>;

/// Someone who decides about one key at a time.
pub trait LoadClient: Send + Sync + 'static {
    /// Charges one unit to the key of this number.
    ///
    /// # Errors
    /// When something else happened than is to be measured.
    fn decide(&self, key: usize) -> impl Future<Output = Result<(), BenchError>> + Send;
}
