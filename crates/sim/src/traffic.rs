//! Clients: they send requests to nodes and record the decisions.

use std::sync::Arc;

use tidegate::{Decision, Request};
use tidegate_core::store::{Charge, ChargeSet, Counters, RuleOptions, Shards, Source};
use tidegate_core::units::Nanos;

use crate::history::DecisionRecord;
use crate::model::DecideMode;
use crate::rng::Rng;
use crate::scenario::{ArrivalPattern, Routing, SimSubject, Work};
use crate::variant::Variant;
use crate::world::{NodeLimiter, World, subject_name};

/// A subject's client: Poisson arrivals with occasional bursts, during periods of load.
pub(crate) async fn run_client(world: World, subject: usize) {
    for (from, to) in &world.scenario.load_periods {
        world.sim.sleep_until(*from).await;
        send_requests(&world, subject, *from, *to).await;
    }
}

async fn send_requests(world: &World, subject: usize, from: Nanos, to: Nanos) {
    let SimSubject { mean_interval, arrivals, .. } = world.scenario.subjects[subject];
    loop {
        let (wait, burst) = world.sim.with_rng(|rng| {
            let uniform = (rng.below(1 << 32) + 1) as f64 / (1_u64 << 32) as f64;
            let wait = -uniform.ln() * mean_interval.get() as f64;
            let burst = if rng.chance(20) { rng.between(2, 6) } else { 1 };
            (Nanos::new(wait as u64), burst)
        });
        world.sim.sleep(wait).await;
        if let Some(on) = resumes_at(arrivals, from, world.sim.now()) {
            world.sim.sleep_until(on).await;
        }
        if world.sim.now() >= to {
            return;
        }
        for _ in 0..burst {
            world.send_request(subject);
        }
    }
}

/// When the silent span of an on-off pattern ends, if `now` is in one.
fn resumes_at(arrivals: ArrivalPattern, from: Nanos, now: Nanos) -> Option<Nanos> {
    let ArrivalPattern::OnOff(on, off) = arrivals else {
        return None;
    };
    let round = on.plus(off).get();
    let passed = now.since(from).get() % round;
    (passed >= on.get()).then(|| now.plus(Nanos::new(round - passed)))
}

/// Surges in addition to the steady requests.
pub(crate) async fn run_surges(world: World, subject: usize, at_once: u64, every: Nanos) {
    for (from, to) in &world.scenario.load_periods {
        world.sim.sleep_until(from.plus(every)).await;
        while world.sim.now() < *to {
            for _ in 0..at_once {
                world.send_request(subject);
            }
            world.sim.sleep(every).await;
        }
    }
}

impl World {
    /// The nodes that are up.
    fn nodes_up(&self) -> Vec<usize> {
        let nodes = self.nodes.lock();
        (0..nodes.len()).filter(|node| nodes[*node].is_some()).collect()
    }

    fn route(&self, subject: usize) -> Option<usize> {
        let up = self.nodes_up();
        let routing = self.scenario.subjects[subject].routing;
        let turn = match routing {
            Routing::Spread => self.sim.with_rng(|rng| rng.below(64)),
            Routing::Sticky => subject as u64,
            // Changes in the middle of a window.
            Routing::Rotating => self.sim.now().get() / 1_700_000_000,
            // Half of the requests reach the first node, a quarter the second, and so on.
            Routing::Skewed => {
                let draw = self.sim.with_rng(Rng::next_u64);
                u64::from(draw.trailing_zeros()).min(up.len().saturating_sub(1) as u64)
            }
        };
        if up.is_empty() { None } else { Some(up[turn as usize % up.len()]) }
    }

    /// The node that receives a subject's next request.
    pub(crate) fn pick_node(&self, subject: usize) -> Option<(usize, Arc<NodeLimiter>)> {
        let node = self.route(subject)?;
        let limiter = self.nodes.lock()[node].clone()?;
        Some((node, limiter))
    }

    /// The given node if it is up, else any.
    pub(crate) fn node_or_any(&self, node: Option<usize>) -> Option<(usize, Arc<NodeLimiter>)> {
        let up = self.nodes_up();
        let node = match node.filter(|node| up.contains(node)) {
            Some(node) => node,
            None if up.is_empty() => return None,
            None => up[self.sim.with_rng(|rng| rng.below(up.len() as u64)) as usize],
        };
        let limiter = self.nodes.lock()[node].clone()?;
        Some((node, limiter))
    }

    fn send_request(&self, subject: usize) {
        match self.scenario.work {
            Work::Checks => self.send_check(subject),
            Work::Reservations(estimates) => self.reserve(subject, estimates),
            Work::Permits(permits) => self.acquire_permit(subject, permits),
        }
    }

    fn send_check(&self, subject: usize) {
        let Some((node, limiter)) = self.pick_node(subject) else {
            return;
        };
        self.history.lock().requests += 1;
        self.in_flight.lock()[node] += 1;
        let world = self.clone();
        self.sim.spawn(Some(node), async move {
            let (sent, store_time_sent) = (world.sim.now(), world.store_time_of(subject));
            let request = Request::default().with("user", subject_name(subject));
            let decided = limiter.check(request).await;
            world.in_flight.lock()[node] -= 1;
            match decided {
                Ok(decision) => {
                    let sent_at = (sent, store_time_sent);
                    world.record_decision(&decision, sent_at, node, subject).await;
                }
                Err(error) => world.history.lock().errors.push(error.to_string()),
            }
        });
    }

    /// The true time of the store that has a subject.
    pub(crate) fn store_time_of(&self, subject: usize) -> Nanos {
        self.store_time(self.cluster.shard_of(self.counters[subject].subject))
    }

    pub(crate) async fn record_decision(
        &self,
        decision: &Decision,
        (sent, store_time_sent): (Nanos, Nanos),
        node: usize,
        subject: usize,
    ) {
        let record = DecisionRecord {
            sent,
            store_time_sent,
            done: self.sim.now(),
            node,
            subject,
            admitted: decision.allowed(),
            source: decision.source(),
            at: decision.at(),
            store_time_done: self.store_time_of(subject),
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
            options: &RuleOptions::DEFAULT,
        });
        let set = ChargeSet::of(charges);
        if record.source == Source::DenyCache {
            let admits = |charge: &Charge<'_>| self.would_admit(charge);
            if set.charges.iter().all(admits) {
                self.history.lock().premature_denials.push(record);
            }
        }
        if probes && record.source == Source::Fallback {
            let shards = self.node_shards.lock()[node].clone();
            if let Some(link) = shards.shard(shards.shard_of(set.charges[0].subject)) {
                let _whatever = link.charge(&set).await;
            }
        }
    }

    /// Whether the store has room for a charge now.
    fn would_admit(&self, charge: &Charge<'_>) -> bool {
        let shard = self.cluster.shard_of(charge.subject);
        let now = self.store_time(shard);
        let set = ChargeSet::of([charge.clone()]);
        let model = self.cluster.model(shard);
        let peeked = model.lock().counters.decide(&set, DecideMode::Peek, now);
        peeked.admitted
    }
}
