//! What happened in a run: all that the checkers see of it.

use tidegate::resilience::Event;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::model::{Entry, Sent, Weather};

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it was asked, and when answered, by the simulation's clock.
    pub sent: Nanos,
    /// See `sent`.
    pub done: Nanos,
    /// The store's true time when it was asked.
    pub began: Nanos,
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
    /// See `at`; where there are several stores, the first one's.
    pub truth: Nanos,
    /// The same of each line of stores.
    pub truths: Vec<Nanos>,
    /// One per counter.
    pub used: Vec<u64>,
}

impl History {
    /// What nodes told of one line of stores.
    pub fn events_of(&self, line: usize) -> impl Iterator<Item = &(Nanos, usize, Event)> {
        let events = self.events.iter().zip(&self.lines);
        events
            .filter(move |(_, of)| **of == line)
            .map(|(event, _)| event)
    }
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
    /// The line of stores that each of the events was about.
    pub lines: Vec<usize>,
    /// Charges sent.
    pub sent: Vec<Sent>,
    /// What the store did for each node.
    pub books: Vec<Entry>,
    /// The bits of each counter, in the order of the scenario.
    pub counters: Vec<u128>,
    /// The state of the store.
    pub snapshots: Vec<Snapshot>,
    /// Refusals by a deny cache that the store would have admitted.
    pub hasty: Vec<Record>,
    /// When which node died.
    pub deaths: Vec<(Nanos, usize)>,
    /// When which node had given back what it held, and was done.
    pub drained: Vec<(Nanos, usize)>,
    /// From when to when which node was stopped.
    pub pauses: Vec<(Nanos, Nanos, usize)>,
    /// When the store lost counts.
    pub losses: Vec<Nanos>,
    /// When the weather changed.
    pub changes: Vec<(Nanos, Weather)>,
    /// Refunds of the limit that all share.
    pub wide_refunds: u64,
    /// Calls that spoke of several slots.
    pub crossed: u64,
}
