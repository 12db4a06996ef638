//! Decides what can be of one charge set ahead of the store.
//!
//! Leases and lenient views decide enforced charges. All leased charges of a set are decided here or none, and so are
//! all lenient ones. The rest is a set of its own for the store: given that all local charges allow, the rest is denied
//! exactly if the request is. Local units are returned when the rest is denied; when a view denies, the store
//! only reads the rest. Pure: times go in, draws to send come out.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, ChargeSet, Counting, LimitReading, Outcome, Role, Source};
use tidegate_core::units::Nanos;

use super::denial::Denial;
use super::leased_counter::{LeaseAttempt, LeasedCounter, TakenUnits};
use super::lenient_view::LenientView;
use super::refill::Refill;
use super::table::{AheadTable, Effect, EntryState};
use crate::runtime::InFlightGuard;

/// What a set waits for that is not decided entirely.
pub(super) enum Undecided<'a> {
    /// The store decides the whole set.
    Remote,
    /// Refills for all missing units are in flight. This is the first of them.
    Refill(Arc<Refill>),
    /// The store decides the rest.
    Split(Box<SplitSet<'a>>),
}

/// A set that is decided in part.
pub(super) struct SplitSet<'a> {
    local: DecidedCharges,
    /// The charges for the store.
    pub(super) rest: ChargeSet<'a>,
    /// Set by the caller, and dropped when no units can be returned any more.
    pub(super) in_flight: Option<InFlightGuard>,
}

impl SplitSet<'_> {
    /// Whether a view denies: the rest is only read then.
    pub(super) fn is_denied(&self) -> bool {
        is_denied(&self.local)
    }
}

/// A charge that is decided here.
struct DecidedCharge {
    /// Its index in the set.
    index: usize,
    reading: LimitReading,
    /// The store's time of the charge.
    at: Nanos,
    counted: CountedUnits,
}

type DecidedCharges = SmallVec<[DecidedCharge; 2]>;

/// What is returned if the request does not pass.
enum CountedUnits {
    Nothing,
    Lease(TakenUnits),
    View,
}

/// Why leases do not decide.
#[derive(Default)]
struct Shortage {
    /// Refills are in flight that may suffice for all missing units: the first of them.
    refill: Option<Arc<Refill>>,
    /// The store would deny.
    denial: Option<Outcome>,
}

/// Whether leases may be drawn for a charge. A shadow limit and one of several quotas may deny without the request
/// being denied: the store decides about those.
fn is_leased(charge: &Charge<'_>) -> bool {
    charge.role == Role::Enforce && charge.options.counting == Counting::Leased && charge.limit.lease_ttl().is_some()
}

fn is_lenient(charge: &Charge<'_>) -> bool {
    charge.role == Role::Enforce && charge.options.counting == Counting::Lenient
}

/// Whether any charge of the set may be decided here.
pub(super) fn may_decide_ahead(set: &ChargeSet<'_>) -> bool {
    set.charges.iter().any(|charge| is_leased(charge) || is_lenient(charge))
}

fn is_denied(local: &DecidedCharges) -> bool {
    local.iter().any(|charge| !charge.reading.verdict.allows())
}

impl AheadTable {
    /// A denial that still applies, with readings for all limits of the set.
    pub(super) fn cached_denial(&self, set: &ChargeSet<'_>, now: Nanos) -> Option<Outcome> {
        let mut enforced = set.charges.iter().filter(|charge| charge.role == Role::Enforce);
        enforced.find_map(|charge| {
            let counter = charge.counter();
            let mut bucket = self.bucket(counter);
            bucket.denial(counter).filter(|denial| !denial.is_by_draw())?.replay(set, charge, now)
        })
    }

    /// Remembers the denials of an outcome.
    pub(super) fn record_denials(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos, max_age: Nanos) {
        for (counter, denial) in Denial::in_reply(set, outcome, sent, max_age) {
            self.bucket(counter).set_denial(counter, Some(denial), sent);
        }
    }

    /// Updates or creates the views of a set from a reply of the store to a request sent at `sent`.
    pub(super) fn record_views(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos, now: Nanos) {
        if outcome.snapshots.len() != set.charges.len() || outcome.source != Source::Exact {
            return;
        }
        for (charge, seen) in set.charges.iter().zip(&outcome.snapshots).filter(|(charge, _)| is_lenient(charge)) {
            let counter = charge.counter();
            let mut bucket = self.bucket(counter);
            match bucket.view(counter) {
                Some(view) if view.has_limit(&charge.limit) => view.update(seen, sent, now, outcome.at),
                Some(_) => {} // of another limit, until its units are synced
                None => {
                    let view = LenientView::new(charge, seen, sent, now, outcome.at);
                    bucket.insert(counter, EntryState::Lenient(Box::new(view)), now);
                    drop(bucket);
                    self.schedule(counter);
                }
            }
        }
    }

    /// Decides what can be decided of a set.
    pub(super) fn decide<'a>(
        &self,
        set: &ChargeSet<'a>,
        attempt: LeaseAttempt,
        now: Nanos,
        draws: &mut Vec<Effect>,
    ) -> Result<Outcome, Undecided<'a>> {
        let mut local = match self.take_leases(set, attempt, now, draws) {
            (local, None) => local,
            (_, Some(Shortage { denial: Some(denied), .. })) => return Ok(denied),
            // If the store must be called anyway, waiting first is of no use.
            (_, Some(Shortage { refill: Some(refill), .. })) if set.charges.iter().all(is_leased) => {
                return Err(Undecided::Refill(refill));
            }
            _ => DecidedCharges::new(),
        };
        local.extend(self.count_in_views(set, now));
        if local.is_empty() {
            return Err(Undecided::Remote);
        }
        if is_denied(&local) {
            self.put_back_all(set, &mut local, now);
        }
        let is_local = |index: usize| local.iter().any(|charge| charge.index == index);
        let rest = (0..set.charges.len()).filter(|index| !is_local(*index));
        let rest = set.subset(rest.map(|index| set.charges[index].clone()));
        if rest.charges.is_empty() {
            return Ok(merge(set, &local, None));
        }
        Err(Undecided::Split(Box::new(SplitSet { local, rest, in_flight: None })))
    }

    /// The outcome of a set whose rest the store has decided. Units are used, or returned.
    pub(super) fn finish<E>(
        &self,
        set: &ChargeSet<'_>,
        split: SplitSet<'_>,
        rest: Result<Outcome, E>,
        now: Nanos,
    ) -> Result<Outcome, E> {
        let SplitSet { mut local, in_flight: _until_returned, .. } = split;
        if !rest.as_ref().is_ok_and(|rest| rest.admitted) {
            self.put_back_all(set, &mut local, now);
        }
        Ok(merge(set, &local, Some(rest?)))
    }

    /// Takes the units of all leased charges of a set, or none.
    fn take_leases(
        &self,
        set: &ChargeSet<'_>,
        attempt: LeaseAttempt,
        now: Nanos,
        draws: &mut Vec<Effect>,
    ) -> (DecidedCharges, Option<Shortage>) {
        let (mut taken, mut missing) = (DecidedCharges::new(), None::<Shortage>);
        for (index, charge) in set.charges.iter().enumerate().filter(|(_, charge)| is_leased(charge)) {
            let (counter, cost) = (charge.counter(), charge.cost.get());
            let mut bucket = self.bucket(counter);
            if attempt == LeaseAttempt::First && bucket.leased(counter, &charge.limit).is_none() {
                let cold = LeasedCounter::new(charge, self.new_id(), now);
                cold.into_iter().for_each(|cold| bucket.insert(counter, EntryState::Leased(Box::new(cold)), now));
            }
            // Drawing for a cost that can never be leased would only keep units from other nodes.
            let leased = bucket.leased(counter, &charge.limit);
            let Some(leased) = leased.filter(|leased| cost <= leased.max_outstanding) else {
                missing = Some(Shortage::default());
                continue;
            };
            leased.record_request(cost, attempt, now);
            // A set that is not decided here takes no units.
            let units = if missing.is_none() { leased.take(cost, now) } else { None };
            draws.extend(leased.next_draw(cost, now).map(Effect::Draw));
            if let Some((reading, units)) = units {
                let at = units.at();
                taken.push(DecidedCharge { index, reading, at, counted: CountedUnits::Lease(units) });
            } else if missing.is_none() || leased.available(now) < cost {
                let refill = leased.sufficient_refill(cost, now);
                let denial = bucket.denial(counter).filter(|denial| denial.is_by_draw());
                let denial = denial.and_then(|denial| denial.replay(set, charge, now));
                missing = Some(match missing {
                    None => Shortage { refill, denial },
                    Some(before) => Shortage { refill: before.refill.filter(|_| refill.is_some()), denial },
                });
            }
        }
        if missing.is_some() {
            self.put_back_all(set, &mut taken, now);
        }
        (taken, missing)
    }

    /// Counts all lenient charges of a set in their views. If one of them is denied, the other views are only read
    /// after it. Nothing if a fresh view is missing.
    fn count_in_views(&self, set: &ChargeSet<'_>, now: Nanos) -> DecidedCharges {
        let mut local = DecidedCharges::new();
        for (index, charge) in set.charges.iter().enumerate().filter(|(_, charge)| is_lenient(charge)) {
            let mut bucket = self.bucket(charge.counter());
            let Some(view) = bucket.fresh_view(charge, now) else {
                drop(bucket);
                self.put_back_all(set, &mut local, now);
                return DecidedCharges::new();
            };
            let (reading, at) = if is_denied(&local) { view.peek(charge, now) } else { view.try_charge(charge, now) };
            let is_counted = reading.verdict.allows() && !is_denied(&local);
            let counted = if is_counted { CountedUnits::View } else { CountedUnits::Nothing };
            local.push(DecidedCharge { index, reading, at, counted });
        }
        local
    }

    /// The request does not pass: returns what was counted for it.
    fn put_back_all(&self, set: &ChargeSet<'_>, local: &mut DecidedCharges, now: Nanos) {
        for decided in local {
            let (charge, counter) = (&set.charges[decided.index], set.charges[decided.index].counter());
            let mut bucket = self.bucket(counter);
            match std::mem::replace(&mut decided.counted, CountedUnits::Nothing) {
                CountedUnits::Nothing => {}
                CountedUnits::View => {
                    if let Some(view) = bucket.view(counter) {
                        view.refund(charge, decided.at, now);
                    }
                }
                CountedUnits::Lease(taken) => {
                    let remaining = &mut decided.reading.figures.remaining;
                    *remaining = remaining.saturating_add(taken.units()).min(charge.limit.capacity());
                    match bucket.leased(counter, &charge.limit).filter(|leased| leased.id == taken.id) {
                        Some(leased) => leased.put_back(taken),
                        None => self.add_lapsed(taken.units()), // and stay charged
                    }
                    drop(bucket);
                    self.schedule(counter);
                }
            }
        }
    }

    /// The outcome of a set whose charges are all lenient, if all views are fresh.
    pub(super) fn peek(&self, set: &ChargeSet<'_>, now: Nanos) -> Option<Outcome> {
        let each = set.charges.iter().enumerate().map(|(index, charge)| {
            let mut bucket = self.bucket(charge.counter());
            let (reading, at) = bucket.fresh_view(charge, now).filter(|_| is_lenient(charge))?.peek(charge, now);
            Some(DecidedCharge { index, reading, at, counted: CountedUnits::Nothing })
        });
        let local = each.collect::<Option<DecidedCharges>>().filter(|local| !local.is_empty())?;
        Some(merge(set, &local, None))
    }

    /// Adds the units of leases to the readings of the store.
    pub(super) fn add_leased_units(&self, set: &ChargeSet<'_>, outcome: &mut Outcome, now: Nanos) {
        let mut became_allowed = false;
        for (charge, reading) in set.charges.iter().zip(&mut outcome.readings).filter(|(charge, _)| is_leased(charge)) {
            let mut bucket = self.bucket(charge.counter());
            let leased = bucket.leased(charge.counter(), &charge.limit);
            let available = leased.map_or(0, |leased| leased.available(now));
            if available >= charge.cost.get() && !reading.verdict.allows() {
                reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                became_allowed = true;
            }
            let remaining = &mut reading.figures.remaining;
            *remaining = remaining.saturating_add(available).min(charge.limit.capacity());
        }
        if became_allowed {
            outcome.admitted = set.admits(|i| outcome.readings[i].verdict.allows());
        }
    }
}

/// One outcome of the local charges and the rest. Its time is the earliest one, so that a refund refunds no more than
/// any would; for a denial, the time of the part that denied. Its source is that of the part that denied, or else the
/// least exact one. Only the rest can be degraded.
fn merge(set: &ChargeSet<'_>, local: &DecidedCharges, rest: Option<Outcome>) -> Outcome {
    let (is_denied, counts) = (is_denied(local), set.charges.len());
    let at = local.iter().map(|charge| charge.at).min().unwrap_or(Nanos::MAX);
    let is_any_lenient = local.iter().any(|charge| is_lenient(&set.charges[charge.index]));
    let source = if is_any_lenient { Source::Lenient } else { Source::Lease };
    let local_at = |index: usize| local.iter().find(|charge| charge.index == index);
    let mut rest_readings = rest.iter().flat_map(|rest| &rest.readings);
    let reading_at = |index| local_at(index).map(|charge| &charge.reading).or_else(|| rest_readings.next());
    let readings = (0..counts).filter_map(reading_at).copied().collect();
    let clock_stepped = rest.as_ref().is_some_and(|rest| rest.clock_stepped);
    // If a view denies, the rest is only read.
    let rest = rest.filter(|_| !is_denied);
    let rest_index = |i| (0..counts).filter(|index| local_at(*index).is_none()).nth(i).unwrap_or(0);
    Outcome {
        readings,
        snapshots: Vec::new(),
        admitted: !is_denied && rest.as_ref().is_none_or(|rest| rest.admitted),
        at: rest.as_ref().map_or(at, |rest| if rest.admitted { at.min(rest.at) } else { rest.at }),
        source: match &rest {
            Some(rest) if !rest.admitted || rest.source != Source::Exact => rest.source,
            _ => source,
        },
        degraded: rest.and_then(|rest| rest.degraded).map(|reason| reason.at(rest_index)),
        clock_stepped,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_core::algorithms::{Algorithm, Figures, Limit, Precision, Retry, Spec};
    use tidegate_core::store::{CounterSnapshot, RuleOptions};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::Cost;

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1);

    /// Charges as words: `l` for lenient or `x` for exact, and `e`, `q` or `s` for their role. Expects the charges left
    /// for the store behind, by index.
    #[track_caller]
    fn check(charges: &str, want_remote: &[usize]) {
        let rule = RuleName::new("split");
        // What is left of a limit after one charge is the index of the charge.
        let limit = |count| Limit::compile(&Spec::new(Algorithm::FixedWindow, count, NOW), Precision::Memory);
        let limits: Vec<Limit> = (1..=4).map(|count| limit(count).unwrap()).collect();
        let lenient = RuleOptions { counting: Counting::Lenient, ..RuleOptions::DEFAULT };
        let set = ChargeSet::of(charges.split(' ').enumerate().map(|(i, word)| Charge {
            subject: Fingerprint::new(i as u128),
            rule: &rule,
            rate: 0,
            limit: Cow::Borrowed(&limits[i]),
            cost: Cost::ONE,
            role: match &word[1..] {
                "e" => Role::Enforce,
                "q" => Role::Quota,
                _ => Role::Shadow,
            },
            options: if word.starts_with('l') { &lenient } else { &RuleOptions::DEFAULT },
        }));
        let table = AheadTable::new(16);
        let snapshots = limits.iter().take(set.charges.len());
        let snapshots = snapshots.map(|limit| CounterSnapshot { state: limit.fresh(NOW), existed: false }).collect();
        table.record_views(&set, &Outcome { snapshots, ..outcome_of(0..0, true, Source::Exact) }, NOW, NOW);
        let (remote, merged) = match table.decide(&set, LeaseAttempt::First, NOW, &mut Vec::new()) {
            Ok(outcome) => (Vec::new(), outcome),
            Err(Undecided::Split(split)) => {
                let remote: Vec<_> = split.rest.charges.iter().map(|c| c.subject.bits() as usize).collect();
                let rest = outcome_of(remote.iter().copied(), true, Source::Exact);
                (remote, table.finish::<()>(&set, *split, Ok(rest), NOW).unwrap())
            }
            _ => panic!("every set has charges that are decided here"),
        };
        assert_eq!(remote, want_remote);
        let order: Vec<u64> = merged.readings.iter().map(|r| r.figures.remaining).collect();
        let all: Vec<u64> = (0..set.charges.len() as u64).collect();
        assert_eq!(order, all, "each charge has its own reading");
    }

    /// Readings whose `remaining` is the index of their charge.
    fn outcome_of(charges: impl Iterator<Item = usize>, admitted: bool, source: Source) -> Outcome {
        Outcome::new(admitted, charges.map(|index| reading(index, admitted)).collect(), NOW, source)
    }

    fn reading(index: usize, allows: bool) -> LimitReading {
        let allow = Verdict::Allow { delay: Nanos::ZERO };
        let verdict = if allows { allow } else { Verdict::Deny { retry: Retry::After(Nanos::ZERO) } };
        let figures = Figures { remaining: index as u64, reset_after: Nanos::ZERO, more_after: Nanos::ZERO };
        LimitReading { verdict, figures }
    }

    #[test]
    fn charges_not_decided_locally_are_left_and_merged_in_order() {
        check("le", &[]);
        check("xe le xe le", &[0, 2]);
        check("le xe le xe", &[1, 3]);
        check("xe le", &[0]);
    }

    #[test]
    fn quota_and_shadow_charges_are_never_decided_locally() {
        check("lq le ls", &[0, 2]);
    }

    #[test]
    fn the_source_is_the_half_that_denied_or_else_the_less_exact_one() {
        let (rule, spec) = (RuleName::new("split"), Spec::new(Algorithm::FixedWindow, 1, NOW));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let decided = |(allows, counting), (admitted, source)| {
            let options = RuleOptions { counting, ..RuleOptions::DEFAULT };
            let charge = Charge {
                subject: Fingerprint::new(1),
                rule: &rule,
                rate: 0,
                limit: Cow::Borrowed(&limit),
                cost: Cost::ONE,
                role: Role::Enforce,
                options: &options,
            };
            let set = ChargeSet::of([charge.clone(), Charge { options: &RuleOptions::DEFAULT, ..charge }]);
            let (at, counted) = (NOW, CountedUnits::Nothing);
            let local = [DecidedCharge { index: 0, reading: reading(0, allows), at, counted }].into_iter().collect();
            let merged = merge(&set, &local, Some(outcome_of(1..2, admitted, source)));
            (merged.admitted, merged.source)
        };
        let lease = (true, Counting::Leased);
        let cases = [
            (lease, (true, Source::Exact), (true, Source::Lease)),
            (lease, (true, Source::Fallback), (true, Source::Fallback)),
            (lease, (false, Source::Exact), (false, Source::Exact)),
            ((false, Counting::Lenient), (true, Source::Exact), (false, Source::Lenient)),
        ];
        for (local, remote, want) in cases {
            assert_eq!(decided(local, remote), want);
        }
    }
}
