//! Reservations, for costs known only at the end: an estimate is charged now, and settled when the cost is known.
//!
//! A store remembers every open reservation beside the counter it was charged to. So any node may settle it, and the
//! store refunds the estimate by itself when the reservation expires. A settlement counts once. A settlement after
//! that refund charges all that was used. The time for late settlements is bounded, and so is the memory of a store.
//!
//! Pure: the correction follows from the recorded state, here and in every store that does not compute by itself.

use smallvec::SmallVec;

use super::ChargeSet;
use crate::units::{Cost, Nanos};

/// An estimate to be charged. Each counter may occur once in the set.
#[derive(Clone, Debug)]
pub struct Reserve<'a> {
    /// Unique to the reservation.
    pub id: u128,
    /// The lifetime without a settlement, from the store's time of the charge on.
    pub ttl: Nanos,
    /// The charges: all of them or none.
    pub set: ChargeSet<'a>,
}

impl Reserve<'_> {
    /// The longest a reservation may last.
    pub const MAX_TTL: Nanos = Nanos::from_secs(3_600);
}

/// A settlement of a reservation.
#[derive(Clone, Debug)]
pub struct Settle<'a> {
    /// The id of the reservation.
    pub id: u128,
    /// The store's time of its charge. A reservation that was charged in several steps has the earliest: each store
    /// remembers its own.
    pub charged_at: Nanos,
    /// When the reservation expires or expired.
    pub expires_at: Nanos,
    /// The charges, with the estimates as costs.
    pub set: ChargeSet<'a>,
    /// The units that were used.
    pub used: Used,
}

/// How much of an estimate was used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Used {
    /// The units used, for each charge in order.
    Known(SmallVec<[u64; 4]>),
    /// No settlement arrived in time: the estimate is refunded.
    Unknown,
}

/// The result of a settlement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Settled {
    /// The estimate was corrected to the units used.
    Done,
    /// The estimate had been refunded before: the units used were charged now.
    Late,
    /// It was settled before, or the store has lost it; nothing changed.
    Already,
    /// Too long ago; nothing changed.
    Lapsed,
}

/// The recorded state of one charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationState {
    /// Charged at this time, by the store's clock, and open.
    Open(Nanos),
    /// The estimate was refunded.
    Refunded,
    /// No record.
    Unknown,
}

/// The change of a counter that makes the units charged equal to the units used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// No change.
    None,
    /// A refund, as far as the bounds allow.
    Refund(Cost),
    /// A charge, even beyond the limit.
    Charge(Cost),
}

impl Settle<'_> {
    /// How long the reservation lasts.
    pub fn ttl(&self) -> Nanos {
        self.expires_at.since(self.charged_at)
    }

    /// The last moment of a settlement: the lifetime once more after the expiry.
    pub fn settle_deadline(&self) -> Nanos {
        self.expires_at.plus(self.ttl())
    }

    /// The correction of the counter of charge `at`, given its recorded state.
    pub fn correction(&self, at: usize, state: ReservationState) -> Correction {
        let estimate = self.set.charges[at].cost;
        let used = match &self.used {
            Used::Known(used) => used.get(at).copied().unwrap_or(estimate.get()),
            Used::Unknown => 0,
        };
        let (refund, charge) = match state {
            ReservationState::Open(_) => (estimate.get().saturating_sub(used), used.saturating_sub(estimate.get())),
            ReservationState::Refunded => (0, used),
            ReservationState::Unknown => (0, 0),
        };
        match (Cost::new(refund), Cost::new(charge)) {
            (Some(refund), _) => Correction::Refund(refund),
            (None, Some(charge)) => Correction::Charge(charge),
            (None, None) => Correction::None,
        }
    }

    /// The result of the settlement at `now`, given the recorded states of its charges.
    pub fn outcome(&self, states: &[ReservationState], now: Nanos) -> Settled {
        let open = states.iter().any(|state| matches!(state, ReservationState::Open(_)));
        match (open, states.contains(&ReservationState::Refunded)) {
            (true, _) => Settled::Done,
            (false, true) => Settled::Late,
            (false, false) if now < self.settle_deadline() => Settled::Already,
            (false, false) => Settled::Lapsed,
        }
    }

    /// Whether it is too late to report the units used. An estimate is refunded however late it is.
    pub fn is_too_late(&self, now: Nanos) -> bool {
        self.used != Used::Unknown && now >= self.settle_deadline()
    }

    fn corrected(&self, states: &[ReservationState], by: impl Fn(Correction) -> Option<Cost>) -> ChargeSet<'_> {
        let charges = self.set.charges.iter().zip(states).enumerate();
        let charges = charges.filter_map(|(at, (charge, state))| {
            let mut charge = charge.clone();
            charge.cost = by(self.correction(at, *state))?;
            Some(charge)
        });
        ChargeSet::of(charges)
    }

    /// The charges to refund.
    pub fn refunds(&self, states: &[ReservationState]) -> ChargeSet<'_> {
        self.corrected(states, |correction| match correction {
            Correction::Refund(units) => Some(units),
            Correction::None | Correction::Charge(_) => None,
        })
    }

    /// The charge time of the refunds: the earliest. The longer ago, the more has drained since, and the less is
    /// refunded.
    pub fn refunds_charged_at(&self, states: &[ReservationState]) -> Nanos {
        let times = states.iter().filter_map(|state| match state {
            ReservationState::Open(charged_at) => Some(*charged_at),
            ReservationState::Refunded | ReservationState::Unknown => None,
        });
        times.min().unwrap_or(self.charged_at)
    }

    /// The additional charges.
    pub fn extra_charges(&self, states: &[ReservationState]) -> ChargeSet<'_> {
        self.corrected(states, |correction| match correction {
            Correction::Charge(units) => Some(units),
            Correction::None | Correction::Refund(_) => None,
        })
    }
}
