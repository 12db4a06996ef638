//! The output of every measurement: markdown tables, goals with their verdicts, and a page that states its
//! machine, commit and command.
//!
//! Knows nothing of the subjects.

mod facts;
mod goal;
mod options;
mod page;
mod stats;
mod table;

pub use facts::Facts;
pub use goal::{Goal, Verdict, goals_table};
pub use options::Options;
pub use page::Page;
pub use stats::{median, spread};
pub use table::{Table, figure, ratio};
