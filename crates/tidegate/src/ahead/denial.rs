//! A remembered denial: a flood of denied requests stays away from the store.
//!
//! It is valid for the same limit and the same cost or more, and no longer than the store's `retry`: without a refund
//! in between the store would have denied too. Only denials by the store itself or by a synced lenient view are
//! remembered: where a view denied, not those of the charges that were only read after it, by whatever could be read.
//! A draw that found nothing left is a denial too, of one unit: more units take a longer wait.
//!
//! Where a rule counts leased or leniently, a short wait is extended a little: see [`denial_hold`]. Pure: times go in.

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::{Algorithm, Limit, Retry, Verdict};
use tidegate_core::store::{Charge, ChargeSet, Counting, LeaseReply, LimitReading, Outcome, Role, Source};
use tidegate_core::units::{Cost, Nanos};

/// The longest time for which a denial of a leased or lenient rule is remembered: units that other nodes hold may
/// come back at any moment, and lenient views deny by a state no older than this.
const MAX_AGE_AHEAD: Nanos = Nanos::from_millis(50);

/// The longest denial hold. Clients would notice a longer one.
const MAX_DENIAL_HOLD: Nanos = Nanos::from_millis(20);

/// A denial of one counter.
pub(super) struct Denial {
    /// The limit as it was, including the longest delay that the caller accepts.
    limit: Limit,
    costs: DeniedCosts,
    /// When the request was sent, by the local clock.
    pub(super) sent: Nanos,
    /// When it was denied, by the store's clock.
    at: Nanos,
    pub(super) until: Nanos,
    /// The readings of all limits of the request, by counter and limit.
    readings: SmallVec<[(u128, LimitVersion, LimitReading); 2]>,
}

/// The costs that are denied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeniedCosts {
    /// The store denied this cost.
    AtLeast(Cost),
    /// A draw found nothing left. Leases decide first: some units may be left here.
    One,
}

/// Identifies the limit of a reading: its tag and capacity.
type LimitVersion = (u32, u64);

fn limit_version(limit: &Limit) -> LimitVersion {
    (limit.tag(), limit.capacity())
}

impl Denial {
    /// The denials in the reply to `set`, sent at `sent`, by counter. Each lasts at most `max_age`.
    pub(super) fn in_reply<'s>(
        set: &'s ChargeSet<'_>,
        outcome: &'s Outcome,
        sent: Nanos,
        max_age: Nanos,
    ) -> impl Iterator<Item = (u128, Denial)> {
        // Where a view denied, all lenient charges were decided by views, and the others were only read.
        let is_decided = |charge: &Charge<'_>| match outcome.source {
            Source::Exact => true,
            Source::Lenient => charge.options.counting == Counting::Lenient,
            _ => false,
        };
        let each = move || set.charges.iter().zip(&outcome.readings);
        each().filter_map(move |(charge, reading)| {
            let Verdict::Deny { retry: Retry::After(wait) } = reading.verdict else {
                return None;
            };
            // A counter that is named twice in one set denies the sum, not the cost.
            let named = set.charges.iter().filter(|c| c.counter() == charge.counter());
            if outcome.admitted || !is_decided(charge) || charge.role != Role::Enforce || named.count() > 1 {
                return None;
            }
            let max_age = match charge.options.counting {
                Counting::Exact => max_age,
                Counting::Leased | Counting::Lenient => max_age.min(MAX_AGE_AHEAD),
            };
            let readings = each().map(|(charge, reading)| {
                (charge.counter(), limit_version(&charge.limit), extend_to_hold(*reading, denial_hold(charge)))
            });
            let denial = Denial {
                limit: charge.limit.as_ref().clone(),
                costs: DeniedCosts::AtLeast(charge.cost),
                sent,
                at: outcome.at,
                until: sent.plus(wait.min(max_age).max(denial_hold(charge))),
                readings: readings.collect(),
            };
            Some((charge.counter(), denial))
        })
    }

    /// The denial in the reply to a draw, sent at `sent`, if nothing is left.
    pub(super) fn by_draw(charge: &Charge<'_>, drawn: &LeaseReply, sent: Nanos) -> Option<Denial> {
        let (figures, hold) = (drawn.figures, denial_hold(charge));
        let reading = LimitReading { verdict: Verdict::Deny { retry: Retry::After(figures.more_after) }, figures };
        (figures.remaining == 0).then(|| Denial {
            limit: charge.limit.as_ref().clone(),
            costs: DeniedCosts::One,
            sent,
            at: drawn.at,
            until: sent.plus(figures.more_after.min(MAX_DENIAL_HOLD).max(hold)),
            readings: smallvec![(charge.counter(), limit_version(&charge.limit), extend_to_hold(reading, hold))],
        })
    }

    /// Whether a draw found nothing left.
    pub(super) fn is_by_draw(&self) -> bool {
        self.costs == DeniedCosts::One
    }

    /// The same denial for `charge` of `set`, if it still applies and has readings for all limits of the set.
    pub(super) fn replay(&self, set: &ChargeSet<'_>, charge: &Charge<'_>, now: Nanos) -> Option<Outcome> {
        let is_denied = match self.costs {
            DeniedCosts::AtLeast(cost) => charge.cost >= cost,
            DeniedCosts::One => charge.cost == Cost::ONE,
        };
        if now >= self.until || !is_denied || *charge.limit != self.limit {
            return None;
        }
        let passed = now.since(self.sent);
        let readings = set.charges.iter().map(|charge| {
            let known = (charge.counter(), limit_version(&charge.limit));
            let found = self.readings.iter().find(|(counter, version, _)| (*counter, *version) == known);
            found.map(|(_, _, reading)| aged(*reading, passed))
        });
        Some(Outcome::new(false, readings.collect::<Option<_>>()?, self.at.plus(passed), Source::DenyCache))
    }
}

/// The shortest time for which a denial is valid. At a high rate the next unit arrives within a millisecond, and
/// under overload every node would call the store with every request. Units that flow in during the hold are not
/// lost: they wait in the bucket, as long as they are few compared with its capacity. Exact counting promises the
/// shortest possible wait, so it has no hold. A window frees its units all at once at an edge, so it needs none.
fn denial_hold(charge: &Charge<'_>) -> Nanos {
    if charge.options.counting == Counting::Exact {
        return Nanos::ZERO;
    }
    match charge.limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowStrict => Nanos::ZERO,
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::LeakyQueue
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => Nanos::new(charge.limit.full_window().get() / 4).min(MAX_DENIAL_HOLD),
    }
}

/// The reading of a denial that is valid for at least `hold`.
fn extend_to_hold(mut reading: LimitReading, hold: Nanos) -> LimitReading {
    if let Verdict::Deny { retry: Retry::After(wait) } = &mut reading.verdict {
        *wait = (*wait).max(hold);
        let more_after = &mut reading.figures.more_after;
        *more_after = (*more_after).max(hold);
    }
    reading
}

fn aged(mut reading: LimitReading, passed: Nanos) -> LimitReading {
    if let Verdict::Deny { retry: Retry::After(wait) } = &mut reading.verdict {
        *wait = wait.since(passed);
    }
    let figures = &mut reading.figures;
    (figures.reset_after, figures.more_after) = (figures.reset_after.since(passed), figures.more_after.since(passed));
    reading
}
