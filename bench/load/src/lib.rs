//! Load on a client that decides in a server: in a closed loop or at a steady pace, and its figures.
//!
//! Knows neither the server nor the decisions.

mod figures;
mod tasks;

use std::error::Error;
use std::future::Future;

pub use figures::{LoadEffort, LoadFigures, LoadWaits, at_pace, by_tasks, figures, median_figures};
pub use tasks::{Concurrency, DecisionCount};

/// Any error that ends a measurement.
pub type BenchError = Box<dyn Error + Send + Sync>;

/// A client that decides about one key at a time.
pub trait LoadClient: Send + Sync + 'static {
    /// Charges one unit to the key of this number.
    ///
    /// # Errors
    ///
    /// When the outcome is not the one under measurement.
    fn decide(&self, key: usize) -> impl Future<Output = Result<(), BenchError>> + Send;
}
