//! Events for observers, after the fact. Observers cannot change a decision.

use crate::engine::{ConcurrencyLimit, Decision};
use crate::request::{Edge, Request};
use tidegate_core::store::{SingleOutcome, Source};

/// An event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request was decided.
    Decided {
        /// The request.
        request: &'a Request<'a>,
        /// The decision.
        decision: &'a Decision,
    },
    /// A key was charged under a limit of the caller, without a rule.
    Charged {
        /// The edge that received it.
        edge: Edge,
        /// The name of the counters of this kind.
        family: &'a str,
        /// The result.
        outcome: &'a SingleOutcome,
    },
    /// A concurrency limit had no permit left. In shadow mode the request proceeds all the same.
    PermitDenied {
        /// The edge that received it.
        edge: Edge,
        /// The limit.
        limit: &'a ConcurrencyLimit<'a>,
        /// How it was decided.
        source: Source,
    },
    /// A step of a reservation.
    Reservation(ReservationStep),
}

tidegate_core::named_enum! {
    /// A step of a reservation.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum ReservationStep {
        /// An estimate was charged.
        Reserved = "reserved",
        /// The estimate was corrected to the units used.
        Settled = "settled",
        /// The units used were charged after the estimate had been refunded.
        Late = "late",
        /// The reservation expired, and this node refunded it.
        Refunded = "returned",
        /// The reservation was settled once more, or the store has lost it.
        Already = "already",
        /// The settlement came too late to count.
        Lapsed = "lapsed",
        /// The store does not reply: the settlement is sent later.
        Waiting = "waiting",
    }
}

/// A consumer of events. Called on the path of every decision: it must neither block nor fail.
pub trait Observer: Send + Sync {
    /// Handles one event.
    fn on_event(&self, event: &Event<'_>);
}
