//! Giving back what is not used: at the end of its life, when nobody asks any more, or all of it.
//!
//! One task for all counters, and none while nothing is held. A refund is sent once: one that may have
//! arrived is never sent again, and one that may no longer be sent leaves its units charged.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Refund, Refunded};
use tidegate_core::units::{Cost, Nanos};

use super::deadlines::Deadlines;
use super::place::Unused;
use super::{Inner, Lender, UnderWay};
use crate::resilience::deadline::within;
use crate::resilience::join::join_all;
use crate::runtime::Runtime;

/// The longest time between two looks: what was drawn meanwhile may end before what was there.
const LOOK: Nanos = Nanos::from_millis(5);
/// The shortest: what ends within it ends together.
const SHORT: Nanos = Nanos::from_millis(1);
/// How long the store remembers that something was given back. It is sent once and soon.
const REMEMBERED: Nanos = Nanos::from_secs(10);
/// The longest that giving back everything may take.
const PATIENCE: Nanos = Nanos::from_secs(3);

/// Places that may hold something. Locked before a place, never after.
#[derive(Default)]
pub(super) struct Tended {
    deadlines: Deadlines,
    /// Whether there is a keeper.
    kept: bool,
}

impl<S: Lender + 'static, R: Runtime> Inner<S, R> {
    /// Looks after a place that may hold something from now on, or has something that ends sooner.
    pub(super) fn tend(self: &Arc<Self>, at: usize) {
        let mut tended = self.tended.lock();
        let due = self.places[at].lock().due();
        tended.deadlines.set(at, due);
        let holds = tended.deadlines.next().is_some();
        if holds && !std::mem::replace(&mut tended.kept, true) {
            self.runtime.spawn(Arc::clone(self).keep());
        }
    }

    /// Until nothing is held.
    async fn keep(self: Arc<Self>) {
        while let Some(due) = self.next_due() {
            let now = self.runtime.now();
            self.runtime.sleep(due.since(now).clamp(SHORT, LOOK)).await;
            self.give_back_unused();
        }
    }

    /// When the next place is to be looked at. If nothing is held, there is no keeper any more.
    fn next_due(&self) -> Option<Nanos> {
        let mut tended = self.tended.lock();
        let next = tended.deadlines.next();
        tended.kept = next.is_some();
        next
    }

    /// Takes out what is not to be used any more. Only places that are due are locked.
    fn unused(&self) -> Vec<Unused> {
        let now = self.runtime.now();
        let mut tended = self.tended.lock();
        let mut unused = Vec::new();
        for at in tended.deadlines.due(now) {
            let mut place = self.places[at].lock();
            unused.extend(place.take_unused(now));
            tended.deadlines.set(at, place.due());
        }
        unused
    }

    fn take_all(&self) -> Vec<Unused> {
        let tended = self.tended.lock();
        let places = tended.deadlines.places();
        places
            .flat_map(|at| self.places[at].lock().take_all())
            .collect()
    }

    /// Units held.
    pub(super) fn held(&self) -> u64 {
        let tended = self.tended.lock();
        let places = tended.deadlines.places();
        places.map(|at| self.places[at].lock().held()).sum()
    }

    /// Gives back what is not to be used any more, beside the keeper.
    fn give_back_unused(self: &Arc<Self>) {
        // Begun before they are taken out: in between they would be neither held nor under way.
        let under_way = UnderWay::begin(self);
        let unused = self.unused();
        if unused.is_empty() {
            return;
        }
        self.runtime.spawn(async move {
            under_way.0.give_back(unused).await;
        });
    }

    async fn give_back(&self, unused: Vec<Unused>) {
        join_all(unused.iter().map(|one| self.give_back_one(one))).await;
    }

    /// Gives back one grant, once.
    async fn give_back_one(&self, (charge, grant): &Unused) {
        let Some(units) = Cost::new(grant.units) else {
            return;
        };
        let charge = charge.owing(units);
        let same_life = self.store.life_of(&charge) == Some(grant.life);
        let refund = Refund {
            id: u128::from(self.runtime.random()) << 64 | u128::from(self.runtime.random()),
            charged: grant.at,
            until: charge.limit.lease_until(grant.at).plus(REMEMBERED),
            set: ChargeSet::of_one(charge),
        };
        // Any other answer has changed nothing.
        let done = same_life && matches!(self.store.refund(&refund).await, Ok(Refunded::Done));
        let tally = &self.tally;
        match done {
            true => tally.returned.fetch_add(grant.units, Ordering::Relaxed),
            false => tally.lapsed.fetch_add(grant.units, Ordering::Relaxed),
        };
    }

    /// Gives back everything: what is being asked for too, and what requests put back that are not decided
    /// yet.
    pub(super) async fn give_back_all(self: &Arc<Self>) {
        self.drained.store(true, Ordering::SeqCst);
        let giving = pin!(async {
            loop {
                self.give_back(self.take_all()).await;
                // In this order: what was under way may be held now.
                if self.under_way.load(Ordering::SeqCst) == 0 && self.held() == 0 {
                    return;
                }
                self.runtime.sleep(SHORT).await;
            }
        });
        // What the store does not answer by then stays charged.
        let _done_or_late = within(&self.runtime, PATIENCE, giving).await;
    }
}
