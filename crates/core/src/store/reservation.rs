//! Costs that are known only at the end: an estimate is charged now, and settled when it is known.
//!
//! A store remembers every open reservation beside the counter it was charged to, so that any node may
//! settle it, and the estimate comes back by itself if nobody does. A settlement counts once. Who
//! settles after the estimate came back is charged all that was used; for how long that is still
//! possible is bounded, and so is what a store remembers. Pure: what to correct follows from what was
//! found, here and for every store that is not a script.

use smallvec::SmallVec;

use super::ChargeSet;
use crate::units::{Cost, Nanos};

/// An estimate to be charged. Each counter may occur once in the set.
#[derive(Clone, Debug)]
pub struct Reserve<'a> {
    /// Unique to the reservation.
    pub id: u128,
    /// When it ends if nobody settles it, from the store's time of the charge on.
    pub ttl: Nanos,
    /// What is charged: all of it or nothing.
    pub set: ChargeSet<'a>,
}

impl Reserve<'_> {
    /// The longest a reservation may last.
    pub const MAX_TTL: Nanos = Nanos::from_secs(3_600);
}

/// What became of a reservation.
#[derive(Clone, Debug)]
pub struct Settle<'a> {
    /// That of the reservation.
    pub id: u128,
    /// The store's time of its charge. Of one that was charged in several steps the earliest: each
    /// store remembers its own.
    pub charged_at: Nanos,
    /// When it ends or ended.
    pub expires_at: Nanos,
    /// What was charged, with the estimates as costs.
    pub set: ChargeSet<'a>,
    /// What was used of it.
    pub used: Used,
}

/// How much of an estimate was used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Used {
    /// So many units, for each charge in order.
    Known(SmallVec<[u64; 4]>),
    /// Nobody said, and its time is over: the estimate comes back.
    Unknown,
}

/// What settling a reservation did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Settled {
    /// The estimate was corrected to what was used.
    Done,
    /// The estimate had come back before: what was used was charged now.
    Late,
    /// It was settled before, or the store has lost it; nothing changed.
    Already,
    /// It is too long ago; nothing changed.
    Lapsed,
}

/// What a store remembers of one charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationState {
    /// It was charged then, by the store's time, and is open.
    Open(Nanos),
    /// The estimate has come back.
    Returned,
    /// Nothing.
    Unknown,
}

/// How a counter has to change for what was used to be what is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// Not at all.
    None,
    /// So much is given back, as far as the bounds allow.
    Refund(Cost),
    /// So much is charged, whether it fits or not.
    Charge(Cost),
}

impl Settle<'_> {
    /// How long the reservation lasts.
    pub fn ttl(&self) -> Nanos {
        self.expires_at.since(self.charged_at)
    }

    /// Until when it can be settled: as long after its end as it lasted.
    pub fn settle_deadline(&self) -> Nanos {
        self.expires_at.plus(self.ttl())
    }

    /// How the counter of the charge `at` has to change, when this was found of it.
    pub fn correction(&self, at: usize, state: ReservationState) -> Correction {
        let estimate = self.set.charges[at].cost;
        let used = match &self.used {
            Used::Known(used) => used.get(at).copied().unwrap_or(estimate.get()),
            Used::Unknown => 0,
        };
        let (refund, charge) = match state {
            ReservationState::Open(_) => (
                estimate.get().saturating_sub(used),
                used.saturating_sub(estimate.get()),
            ),
            ReservationState::Returned => (0, used),
            ReservationState::Unknown => (0, 0),
        };
        match (Cost::new(refund), Cost::new(charge)) {
            (Some(refund), _) => Correction::Refund(refund),
            (None, Some(charge)) => Correction::Charge(charge),
            (None, None) => Correction::None,
        }
    }

    /// What settling did, when this was found of its charges at `now`.
    pub fn outcome(&self, states: &[ReservationState], now: Nanos) -> Settled {
        let open = states
            .iter()
            .any(|state| matches!(state, ReservationState::Open(_)));
        match (open, states.contains(&ReservationState::Returned)) {
            (true, _) => Settled::Done,
            (false, true) => Settled::Late,
            (false, false) if now < self.settle_deadline() => Settled::Already,
            (false, false) => Settled::Lapsed,
        }
    }

    /// Whether it is too late to say what was used. An estimate comes back however late it is.
    pub fn is_too_late(&self, now: Nanos) -> bool {
        self.used != Used::Unknown && now >= self.settle_deadline()
    }

    fn corrected(
        &self,
        states: &[ReservationState],
        by: impl Fn(Correction) -> Option<Cost>,
    ) -> ChargeSet<'_> {
        let charges = self.set.charges.iter().zip(states).enumerate();
        let charges = charges.filter_map(|(at, (charge, state))| {
            let mut charge = charge.clone();
            charge.cost = by(self.correction(at, *state))?;
            Some(charge)
        });
        ChargeSet::of(charges)
    }

    /// What is given back.
    pub fn refunds(&self, states: &[ReservationState]) -> ChargeSet<'_> {
        self.corrected(states, |correction| match correction {
            Correction::Refund(units) => Some(units),
            Correction::None | Correction::Charge(_) => None,
        })
    }

    /// When what is given back was charged. The earliest of it: the longer ago, the more has drained since,
    /// and the less comes back.
    pub fn refunds_charged_at(&self, states: &[ReservationState]) -> Nanos {
        let times = states.iter().filter_map(|state| match state {
            ReservationState::Open(charged_at) => Some(*charged_at),
            ReservationState::Returned | ReservationState::Unknown => None,
        });
        times.min().unwrap_or(self.charged_at)
    }

    /// What is charged on top.
    pub fn extra_charges(&self, states: &[ReservationState]) -> ChargeSet<'_> {
        self.corrected(states, |correction| match correction {
            Correction::Charge(units) => Some(units),
            Correction::None | Correction::Refund(_) => None,
        })
    }
}
