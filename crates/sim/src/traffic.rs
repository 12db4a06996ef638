//! Who asks, where, and what becomes of it.

use tidegate::{Decision, Request};
use tidegate_core::store::{Charge, ChargeSet, Parts, Source, Store, Terms};
use tidegate_core::units::Nanos;

use crate::history::Record;
use crate::model::Intent;
use crate::scenario::{LOAD_BEGINS, Way};
use crate::variant::Variant;
use crate::world::{World, name};

/// A subject's client: Poisson arrivals, and now and then a burst.
pub(crate) async fn client(world: World, subject: usize) {
    let every = world.scenario.subjects[subject].every;
    world.sim.sleep(LOAD_BEGINS).await;
    // The last requests are answered before the run ends.
    let end = world.scenario.ends.since(Nanos::from_millis(20));
    loop {
        let (wait, burst) = world.sim.draw(|rng| {
            let uniform = (rng.below(1 << 32) + 1) as f64 / (1_u64 << 32) as f64;
            let wait = -uniform.ln() * every.get() as f64;
            let burst = if rng.chance(20) { rng.between(2, 6) } else { 1 };
            (Nanos::new(wait as u64), burst)
        });
        world.sim.sleep(wait).await;
        if world.sim.now() >= end {
            return;
        }
        for _ in 0..burst {
            world.ask(subject);
        }
    }
}

impl World {
    /// The nodes that are up.
    fn up(&self) -> Vec<usize> {
        let nodes = self.nodes.lock();
        (0..nodes.len())
            .filter(|node| nodes[*node].is_some())
            .collect()
    }

    fn route(&self, subject: usize) -> Option<usize> {
        let up = self.up();
        let way = self.scenario.subjects[subject].way;
        let turn = match way {
            Way::Spread => self.sim.draw(|rng| rng.below(64)),
            Way::Sticky => subject as u64,
            // Moves on in the middle of things.
            Way::Wandering => self.sim.now().get() / 1_700_000_000,
        };
        match up.is_empty() {
            true => None,
            false => Some(up[turn as usize % up.len()]),
        }
    }

    fn ask(&self, subject: usize) {
        let Some(node) = self.route(subject) else {
            return;
        };
        let Some(limiter) = self.nodes.lock()[node].clone() else {
            return;
        };
        self.history.lock().asked += 1;
        self.under_way.lock()[node] += 1;
        let world = self.clone();
        self.sim.spawn(Some(node), async move {
            let sent = world.sim.now();
            let request = Request::default().with("user", name(subject));
            let decided = limiter.check(request).await;
            world.under_way.lock()[node] -= 1;
            match decided {
                Ok(decision) => world.decided(&decision, sent, node, subject).await,
                Err(error) => world.history.lock().failed.push(error.to_string()),
            }
        });
    }

    async fn decided(&self, decision: &Decision, sent: Nanos, node: usize, subject: usize) {
        let now = self.sim.now();
        let record = Record {
            sent,
            done: now,
            node,
            subject,
            admitted: decision.allowed(),
            source: decision.source(),
            at: decision.at(),
            truth: self.time(self.cluster.line_of(self.counters[subject].subject)),
        };
        self.history.lock().records.push(record);
        let charges = decision.limits().map(|view| Charge {
            subject: view.subject,
            rule: view.rule.name(),
            rate: view.rate,
            limit: std::borrow::Cow::Borrowed(view.limit),
            cost: view.cost,
            role: view.role,
            terms: &Terms::USUAL,
        });
        let set = ChargeSet {
            charges: charges.collect(),
        };
        if record.source == Source::DenyCache {
            let admits = |charge: &Charge<'_>| self.would_admit(charge);
            if set.charges.iter().all(admits) {
                self.history.lock().hasty.push(record);
            }
        }
        if self.variant == Variant::ProbesWithRequests && record.source == Source::Fallback {
            let way = self.ways.lock()[node].clone();
            if let Some(link) = way.part(way.part_of(set.charges[0].subject)) {
                let _whatever = link.charge(&set).await;
            }
        }
    }

    /// Whether the store has room for a charge now.
    fn would_admit(&self, charge: &Charge<'_>) -> bool {
        let line = self.cluster.line_of(charge.subject);
        let now = self.time(line);
        let set = ChargeSet {
            charges: [charge.clone()].into_iter().collect(),
        };
        let model = self.cluster.model(line);
        let peeked = model.lock().counters.decide(&set, Intent::Peek, now);
        peeked.admitted
    }
}
