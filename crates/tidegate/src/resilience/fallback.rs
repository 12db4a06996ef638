//! A store that always decides: exactly while the store behind it can be believed, by this node's
//! share of each limit while it cannot.
//!
//! Bounds: without the store all nodes together admit at most the share of each limit. Where an
//! outage begins or ends, a window may hold what was admitted exactly beside that. A counter that owes
//! the store something is decided locally until the store has charged it.

use std::sync::Arc;

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, NodeId, Outcome, Probe, Refund, Refunded,
    Seed, Store, StoreError,
};
use tidegate_core::units::Nanos;

use super::clock_watch::ClockReading;
use super::event::Watcher;
use super::node::Node;
use super::settings::Settings;
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// A store and what stands in for it.
pub struct Fallback<S, R> {
    node: Arc<Node<S, R>>,
}

impl<S: Store + Probe + 'static, R: Runtime> Fallback<S, R> {
    /// Stands in for `store`, as the node `me`. `wall` is the time of day, which has to do until the
    /// store tells its own. Starts without the store.
    pub fn new(
        store: S,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: Settings,
        watcher: Watcher,
    ) -> Self {
        Fallback {
            node: Node::start(store, runtime, me, wall, settings, watcher),
        }
    }

    /// The nodes as last listed, to be kept for the next start; none until the list is complete.
    pub fn roster(&self) -> Vec<NodeId> {
        self.node.roster()
    }

    /// How far the store's clock is from this node's, once it has answered.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.node.clock_reading()
    }

    fn decide_locally(&self, set: &ChargeSet<'_>) -> Outcome {
        let node = &self.node;
        let division = |counter| node.division(counter);
        let (mirror, now) = (&node.mirror, node.store_time());
        let outcome = node.local.charge(set, division, mirror, now);
        if outcome.admitted {
            node.owes();
        }
        outcome
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Store for Fallback<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let node = &self.node;
        if !node.decides(set) {
            let sent = node.runtime.now();
            let answer = node.guard.charge(set).await;
            if let Ok(outcome) = answer
                && node.believes(set, &outcome, sent)
            {
                return Ok(outcome);
            }
        }
        Ok(self.decide_locally(set))
    }

    /// Those that need the store are asked about together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let node = &self.node;
        let remote: Vec<usize> = (0..sets.len())
            .filter(|i| !node.decides(sets[*i]))
            .collect();
        let asked: Vec<&ChargeSet<'_>> = remote.iter().map(|i| sets[*i]).collect();
        let sent = node.runtime.now();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => node.guard.charge_each(&asked).await,
        };
        let mut outcomes: Vec<Option<Outcome>> = sets.iter().map(|_| None).collect();
        for ((i, set), answer) in remote.iter().zip(asked).zip(answers) {
            let believed = answer.ok().filter(|o| node.believes(set, o, sent));
            outcomes[*i] = believed;
        }
        let decided = outcomes.into_iter().zip(sets);
        let decided =
            decided.map(|(outcome, set)| Ok(outcome.unwrap_or_else(|| self.decide_locally(set))));
        decided.collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let node = &self.node;
        if !node.decides(set)
            && let Ok(outcome) = node.guard.peek(set).await
        {
            return Ok(outcome);
        }
        let division = |counter| node.division(counter);
        Ok(node
            .local
            .peek(set, division, &node.mirror, node.store_time()))
    }

    /// What was admitted here is given back here while the store does not know of it.
    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let node = &self.node;
        if node.decides(&refund.set) {
            let division = |counter| node.division(counter);
            return Ok(node.local.refund(refund, division, node.store_time()));
        }
        node.guard.refund(refund).await
    }

    /// Units are drawn in advance from the one true counter only.
    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.node.guard.grant(charge).await
    }

    /// A debt cannot be decided locally: it is owed until the store can be told.
    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let node = &self.node;
        if !node.decides(set) {
            let sent = node.runtime.now();
            if let Ok(outcome) = node.guard.force(set).await
                && node.believes(set, &outcome, sent)
            {
                return Ok(outcome);
            }
        }
        let division = |counter| node.division(counter);
        let now = node.store_time();
        let outcome = node.local.force(set, division, &node.mirror, now);
        node.owes();
        Ok(outcome)
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.node.guard.seed(seeds).await
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        if let Ok(held) = self.node.guard.hold(hold).await {
            return Ok(held);
        }
        let division = self.node.division(hold.rule.counter(hold.subject, 0));
        Ok(self.node.local.hold(hold, division, self.node.store_time()))
    }

    /// Wherever the slot was taken.
    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.node.local.release(hold, self.node.store_time());
        self.node.guard.release(hold).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        let node = &self.node;
        if let Ok(found) = node.guard.inspect(set).await {
            return Ok(found);
        }
        let division = |counter| node.division(counter);
        Ok(node.local.inspect(set, division, node.store_time()))
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        for charge in &set.charges {
            self.node.mirror.forget(charge.counter());
        }
        let here = self.node.local.reset(set, self.node.store_time());
        let there = self.node.guard.reset(set).await;
        Ok(there?.max(here))
    }
}
