//! Charging limits that cannot be charged in one step.
//!
//! Step by step, from narrow to wide. A refusal takes back what the steps before it charged: once, in
//! the background, and if that is lost, too little is admitted and never too much. The budget is that
//! of the whole decision: a step that finds nothing left of it is decided by this node's share.

use tidegate_core::store::{ChargeSet, Life, Outcome, Parts, Probe, Store};
use tidegate_core::units::Nanos;

use super::groups::{Group, Places, Steps, by_place};
use super::tally::Tally;
use super::{Inner, Place};
use crate::resilience::deadline::{Budgets, max_wait_of};
use crate::resilience::fallback::Decided;
use crate::resilience::join::join_all;
use crate::resilience::undo::Manner;
use crate::runtime::Runtime;

impl<P: Parts + 'static, R: Runtime> Inner<P, R> {
    /// Charges a set whose charges are in several places, until `until` at most.
    ///
    /// Dropped between two steps, it leaves the earlier ones charged, which denies too much rather than too
    /// little.
    pub(super) async fn charge_in_turn(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
        places: &[Place<P::Part, R>],
        of: &Places,
        manner: Manner,
    ) -> Outcome {
        let steps = Steps::of(set, of);
        let mut turn = Turn {
            places,
            manner,
            until: self.until(set, manner).min(until),
            tally: Tally::new(set.charges.len()),
            charged: Vec::new(),
        };
        let mut passes = true;
        for group in &steps.enforced {
            passes = passes && turn.charge(group).await;
        }
        if passes && !steps.quotas.is_empty() {
            passes = false;
            for group in &steps.quotas {
                passes |= turn.charge(group).await;
            }
        }
        match passes {
            true => turn.charge_shadows(&steps.shadows).await,
            false => {
                turn.take_back();
                turn.peek_the_rest(&steps).await;
            }
        }
        turn.tally.outcome(passes)
    }

    /// What charging such a set would answer.
    pub(super) async fn peek_apart(
        &self,
        set: &ChargeSet<'_>,
        places: &[Place<P::Part, R>],
        of: &Places,
    ) -> Outcome {
        let until = self.until(set, Manner::Charge);
        let groups = by_place(set, of);
        let peeking = groups.iter().map(|group| {
            let store = &places[group.place].store;
            store.peek_by(until, &group.set)
        });
        let mut tally = Tally::new(set.charges.len());
        for (group, outcome) in groups.iter().zip(join_all(peeking).await) {
            tally.note(group, &outcome);
        }
        let admitted = set.admits(|i| tally.allows(i));
        tally.outcome(admitted)
    }

    /// When a decision must have been made.
    fn until(&self, set: &ChargeSet<'_>, manner: Manner) -> Nanos {
        self.runtime.now().plus(self.budget_of(set, manner))
    }

    /// How long a decision may take.
    pub(super) fn budget_of(&self, set: &ChargeSet<'_>, manner: Manner) -> Nanos {
        let budgets = Budgets::of(&self.settings);
        budgets.of_sets(&[set], manner).min(max_wait_of(&[set]))
    }
}

/// One decision under way.
struct Turn<'t, 'a, S, R> {
    places: &'t [Place<S, R>],
    manner: Manner,
    until: Nanos,
    tally: Tally,
    /// What was charged so far, and in which life of its store.
    charged: Vec<(&'t Group<'a>, Decided, Option<Life>)>,
}

impl<'t, 'a, S: Store + Probe + 'static, R: Runtime> Turn<'t, 'a, S, R> {
    /// Charges one step. Whether it admits.
    async fn charge(&mut self, group: &'t Group<'a>) -> bool {
        let store = &self.places[group.place].store;
        let life = store.life();
        let decided = store.charge_by(self.until, &group.set, self.manner).await;
        self.tally.note(group, &decided.outcome);
        let admitted = decided.outcome.admitted;
        if admitted {
            self.charged.push((group, decided, life));
        }
        admitted
    }

    /// The request is admitted: those who watch count it, all at once.
    async fn charge_shadows(&mut self, shadows: &[Group<'_>]) {
        let (places, until, manner) = (self.places, self.until, self.manner);
        let charging = shadows.iter().map(|group| {
            let store = &places[group.place].store;
            store.charge_by(until, &group.set, manner)
        });
        for (group, decided) in shadows.iter().zip(join_all(charging).await) {
            self.tally.note(group, &decided.outcome);
        }
    }

    /// The request is refused: what was charged for it is given back.
    fn take_back(&mut self) {
        for (group, decided, life) in std::mem::take(&mut self.charged) {
            let store = &self.places[group.place].store;
            let before = store.take_back(&group.set, decided, life, self.manner);
            self.tally.read(group, &before);
        }
    }

    /// What the steps that were not taken would have said, for whoever is told of the refusal. How the
    /// request was decided does not depend on it.
    async fn peek_the_rest(&mut self, steps: &Steps<'_>) {
        let (places, until) = (self.places, self.until);
        let rest: Vec<&Group<'_>> = steps.all().filter(|g| !self.tally.knows(g)).collect();
        let peeking = rest.iter().map(|group| {
            let store = &places[group.place].store;
            store.peek_by(until, &group.set)
        });
        for (group, outcome) in rest.iter().zip(join_all(peeking).await) {
            self.tally.read(group, &outcome.readings);
        }
    }
}
