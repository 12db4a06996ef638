//! One node and a store of three shards, with limits on the shards that a test picks.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::resilience::{ResilienceSettings, Resilient, ShardObserver, StoreEvent, resilient_shards};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Counters, Outcome, Role, RuleOptions, ShardId};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Model, ModelCluster, ModelLink, ModelShards, NetworkConditions};

pub(crate) const DATE: Nanos = Nanos::from_secs(1_700_000_000);
pub(crate) const MS: fn(u64) -> Nanos = Nanos::from_millis;
pub(crate) const SHARDS: usize = 3;

/// One node and its store.
pub(crate) struct ShardedTestbed {
    pub(crate) sim: Sim,
    pub(crate) store: Resilient<ModelShards, NodeRuntime>,
    cluster: Arc<ModelCluster>,
    shards: ModelShards,
    events: Arc<EventLog>,
    subjects: AtomicU64,
}

/// A limit of one subject on one shard.
#[derive(Clone)]
pub(crate) struct ShardLimit {
    subject: Fingerprint,
    rule: RuleName,
    limit: Limit,
    role: Role,
    pub(crate) options: RuleOptions,
}

#[derive(Default)]
struct EventLog(Mutex<Vec<(ShardId, StoreEvent)>>);

impl ShardObserver for EventLog {
    fn discovered(&self, _: ShardId) {}

    fn changed(&self, shard_id: ShardId, event: StoreEvent) {
        self.0.lock().push((shard_id, event));
    }

    fn removed(&self, _: ShardId) {}
}

impl ShardedTestbed {
    /// With shards that the node has reached.
    pub(crate) fn new() -> Self {
        let testbed = ShardedTestbed::with_shards(SHARDS);
        testbed.events.0.lock().clear();
        testbed
    }

    /// Without any shard.
    pub(crate) fn without_shards() -> Self {
        ShardedTestbed::with_shards(0)
    }

    fn with_shards(shards: usize) -> Self {
        let sim = Sim::new(1);
        let models = (0..shards).map(|_| Arc::new(Mutex::new(Model::new(DATE))));
        let cluster = Arc::new(ModelCluster::new(models));
        let like = Arc::new(Mutex::new(Model::new(DATE)));
        let (sent, events) = (Arc::default(), Arc::<EventLog>::default());
        let link = ModelLink::new(&sim, &like, 0, Nanos::ZERO, Variant::Shipped, &sent);
        let shards = ModelShards::new(&cluster, link);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        let settings = ResilienceSettings { max_ahead: 64, ..ResilienceSettings::default() };
        let watch: Arc<dyn ShardObserver> = events.clone();
        let store = resilient_shards(shards.clone(), runtime, settings, watch);
        sim.run_until(MS(1_500)); // until the membership is complete
        ShardedTestbed { sim, store, cluster, shards, events, subjects: AtomicU64::new(1) }
    }

    /// A limit on a shard, with `specificity` values in its subjects.
    pub(crate) fn limit(&self, shard: usize, count: u64, specificity: u8) -> ShardLimit {
        let options = RuleOptions { specificity, ..RuleOptions::DEFAULT };
        self.with(shard, count, Role::Enforce, options)
    }

    pub(crate) fn quota(&self, shard: usize, count: u64) -> ShardLimit {
        self.with(shard, count, Role::Quota, RuleOptions::DEFAULT)
    }

    pub(crate) fn shadow(&self, shard: usize, count: u64) -> ShardLimit {
        self.with(shard, count, Role::Shadow, RuleOptions::DEFAULT)
    }

    /// `count` per hour.
    pub(crate) fn with(&self, shard: usize, count: u64, role: Role, options: RuleOptions) -> ShardLimit {
        let hour = Nanos::from_secs(3_600);
        let spec = Spec::new(Algorithm::FixedWindow, count, hour);
        self.own(shard, &spec, role, options)
    }

    /// `count` per second, and `burst` at once.
    pub(crate) fn bucket(&self, shard: usize, count: u64, burst: u64, specificity: u8) -> ShardLimit {
        let mut spec = Spec::new(Algorithm::TokenBucket, count, Nanos::from_secs(1));
        spec.burst = Some(burst);
        let options = RuleOptions { specificity, ..RuleOptions::DEFAULT };
        self.own(shard, &spec, Role::Enforce, options)
    }

    fn own(&self, shard: usize, spec: &Spec, role: Role, options: RuleOptions) -> ShardLimit {
        let number = self.subjects.fetch_add(1, Ordering::Relaxed);
        let subject = Fingerprint::new(u128::from(number));
        self.cluster.assign(subject, shard);
        self.shards.refresh_map();
        ShardLimit {
            subject,
            rule: RuleName::new("bench"),
            limit: Limit::compile(spec, Precision::Memory).expect("a valid rate"),
            role,
            options,
        }
    }

    /// Moves a subject to another shard. The node's map does not have the change yet.
    pub(crate) fn move_away(&self, own: &ShardLimit, shard: usize) {
        self.cluster.assign(own.subject, shard);
    }

    pub(crate) fn set<'a>(&self, limits: &[(&'a ShardLimit, u64)]) -> ChargeSet<'a> {
        let charge = |(own, cost): &(&'a ShardLimit, u64)| Charge {
            subject: own.subject,
            rule: &own.rule,
            rate: 0,
            limit: Cow::Borrowed(&own.limit),
            cost: Cost::new(*cost).expect("a positive cost"),
            role: own.role,
            options: &own.options,
        };
        ChargeSet::of(limits.iter().map(charge))
    }

    pub(crate) fn charge(&self, set: &ChargeSet<'_>) -> Outcome {
        let outcome = self.sim.block_on(self.store.charge(set));
        outcome.expect("decisions do not fail")
    }

    /// Units in use in the store.
    pub(crate) fn used_units(&self, own: &ShardLimit) -> u64 {
        let model = self.cluster.model(self.cluster.shard_of(own.subject));
        let mut model = model.lock();
        let now = model.time(self.sim.now());
        let counter = own.rule.counter(own.subject, 0);
        model.counters.used(counter, &own.limit, now)
    }

    pub(crate) fn refunds(&self, own: &ShardLimit) -> u64 {
        let model = self.cluster.model(self.cluster.shard_of(own.subject));
        let model = model.lock();
        model.counters.refunds(own.rule.counter(own.subject, 0))
    }

    pub(crate) fn set_conditions(&self, shard: usize, conditions: NetworkConditions) {
        self.cluster.model(shard).lock().set_conditions(conditions);
    }

    pub(crate) fn events_of(&self, shard: usize) -> Vec<StoreEvent> {
        let events = self.events.0.lock();
        let of = events.iter().filter(|(id, _)| *id == ShardId(shard as u64));
        of.map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}
