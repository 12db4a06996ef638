//! Waiting for an answer no longer than a budget.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tidegate_core::store::{ChargeSet, WorkKind};
use tidegate_core::units::Nanos;

use super::settings::Settings;
use super::undo::Manner;
use crate::runtime::Runtime;

/// How long calls wait for the store where no rule says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budgets {
    pub(super) decision: Nanos,
    pub(super) long_work: Nanos,
    follow_up: Nanos,
}

impl Budgets {
    pub(super) fn of(settings: &Settings) -> Self {
        Budgets {
            decision: settings.budget,
            long_work: settings.budget.max(settings.long_work_budget),
            follow_up: settings.budget.max(settings.follow_up_budget),
        }
    }

    /// What a decision on `sets` has.
    pub(super) fn of_sets(&self, sets: &[&ChargeSet<'_>], manner: Manner) -> Nanos {
        // A batch that has a request in it is answered as soon as that one has to be.
        let is_long = |set: &&ChargeSet<'_>| set.work == WorkKind::LongWork;
        let usual = match manner {
            Manner::Charge if sets.iter().all(is_long) => self.long_work,
            Manner::Charge => self.decision,
            Manner::Reserve { .. } => self.long_work,
        };
        budget_of(sets, usual)
    }

    /// What a call has that follows a decision, of a rule that says `own`.
    pub(super) fn follow_up(&self, own: Option<Nanos>) -> Nanos {
        own.map_or(self.follow_up, |own| own.max(self.follow_up))
    }
}

/// How long a decision on `sets` may wait: the shortest that any rule allows, `usual` where one does not
/// say. Beside a durable one, a rule that does not say waits with it: a set is answered as a whole, and an
/// acknowledgement takes longer than is usual.
fn budget_of(sets: &[&ChargeSet<'_>], usual: Nanos) -> Nanos {
    let charges = || sets.iter().flat_map(|set| &set.charges);
    let said = charges().filter_map(|charge| charge.terms.budget).min();
    let silent = charges().any(|charge| charge.terms.budget.is_none());
    match said {
        Some(said) if silent && !sets.iter().any(|set| set.waits()) => said.min(usual),
        Some(said) => said,
        None => usual,
    }
}

/// The longest that the callers of `sets` wait. A batch waits no longer than its most hurried caller.
pub(super) fn max_wait_of(sets: &[&ChargeSet<'_>]) -> Nanos {
    let waits = sets.iter().filter_map(|set| set.max_wait);
    waits.min().unwrap_or(Nanos::MAX)
}

/// The answer of `call` if it comes before `budget` has passed. If not, `call` is as it was and may
/// be waited for elsewhere.
pub(super) async fn within<R: Runtime, F: Future + ?Sized>(
    runtime: &R,
    budget: Nanos,
    mut call: Pin<&mut F>,
) -> Option<F::Output> {
    let mut over = pin!(runtime.sleep(budget));
    poll_fn(|context| {
        if let Poll::Ready(answer) = call.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        over.as_mut().poll(context).map(|()| None)
    })
    .await
}
