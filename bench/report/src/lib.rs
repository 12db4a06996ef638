//! What every measurement prints: markdown tables, goals with their verdict, and a page that says on
//! which machine, at which commit and by which command it was made.
//!
//! Knows nothing of what was measured.

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
