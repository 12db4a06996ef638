//! A run: nodes, clients, the store, and what goes wrong, from the first request to the history.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::resilience::{Resilient, Settings, resilient};
use tidegate::rules::{SourceFile, parse};
use tidegate::{Decision, Limiter, Policy, Request, Secret};
use tidegate_core::store::{Charge, ChargeSet, Source, Store, Terms};
use tidegate_core::units::Nanos;

use crate::executor::{NodeRuntime, Sim};
use crate::faults;
use crate::history::{History, Record, Snapshot};
use crate::model::{Intent, Link, Model, Sent, SharedModel, Weather, replicate};
use crate::scenario::{Fault, LOAD_BEGINS, Scenario, Way};
use crate::variant::Variant;

type NodeLimiter = Limiter<Resilient<Link, NodeRuntime>>;

/// The store's date at the beginning of a run.
const DATE: Nanos = Nanos::from_secs(1_794_700_000);

/// What the tasks of a run share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) model: SharedModel,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) scenario: Arc<Scenario>,
    nodes: Arc<Mutex<Vec<Option<Arc<NodeLimiter>>>>>,
    links: Arc<Mutex<Vec<Link>>>,
    /// What the store knows each counter by, once that is known.
    counters: Arc<Mutex<Vec<Option<u128>>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
    /// Requests that each node has not answered yet.
    under_way: Arc<Mutex<Vec<u64>>>,
    variant: Variant,
}

/// Runs a scenario from beginning to end.
pub fn run(scenario: &Scenario, variant: Variant) -> History {
    let world = World::new(scenario, variant);
    if scenario.fault == Fault::LateStore {
        world.weather(Weather {
            down: true,
            ..Weather::FAIR
        });
    }
    for node in 0..scenario.nodes {
        world.start(node);
    }
    for subject in 0..scenario.subjects.len() {
        world.sim.spawn(None, client(world.clone(), subject));
    }
    world.sim.spawn(None, auditor(world.clone()));
    world.sim.spawn(
        None,
        replicate(world.sim.clone(), Arc::clone(&world.model), scenario.lag),
    );
    world.sim.spawn(None, faults::happen(world.clone()));
    world.sim.run_until(scenario.ends);
    let mut history = std::mem::take(&mut *world.history.lock());
    history.sent = std::mem::take(&mut *world.sent.lock());
    // Tasks hold the simulation and it holds them: let go of both.
    for node in 0..scenario.nodes {
        world.sim.kill(node);
    }
    world.sim.clear();
    history
}

impl World {
    fn new(scenario: &Scenario, variant: Variant) -> Self {
        let mut model = Model::new(DATE);
        if scenario.fault == Fault::Drift {
            model.drift = if scenario.seed & 32 == 0 { 1 } else { -1 } * 100_000_000;
        }
        // Whether a connection can tell a store that was emptied; it always can one that restarted.
        model.tells_life = scenario.fault != Fault::Flush;
        World {
            sim: Sim::new(scenario.seed),
            model: Arc::new(Mutex::new(model)),
            history: Arc::default(),
            scenario: Arc::new(scenario.clone()),
            nodes: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            links: Arc::default(),
            counters: Arc::new(Mutex::new(vec![None; scenario.counters()])),
            sent: Arc::default(),
            under_way: Arc::new(Mutex::new(vec![0; scenario.nodes])),
            variant,
        }
    }

    /// Starts a node, with nothing but what the store will tell it.
    pub(crate) fn start(&self, node: usize) {
        let scenario = &self.scenario;
        let began = Nanos::from_secs(self.sim.draw(|rng| rng.below(100_000)));
        let skew = Nanos::new(scenario.skew.get() * node as u64);
        let runtime = NodeRuntime::new(&self.sim, node, began, DATE.plus(skew));
        let sent = &self.sent;
        let link = Link::new(&self.sim, &self.model, node, skew, self.variant, sent);
        let settings = Settings {
            budget: match self.variant {
                Variant::WaitsTooLong => Nanos::from_millis(50),
                _ => Settings::default().budget,
            },
            remembered: 1_000,
            denials: 64,
            ..Settings::default()
        };
        let watcher = {
            let (history, sim) = (Arc::clone(&self.history), self.sim.clone());
            Arc::new(move |event| {
                let at = sim.now();
                history.lock().events.push((at, node, event));
            })
        };
        let wall = NodeClock {
            sim: self.sim.clone(),
            skew,
        };
        let store = resilient(link.clone(), runtime, settings, watcher);
        let text = scenario.rules();
        let rules = parse(&[SourceFile {
            name: "sim.yaml",
            text: &text,
        }]);
        let rules = rules.expect("scenarios write good rules");
        let secret = Secret::from_bytes(&[7; 16]).expect("sixteen bytes are a secret");
        let limiter = Limiter::new(store, Policy::of(rules), secret, Arc::new(wall));
        self.nodes.lock()[node] = Some(Arc::new(limiter));
        let mut links = self.links.lock();
        if links.len() <= node {
            links.push(link);
        } else {
            links[node] = link;
        }
    }

    /// Ends a node and all it was doing.
    pub(crate) fn kill(&self, node: usize) {
        self.nodes.lock()[node] = None;
        self.sim.kill(node);
        let mut history = self.history.lock();
        history.deaths.push((self.sim.now(), node));
        history.died += std::mem::take(&mut self.under_way.lock()[node]);
    }

    /// Changes how the store behaves.
    pub(crate) fn weather(&self, weather: Weather) {
        self.model.lock().weather = weather;
        let now = self.sim.now();
        self.history.lock().changes.push((now, weather));
    }

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
            let request = Request::default().with("user", format!("subject-{subject}"));
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
            truth: self.model.lock().time(now),
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
        for charge in &set.charges {
            let counter = match charge.rule.as_str() {
                "ceiling" => self.scenario.subjects.len(),
                _ => subject,
            };
            self.counters.lock()[counter] = Some(charge.counter());
        }
        if record.source == Source::DenyCache {
            let mut model = self.model.lock();
            let peeked = model.counters.decide(&set, Intent::Peek, record.truth);
            drop(model);
            if peeked.admitted {
                self.history.lock().hasty.push(record);
            }
        }
        if self.variant == Variant::ProbesWithRequests && record.source == Source::Fallback {
            let link = self.links.lock()[node].clone();
            let _whatever = link.charge(&set).await;
        }
    }
}

/// A subject's client: Poisson arrivals, and now and then a burst.
async fn client(world: World, subject: usize) {
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

/// Reads the store's books now and then.
async fn auditor(world: World) {
    loop {
        world.sim.sleep(Nanos::from_millis(130)).await;
        let at = world.sim.now();
        let counters = world.counters.lock().clone();
        let mut model = world.model.lock();
        let truth = model.time(at);
        let used = |(i, counter): (usize, &Option<u128>)| {
            let limit = world.scenario.limit(i);
            counter.map_or(0, |counter| model.counters.used(counter, &limit, truth))
        };
        let used = counters.iter().enumerate().map(used).collect();
        drop(model);
        world
            .history
            .lock()
            .snapshots
            .push(Snapshot { at, truth, used });
    }
}

/// A node's wall clock: wrong by its skew.
struct NodeClock {
    sim: Sim,
    skew: Nanos,
}

impl Clock for NodeClock {
    fn now(&self) -> Nanos {
        DATE.plus(self.sim.now()).plus(self.skew)
    }
}
