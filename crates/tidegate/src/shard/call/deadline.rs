//! Budgets: how long a call waits for a reply.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tidegate_core::store::{ChargeSet, WorkKind};
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;
use crate::shard::refund::ChargeKind;
use crate::shard::settings::ResilienceSettings;

/// How long calls wait for the store where no rule sets a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    pub(crate) decision: Nanos,
    pub(crate) long_work: Nanos,
    follow_up: Nanos,
}

impl Budgets {
    pub(crate) fn of(settings: &ResilienceSettings) -> Self {
        Budgets {
            decision: settings.budget,
            long_work: settings.budget.max(settings.long_work_budget),
            follow_up: settings.budget.max(settings.follow_up_budget),
        }
    }

    /// The budget of a decision on `sets`.
    pub(crate) fn of_sets(&self, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Nanos {
        // A batch that contains an ordinary request has the budget of that request.
        let is_long = |set: &&ChargeSet<'_>| set.work == WorkKind::LongWork;
        let usual = match kind {
            ChargeKind::Charge if sets.iter().all(is_long) => self.long_work,
            ChargeKind::Charge => self.decision,
            ChargeKind::Reserve { .. } => self.long_work,
        };
        budget_of(sets, usual)
    }

    /// The budget of a call that follows a decision, where the rule sets the budget `own`.
    pub(crate) fn follow_up(&self, own: Option<Nanos>) -> Nanos {
        own.map_or(self.follow_up, |own| own.max(self.follow_up))
    }
}

/// How long a decision on `sets` may wait: the shortest budget of any rule, where a rule without one counts as
/// `usual`. Beside a durable charge, a rule without a budget waits as long as the durable one: a set has one
/// result, and an acknowledgement takes longer than `usual`.
fn budget_of(sets: &[&ChargeSet<'_>], usual: Nanos) -> Nanos {
    let charges = || sets.iter().flat_map(|set| &set.charges);
    let shortest = charges().filter_map(|charge| charge.options.budget).min();
    let any_unset = charges().any(|charge| charge.options.budget.is_none());
    match shortest {
        Some(shortest) if any_unset && !sets.iter().any(|set| set.requires_durability()) => shortest.min(usual),
        Some(shortest) => shortest,
        None => usual,
    }
}

/// The longest that the callers of `sets` wait. A batch waits no longer than its most impatient caller.
pub(crate) fn max_wait_of(sets: &[&ChargeSet<'_>]) -> Nanos {
    let waits = sets.iter().filter_map(|set| set.max_wait);
    waits.min().unwrap_or(Nanos::MAX)
}

/// The output of `call` if it is ready before `budget` has passed. Otherwise `call` is left as it was, and another
/// task may go on waiting for it.
pub(crate) async fn within<R: Runtime, F: Future + ?Sized>(
    runtime: &R,
    budget: Nanos,
    mut call: Pin<&mut F>,
) -> Option<F::Output> {
    let mut timeout = pin!(runtime.sleep(budget));
    poll_fn(|context| {
        if let Poll::Ready(output) = call.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        timeout.as_mut().poll(context).map(|()| None)
    })
    .await
}
