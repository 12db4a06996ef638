//! What happened in a run: all that the checkers see of it.

use tidegate::resilience::Event;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::model::{Sent, Weather};

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it was asked, and when answered, by the simulation's clock.
    pub sent: Nanos,
    /// See `sent`.
    pub done: Nanos,
    /// Which node decided.
    pub node: usize,
    /// Whose request.
    pub subject: usize,
    /// Whether it may pass.
    pub admitted: bool,
    /// How it was decided.
    pub source: Source,
    /// The store's time of the decision, as the node has it.
    pub at: Nanos,
    /// The store's true time when it was answered.
    pub truth: Nanos,
}

/// How much of each counter is used by the store's books.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// When, by the simulation's clock and by the store's.
    pub at: Nanos,
    /// See `at`.
    pub truth: Nanos,
    /// One per counter.
    pub used: Vec<u64>,
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Requests sent.
    pub asked: u64,
    /// Requests that will never be answered because their node died.
    pub died: u64,
    /// Decisions, in the order they were answered.
    pub records: Vec<Record>,
    /// Decisions that failed.
    pub failed: Vec<String>,
    /// What nodes told of their store.
    pub events: Vec<(Nanos, usize, Event)>,
    /// Charges sent.
    pub sent: Vec<Sent>,
    /// The store's books.
    pub snapshots: Vec<Snapshot>,
    /// Refusals by a deny cache that the store would have admitted.
    pub hasty: Vec<Record>,
    /// When which node died.
    pub deaths: Vec<(Nanos, usize)>,
    /// From when to when which node was stopped.
    pub pauses: Vec<(Nanos, Nanos, usize)>,
    /// When the store lost counts.
    pub losses: Vec<Nanos>,
    /// When the weather changed.
    pub changes: Vec<(Nanos, Weather)>,
}
