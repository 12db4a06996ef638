//! The questions that decide a described request, one after another, and what the answers change.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::inquiry::{Entry, Inquiry, NO_FIGURES, Seat, Turn};
use super::lot::{Limited, Lot};
use crate::described::{RefusedPays, ZeroHits};
use crate::store::{Charge, ChargeSet, Outcome, Role, Source};
use crate::units::Cost;

/// What a store is to be asked.
#[derive(Debug)]
pub enum Ask<'a, 'r> {
    /// Nothing.
    Nothing,
    /// What it would say.
    Peek(Cow<'a, ChargeSet<'r>>),
    /// To charge.
    Charge(Cow<'a, ChargeSet<'r>>),
}

impl<'r> Inquiry<'r> {
    /// What is to be given back, before anything is asked: each on its own.
    pub fn given_back(&self) -> impl Iterator<Item = &ChargeSet<'r>> {
        self.given_back.iter().map(|refunding| &refunding.set)
    }

    /// Takes how the `at`-th of what is given back stood before and stands after.
    pub fn gave_back(&mut self, at: usize, before: &Outcome, after: &Outcome) {
        self.ruling.hear(after);
        let remaining = |outcome: &Outcome| outcome.readings.first().map(|r| r.figures);
        let refunding = &mut self.given_back[at];
        refunding.before = remaining(before).map_or(0, |figures| figures.remaining);
        refunding.figures = remaining(after).unwrap_or(NO_FIGURES);
    }

    /// What is asked first: who only wants to know whether anything is left.
    pub fn first(&self) -> Ask<'_, 'r> {
        match self.chosen(|entry, _| entry.turn == Turn::Peek) {
            None => Ask::Nothing,
            Some(set) => Ask::Peek(set),
        }
    }

    /// Takes the answer to [`Inquiry::first`].
    pub fn heard_first(&mut self, outcome: &Outcome) {
        self.ruling.hear(outcome);
        self.take(outcome, |entry, _| entry.turn == Turn::Peek, false);
    }

    /// What is asked then: all that is to be charged. If the request is refused already, only how it
    /// stands.
    pub fn second(&mut self) -> Ask<'_, 'r> {
        self.ruling.admitted = self.may_still_pass();
        let passes = self.passes || self.quotas(Turn::Peek).any(|allows| allows);
        let Some(mut set) = self.chosen(|entry, _| entry.turn == Turn::Charge) else {
            return Ask::Nothing;
        };
        if !self.ruling.admitted {
            return Ask::Peek(set);
        }
        if passes && set.charges.iter().any(|charge| charge.role == Role::Quota) {
            let quotas = set.to_mut().charges.iter_mut();
            for charge in quotas.filter(|charge| charge.role == Role::Quota) {
                charge.role = Role::Shadow; // charged if it fits, and refuses nothing
            }
        }
        Ask::Charge(set)
    }

    /// Takes the answer to [`Inquiry::second`].
    pub fn heard_second(&mut self, outcome: &Outcome) {
        self.ruling.hear(outcome);
        let charged = self.ruling.admitted && outcome.admitted;
        self.ruling.admitted = charged;
        self.take(outcome, |entry, _| entry.turn == Turn::Charge, charged);
    }

    /// What is asked before the last step, where it makes a difference: whether counters of which nothing
    /// is left are at their limits or above. A denial that was only remembered costs no call.
    pub fn at_limits(&self) -> Option<ChargeSet<'r>> {
        let asks = self.manner.zero_hits == ZeroHits::OverWhenExceeded
            && self.ruling.source != Source::DenyCache;
        if !asks || self.spent_limits().next().is_none() {
            return None;
        }
        let raised = self.spent_limits().map(|(at, limited)| {
            let charge = &self.plan.set.charges[at];
            Charge {
                limit: Cow::Owned(self.raised(limited, charge)),
                cost: Cost::ONE,
                ..charge.clone()
            }
        });
        Some(self.plan.set.part(raised))
    }

    /// Takes the answer to [`Inquiry::at_limits`].
    pub fn heard_at_limits(&mut self, outcome: &Outcome) {
        let spent: SmallVec<[usize; 4]> = self.spent_limits().map(|(at, _)| at).collect();
        for (at, reading) in spent.into_iter().zip(&outcome.readings) {
            self.entries[at].at_limit = reading.verdict.allows();
        }
    }

    /// The limits of descriptors that deny because nothing is left of them, and where their charges are.
    fn spent_limits(&self) -> impl Iterator<Item = (usize, &Limited<'r>)> {
        self.cases.iter().filter_map(|case| {
            let (Lot::Limited(limited), Seat::Charge(at)) = (&case.lot, case.seat) else {
                return None;
            };
            let entry = &self.entries[at];
            let spent = entry.turn == Turn::Charge && !entry.spent && entry.left_before == 0;
            spent.then_some((at, limited))
        })
    }

    /// What is charged at last, whether it fits or not.
    pub fn third(&self) -> Option<Cow<'_, ChargeSet<'r>>> {
        self.chosen(|entry, at| self.pays_nevertheless(entry, at))
    }

    /// Takes the answer to [`Inquiry::third`]. It is newer than a denial that was only remembered. But a
    /// limit that passed when the store was asked is reported as it was then, less what it is charged
    /// now: a charge that a store in shards made for it and refunds may still be counted in this answer.
    pub fn heard_third(&mut self, outcome: &Outcome) {
        let remembered = self.ruling.source == Source::DenyCache;
        let mut readings = outcome.readings.iter();
        for at in 0..self.entries.len() {
            if self.pays_nevertheless(&self.entries[at], at)
                && let Some(reading) = readings.next()
            {
                let cost = self.plan.set.charges[at].cost.get();
                let entry = &mut self.entries[at];
                if remembered || !entry.reading.verdict.allows() {
                    entry.reading = *reading;
                } else {
                    let figures = &mut entry.reading.figures;
                    figures.remaining = entry.left_before.saturating_sub(cost);
                    figures.reset_after = reading.figures.reset_after;
                }
            }
        }
    }

    /// A limit of which nothing is left stays over whatever is added, unless it has to be told from one
    /// that is exceeded. To write it under the smaller of two limits would forget what the larger has
    /// counted, which is more than this limit.
    fn pays_nevertheless(&self, entry: &Entry, at: usize) -> bool {
        let fits = entry.reading.verdict.allows();
        let left = entry.left_before > 0 || entry.at_limit;
        let open = at >= self.native && entry.turn == Turn::Charge && !entry.spent;
        open && left
            && match self.manner.refused {
                RefusedPays::Nothing => entry.used,
                RefusedPays::Violated => !fits,
                RefusedPays::All => true,
            }
    }

    /// Whether nothing that was asked about or refuses everything stands in the way.
    fn may_still_pass(&self) -> bool {
        let charges = self.plan.set.charges.iter().zip(&self.entries);
        let mut before = charges.filter(|(_, entry)| entry.turn != Turn::Charge);
        let refused =
            before.any(|(c, entry)| c.role == Role::Enforce && !entry.reading.verdict.allows());
        let mut quotas = [Turn::Never, Turn::Peek].into_iter();
        let is_quota = |charge: &Charge<'_>| charge.role == Role::Quota;
        let any_quota = self.plan.set.charges.iter().any(is_quota);
        let room = self.passes
            || quotas.any(|turn| self.quotas(turn).any(|allows| allows))
            || self.quotas(Turn::Charge).next().is_some();
        !refused && (room || !any_quota)
    }

    /// What the budgets of one turn have said.
    fn quotas(&self, turn: Turn) -> impl Iterator<Item = bool> {
        let charges = self.plan.set.charges.iter().zip(&self.entries);
        charges
            .filter(move |(charge, entry)| charge.role == Role::Quota && entry.turn == turn)
            .map(|(_, entry)| entry.reading.verdict.allows())
    }

    /// The charges that `choose` wants; nothing if there are none.
    fn chosen(&self, choose: impl Fn(&Entry, usize) -> bool) -> Option<Cow<'_, ChargeSet<'r>>> {
        let wanted = |at: &usize| choose(&self.entries[*at], *at);
        let count = (0..self.entries.len()).filter(wanted).count();
        if count == 0 {
            return None;
        }
        if count == self.entries.len() {
            return Some(Cow::Borrowed(&self.plan.set));
        }
        let chosen = (0..self.entries.len()).filter(wanted);
        let charges = chosen.map(|at| self.plan.set.charges[at].clone());
        Some(Cow::Owned(self.plan.set.part(charges)))
    }

    fn take(&mut self, outcome: &Outcome, choose: impl Fn(&Entry, usize) -> bool, charged: bool) {
        let mut readings = outcome.readings.iter();
        let charges = self.plan.set.charges.iter();
        for (at, (entry, charge)) in self.entries.iter_mut().zip(charges).enumerate() {
            if choose(entry, at)
                && let Some(reading) = readings.next()
            {
                entry.reading = *reading;
                let remaining = &mut entry.reading.figures.remaining;
                *remaining = remaining.saturating_sub(entry.spare);
                entry.spent = charged && reading.verdict.allows();
                let cost = if entry.spent { charge.cost.get() } else { 0 };
                entry.left_before = entry.reading.figures.remaining.saturating_add(cost);
            }
        }
    }
}
