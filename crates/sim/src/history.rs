//! The history of a run: the only input of the checkers.

use tidegate::Settlement;
use tidegate::resilience::StoreEvent;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::model::{LinkCharge, NetworkConditions, PermitEvent, ReservationEvent, StoreOp};

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecisionRecord {
    /// When the request was sent, by the simulation's clock.
    pub sent: Nanos,
    /// When the decision was made, by the simulation's clock.
    pub done: Nanos,
    /// The store's true time at `sent`.
    pub store_time_sent: Nanos,
    /// The node that decided.
    pub node: usize,
    /// The subject of the request.
    pub subject: usize,
    /// Whether the request was allowed.
    pub admitted: bool,
    /// The source of the decision.
    pub source: Source,
    /// The store's time of the decision, as the node knows it.
    pub at: Nanos,
    /// The store's true time at `done`.
    pub store_time_done: Nanos,
}

impl DecisionRecord {
    /// Whether a node decided without a reply of the store.
    pub fn is_local(&self) -> bool {
        matches!(self.source, Source::Fallback | Source::Late)
    }
}

/// A call whose cost is known only at its end, as its client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationCall {
    /// The subject of the call.
    pub subject: usize,
    /// The node that received the reserve request.
    pub node: usize,
    /// When the reserve request was sent.
    pub sent: Nanos,
    /// The estimated cost.
    pub estimate: u64,
    /// The lifetime of the reservation.
    pub lasts: Nanos,
    /// The units that the call uses if it is admitted.
    pub used: u64,
    /// The reply; `None` if the node died first.
    pub reply: Option<ReserveReply>,
    /// Every attempt to settle the call.
    pub settlements: Vec<SettleCall>,
}

/// The reply to a reserve request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveReply {
    /// When the reply arrived.
    pub done: Nanos,
    /// The id of the reservation, if the call is admitted.
    pub id: Option<u128>,
    /// The store's time of the decision, as the node knows it.
    pub at: Nanos,
    /// The source of the decision.
    pub source: Source,
}

/// One attempt of a client to settle a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettleCall {
    /// The node that received the attempt.
    pub node: usize,
    /// When the attempt was sent.
    pub sent: Nanos,
    /// When the reply arrived, and the reply; `None` if the node died first.
    pub reply: Option<(Nanos, Settlement)>,
}

/// A request that stays open for a while, as its client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PermitSession {
    /// The subject of the request.
    pub subject: usize,
    /// The node that received the acquire request.
    pub node: usize,
    /// When the acquire request was sent.
    pub sent: Nanos,
    /// When the reply arrived; `None` if the node died first.
    pub done: Option<Nanos>,
    /// The holder id of the permit, if one was granted.
    pub holder: Option<u128>,
    /// Whether the node renews the permit by itself.
    pub auto_renewed: bool,
    /// Later calls about the permit, in order.
    pub calls: Vec<PermitCall>,
    /// When the client died without releasing the permit.
    pub client_died: Option<Nanos>,
}

/// A client's call to renew or release its permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitCall {
    /// The node that received the call.
    pub node: usize,
    /// When the call was sent.
    pub sent: Nanos,
    /// When the reply arrived; `None` if the node died first or could not decide.
    pub done: Option<Nanos>,
    /// The operation.
    pub op: PermitOp,
}

/// The operation of a permit call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitOp {
    /// Renew the permit. The value is the reply: whether the permit is still held.
    Renew(bool),
    /// Release the permit.
    Release,
}

/// The units in use of each counter, as the stores have them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreSnapshot {
    /// When the snapshot was taken, by the simulation's clock.
    pub at: Nanos,
    /// When the snapshot was taken, by the store's clock. With several shards: the clock of the first.
    pub store_time: Nanos,
    /// The same for each shard.
    pub store_times: Vec<Nanos>,
    /// Units in use, one entry per counter.
    pub used: Vec<u64>,
}

impl History {
    /// Events that nodes reported about one shard.
    pub fn events_of(&self, shard: usize) -> impl Iterator<Item = &(Nanos, usize, StoreEvent)> {
        let events = self.events.iter().zip(&self.event_shards);
        events.filter(move |(_, of)| **of == shard).map(|(event, _)| event)
    }
}

/// All events of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Requests sent.
    pub requests: u64,
    /// Requests without a reply because their node died.
    pub unanswered: u64,
    /// Decisions, in the order of their replies.
    pub records: Vec<DecisionRecord>,
    /// Errors of decisions that failed.
    pub errors: Vec<String>,
    /// Events that nodes reported about their store: time, node, event.
    pub events: Vec<(Nanos, usize, StoreEvent)>,
    /// The shard of each entry of `events`.
    pub event_shards: Vec<usize>,
    /// Charges that nodes sent.
    pub charges_sent: Vec<LinkCharge>,
    /// Operations of the store, with the node of each.
    pub store_ops: Vec<StoreOp>,
    /// The bits of each counter, in the order of the scenario.
    pub counters: Vec<u128>,
    /// Snapshots of the store.
    pub snapshots: Vec<StoreSnapshot>,
    /// Denials by a deny cache that the store would have admitted.
    pub premature_denials: Vec<DecisionRecord>,
    /// Deaths: time and node.
    pub deaths: Vec<(Nanos, usize)>,
    /// Completed drains: when the node had returned its leases, and the node.
    pub drained: Vec<(Nanos, usize)>,
    /// Pauses: begin, end, node.
    pub pauses: Vec<(Nanos, Nanos, usize)>,
    /// When the store lost counts.
    pub losses: Vec<Nanos>,
    /// The last heartbeat that the promoted shard found in its data, by its clock. Zero if an acknowledged
    /// heartbeat is lost.
    pub found_heartbeat: Nanos,
    /// Changes of the network conditions.
    pub condition_changes: Vec<(Nanos, NetworkConditions)>,
    /// Refunds of the limit that all subjects share.
    pub wide_refunds: u64,
    /// Calls that named several hash slots.
    pub cross_slot_calls: u64,
    /// Calls with an estimated cost, in the order of sending.
    pub reservation_calls: Vec<ReservationCall>,
    /// Operations of the store on reservations.
    pub reservation_events: Vec<ReservationEvent>,
    /// Requests that stay open for a while, in the order of sending.
    pub permit_sessions: Vec<PermitSession>,
    /// Operations of the store on permits.
    pub permit_events: Vec<PermitEvent>,
    /// For each subject, how many permits could be acquired at the end, when all had to be free.
    pub permits_at_end: Vec<u32>,
}
