//! Who asks, where, and what becomes of it.

use std::sync::Arc;

use tidegate::{Decision, Request};
use tidegate_core::store::{Charge, ChargeSet, Parts, Source, Store, Terms};
use tidegate_core::units::Nanos;

use crate::history::Record;
use crate::model::Intent;
use crate::rng::Rng;
use crate::scenario::{Rhythm, Subject, Way, Work};
use crate::variant::Variant;
use crate::world::{NodeLimiter, World, name};

/// A subject's client: Poisson arrivals, and now and then a burst, whenever there is load.
pub(crate) async fn client(world: World, subject: usize) {
    for (from, to) in &world.scenario.bouts {
        world.sim.sleep_until(*from).await;
        one_by_one(&world, subject, *from, *to).await;
    }
}

async fn one_by_one(world: &World, subject: usize, from: Nanos, to: Nanos) {
    let Subject { every, rhythm, .. } = world.scenario.subjects[subject];
    loop {
        let (wait, burst) = world.sim.draw(|rng| {
            let uniform = (rng.below(1 << 32) + 1) as f64 / (1_u64 << 32) as f64;
            let wait = -uniform.ln() * every.get() as f64;
            let burst = if rng.chance(20) { rng.between(2, 6) } else { 1 };
            (Nanos::new(wait as u64), burst)
        });
        world.sim.sleep(wait).await;
        if let Some(on) = next_on(rhythm, from, world.sim.now()) {
            world.sim.sleep_until(on).await;
        }
        if world.sim.now() >= to {
            return;
        }
        for _ in 0..burst {
            world.ask(subject);
        }
    }
}

/// When a pause of the load ends, if this is one.
fn next_on(rhythm: Rhythm, from: Nanos, now: Nanos) -> Option<Nanos> {
    let Rhythm::OnOff(on, off) = rhythm else {
        return None;
    };
    let round = on.plus(off).get();
    let passed = now.since(from).get() % round;
    (passed >= on.get()).then(|| now.plus(Nanos::new(round - passed)))
}

/// Many at once, beside those that come one by one.
pub(crate) async fn surges(world: World, subject: usize, at_once: u64, every: Nanos) {
    for (from, to) in &world.scenario.bouts {
        world.sim.sleep_until(from.plus(every)).await;
        while world.sim.now() < *to {
            for _ in 0..at_once {
                world.ask(subject);
            }
            world.sim.sleep(every).await;
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
            // Half of them to the first, a quarter to the second, and so on.
            Way::Skewed => {
                let draw = self.sim.draw(Rng::any);
                u64::from(draw.trailing_zeros()).min(up.len().saturating_sub(1) as u64)
            }
        };
        match up.is_empty() {
            true => None,
            false => Some(up[turn as usize % up.len()]),
        }
    }

    /// The node that a request of a subject reaches.
    pub(crate) fn route_to(&self, subject: usize) -> Option<(usize, Arc<NodeLimiter>)> {
        let node = self.route(subject)?;
        let limiter = self.nodes.lock()[node].clone()?;
        Some((node, limiter))
    }

    /// A node if it is up, and else any.
    pub(crate) fn node_or_any(&self, node: Option<usize>) -> Option<(usize, Arc<NodeLimiter>)> {
        let up = self.up();
        let node = match node.filter(|node| up.contains(node)) {
            Some(node) => node,
            None if up.is_empty() => return None,
            None => up[self.sim.draw(|rng| rng.below(up.len() as u64)) as usize],
        };
        let limiter = self.nodes.lock()[node].clone()?;
        Some((node, limiter))
    }

    fn ask(&self, subject: usize) {
        match self.scenario.work {
            Work::Checks => self.check(subject),
            Work::Reserving(estimates) => self.reserve(subject, estimates),
            Work::Slots(places) => self.open(subject, places),
        }
    }

    fn check(&self, subject: usize) {
        let Some((node, limiter)) = self.route_to(subject) else {
            return;
        };
        self.history.lock().asked += 1;
        self.under_way.lock()[node] += 1;
        let world = self.clone();
        self.sim.spawn(Some(node), async move {
            let (sent, began) = (world.sim.now(), world.time_of(subject));
            let request = Request::default().with("user", name(subject));
            let decided = limiter.check(request).await;
            world.under_way.lock()[node] -= 1;
            match decided {
                Ok(decision) => {
                    let asked = (sent, began);
                    world.decided(&decision, asked, node, subject).await;
                }
                Err(error) => world.history.lock().failed.push(error.to_string()),
            }
        });
    }

    /// The true time of the store that a subject is in.
    pub(crate) fn time_of(&self, subject: usize) -> Nanos {
        self.time(self.cluster.line_of(self.counters[subject].subject))
    }

    pub(crate) async fn decided(
        &self,
        decision: &Decision,
        (sent, began): (Nanos, Nanos),
        node: usize,
        subject: usize,
    ) {
        let record = Record {
            sent,
            began,
            done: self.sim.now(),
            node,
            subject,
            admitted: decision.allowed(),
            source: decision.source(),
            at: decision.at(),
            truth: self.time_of(subject),
        };
        self.history.lock().records.push(record);
        let probes = self.variant == Variant::ProbesWithRequests;
        if record.source != Source::DenyCache && !probes {
            return;
        }
        let charges = decision.limits().map(|view| Charge {
            subject: view.subject,
            rule: view.rule.name(),
            rate: view.rate,
            limit: std::borrow::Cow::Borrowed(view.limit),
            cost: view.cost,
            role: view.role,
            terms: &Terms::USUAL,
        });
        let set = ChargeSet::of(charges);
        if record.source == Source::DenyCache {
            let admits = |charge: &Charge<'_>| self.would_admit(charge);
            if set.charges.iter().all(admits) {
                self.history.lock().hasty.push(record);
            }
        }
        if probes && record.source == Source::Fallback {
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
        let set = ChargeSet::of([charge.clone()]);
        let model = self.cluster.model(line);
        let peeked = model.lock().counters.decide(&set, Intent::Peek, now);
        peeked.admitted
    }
}
