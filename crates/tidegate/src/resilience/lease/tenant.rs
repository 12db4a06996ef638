//! Who has a place: one counter under one limit, what is held of it, and how fast it is asked for.
//!
//! Kept true: nothing is taken from a grant that has ended, and all that is held never exceeds what flows
//! into the limit during the life of one lease.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Limit, Retry, Verdict};
use tidegate_core::store::{Charge, Granted, Life, Reading};
use tidegate_core::units::{Cost, Nanos};

use super::newcomer::Newcomer;
use super::pace::Pace;
use super::refill::Refill;
use crate::resilience::deny_cache::{LONGEST_HOLD, hold};
use crate::resilience::owned::OwnedCharge;

/// Units are drawn in advance only where so many requests come while a node plans ahead. With fewer,
/// what lies idle in leases is worth more than the round trips they spare.
pub(super) const WORTH_IT: u64 = 8;

/// For how far ahead units of a limit are planned: half the life of a lease.
pub(super) fn ahead(charge: &Charge<'_>) -> Nanos {
    let lease = charge.limit.lease().unwrap_or(Nanos::ZERO);
    Nanos::new(lease.get() / 2)
}

/// How many units may be held: no more than flow in during one lease.
fn most_held(limit: &Limit) -> Option<u64> {
    let flows_in = u128::from(limit.count()) * u128::from(limit.lease()?.get());
    let most = flows_in / u128::from(limit.per().get().max(1));
    Some(u64::try_from(most).unwrap_or(u64::MAX))
}

/// Whether as many units as it costs may be held. Asked for every request, so without a division.
pub(super) fn can_be_held(charge: &Charge<'_>) -> bool {
    let limit = charge.limit.as_ref();
    let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
    limit.lease().is_some_and(|lease| {
        wide(charge.cost.get(), limit.per().get()) <= wide(limit.count(), lease.get())
    })
}

/// Units charged in advance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// Which one of its place.
    number: u64,
    pub(super) units: u64,
    /// When the store charged them, by its clock.
    pub(super) at: Nanos,
    /// When they were asked for, by the local clock.
    sent: Nanos,
    /// When they may no longer be used, by the local clock. Reckoned from when they were asked for: the
    /// store charged them then or later.
    pub(super) ends: Nanos,
    /// How the limit stood then.
    figures: Figures,
    /// The life of the store that charged them.
    pub(super) life: Life,
}

/// The store had nothing left when it was last asked for more. That is as good as a refusal of every
/// cost, and stands as long as a deny cache would hold one, or until there is more if that is soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    /// When it was asked and when this ends, by the local clock.
    sent: Nanos,
    pub(super) until: Nanos,
    /// When it said so, by its own.
    at: Nanos,
    figures: Figures,
}

/// One counter under one limit.
pub(super) struct Tenant {
    pub(super) counter: u128,
    pub(super) limit: Limit,
    /// For how far ahead it plans: half the life of a lease.
    pub(super) ahead: Nanos,
    /// The most it may hold: what flows in during one life, so that the store makes up for a node that died
    /// within one.
    pub(super) most: u64,
    pub(super) pace: Pace,
    /// When it was last asked for.
    pub(super) used: Nanos,
    /// The one that ends first is first.
    pub(super) grants: SmallVec<[Grant; 2]>,
    /// Numbers given to grants so far.
    numbers: u64,
    /// What the last one gave.
    last: u64,
    /// What is asked for and not answered yet.
    pub(super) asked: Option<Arc<Refill>>,
    /// How long the store took the last time that it answered.
    pub(super) trip: Option<Nanos>,
    pub(super) over: Option<Over>,
    /// Nothing is asked for before.
    pub(super) rests_until: Nanos,
    /// Made when it first asks.
    pub(super) charge: Option<Arc<OwnedCharge>>,
}

impl Tenant {
    /// Moves in, as it was asked for before.
    pub(super) fn new(charge: &Charge<'_>, newcomer: &Newcomer, now: Nanos) -> Option<Self> {
        let limit = charge.limit.as_ref();
        let (most, ahead) = (most_held(limit)?, ahead(charge));
        Some(Tenant {
            counter: charge.counter(),
            limit: limit.clone(),
            ahead,
            most,
            pace: Pace::new(ahead, newcomer),
            used: now,
            grants: SmallVec::new(),
            numbers: 0,
            last: 0,
            asked: None,
            trip: None,
            over: None,
            rests_until: Nanos::ZERO,
            charge: None,
        })
    }

    /// Whether nobody asks for it any more.
    pub(super) fn idle(&self, now: Nanos) -> bool {
        now >= self.used.plus(self.ahead)
    }

    /// What is under way. A task that asked may be gone without an answer, with the runtime it was in.
    pub(super) fn under_way(&self) -> Option<&Arc<Refill>> {
        self.asked.as_ref().filter(|refill| !refill.is_over())
    }

    /// Whether another may have its place. One that is asked for too seldom to draw anything gives way at
    /// once.
    pub(super) fn gives_way(&self, now: Nanos) -> bool {
        let has_none = self.grants.is_empty() && self.under_way().is_none();
        has_none && (self.idle(now) || !self.busy())
    }

    fn busy(&self) -> bool {
        self.pace.requests() >= WORTH_IT
    }

    /// Units held, those that have ended among them.
    pub(super) fn held(&self) -> u64 {
        self.grants.iter().map(|grant| grant.units).sum()
    }

    /// Units that can be used.
    pub(super) fn ready(&self, now: Nanos) -> u64 {
        let live = self.grants.iter().filter(|grant| now < grant.ends);
        live.map(|grant| grant.units).sum()
    }

    /// Takes so many, those that end first, if there are enough.
    pub(super) fn take(&mut self, cost: u64, now: Nanos) -> Option<SmallVec<[Grant; 1]>> {
        if self.ready(now) < cost {
            return None;
        }
        let (mut taken, mut missing) = (SmallVec::new(), cost);
        for grant in self.grants.iter_mut().filter(|grant| now < grant.ends) {
            let units = grant.units.min(missing);
            if units > 0 {
                grant.units -= units;
                missing -= units;
                taken.push(Grant { units, ..*grant });
            }
        }
        self.grants.retain(|grant| grant.units > 0);
        Some(taken)
    }

    /// Puts units where they came from.
    pub(super) fn add(&mut self, grant: Grant) {
        let mut known = self.grants.iter_mut();
        if let Some(same) = known.find(|known| known.number == grant.number) {
            same.units += grant.units;
            return;
        }
        let at = self
            .grants
            .partition_point(|known| known.ends <= grant.ends);
        self.grants.insert(at, grant);
    }

    /// The store has answered what was asked for at `sent`.
    pub(super) fn receive(&mut self, granted: &Granted, life: Life, sent: Nanos) {
        if granted.figures.remaining == 0 {
            let wait = granted.figures.more_after.min(LONGEST_HOLD);
            let until = sent.plus(wait.max(hold(&self.limit)));
            self.rests_until = self.rests_until.max(until);
            self.over = Some(Over {
                sent,
                until,
                at: granted.at,
                figures: granted.figures,
            });
        }
        if granted.units == 0 {
            return;
        }
        let lasts = self.limit.lease_until(granted.at).since(granted.at);
        self.numbers += 1;
        self.last = granted.units;
        self.add(Grant {
            number: self.numbers,
            units: granted.units,
            at: granted.at,
            sent,
            ends: sent.plus(lasts),
            figures: granted.figures,
            life,
        });
    }

    /// How many units more are wanted, once half of the last ones is used or they are fewer than a request
    /// costs.
    pub(super) fn wants(&self, cost: u64, now: Nanos) -> Option<Cost> {
        let ready = self.ready(now);
        let low = ready <= self.last / 2 || ready < cost;
        if !self.busy() || !low || now < self.rests_until || self.under_way().is_some() {
            return None;
        }
        let room = self.most.saturating_sub(self.held());
        Cost::new(self.pace.units().min(room))
    }

    /// How the limit stands, as far as it is known here: as it stood then, and what is held.
    pub(super) fn figures(&self, grant: &Grant, now: Nanos) -> Figures {
        let passed = now.since(grant.sent);
        let remaining = grant.figures.remaining.saturating_add(self.ready(now));
        Figures {
            remaining: remaining.min(self.limit.capacity()),
            reset_after: grant.figures.reset_after.since(passed),
            more_after: grant.figures.more_after.since(passed),
        }
    }
}

impl Over {
    /// When it is refused, by the store's clock, and what is told.
    pub(super) fn refusal(&self, now: Nanos) -> (Nanos, Reading) {
        let passed = now.since(self.sent);
        let wait = self.figures.more_after.since(passed);
        let wait = wait.max(self.until.since(now));
        let reading = Reading {
            verdict: Verdict::Deny {
                retry: Retry::After(wait),
            },
            figures: Figures {
                remaining: 0,
                reset_after: self.figures.reset_after.since(passed),
                more_after: wait,
            },
        };
        (self.at.plus(passed), reading)
    }
}
