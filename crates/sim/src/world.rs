//! A run: nodes, clients, the store and the fault, from the first request to the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate::clock::{Clock, ManualClock};
use tidegate::resilience::{LocalAdmissions, PendingUnits, ResilienceSettings, Resilient, resilient_shards};
use tidegate::rules::{SourceFile, parse_with_options};
use tidegate::{Limiter, PermitRenewer, Policy, Request, Secret};
use tidegate_core::store::{Capabilities, NodeId, RuleOptions, ShardId};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use crate::executor::{NodeRuntime, Sim};
use crate::faults;
use crate::history::History;
use crate::model::{
    LinkCharge, Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel, StoreLog, replicate,
};
use crate::permit_clients::{self, NodePermitRenewer};
use crate::recording::{EventRecorder, sample_counters};
use crate::reservation_clients;
use crate::reversed_order::ReversedOrder;
use crate::rng::Rng;
use crate::scenario::{ArrivalPattern, Scenario, SimFault, Work};
use crate::traffic::{run_client, run_surges};
use crate::variant::Variant;

pub(crate) type NodeStore = ReversedOrder<Resilient<ModelShards, NodeRuntime>>;
pub(crate) type NodeLimiter = Limiter<NodeStore>;

/// The store's date at the start of a run.
const DATE: Nanos = Nanos::from_secs(1_794_700_000);

/// The state that the tasks of a run share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) cluster: Arc<ModelCluster>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) nodes: Arc<Mutex<Vec<Option<Arc<NodeLimiter>>>>>,
    /// The permit renewer of each node, in runs with permits.
    pub(crate) renewers: Arc<Mutex<Vec<Option<NodePermitRenewer>>>>,
    /// Each node's connection to the store.
    pub(crate) node_shards: Arc<Mutex<Vec<ModelShards>>>,
    /// One per subject, and one for the ceiling.
    pub(crate) counters: Arc<Vec<CounterKey>>,
    charges_sent: Arc<Mutex<Vec<LinkCharge>>>,
    pub(crate) log: StoreLog,
    /// Requests in flight at each node.
    pub(crate) in_flight: Arc<Mutex<Vec<u64>>>,
    /// What each node has on disk, in runs with restarts.
    disks: Arc<Mutex<Vec<Option<NodeDisk>>>>,
    pub(crate) variant: Variant,
}

/// What a node saves for its next start.
#[derive(Clone)]
struct NodeDisk {
    me: NodeId,
    members: Vec<NodeId>,
    admissions: LocalAdmissions,
}

/// How a node ends before a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeExit {
    /// It answers the requests in flight.
    Clean,
    /// It does not.
    Killed,
}

/// The key of a counter in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterKey {
    pub(crate) bits: u128,
    pub(crate) subject: Fingerprint,
}

/// Runs a scenario from start to end.
pub fn run(scenario: &Scenario, variant: Variant) -> History {
    let world = World::new(scenario, variant);
    if scenario.fault == SimFault::LateStore {
        world.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    }
    for node in 0..scenario.nodes {
        world.start(node);
    }
    for subject in 0..scenario.subjects.len() {
        world.sim.spawn(None, run_client(world.clone(), subject));
        if let ArrivalPattern::Surges(at_once, every) = scenario.subjects[subject].arrivals {
            let surges = run_surges(world.clone(), subject, at_once, every);
            world.sim.spawn(None, surges);
        }
    }
    match scenario.work {
        Work::Checks => {}
        Work::Reservations(estimates) => {
            let check = reservation_clients::final_check(world.clone(), estimates);
            world.sim.spawn(None, check);
        }
        Work::Permits(permits) => {
            let check = permit_clients::final_check(world.clone(), permits);
            world.sim.spawn(None, check);
        }
    }
    world.sim.spawn(None, sample_counters(world.clone()));
    for shard in 0..scenario.shards {
        let model = world.cluster.model(shard);
        let replica = replicate(world.sim.clone(), model, scenario.replica_lag);
        world.sim.spawn(None, replica);
    }
    world.sim.spawn(None, faults::inject(world.clone()));
    world.sim.run_until(scenario.ends);
    let mut history = std::mem::take(&mut *world.history.lock());
    history.charges_sent = std::mem::take(&mut *world.charges_sent.lock());
    history.store_ops = world.log.take_ops();
    history.reservation_events = world.log.take_reservation_events();
    history.permit_events = world.log.take_permit_events();
    history.counters = world.counters.iter().map(|counter| counter.bits).collect();
    history.cross_slot_calls = world.cluster.cross_slot_calls();
    history.wide_refunds = world.wide_refunds();
    // Tasks hold the simulation and the simulation holds the tasks: break the cycle.
    world.renewers.lock().clear();
    for node in 0..scenario.nodes {
        world.sim.kill(node);
    }
    world.sim.clear();
    history
}

impl World {
    fn new(scenario: &Scenario, variant: Variant) -> Self {
        let counters = counters(scenario);
        let models = (0..scenario.shards).map(|shard| new_model(scenario, shard));
        let cluster = ModelCluster::new(models);
        for (i, counter) in counters.iter().enumerate() {
            cluster.assign(counter.subject, scenario.shard_of(i));
        }
        World {
            sim: Sim::new(scenario.seed),
            cluster: Arc::new(cluster),
            history: Arc::default(),
            scenario: Arc::new(scenario.clone()),
            nodes: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            renewers: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            node_shards: Arc::default(),
            counters: Arc::new(counters),
            charges_sent: Arc::default(),
            log: match scenario.work {
                Work::Reservations(_) => StoreLog::with_reservations(),
                Work::Checks | Work::Permits(_) => StoreLog::default(),
            },
            in_flight: Arc::new(Mutex::new(vec![0; scenario.nodes])),
            disks: Arc::new(Mutex::new(vec![None; scenario.nodes])),
            variant,
        }
    }

    /// Starts a node, with the state that it has on disk.
    pub(crate) fn start(&self, node: usize) {
        let scenario = &self.scenario;
        if scenario.fault == SimFault::OutagesAndRestarts {
            let me = NodeId(self.sim.with_rng(Rng::next_u64));
            let new = NodeDisk { me, members: Vec::new(), admissions: LocalAdmissions::default() };
            self.disks.lock()[node].get_or_insert(new);
        }
        let disk = self.disks.lock()[node].clone();
        let began = Nanos::from_secs(self.sim.with_rng(|rng| rng.below(100_000)));
        let skew = Nanos::new(scenario.clock_skew.get() * node as u64);
        let runtime = NodeRuntime::new(&self.sim, node, began, DATE.plus(skew));
        let sent = &self.charges_sent;
        let link = ModelLink::new(&self.sim, &self.hit_store(), node, skew, self.variant, sent);
        let link = link.at_distance(scenario.extra_latency_of(node), &self.log);
        let shards = ModelShards::new(&self.cluster, link);
        if scenario.shards > 1 {
            let reading = shards.clone().run_map_refresh(self.sim.clone());
            self.sim.spawn(Some(node), reading);
        }
        let settings = ResilienceSettings {
            budget: match self.variant {
                Variant::WaitsTooLong => Nanos::from_millis(50),
                _ => scenario.budget,
            },
            long_work_budget: scenario.budget,
            max_mirrored: 1_000,
            max_ahead: 64,
            me: disk.as_ref().map(|disk| disk.me),
            members: disk.as_ref().map_or_else(Vec::new, |disk| disk.members.clone()),
            ..ResilienceSettings::default()
        };
        let watch = Arc::new(EventRecorder {
            sim: self.sim.clone(),
            node,
            history: Arc::clone(&self.history),
            shards: Mutex::default(),
            cluster: Arc::clone(&self.cluster),
        });
        let wall = NodeClock { sim: self.sim.clone(), skew };
        let store = resilient_shards(shards.clone(), runtime.clone(), settings, watch);
        if let Some(disk) = disk {
            self.restore(&store, disk.admissions);
        }
        let store = ReversedOrder { store, reversed: self.variant == Variant::WideFirst };
        let sim = self.sim.clone();
        let builder = Limiter::builder().policy(policy(scenario, self.variant)).secret(secret()).clock(wall);
        let builder = builder.id_source(move || {
            let (high, low) = (sim.with_rng(Rng::next_u64), sim.with_rng(Rng::next_u64));
            u128::from(high) << 64 | u128::from(low)
        });
        let limiter = Arc::new(builder.build_on(store).expect("rules are given"));
        match scenario.work {
            Work::Checks => {}
            Work::Reservations(_) => {
                let sweeps = reservation_clients::run_reservation_sweeps(self.clone(), Arc::clone(&limiter));
                self.sim.spawn(Some(node), sweeps);
            }
            Work::Permits(permits) => {
                let renewer = PermitRenewer::with_ttl(Arc::clone(&limiter), runtime, permits.lasts.duration());
                self.renewers.lock()[node] = Some(renewer);
            }
        }
        self.nodes.lock()[node] = Some(limiter);
        let mut node_shards = self.node_shards.lock();
        match node_shards.get_mut(node) {
            Some(old) => *old = shards,
            None => node_shards.push(shards),
        }
    }

    fn restore(&self, store: &Resilient<ModelShards, NodeRuntime>, mut admissions: LocalAdmissions) {
        match self.variant {
            Variant::ForgetsShares => admissions.units.iter_mut().for_each(|of| of.shared = of.units),
            Variant::ForgetsPermits => admissions.permits.clear(),
            _ => {}
        }
        let rules = policy(&self.scenario, self.variant).rules;
        let limit_of = |of: &PendingUnits| {
            let rule = rules.rule(of.rule.as_str())?;
            let limit = rule.limits(None, "").get(usize::from(of.rate))?.for_subject(of.subject.seed());
            Some((limit, *rule.options()))
        };
        let options_of = |rule: &RuleName| rules.rule(rule.as_str()).map_or(RuleOptions::DEFAULT, |r| *r.options());
        store.restore_local_admissions(&admissions, limit_of, options_of);
    }

    /// Ends a node and starts it again after a while, with what it has saved.
    pub(crate) async fn restart(&self, node: usize, exit: NodeExit, down_for: Nanos) {
        let Some(limiter) = self.nodes.lock()[node].take() else {
            return;
        };
        while exit == NodeExit::Clean && self.in_flight.lock()[node] > 0 {
            self.sim.sleep(Nanos::from_millis(1)).await;
        }
        if let Some(disk) = &mut self.disks.lock()[node] {
            let store = &limiter.store().store;
            disk.admissions = store.local_admissions();
            let members = store.members();
            if !members.is_empty() {
                disk.members = members;
            }
        }
        drop(limiter);
        self.kill(node);
        self.sim.sleep(down_for).await;
        self.start(node);
    }

    /// Kills a node with all its tasks.
    pub(crate) fn kill(&self, node: usize) {
        self.nodes.lock()[node] = None;
        self.renewers.lock()[node] = None;
        self.sim.kill(node);
        let mut history = self.history.lock();
        history.deaths.push((self.sim.now(), node));
        history.unanswered += std::mem::take(&mut self.in_flight.lock()[node]);
    }

    /// Drains a node: it returns its leases and stops.
    pub(crate) async fn drain(&self, node: usize) {
        let Some(limiter) = self.nodes.lock()[node].take() else {
            return;
        };
        let world = self.clone();
        let done = Arc::new(AtomicBool::new(false));
        let finished = Arc::clone(&done);
        self.sim.spawn(Some(node), async move {
            limiter.store().store.drain().await;
            limiter.retry_settlements().await;
            let now = world.sim.now();
            world.history.lock().drained.push((now, node));
            finished.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            self.sim.sleep(Nanos::from_millis(1)).await;
        }
        self.kill(node);
    }

    /// The store that the fault hits.
    pub(crate) fn hit_store(&self) -> SharedModel {
        self.cluster.model(self.scenario.hit_shard)
    }

    /// The time of a shard's clock.
    pub(crate) fn store_time(&self, shard: usize) -> Nanos {
        self.cluster.model(shard).lock().time(self.sim.now())
    }

    /// Promotes a replica of the store that the fault hits, as a shard with an id of its own.
    pub(crate) fn promote_replica(&self) {
        let store = self.hit_store();
        self.history.lock().found_heartbeat = store.lock().replica_heartbeat();
        let replica = Arc::new(Mutex::new(store.lock().replica()));
        let another = ShardId(100 + self.scenario.hit_shard as u64);
        let shard = self.scenario.hit_shard;
        self.cluster.promote(shard, another, Arc::clone(&replica));
        let replicating = replicate(self.sim.clone(), replica, self.scenario.replica_lag);
        self.sim.spawn(None, replicating);
    }

    /// Moves the subjects of one shard to another, with their counts.
    pub(crate) fn move_subjects(&self) {
        let (from, to) = (self.scenario.hit_shard, self.scenario.moves_to());
        let (leaves, enters) = (self.cluster.model(from), self.cluster.model(to));
        let (mut leaves, mut enters) = (leaves.lock(), enters.lock());
        let here = |(i, _): &(usize, &CounterKey)| self.scenario.shard_of(*i) == from;
        for (_, counter) in self.counters.iter().enumerate().filter(here) {
            let enters = &mut enters.counters;
            leaves.counters.move_counter(counter.bits, enters);
            self.cluster.assign(counter.subject, to);
        }
    }

    fn wide_refunds(&self) -> u64 {
        let ceiling = self.counters.get(self.scenario.subjects.len());
        ceiling.map_or(0, |counter| {
            let model = self.cluster.model(self.cluster.shard_of(counter.subject));
            model.lock().counters.refunds(counter.bits)
        })
    }

    /// Changes the network conditions of the hit store.
    pub(crate) fn set_conditions(&self, conditions: NetworkConditions) {
        self.hit_store().lock().set_conditions(conditions);
        let now = self.sim.now();
        self.history.lock().condition_changes.push((now, conditions));
    }
}

/// A store at the start of a run.
fn new_model(scenario: &Scenario, shard: usize) -> SharedModel {
    // Clocks of shards may differ where no decision involves two of them.
    let apart = match (&scenario.ceiling, scenario.fault) {
        (Some(_), _) | (_, SimFault::Move) => Nanos::ZERO,
        _ => Nanos::from_millis(370 * shard as u64),
    };
    let mut model = Model::new(DATE.plus(apart));
    if scenario.fault == SimFault::Drift {
        model.drift = if scenario.seed & 32 == 0 { 1 } else { -1 } * 100_000_000;
    }
    // Whether a connection shows that its store was emptied. A restart always shows.
    model.reports_epoch = scenario.fault != SimFault::Flush;
    Arc::new(Mutex::new(model))
}

fn policy(scenario: &Scenario, variant: Variant) -> Policy {
    let text = scenario.rules_for(variant);
    let file = SourceFile { name: "sim.yaml", text: &text };
    // A store for several nodes, with the arithmetic of the memory store.
    let rules = parse_with_options(&[file], Capabilities::UNKNOWN);
    Policy::of(rules.expect("scenarios write good rules"))
}

fn secret() -> Secret {
    Secret::from_bytes(&[7; 16]).expect("sixteen bytes are a secret")
}

/// The counters of a run, in the order of the scenario, as a separate limiter plans them.
fn counters(scenario: &Scenario) -> Vec<CounterKey> {
    let policy = policy(scenario, Variant::Shipped);
    let limiter = Limiter::builder().policy(policy).secret(secret()).clock(ManualClock::at(DATE)).build();
    let limiter = limiter.expect("rules are given");
    let mut counters = Vec::new();
    let mut ceiling = None;
    for subject in 0..scenario.subjects.len() {
        let name = subject_name(subject);
        let decision = limiter.check_now(Request::default().with("user", name.as_str()));
        for view in decision.limits() {
            let rule = view.rule.name();
            let counter = CounterKey { bits: rule.counter(view.subject, view.rate), subject: view.subject };
            match rule.as_str() {
                "ceiling" => ceiling = Some(counter),
                _ => counters.push(counter),
            }
        }
    }
    counters.extend(ceiling);
    counters
}

/// The name of a subject.
pub(crate) fn subject_name(subject: usize) -> String {
    format!("subject-{subject}")
}

/// A node's wall clock, wrong by its skew.
struct NodeClock {
    sim: Sim,
    skew: Nanos,
}

impl Clock for NodeClock {
    fn now(&self) -> Nanos {
        DATE.plus(self.sim.now()).plus(self.skew)
    }
}
