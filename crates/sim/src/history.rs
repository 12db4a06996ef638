//! What happened in a run: all that the checkers see of it.

use tidegate::Settlement;
use tidegate::resilience::StoreEvent;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::model::{NetworkConditions, PermitEvent, ReservationEvent, SentCharge, StoreOp};

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecisionRecord {
    /// When it was asked, and when answered, by the simulation's clock.
    pub sent: Nanos,
    /// See `sent`.
    pub done: Nanos,
    /// The store's true time when it was asked.
    pub store_time_sent: Nanos,
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
    pub store_time_done: Nanos,
}

impl DecisionRecord {
    /// Whether a node decided without the reply of the store.
    pub fn is_local(&self) -> bool {
        matches!(self.source, Source::Fallback | Source::Late)
    }
}

/// A call whose cost is known only at the end, as its client knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationCall {
    /// Whose.
    pub subject: usize,
    /// Where it was reserved, and when that was asked.
    pub node: usize,
    /// See `node`.
    pub sent: Nanos,
    /// What was estimated, and for how long.
    pub estimate: u64,
    /// See `estimate`.
    pub lasts: Nanos,
    /// What is used of it, if it may pass.
    pub used: u64,
    /// The answer; nothing if the node died before.
    pub reply: Option<ReserveReply>,
    /// What was said of it in the end, each time.
    pub settlements: Vec<SettleCall>,
}

/// The answer to who reserves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveReply {
    /// When.
    pub done: Nanos,
    /// What the reservation is called, if the call may pass.
    pub id: Option<u128>,
    /// The store's time of the decision, as the node has it.
    pub at: Nanos,
    /// How it was decided.
    pub source: Source,
}

/// That somebody says what a call used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettleCall {
    /// Where.
    pub node: usize,
    /// When it was said.
    pub sent: Nanos,
    /// When it was answered and how; nothing if the node died before.
    pub reply: Option<(Nanos, Settlement)>,
}

/// A request that wants to be open for a while, as its client knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PermitSession {
    /// Whose.
    pub subject: usize,
    /// Who asked, and when.
    pub node: usize,
    /// See `node`.
    pub sent: Nanos,
    /// When it was answered; nothing if the node died before.
    pub done: Option<Nanos>,
    /// Whom the slot is held by, if it was given.
    pub holder: Option<u128>,
    /// Whether the node itself keeps the slot.
    pub auto_renewed: bool,
    /// What was asked about it later, in order.
    pub calls: Vec<PermitCall>,
    /// When its client went away without a word.
    pub client_died: Option<Nanos>,
}

/// That a client renews its slot or gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitCall {
    /// Where.
    pub node: usize,
    /// When it was asked.
    pub sent: Nanos,
    /// When it was answered; nothing if the node died before, or could not say.
    pub done: Option<Nanos>,
    /// What.
    pub op: PermitOp,
}

/// What a visit is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitOp {
    /// To keep the slot; whether it is.
    Renew(bool),
    /// To give it back.
    Release,
}

/// How much of each counter is used by the store's books.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreSnapshot {
    /// When, by the simulation's clock and by the store's.
    pub at: Nanos,
    /// See `at`; where there are several stores, the first one's.
    pub store_time: Nanos,
    /// The same of each line of stores.
    pub store_times: Vec<Nanos>,
    /// One per counter.
    pub used: Vec<u64>,
}

impl History {
    /// What nodes told of one line of stores.
    pub fn events_of(&self, shard: usize) -> impl Iterator<Item = &(Nanos, usize, StoreEvent)> {
        let events = self.events.iter().zip(&self.event_shards);
        events
            .filter(move |(_, of)| **of == shard)
            .map(|(event, _)| event)
    }
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Requests sent.
    pub requests: u64,
    /// Requests that will never be answered because their node died.
    pub unanswered: u64,
    /// Decisions, in the order they were answered.
    pub records: Vec<DecisionRecord>,
    /// Decisions that failed.
    pub errors: Vec<String>,
    /// What nodes told of their store.
    pub events: Vec<(Nanos, usize, StoreEvent)>,
    /// The line of stores that each of the events was about.
    pub event_shards: Vec<usize>,
    /// Charges sent.
    pub charges_sent: Vec<SentCharge>,
    /// What the store did for each node.
    pub store_ops: Vec<StoreOp>,
    /// The bits of each counter, in the order of the scenario.
    pub counters: Vec<u128>,
    /// The state of the store.
    pub snapshots: Vec<StoreSnapshot>,
    /// Refusals by a deny cache that the store would have admitted.
    pub premature_denials: Vec<DecisionRecord>,
    /// When which node died.
    pub deaths: Vec<(Nanos, usize)>,
    /// When which node had given back what it held, and was done.
    pub drained: Vec<(Nanos, usize)>,
    /// From when to when which node was stopped.
    pub pauses: Vec<(Nanos, Nanos, usize)>,
    /// When the store lost counts.
    pub losses: Vec<Nanos>,
    /// The last heartbeat that the part which took over found in its data, by its clock. Zero if one is lost.
    pub found_heartbeat: Nanos,
    /// When the weather changed.
    pub condition_changes: Vec<(Nanos, NetworkConditions)>,
    /// Refunds of the limit that all share.
    pub wide_refunds: u64,
    /// Calls that spoke of several slots.
    pub cross_slot_calls: u64,
    /// Calls whose costs were estimated, in the order they were asked.
    pub reservation_calls: Vec<ReservationCall>,
    /// What the store did about estimates.
    pub reservation_events: Vec<ReservationEvent>,
    /// Requests that wanted to be open for a while, in the order they were asked.
    pub permit_sessions: Vec<PermitSession>,
    /// What the store did about slots.
    pub permit_events: Vec<PermitEvent>,
    /// How many slots of each subject could be had when all were free, at the end.
    pub permits_at_end: Vec<u32>,
}
