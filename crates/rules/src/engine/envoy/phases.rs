//! The store calls that decide a described request, in order, and the state that the replies change.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::descriptor_decision::{
    ChargePhase, ChargeProgress, DescriptorDecision, FiguresIndex, NO_FIGURES,
};
use super::descriptor_match::{DescriptorMatch, MatchedLimit};
use crate::envoy::{ChargeOnDenial, ZeroHits};
use tidegate_core::store::{Charge, ChargeSet, Outcome, Role, Source};
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
        self.refunds.iter().map(|refunding| &refunding.set)
    }

    /// Records the state before and after the `at`-th refund.
    pub fn record_refund(&mut self, at: usize, before: &Outcome, after: &Outcome) {
        self.interim.record(after);
        let remaining = |outcome: &Outcome| outcome.readings.first().map(|r| r.figures);
        let refunding = &mut self.refunds[at];
        refunding.remaining_before = remaining(before).map_or(0, |figures| figures.remaining);
        refunding.figures = remaining(after).unwrap_or(NO_FIGURES);
    }

    /// The first call: a peek for descriptors that only check whether any units are left.
    pub fn peek_phase(&self) -> StoreCall<'_, 'r> {
        match self.select_charges(|entry, _| entry.phase == ChargePhase::Peek) {
            None => StoreCall::None,
            Some(set) => StoreCall::Peek(set),
        }
    }

    /// Records the reply to [`DescriptorDecision::peek_phase`].
    pub fn record_peek(&mut self, outcome: &Outcome) {
        self.interim.record(outcome);
        self.apply_outcome(outcome, |entry, _| entry.phase == ChargePhase::Peek, false);
    }

    /// The second call: all charges. If the request is denied already, only a peek.
    pub fn charge_phase(&mut self) -> StoreCall<'_, 'r> {
        self.interim.admitted = self.may_still_pass();
        let has_passing_quota =
            self.has_passing_quota || self.quotas(ChargePhase::Peek).any(|allows| allows);
        let Some(mut set) = self.select_charges(|entry, _| entry.phase == ChargePhase::Charge)
        else {
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
        self.interim.record(outcome);
        let charged = self.interim.admitted && outcome.admitted;
        self.interim.admitted = charged;
        self.apply_outcome(
            outcome,
            |entry, _| entry.phase == ChargePhase::Charge,
            charged,
        );
    }

    /// The call before the last, where it makes a difference: whether exhausted counters are at their limits or above.
    /// A denial from the deny cache costs no call.
    pub fn exceeded_phase(&self) -> Option<ChargeSet<'r>> {
        let is_needed = self.options.zero_hits == ZeroHits::OverAboveLimit
            && self.interim.source != Source::DenyCache;
        if !is_needed || self.exhausted_limits().next().is_none() {
            return None;
        }
        let raised = self.exhausted_limits().map(|(at, limited)| {
            let charge = &self.plan.set.charges[at];
            Charge {
                limit: Cow::Owned(self.raised_limit(limited, charge)),
                cost: Cost::ONE,
                ..charge.clone()
            }
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
        self.descriptors.iter().filter_map(|case| {
            let (DescriptorMatch::Limited(limited), FiguresIndex::Charge(at)) =
                (&case.matched, case.figures_at)
            else {
                return None;
            };
            let entry = &self.progress[at];
            let is_exhausted =
                entry.phase == ChargePhase::Charge && !entry.charged && entry.remaining_before == 0;
            is_exhausted.then_some((at, limited))
        })
    }

    /// The last call: charges that are made even beyond the limit.
    pub fn force_phase(&self) -> Option<Cow<'_, ChargeSet<'r>>> {
        self.select_charges(|entry, at| self.is_force_charged(entry, at))
    }

    /// Records the reply to [`DescriptorDecision::force_phase`]. It is newer than a denial from the deny cache. But a
    /// limit that passed in the charge phase is reported with its figures of then, less the present charge: a charge
    /// that a store with shards made for it and refunds may still be counted in this reply.
    pub fn record_force(&mut self, outcome: &Outcome) {
        let remembered = self.interim.source == Source::DenyCache;
        let mut readings = outcome.readings.iter();
        for at in 0..self.progress.len() {
            if self.is_force_charged(&self.progress[at], at)
                && let Some(reading) = readings.next()
            {
                let cost = self.plan.set.charges[at].cost.get();
                let entry = &mut self.progress[at];
                if remembered || !entry.reading.verdict.allows() {
                    entry.reading = *reading;
                } else {
                    let figures = &mut entry.reading.figures;
                    figures.remaining = entry.remaining_before.saturating_sub(cost);
                    figures.reset_after = reading.figures.reset_after;
                }
            }
        }
    }

    /// A limit of which nothing is left stays over whatever is added, unless it must be distinguished from one that is
    /// exceeded. Writing it under the smaller of two limits would lose units counted under the larger, which exceed
    /// this limit.
    fn is_force_charged(&self, progress: &ChargeProgress, at: usize) -> bool {
        let fits = progress.reading.verdict.allows();
        let left = progress.remaining_before > 0 || progress.at_limit;
        let open =
            at >= self.native_count && progress.phase == ChargePhase::Charge && !progress.charged;
        open && left
            && match self.options.charge_on_denial {
                ChargeOnDenial::Nothing => progress.charged_on_denial,
                ChargeOnDenial::Violated => !fits,
                ChargeOnDenial::All => true,
            }
    }

    /// Whether no peeked limit and no limit that denies everything stands in the way.
    fn may_still_pass(&self) -> bool {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        let mut before = charges.filter(|(_, entry)| entry.phase != ChargePhase::Charge);
        let denied =
            before.any(|(c, entry)| c.role == Role::Enforce && !entry.reading.verdict.allows());
        let mut quotas = [ChargePhase::Never, ChargePhase::Peek].into_iter();
        let is_quota = |charge: &Charge<'_>| charge.role == Role::Quota;
        let any_quota = self.plan.set.charges.iter().any(is_quota);
        let room = self.has_passing_quota
            || quotas.any(|phase| self.quotas(phase).any(|allows| allows))
            || self.quotas(ChargePhase::Charge).next().is_some();
        !denied && (room || !any_quota)
    }

    /// The verdicts of the budgets of one phase.
    fn quotas(&self, phase: ChargePhase) -> impl Iterator<Item = bool> {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        charges
            .filter(move |(charge, entry)| charge.role == Role::Quota && entry.phase == phase)
            .map(|(_, entry)| entry.reading.verdict.allows())
    }

    /// The charges for which `selects` is true; `None` if there are none.
    fn select_charges(
        &self,
        selects: impl Fn(&ChargeProgress, usize) -> bool,
    ) -> Option<Cow<'_, ChargeSet<'r>>> {
        let wanted = |at: &usize| selects(&self.progress[*at], *at);
        let count = (0..self.progress.len()).filter(wanted).count();
        if count == 0 {
            return None;
        }
        if count == self.progress.len() {
            return Some(Cow::Borrowed(&self.plan.set));
        }
        let chosen = (0..self.progress.len()).filter(wanted);
        let charges = chosen.map(|at| self.plan.set.charges[at].clone());
        Some(Cow::Owned(self.plan.set.subset(charges)))
    }

    fn apply_outcome(
        &mut self,
        outcome: &Outcome,
        selects: impl Fn(&ChargeProgress, usize) -> bool,
        charged: bool,
    ) {
        let mut readings = outcome.readings.iter();
        let charges = self.plan.set.charges.iter();
        for (at, (entry, charge)) in self.progress.iter_mut().zip(charges).enumerate() {
            if selects(entry, at)
                && let Some(reading) = readings.next()
            {
                entry.reading = *reading;
                let remaining = &mut entry.reading.figures.remaining;
                *remaining = remaining.saturating_sub(entry.extra_capacity);
                entry.charged = charged && reading.verdict.allows();
                let cost = if entry.charged { charge.cost.get() } else { 0 };
                entry.remaining_before = entry.reading.figures.remaining.saturating_add(cost);
            }
        }
    }
}
