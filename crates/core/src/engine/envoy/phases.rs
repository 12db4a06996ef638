//! The questions that decide a described request, one after another, and what the answers change.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::descriptor_decision::{
    ChargePhase, ChargeProgress, DescriptorDecision, FiguresIndex, NO_FIGURES,
};
use super::descriptor_match::{DescriptorMatch, MatchedLimit};
use crate::envoy::{ChargeOnDenial, ZeroHits};
use crate::store::{Charge, ChargeSet, Outcome, Role, Source};
use crate::units::Cost;

/// What a store is to be asked.
#[derive(Debug)]
pub enum StoreCall<'a, 'r> {
    /// Nothing.
    None,
    /// What it would say.
    Peek(Cow<'a, ChargeSet<'r>>),
    /// To charge.
    Charge(Cow<'a, ChargeSet<'r>>),
}

impl<'r> DescriptorDecision<'r> {
    /// What is to be given back, before anything is asked: each on its own.
    pub fn refunds(&self) -> impl Iterator<Item = &ChargeSet<'r>> {
        self.refunds.iter().map(|refunding| &refunding.set)
    }

    /// Takes how the `at`-th of what is given back stood before and stands after.
    pub fn record_refund(&mut self, at: usize, before: &Outcome, after: &Outcome) {
        self.interim.record(after);
        let remaining = |outcome: &Outcome| outcome.readings.first().map(|r| r.figures);
        let refunding = &mut self.refunds[at];
        refunding.remaining_before = remaining(before).map_or(0, |figures| figures.remaining);
        refunding.figures = remaining(after).unwrap_or(NO_FIGURES);
    }

    /// What is asked first: who only wants to know whether anything is left.
    pub fn peek_phase(&self) -> StoreCall<'_, 'r> {
        match self.select_charges(|entry, _| entry.phase == ChargePhase::Peek) {
            None => StoreCall::None,
            Some(set) => StoreCall::Peek(set),
        }
    }

    /// Takes the answer to [`DescriptorDecision::peek_phase`].
    pub fn record_peek(&mut self, outcome: &Outcome) {
        self.interim.record(outcome);
        self.apply_outcome(outcome, |entry, _| entry.phase == ChargePhase::Peek, false);
    }

    /// What is asked then: all that is to be charged. If the request is refused already, only how it
    /// stands.
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
                charge.role = Role::Shadow; // charged if it fits, and refuses nothing
            }
        }
        StoreCall::Charge(set)
    }

    /// Takes the answer to [`DescriptorDecision::charge_phase`].
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

    /// What is asked before the last step, where it makes a difference: whether counters of which nothing
    /// is left are at their limits or above. A denial that was only remembered costs no call.
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

    /// Takes the answer to [`DescriptorDecision::exceeded_phase`].
    pub fn record_exceeded(&mut self, outcome: &Outcome) {
        let exhausted: SmallVec<[usize; 4]> = self.exhausted_limits().map(|(at, _)| at).collect();
        for (at, reading) in exhausted.into_iter().zip(&outcome.readings) {
            self.progress[at].at_limit = reading.verdict.allows();
        }
    }

    /// The limits of descriptors that deny because nothing is left of them, and where their charges are.
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

    /// What is charged at last, whether it fits or not.
    pub fn force_phase(&self) -> Option<Cow<'_, ChargeSet<'r>>> {
        self.select_charges(|entry, at| self.is_force_charged(entry, at))
    }

    /// Takes the answer to [`DescriptorDecision::force_phase`]. It is newer than a denial that was only remembered. But a
    /// limit that passed when the store was asked is reported as it was then, less what it is charged
    /// now: a charge that a store in shards made for it and refunds may still be counted in this answer.
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

    /// A limit of which nothing is left stays over whatever is added, unless it has to be told from one
    /// that is exceeded. To write it under the smaller of two limits would forget what the larger has
    /// counted, which is more than this limit.
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

    /// Whether nothing that was asked about or refuses everything stands in the way.
    fn may_still_pass(&self) -> bool {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        let mut before = charges.filter(|(_, entry)| entry.phase != ChargePhase::Charge);
        let denied =
            before.any(|(c, entry)| c.role == Role::Enforce && !entry.reading.verdict.allows());
        let mut quotas = [ChargePhase::Never, ChargePhase::Peek].into_iter();
        let is_quota = |charge: &Charge<'_>| charge.role == Role::Quota;
        let any_quota = self.plan.set.charges.iter().any(is_quota);
        let room = self.has_passing_quota
            || quotas.any(|turn| self.quotas(turn).any(|allows| allows))
            || self.quotas(ChargePhase::Charge).next().is_some();
        !denied && (room || !any_quota)
    }

    /// What the budgets of one turn have said.
    fn quotas(&self, phase: ChargePhase) -> impl Iterator<Item = bool> {
        let charges = self.plan.set.charges.iter().zip(&self.progress);
        charges
            .filter(move |(charge, entry)| charge.role == Role::Quota && entry.phase == phase)
            .map(|(_, entry)| entry.reading.verdict.allows())
    }

    /// The charges that `selects` wants; nothing if there are none.
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
