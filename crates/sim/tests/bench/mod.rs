//! One node and a store of three parts, with limits that are where a test wants them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::resilience::{Event, PartWatch, Resilient, Settings, resilient_parts};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Outcome, PartId, Role, Store, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Cluster, Divided, Link, Model, Weather};

pub(crate) const DATE: Nanos = Nanos::from_secs(1_700_000_000);
pub(crate) const MS: fn(u64) -> Nanos = Nanos::from_millis;
pub(crate) const PARTS: usize = 3;

/// One node and its store.
pub(crate) struct Bench {
    pub(crate) sim: Sim,
    pub(crate) store: Resilient<Divided, NodeRuntime>,
    cluster: Arc<Cluster>,
    way: Divided,
    told: Arc<Told>,
    subjects: AtomicU64,
}

/// A limit of somebody in one of the parts.
#[derive(Clone)]
pub(crate) struct Own {
    subject: Fingerprint,
    rule: RuleName,
    limit: Limit,
    role: Role,
    terms: Terms,
}

#[derive(Default)]
struct Told(Mutex<Vec<(PartId, Event)>>);

impl PartWatch for Told {
    fn met(&self, _: PartId) {}

    fn told(&self, part: PartId, event: Event) {
        self.0.lock().push((part, event));
    }

    fn gone(&self, _: PartId) {}
}

impl Bench {
    /// With parts that have been met.
    pub(crate) fn new() -> Self {
        let bench = Bench::of(PARTS);
        bench.told.0.lock().clear();
        bench
    }

    /// Without any.
    pub(crate) fn of_nothing() -> Self {
        Bench::of(0)
    }

    fn of(parts: usize) -> Self {
        let sim = Sim::new(1);
        let models = (0..parts).map(|_| Arc::new(Mutex::new(Model::new(DATE))));
        let cluster = Arc::new(Cluster::new(models));
        let like = Arc::new(Mutex::new(Model::new(DATE)));
        let (sent, told) = (Arc::default(), Arc::<Told>::default());
        let link = Link::new(&sim, &like, 0, Nanos::ZERO, Variant::Shipped, &sent);
        let way = Divided::new(&cluster, link);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        let settings = Settings {
            denials: 64,
            ..Settings::default()
        };
        let watch: Arc<dyn PartWatch> = told.clone();
        let store = resilient_parts(way.clone(), runtime, settings, watch);
        sim.run_until(MS(1_500)); // until the lists of nodes are known to be complete
        Bench {
            sim,
            store,
            cluster,
            way,
            told,
            subjects: AtomicU64::new(1),
        }
    }

    /// A limit in a part, whose subjects are named by so many values.
    pub(crate) fn limit(&self, part: usize, count: u64, named_by: u8) -> Own {
        let terms = Terms {
            named_by,
            ..Terms::USUAL
        };
        self.with(part, count, Role::Enforce, terms)
    }

    pub(crate) fn quota(&self, part: usize, count: u64) -> Own {
        self.with(part, count, Role::Quota, Terms::USUAL)
    }

    pub(crate) fn shadow(&self, part: usize, count: u64) -> Own {
        self.with(part, count, Role::Shadow, Terms::USUAL)
    }

    /// So many in an hour.
    pub(crate) fn with(&self, part: usize, count: u64, role: Role, terms: Terms) -> Own {
        let hour = Nanos::from_secs(3_600);
        let spec = Spec::new(Algorithm::FixedWindow, count, hour);
        self.own(part, &spec, role, terms)
    }

    /// So many in a second, and so many at once.
    pub(crate) fn bucket(&self, part: usize, count: u64, burst: u64, named_by: u8) -> Own {
        let mut spec = Spec::new(Algorithm::TokenBucket, count, Nanos::from_secs(1));
        spec.burst = Some(burst);
        let terms = Terms {
            named_by,
            ..Terms::USUAL
        };
        self.own(part, &spec, Role::Enforce, terms)
    }

    fn own(&self, part: usize, spec: &Spec, role: Role, terms: Terms) -> Own {
        let number = self.subjects.fetch_add(1, Ordering::Relaxed);
        let subject = Fingerprint::new(u128::from(number));
        self.cluster.give(subject, part);
        self.way.read();
        Own {
            subject,
            rule: RuleName::new("bench"),
            limit: Limit::compile(spec, Precision::Memory).expect("a fit rate"),
            role,
            terms,
        }
    }

    /// Gives a subject to another part. The node has not read so yet.
    pub(crate) fn move_away(&self, own: &Own, part: usize) {
        self.cluster.give(own.subject, part);
    }

    pub(crate) fn set<'a>(&self, limits: &[(&'a Own, u64)]) -> ChargeSet<'a> {
        let charge = |(own, cost): &(&'a Own, u64)| Charge {
            subject: own.subject,
            rule: &own.rule,
            rate: 0,
            limit: Cow::Borrowed(&own.limit),
            cost: Cost::new(*cost).expect("a cost"),
            role: own.role,
            terms: &own.terms,
        };
        ChargeSet::of(limits.iter().map(charge))
    }

    pub(crate) fn charge(&self, set: &ChargeSet<'_>) -> Outcome {
        let outcome = self.sim.block_on(self.store.charge(set));
        outcome.expect("decisions do not fail")
    }

    /// Units in use by the books of the store.
    pub(crate) fn booked(&self, own: &Own) -> u64 {
        let model = self.cluster.model(self.cluster.line_of(own.subject));
        let mut model = model.lock();
        let now = model.time(self.sim.now());
        let counter = own.rule.counter(own.subject, 0);
        model.counters.used(counter, &own.limit, now)
    }

    pub(crate) fn refunds(&self, own: &Own) -> u64 {
        let model = self.cluster.model(self.cluster.line_of(own.subject));
        let model = model.lock();
        model.counters.refunds(own.rule.counter(own.subject, 0))
    }

    pub(crate) fn weather(&self, part: usize, weather: Weather) {
        self.cluster.model(part).lock().set_weather(weather);
    }

    pub(crate) fn events_of(&self, part: usize) -> Vec<Event> {
        let told = self.told.0.lock();
        let of = told.iter().filter(|(id, _)| *id == PartId(part as u64));
        of.map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}
