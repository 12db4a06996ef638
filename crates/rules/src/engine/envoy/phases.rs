//! The store calls that decide a described request, in order, and the state that the replies change.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::descriptor_decision::{ChargePhase, ChargeProgress, DescriptorDecision, FiguresIndex, NO_FIGURES};
use super::descriptor_match::{DescriptorMatch, MatchedLimit};
use crate::envoy::{ChargeOnDenial, ZeroHits};
use tidegate_core::store::{Charge, ChargeSet, Degraded, Outcome, Role, Source};
use tidegate_core::units::Cost;

/// A store call.
#[derive(Debug)]
pub enum StoreCall<'a, 'r> {
    /// No call.
    None,
    /// A peek.
    Peek(Cow<'a, ChargeSet<'r>>),
    /// A charge.
    Charge(Cow<'a, ChargeSet<'r>>),
}

impl<'r> DescriptorDecision<'r> {
    /// The refunds, made before any other call: each on its own.
    pub fn refunds(&self) -> impl Iterator<Item = &ChargeSet<'r>> {
        self.refunds.iter().map(|refund| &refund.set)
    }

    /// Records the state before and after the `at`-th refund.
    pub fn record_refund(&mut self, at: usize, before: &Outcome, after: &Outcome) {
        self.record_reply(after);
        let figures = |outcome: &Outcome| outcome.readings.first().map(|r| r.figures);
        let refund = &mut self.refunds[at];
        refund.remaining_before = figures(before).map_or(0, |figures| figures.remaining);
        refund.figures = figures(after).unwrap_or(NO_FIGURES);
    }

    fn record_reply(&mut self, outcome: &Outcome) {
        self.has_reply = true;
        self.interim.at = outcome.at;
        self.interim.source = outcome.source;
        self.interim.clock_stepped |= outcome.clock_stepped;
        // Which charge a rule denies by policy is recorded with its reading.
        let reason = outcome.degraded.filter(|reason| !matches!(reason, Degraded::DeniedByPolicy { .. }));
        self.interim.degraded = self.interim.degraded.max(reason);
    }

    /// The first call: a peek for descriptors that only check whether any units are left.
    pub fn peek_phase(&self) -> StoreCall<'_, 'r> {
        match self.select_charges(|progress, _| progress.phase == ChargePhase::Peek) {
            None => StoreCall::None,
            Some(set) => StoreCall::Peek(set),
        }
    }

    /// Records the reply to [`DescriptorDecision::peek_phase`].
    pub fn record_peek(&mut self, outcome: &Outcome) {
        self.record_reply(outcome);
        self.apply_outcome(outcome, |progress, _| progress.phase == ChargePhase::Peek, false);
    }

    /// The second call: all charges. If the request is denied already, only a peek.
    pub fn charge_phase(&mut self) -> StoreCall<'_, 'r> {
        self.interim.admitted = self.may_still_pass();
        let has_passing_quota = self.has_passing_quota || self.quotas(ChargePhase::Peek).any(|allows| allows);
        let Some(mut set) = self.select_charges(|progress, _| progress.phase == ChargePhase::Charge) else {
            return StoreCall::None;
        };
        if !self.interim.admitted {
            return StoreCall::Peek(set);
        }
        if has_passing_quota && set.charges.iter().any(|charge| charge.role == Role::Quota) {
            let quotas = set.to_mut().charges.iter_mut();
            for charge in quotas.filter(|charge| charge.role == Role::Quota) {
                charge.role = Role::Shadow; // charged if it fits, and denies nothing
            }
        }
        StoreCall::Charge(set)
    }

    /// Records the reply to [`DescriptorDecision::charge_phase`].
    pub fn record_charge(&mut self, outcome: &Outcome) {
        self.record_reply(outcome);
        let charged = self.interim.admitted && outcome.admitted;
        self.interim.admitted = charged;
        self.apply_outcome(outcome, |progress, _| progress.phase == ChargePhase::Charge, charged);
    }

    /// The call before the last, where it makes a difference: whether exhausted counters are at their limits or above.
    /// A denial from the deny cache costs no call.
    pub fn exceeded_phase(&self) -> Option<ChargeSet<'r>> {
        let is_needed = self.options.zero_hits == ZeroHits::OverAboveLimit && self.interim.source != Source::DenyCache;
        if !is_needed || self.exhausted_limits().next().is_none() {
            return None;
        }
        let raised = self.exhausted_limits().map(|(at, limited)| {
            let charge = &self.plan.set.charges[at];
            Charge { limit: Cow::Owned(self.raised_limit(limited, charge)), cost: Cost::ONE, ..charge.clone() }
        });
        Some(self.plan.set.subset(raised))
    }

    /// Records the reply to [`DescriptorDecision::exceeded_phase`].
    pub fn record_exceeded(&mut self, outcome: &Outcome) {
        let exhausted: SmallVec<[usize; 4]> = self.exhausted_limits().map(|(at, _)| at).collect();
        for (at, reading) in exhausted.into_iter().zip(&outcome.readings) {
            self.progress[at].at_limit = reading.verdict.allows();
        }
    }

    /// The limits of descriptors that deny because nothing is left of them, and the indexes of their charges.
    fn exhausted_limits(&self) -> impl Iterator<Item = (usize, &MatchedLimit<'r>)> {
        self.descriptors.iter().filter_map(|descriptor| {
            let (DescriptorMatch::Limited(limited), FiguresIndex::Charge(at)) =
                (&descriptor.matched, descriptor.figures_at)
            else {
                return None;
            };
            let progress = &self.progress[at];
            let is_exhausted =
                progress.phase == ChargePhase::Charge && !progress.charged && progress.remaining_before == 0;
            is_exhausted.then_some((at, limited))
        })
    }

    /// The last call: charges that are made even beyond the limit.
    pub fn force_phase(&self) -> Option<Cow<'_, ChargeSet<'r>>> {
        self.select_charges(|progress, at| self.is_force_charged(progress, at))
    }

    /// Records the reply to [`DescriptorDecision::force_phase`].
    ///
    /// It replaces the reading of a limit that denied, and every reading from the deny cache, which is older. A limit
    /// that passed in the charge phase keeps the units left of that phase, less the forced charge: a store with shards
    /// may have charged it then and not refunded it yet, so this reply may count the request twice.
    pub fn record_force(&mut self, outcome: &Outcome) {
        let remembered = self.interim.source == Source::DenyCache;
        let mut readings = outcome.readings.iter();
        for at in 0..self.progress.len() {
            if self.is_force_charged(&self.progress[at], at)
                && let Some(reading) = readings.next()
            {
                let cost = self.plan.set.charges[at].cost.get();
                let progress = &mut self.progress[at];
                if remembered || !progress.reading.verdict.allows() {
                    progress.reading = *reading;
                } else {
                    let figures = &mut progress.reading.figures;
                    figures.remaining = progress.remaining_before.saturating_sub(cost);
                    figures.reset_after = reading.figures.reset_after;
                }
            }
        }
    }

    /// Whether the force phase charges this limit.
    ///
    /// An exhausted limit is not charged: it stays over whatever is added. The exception is a counter that is known to
    /// be exactly at its limit, because the charge puts it above. A counter above this limit is never written: it may
    /// have been counted under a larger limit, and writing it under this one would lose units.
    fn is_force_charged(&self, progress: &ChargeProgress, at: usize) -> bool {
        let fits = progress.reading.verdict.allows();
        let left = progress.remaining_before > 0 || progress.at_limit;
        let open = at >= self.native_count && progress.phase == ChargePhase::Charge && !progress.charged;
        open && left
            && match self.options.charge_on_denial {
                ChargeOnDenial::Nothing => progress.charged_on_denial,
                ChargeOnDenial::Violated => !fits,
                ChargeOnDenial::All => true,
            }
    }

    /// Whether no limit has denied the request before the charge phase: neither a peeked one nor one that denies
    /// everything.
    fn may_still_pass(&self) -> bool {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        let mut before = charges.filter(|(_, progress)| progress.phase != ChargePhase::Charge);
        let denied = before.any(|(c, progress)| c.role == Role::Enforce && !progress.reading.verdict.allows());
        let mut quotas = [ChargePhase::Never, ChargePhase::Peek].into_iter().flat_map(|phase| self.quotas(phase));
        let has_quota = self.plan.set.charges.iter().any(|charge| charge.role == Role::Quota);
        let has_room =
            self.has_passing_quota || quotas.any(|allows| allows) || self.quotas(ChargePhase::Charge).next().is_some();
        !denied && (has_room || !has_quota)
    }

    /// The verdicts of the budgets of one phase.
    fn quotas(&self, phase: ChargePhase) -> impl Iterator<Item = bool> {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        charges
            .filter(move |(charge, progress)| charge.role == Role::Quota && progress.phase == phase)
            .map(|(_, progress)| progress.reading.verdict.allows())
    }

    /// The charges for which `selects` is true; `None` if there are none.
    fn select_charges(&self, selects: impl Fn(&ChargeProgress, usize) -> bool) -> Option<Cow<'_, ChargeSet<'r>>> {
        let wanted = |at: &usize| selects(&self.progress[*at], *at);
        let chosen = || (0..self.progress.len()).filter(wanted);
        match chosen().count() {
            0 => None,
            all if all == self.progress.len() => Some(Cow::Borrowed(&self.plan.set)),
            _ => Some(Cow::Owned(self.plan.set.subset(chosen().map(|at| self.plan.set.charges[at].clone())))),
        }
    }

    fn apply_outcome(&mut self, outcome: &Outcome, selects: impl Fn(&ChargeProgress, usize) -> bool, charged: bool) {
        let (mut readings, mut recorded) = (outcome.readings.iter(), 0);
        let charges = self.plan.set.charges.iter();
        for (at, (progress, charge)) in self.progress.iter_mut().zip(charges).enumerate() {
            if selects(progress, at)
                && let Some(reading) = readings.next()
            {
                if outcome.degraded == Some(Degraded::denied_by(recorded)) {
                    self.interim.degraded = Some(Degraded::denied_by(at));
                }
                recorded += 1;
                progress.reading = *reading;
                let remaining = &mut progress.reading.figures.remaining;
                *remaining = remaining.saturating_sub(progress.extra_capacity);
                progress.charged = charged && reading.verdict.allows();
                let cost = if progress.charged { charge.cost.get() } else { 0 };
                progress.remaining_before = progress.reading.figures.remaining.saturating_add(cost);
            }
        }
    }
}
