//! A store that counts what it is asked, takes the time it is told to, and can be doubted.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::resilience::{Lease, Lender};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Granted, Held, Hold, Inspection, Life, Outcome, Refund, Refunded,
    Reserve, Role, Seed, Settle, Settled, Source, Store, StoreError, Terms,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::executor::{NodeRuntime, Sim};

pub(crate) const DATE: Nanos = Nanos::from_secs(1_700_000_000);
pub(crate) const MS: fn(u64) -> Nanos = Nanos::from_millis;
pub(crate) const LEASE: Nanos = Nanos::from_millis(100);
/// How long a decision may take.
pub(crate) const BUDGET: Nanos = Nanos::from_millis(5);

pub(crate) const LEASED: Terms = Terms {
    counting: Counting::Leased,
    ..Terms::USUAL
};

type Answer<T> = Result<T, StoreError>;

/// What was asked, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// So many sets in one call.
    Charge(usize),
    /// So many units were asked for, and so many given.
    Grant(u64, u64),
    /// So many units were given back.
    Refund(u64),
}

/// The store's clock: the simulation's, from a date on.
#[derive(Clone)]
pub(crate) struct StoreTime(Sim);

impl Clock for StoreTime {
    fn now(&self) -> Nanos {
        DATE.plus(self.0.now())
    }
}

/// The store.
#[derive(Clone)]
pub(crate) struct Till(Arc<Inner>);

struct Inner {
    sim: Sim,
    memory: MemoryStore<StoreTime>,
    calls: Mutex<Vec<Call>>,
    manner: Mutex<Manner>,
}

/// How the store behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How long one way takes.
    pub(crate) way: Nanos,
    /// Which life it is in; none: it is not believed.
    pub(crate) life: Option<Life>,
    /// Whether charges fail.
    pub(crate) fails: bool,
    /// Whether refunds come too late for it.
    pub(crate) lapses: bool,
}

impl Till {
    pub(crate) fn new(sim: &Sim) -> Self {
        Till(Arc::new(Inner {
            sim: sim.clone(),
            memory: MemoryStore::new(StoreTime(sim.clone())),
            calls: Mutex::default(),
            manner: Mutex::new(Manner {
                way: Nanos::ZERO,
                life: Some(Life(1)),
                fails: false,
                lapses: false,
            }),
        }))
    }

    pub(crate) fn behave(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.0.manner.lock());
    }

    /// What was asked since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.calls.lock())
    }

    async fn way(&self) {
        let way = self.0.manner.lock().way;
        if way > Nanos::ZERO {
            self.0.sim.sleep(way).await;
        }
    }

    async fn trip<T>(&self, run: impl Future<Output = T>) -> T {
        self.way().await;
        let answer = run.await;
        self.way().await;
        answer
    }

    fn note(&self, call: Call) {
        self.0.calls.lock().push(call);
    }
}

impl Lender for Till {
    fn life_of(&self, _: &Charge<'_>) -> Option<Life> {
        self.0.manner.lock().life
    }

    fn budget_of(&self, _: &ChargeSet<'_>) -> Nanos {
        BUDGET
    }

    async fn charge_by(&self, _: Nanos, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.charge(set).await
    }
}

impl Store for Till {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.note(Call::Charge(1));
        if self.0.manner.lock().fails {
            return Err(StoreError::Unavailable {
                waited: Nanos::ZERO,
                source: "it was told to fail".into(),
            });
        }
        self.trip(self.0.memory.charge(set)).await
    }

    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        self.note(Call::Charge(sets.len()));
        self.trip(self.0.memory.charge_each(sets)).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.trip(self.0.memory.peek(set)).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let units = refund.set.charges.iter().map(|c| c.cost.get()).sum();
        self.note(Call::Refund(units));
        if self.0.manner.lock().lapses {
            return Ok(Refunded::Lapsed);
        }
        self.trip(self.0.memory.refund(refund)).await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.way().await;
        let granted = self.0.memory.grant(charge).await?;
        self.note(Call::Grant(charge.cost.get(), granted.units));
        self.way().await;
        Ok(granted)
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.trip(self.0.memory.force(set)).await
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        self.trip(self.0.memory.reserve(reserve)).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.trip(self.0.memory.settle(settle)).await
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.trip(self.0.memory.seed(seeds)).await
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.trip(self.0.memory.hold(hold)).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.trip(self.0.memory.renew(hold)).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.trip(self.0.memory.release(hold)).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.trip(self.0.memory.inspect(set)).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        self.trip(self.0.memory.reset(set)).await
    }
}

/// A limit of somebody.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) subject: Fingerprint,
    pub(crate) rule: RuleName,
    pub(crate) limit: Limit,
    pub(crate) role: Role,
    pub(crate) terms: Terms,
}

impl Own {
    pub(crate) fn new(subject: u128, spec: &Spec) -> Self {
        Own {
            subject: Fingerprint::new(subject),
            rule: RuleName::new("lease"),
            limit: Limit::compile(spec, Precision::Memory).expect("a fit rate"),
            role: Role::Enforce,
            terms: match spec.leased {
                Some(_) => LEASED,
                None => Terms::USUAL,
            },
        }
    }

    pub(crate) fn charge(&self, cost: u64) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a cost"),
            role: self.role,
            terms: &self.terms,
        }
    }

    pub(crate) fn set(&self, cost: u64) -> ChargeSet<'_> {
        ChargeSet::of_one(self.charge(cost))
    }
}

/// So many in a span, drawn in advance.
pub(crate) fn leased(algorithm: Algorithm, count: u64, per: Nanos) -> Spec {
    let mut spec = Spec::new(algorithm, count, per);
    spec.leased = Some(LEASE);
    spec
}

/// One node, its leases and its store.
pub(crate) struct Bench {
    pub(crate) sim: Sim,
    pub(crate) till: Till,
    pub(crate) lease: Lease<Till, NodeRuntime>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench::with(1, 64)
    }

    pub(crate) fn with(seed: u64, places: usize) -> Self {
        let sim = Sim::new(seed);
        let till = Till::new(&sim);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        Bench {
            lease: Lease::new(till.clone(), runtime, places),
            till,
            sim,
        }
    }

    /// Another node on the same store.
    pub(crate) fn neighbour(&self) -> Lease<Till, NodeRuntime> {
        let runtime = NodeRuntime::new(&self.sim, 1, Nanos::from_secs(70), DATE);
        Lease::new(self.till.clone(), runtime, 64)
    }

    pub(crate) fn charge(&self, own: &Own, cost: u64) -> Outcome {
        let outcome = self.sim.block_on(self.lease.charge(&own.set(cost)));
        outcome.expect("a decision")
    }

    /// Requests of one unit, this far apart. Their sources as a word: `e` exact, `l` by a lease, `-`
    /// refused.
    pub(crate) fn stream(&self, own: &Own, requests: usize, apart: Nanos) -> String {
        let request = |_| {
            let outcome = self.charge(own, 1);
            self.pass(apart);
            match (outcome.admitted, outcome.source) {
                (false, _) => '-',
                (true, Source::Lease) => 'l',
                (true, _) => 'e',
            }
        };
        (0..requests).map(request).collect()
    }

    /// Requests of one unit that are sent at once, without waiting for any of them.
    pub(crate) fn flood(&self, own: &Own, requests: usize) {
        for _ in 0..requests {
            let (lease, own) = (self.lease.clone(), own.clone());
            self.sim.spawn(None, async move {
                let answer = lease.charge(&own.set(1)).await;
                answer.expect("a decision");
            });
        }
    }

    /// Units in use by the books of the store.
    pub(crate) fn booked(&self, own: &Own) -> u64 {
        let set = own.set(1);
        let found = self.sim.block_on(self.till.0.memory.inspect(&set));
        let found = found.expect("memory answers");
        found[0].map_or(0, |inspection| inspection.used)
    }

    pub(crate) fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}
