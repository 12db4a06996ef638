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
    pub lasts: Nanos,
    /// What is charged: all of it or nothing.
    pub set: ChargeSet<'a>,
}

impl Reserve<'_> {
    /// The longest a reservation may last.
    pub const LONGEST: Nanos = Nanos::from_secs(3_600);
}

/// What became of a reservation.
#[derive(Clone, Debug)]
pub struct Settle<'a> {
    /// That of the reservation.
    pub id: u128,
    /// The store's time of its charge. Of one that was charged in several steps the earliest: each
    /// store remembers its own.
    pub charged: Nanos,
    /// When it ends or ended.
    pub until: Nanos,
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
    Unsaid,
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
pub enum Kept {
    /// It was charged then, by the store's time, and is open.
    Open(Nanos),
    /// The estimate has come back.
    Back,
    /// Nothing.
    Nothing,
}

/// How a counter has to change for what was used to be what is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// Not at all.
    Nothing,
    /// So much is given back, as far as the bounds allow.
    Back(Cost),
    /// So much is charged, whether it fits or not.
    More(Cost),
}

impl Settle<'_> {
    /// How long the reservation lasts.
    pub fn lasts(&self) -> Nanos {
        self.until.since(self.charged)
    }

    /// Until when it can be settled: as long after its end as it lasted.
    pub fn forgotten_at(&self) -> Nanos {
        self.until.plus(self.lasts())
    }

    /// How the counter of the charge `at` has to change, when this was found of it.
    pub fn correction(&self, at: usize, kept: Kept) -> Correction {
        let estimate = self.set.charges[at].cost;
        let used = match &self.used {
            Used::Known(used) => used.get(at).copied().unwrap_or(estimate.get()),
            Used::Unsaid => 0,
        };
        let (back, more) = match kept {
            Kept::Open(_) => (
                estimate.get().saturating_sub(used),
                used.saturating_sub(estimate.get()),
            ),
            Kept::Back => (0, used),
            Kept::Nothing => (0, 0),
        };
        match (Cost::new(back), Cost::new(more)) {
            (Some(back), _) => Correction::Back(back),
            (None, Some(more)) => Correction::More(more),
            (None, None) => Correction::Nothing,
        }
    }

    /// What settling did, when this was found of its charges at `now`.
    pub fn outcome(&self, found: &[Kept], now: Nanos) -> Settled {
        let open = found.iter().any(|kept| matches!(kept, Kept::Open(_)));
        match (open, found.contains(&Kept::Back)) {
            (true, _) => Settled::Done,
            (false, true) => Settled::Late,
            (false, false) if now < self.forgotten_at() => Settled::Already,
            (false, false) => Settled::Lapsed,
        }
    }

    /// Whether it is too late to say what was used. An estimate comes back however late it is.
    pub fn is_too_late(&self, now: Nanos) -> bool {
        self.used != Used::Unsaid && now >= self.forgotten_at()
    }

    fn corrected(&self, found: &[Kept], by: impl Fn(Correction) -> Option<Cost>) -> ChargeSet<'_> {
        let charges = self.set.charges.iter().zip(found).enumerate();
        let charges = charges.filter_map(|(at, (charge, kept))| {
            let mut charge = charge.clone();
            charge.cost = by(self.correction(at, *kept))?;
            Some(charge)
        });
        ChargeSet::of(charges)
    }

    /// What is given back.
    pub fn given_back(&self, found: &[Kept]) -> ChargeSet<'_> {
        self.corrected(found, |correction| match correction {
            Correction::Back(units) => Some(units),
            Correction::Nothing | Correction::More(_) => None,
        })
    }

    /// When what is given back was charged. The earliest of it: the longer ago, the more has drained since,
    /// and the less comes back.
    pub fn given_back_of(&self, found: &[Kept]) -> Nanos {
        let times = found.iter().filter_map(|kept| match kept {
            Kept::Open(charged) => Some(*charged),
            Kept::Back | Kept::Nothing => None,
        });
        times.min().unwrap_or(self.charged)
    }

    /// What is charged on top.
    pub fn charged_on_top(&self, found: &[Kept]) -> ChargeSet<'_> {
        self.corrected(found, |correction| match correction {
            Correction::More(units) => Some(units),
            Correction::Nothing | Correction::Back(_) => None,
        })
    }
}
