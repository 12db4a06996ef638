//! What observers are told, after the fact. They cannot change a decision.

use crate::engine::{ConcurrencyLimit, Decision};
use crate::request::{Edge, Request};
use crate::store::{SingleOutcome, Source};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request was decided.
    Decided {
        /// What was asked.
        request: &'a Request<'a>,
        /// What was answered.
        decision: &'a Decision,
    },
    /// A key was charged under a limit that the caller brought, without a rule.
    Charged {
        /// Which door it came through.
        edge: Edge,
        /// What the counters of this kind are called.
        family: &'a str,
        /// What was answered.
        outcome: &'a SingleOutcome,
    },
    /// Too many requests were open for one more. Where the rule only watches, it is open all the same.
    PermitDenied {
        /// Which door it came through.
        edge: Edge,
        /// The limit.
        limit: &'a ConcurrencyLimit<'a>,
        /// How it was decided.
        source: Source,
    },
    /// Something became of a reservation.
    Reservation(ReservationStep),
}

/// What becomes of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReservationStep {
    /// An estimate was charged.
    Reserved,
    /// It was corrected to what was used.
    Settled,
    /// What was used was charged after the estimate had come back.
    Late,
    /// Nobody settled it, and this node gave it back.
    Returned,
    /// It was settled once more, or the store has lost it.
    Already,
    /// It was settled too late to count.
    Lapsed,
    /// The store does not answer: it is told later.
    Waiting,
}

impl ReservationStep {
    /// Every step.
    pub const ALL: [ReservationStep; 7] = [
        ReservationStep::Reserved,
        ReservationStep::Settled,
        ReservationStep::Late,
        ReservationStep::Returned,
        ReservationStep::Already,
        ReservationStep::Lapsed,
        ReservationStep::Waiting,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ReservationStep::Reserved => "reserved",
            ReservationStep::Settled => "settled",
            ReservationStep::Late => "late",
            ReservationStep::Returned => "returned",
            ReservationStep::Already => "already",
            ReservationStep::Lapsed => "lapsed",
            ReservationStep::Waiting => "waiting",
        }
    }
}

/// Someone who wants to know. Called on the path of every decision: it must neither wait nor fail.
pub trait Observer: Send + Sync {
    /// Takes notice.
    fn on_event(&self, event: &Event<'_>);
}
