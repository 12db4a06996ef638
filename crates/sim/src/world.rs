//! A run: nodes, clients, the store, and what goes wrong, from the first request to the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate::clock::{Clock, ManualClock};
use tidegate::resilience::{Resilient, Settings, resilient_parts};
use tidegate::rules::{SourceFile, parse_for};
use tidegate::stores::MemoryStore;
use tidegate::{Keeper, Limiter, Policy, Request, Secret};
use tidegate_core::store::{Abilities, PartId};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use crate::auditor::{Listener, audit};
use crate::backwards::Backwards;
use crate::calls;
use crate::executor::{NodeRuntime, Sim};
use crate::faults;
use crate::history::History;
use crate::holders::{self, NodeKeeper};
use crate::model::{Books, Cluster, Divided, Link, Model, Sent, SharedModel, Weather, replicate};
use crate::rng::Rng;
use crate::scenario::{Fault, Rhythm, Scenario, Work};
use crate::traffic::{client, surges};
use crate::variant::Variant;

pub(crate) type NodeStore = Backwards<Resilient<Divided, NodeRuntime>>;
pub(crate) type NodeLimiter = Limiter<NodeStore>;

/// The store's date at the beginning of a run.
const DATE: Nanos = Nanos::from_secs(1_794_700_000);

/// What the tasks of a run share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) nodes: Arc<Mutex<Vec<Option<Arc<NodeLimiter>>>>>,
    /// What keeps slots on each node, where anybody has any.
    pub(crate) keepers: Arc<Mutex<Vec<Option<NodeKeeper>>>>,
    /// Each node's way to the store.
    pub(crate) ways: Arc<Mutex<Vec<Divided>>>,
    /// One of each subject, and the ceiling's.
    pub(crate) counters: Arc<Vec<Counter>>,
    sent: Arc<Mutex<Vec<Sent>>>,
    pub(crate) books: Books,
    /// Requests that each node has not answered yet.
    pub(crate) under_way: Arc<Mutex<Vec<u64>>>,
    pub(crate) variant: Variant,
}

/// What a store knows a counter by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub(crate) bits: u128,
    pub(crate) subject: Fingerprint,
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
        if let Rhythm::Surges(at_once, every) = scenario.subjects[subject].rhythm {
            let surges = surges(world.clone(), subject, at_once, every);
            world.sim.spawn(None, surges);
        }
    }
    match scenario.work {
        Work::Checks => {}
        Work::Reserving(estimates) => {
            let looking = calls::look_at_last(world.clone(), estimates);
            world.sim.spawn(None, looking);
        }
        Work::Slots(places) => {
            let looking = holders::look_at_last(world.clone(), places);
            world.sim.spawn(None, looking);
        }
    }
    world.sim.spawn(None, audit(world.clone()));
    for line in 0..scenario.parts {
        let model = world.cluster.model(line);
        let replica = replicate(world.sim.clone(), model, scenario.lag);
        world.sim.spawn(None, replica);
    }
    world.sim.spawn(None, faults::happen(world.clone()));
    world.sim.run_until(scenario.ends);
    let mut history = std::mem::take(&mut *world.history.lock());
    history.sent = std::mem::take(&mut *world.sent.lock());
    history.books = world.books.take();
    history.postings = world.books.take_postings();
    history.passages = world.books.take_passages();
    history.counters = world.counters.iter().map(|counter| counter.bits).collect();
    history.crossed = world.cluster.crossed();
    history.wide_refunds = world.wide_refunds();
    // Tasks hold the simulation and it holds them: let go of both.
    world.keepers.lock().clear();
    for node in 0..scenario.nodes {
        world.sim.kill(node);
    }
    world.sim.clear();
    history
}

impl World {
    fn new(scenario: &Scenario, variant: Variant) -> Self {
        let counters = counters(scenario);
        let models = (0..scenario.parts).map(|part| model(scenario, part));
        let cluster = Cluster::new(models);
        for (i, counter) in counters.iter().enumerate() {
            cluster.give(counter.subject, scenario.home(i));
        }
        World {
            sim: Sim::new(scenario.seed),
            cluster: Arc::new(cluster),
            history: Arc::default(),
            scenario: Arc::new(scenario.clone()),
            nodes: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            keepers: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            ways: Arc::default(),
            counters: Arc::new(counters),
            sent: Arc::default(),
            books: match scenario.work {
                Work::Reserving(_) => Books::of_estimates(),
                Work::Checks | Work::Slots(_) => Books::default(),
            },
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
        let link = Link::new(&self.sim, &self.hit(), node, skew, self.variant, sent);
        let link = link.from_afar(scenario.far(node), &self.books);
        let way = Divided::new(&self.cluster, link);
        if scenario.parts > 1 {
            let reading = way.clone().read_the_map(self.sim.clone());
            self.sim.spawn(Some(node), reading);
        }
        let settings = Settings {
            budget: match self.variant {
                Variant::WaitsTooLong => Nanos::from_millis(50),
                _ => scenario.budget,
            },
            long_work_budget: scenario.budget,
            remembered: 1_000,
            denials: 64,
            ..Settings::default()
        };
        let watch = Arc::new(Listener {
            sim: self.sim.clone(),
            node,
            history: Arc::clone(&self.history),
            parts: Mutex::default(),
            cluster: Arc::clone(&self.cluster),
        });
        let wall = NodeClock {
            sim: self.sim.clone(),
            skew,
        };
        let store = resilient_parts(way.clone(), runtime.clone(), settings, watch);
        let store = Backwards {
            store,
            turned: self.variant == Variant::WideFirst,
        };
        let limiter = Limiter::new(
            store,
            policy(scenario, self.variant),
            secret(),
            Arc::new(wall),
        );
        let sim = self.sim.clone();
        let limiter = Arc::new(limiter.named_by(move || {
            let (high, low) = (sim.draw(Rng::any), sim.draw(Rng::any));
            u128::from(high) << 64 | u128::from(low)
        }));
        match scenario.work {
            Work::Checks => {}
            Work::Reserving(_) => {
                let tending = calls::tend(self.clone(), Arc::clone(&limiter));
                self.sim.spawn(Some(node), tending);
            }
            Work::Slots(places) => {
                let keeper = Keeper::lasting(Arc::clone(&limiter), runtime, places.lasts);
                self.keepers.lock()[node] = Some(keeper);
            }
        }
        self.nodes.lock()[node] = Some(limiter);
        let mut ways = self.ways.lock();
        match ways.get_mut(node) {
            Some(old) => *old = way,
            None => ways.push(way),
        }
    }

    /// Ends a node and all it was doing.
    pub(crate) fn kill(&self, node: usize) {
        self.nodes.lock()[node] = None;
        self.keepers.lock()[node] = None;
        self.sim.kill(node);
        let mut history = self.history.lock();
        history.deaths.push((self.sim.now(), node));
        history.died += std::mem::take(&mut self.under_way.lock()[node]);
    }

    /// A node gives back what it holds, and is done.
    pub(crate) async fn drain(&self, node: usize) {
        let Some(limiter) = self.nodes.lock()[node].take() else {
            return;
        };
        let world = self.clone();
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        self.sim.spawn(Some(node), async move {
            limiter.store().store.drain().await;
            limiter.tend_reservations().await;
            let now = world.sim.now();
            world.history.lock().drained.push((now, node));
            told.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            self.sim.sleep(Nanos::from_millis(1)).await;
        }
        self.kill(node);
    }

    /// The store in which things go wrong.
    pub(crate) fn hit(&self) -> SharedModel {
        self.cluster.model(self.scenario.hit)
    }

    /// What a line's clock reads.
    pub(crate) fn time(&self, line: usize) -> Nanos {
        self.cluster.model(line).lock().time(self.sim.now())
    }

    /// A replica takes over from the store in which things went wrong, as a part of its own.
    pub(crate) fn take_over(&self) {
        let hit = self.hit();
        self.history.lock().found_heartbeat = hit.lock().whole_replica();
        let replica = Arc::new(Mutex::new(hit.lock().replica()));
        let another = PartId(100 + self.scenario.hit as u64);
        let line = self.scenario.hit;
        self.cluster.take_over(line, another, Arc::clone(&replica));
        let replicating = replicate(self.sim.clone(), replica, self.scenario.lag);
        self.sim.spawn(None, replicating);
    }

    /// The subjects of one part move to another, with their counts.
    pub(crate) fn move_away(&self) {
        let (from, to) = (self.scenario.hit, self.scenario.moves_to());
        let (leaves, enters) = (self.cluster.model(from), self.cluster.model(to));
        let (mut leaves, mut enters) = (leaves.lock(), enters.lock());
        let here = |(i, _): &(usize, &Counter)| self.scenario.home(*i) == from;
        for (_, counter) in self.counters.iter().enumerate().filter(here) {
            let enters = &mut enters.counters;
            leaves.counters.hand_over(counter.bits, enters);
            self.cluster.give(counter.subject, to);
        }
    }

    fn wide_refunds(&self) -> u64 {
        let ceiling = self.counters.get(self.scenario.subjects.len());
        ceiling.map_or(0, |counter| {
            let model = self.cluster.model(self.cluster.line_of(counter.subject));
            model.lock().counters.refunds(counter.bits)
        })
    }

    /// Changes how the store behaves.
    pub(crate) fn weather(&self, weather: Weather) {
        self.hit().lock().set_weather(weather);
        let now = self.sim.now();
        self.history.lock().changes.push((now, weather));
    }
}

/// A store as it is in the beginning.
fn model(scenario: &Scenario, part: usize) -> SharedModel {
    // Where nobody is decided by two of them, clocks may differ.
    let apart = match (&scenario.ceiling, scenario.fault) {
        (Some(_), _) | (_, Fault::Move) => Nanos::ZERO,
        _ => Nanos::from_millis(370 * part as u64),
    };
    let mut model = Model::new(DATE.plus(apart));
    if scenario.fault == Fault::Drift {
        model.drift = if scenario.seed & 32 == 0 { 1 } else { -1 } * 100_000_000;
    }
    // Whether a connection can tell a store that was emptied; it always can one that restarted.
    model.tells_life = scenario.fault != Fault::Flush;
    Arc::new(Mutex::new(model))
}

fn policy(scenario: &Scenario, variant: Variant) -> Policy {
    let text = scenario.rules_of(variant);
    let file = SourceFile {
        name: "sim.yaml",
        text: &text,
    };
    // A store of several nodes, which computes as memory does.
    let rules = parse_for(&[file], Abilities::UNKNOWN);
    Policy::of(rules.expect("scenarios write good rules"))
}

fn secret() -> Secret {
    Secret::from_bytes(&[7; 16]).expect("sixteen bytes are a secret")
}

/// The counters of a run, in the order of the scenario: found by asking a limiter of its own.
fn counters(scenario: &Scenario) -> Vec<Counter> {
    let clock = ManualClock::at(DATE);
    let store = MemoryStore::new(clock.clone());
    let limiter = Limiter::new(
        store,
        policy(scenario, Variant::Shipped),
        secret(),
        Arc::new(clock),
    );
    let mut counters = Vec::new();
    let mut ceiling = None;
    for subject in 0..scenario.subjects.len() {
        let name = name(subject);
        let decision = limiter.check_now(Request::default().with("user", name.as_str()));
        for view in decision.limits() {
            let rule = view.rule.name();
            let counter = Counter {
                bits: rule.counter(view.subject, view.rate),
                subject: view.subject,
            };
            match rule.as_str() {
                "ceiling" => ceiling = Some(counter),
                _ => counters.push(counter),
            }
        }
    }
    counters.extend(ceiling);
    counters
}

/// What a subject is called.
pub(crate) fn name(subject: usize) -> String {
    format!("subject-{subject}")
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
