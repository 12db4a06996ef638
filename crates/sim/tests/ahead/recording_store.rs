//! A store that records its calls, has a configurable latency, and can be untrusted.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::ahead::{Ahead, BackingStore};
use tidegate::clock::Clock;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Counting, Epoch, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits,
    Refund, Refunded, Reservations, Reserve, Restore, Role, RuleOptions, Settle, Settled, Source, Store, StoreError,
    StoreResult,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::executor::{NodeRuntime, Sim};

pub(crate) const DATE: Nanos = Nanos::from_secs(1_700_000_000);
pub(crate) const MS: fn(u64) -> Nanos = Nanos::from_millis;
pub(crate) const LEASE: Nanos = Nanos::from_millis(100);
/// The budget of a decision.
pub(crate) const BUDGET: Nanos = Nanos::from_millis(5);

pub(crate) const LEASED: RuleOptions = RuleOptions { counting: Counting::Leased, ..RuleOptions::DEFAULT };

/// A call to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordedCall {
    /// The number of charge sets in one call.
    Charge(usize),
    /// Requested units and drawn units.
    Draw(u64, u64),
    /// Refunded units.
    Refund(u64),
}

/// The store's clock: the simulation's plus a date.
#[derive(Clone)]
pub(crate) struct TestStoreClock(Sim);

impl Clock for TestStoreClock {
    fn now(&self) -> Nanos {
        DATE.plus(self.0.now())
    }
}

/// A memory store behind a simulated network that records its calls.
#[derive(Clone)]
pub(crate) struct RecordingStore(Arc<RecordingStoreInner>);

struct RecordingStoreInner {
    sim: Sim,
    memory: MemoryStore<TestStoreClock>,
    calls: Mutex<Vec<RecordedCall>>,
    behaviour: Mutex<StoreBehaviour>,
}

/// The behaviour of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreBehaviour {
    /// The one-way latency.
    pub(crate) one_way: Nanos,
    /// The current epoch; `None` means that the store is not trusted.
    pub(crate) epoch: Option<Epoch>,
    /// Whether charges fail.
    pub(crate) fails: bool,
    /// Whether refunds arrive too late to count.
    pub(crate) refunds_lapse: bool,
}

impl RecordingStore {
    pub(crate) fn new(sim: &Sim) -> Self {
        RecordingStore(Arc::new(RecordingStoreInner {
            sim: sim.clone(),
            memory: MemoryStore::new(TestStoreClock(sim.clone())),
            calls: Mutex::default(),
            behaviour: Mutex::new(StoreBehaviour {
                one_way: Nanos::ZERO,
                epoch: Some(Epoch(1)),
                fails: false,
                refunds_lapse: false,
            }),
        }))
    }

    pub(crate) fn behave(&self, change: impl FnOnce(&mut StoreBehaviour)) {
        change(&mut self.0.behaviour.lock());
    }

    /// Takes the recorded calls.
    pub(crate) fn calls(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut self.0.calls.lock())
    }

    async fn travel(&self) {
        let one_way = self.0.behaviour.lock().one_way;
        if one_way > Nanos::ZERO {
            self.0.sim.sleep(one_way).await;
        }
    }

    async fn round_trip<T>(&self, run: impl Future<Output = T>) -> T {
        self.travel().await;
        let reply = run.await;
        self.travel().await;
        reply
    }

    fn record(&self, call: RecordedCall) {
        self.0.calls.lock().push(call);
    }
}

impl BackingStore for RecordingStore {
    fn epoch_of(&self, _: &Charge<'_>) -> Option<Epoch> {
        self.0.behaviour.lock().epoch
    }

    fn budget_of(&self, _: &ChargeSet<'_>) -> Nanos {
        BUDGET
    }

    fn nodes(&self) -> u64 {
        1
    }

    fn has_late_charges(&self, _: u128) -> bool {
        false
    }

    async fn charge_with_deadline(&self, _: Nanos, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.charge(set).await
    }
}

impl Counters for RecordingStore {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.record(RecordedCall::Charge(1));
        if self.0.behaviour.lock().fails {
            return Err(StoreError::Unavailable { waited: Nanos::ZERO, source: "configured to fail".into() });
        }
        self.round_trip(self.0.memory.charge(set)).await
    }

    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        self.record(RecordedCall::Charge(sets.len()));
        self.round_trip(self.0.memory.charge_each(sets)).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.round_trip(self.0.memory.peek(set)).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let units = refund.set.charges.iter().map(|c| c.cost.get()).sum();
        self.record(RecordedCall::Refund(units));
        if self.0.behaviour.lock().refunds_lapse {
            return Ok(Refunded::Lapsed);
        }
        self.round_trip(self.0.memory.refund(refund)).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.travel().await;
        let drawn = self.0.memory.draw(charge).await?;
        self.record(RecordedCall::Draw(charge.cost.get(), drawn.units));
        self.travel().await;
        Ok(drawn)
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.round_trip(self.0.memory.force(set)).await
    }

    async fn restore(&self, snapshots: &[Restore<'_>]) -> StoreResult<()> {
        self.round_trip(self.0.memory.restore(snapshots)).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.round_trip(self.0.memory.inspect(set)).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        self.round_trip(self.0.memory.reset(set)).await
    }
}

impl Permits for RecordingStore {
    async fn acquire(&self, request: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.round_trip(self.0.memory.acquire(request)).await
    }

    async fn renew(&self, request: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.round_trip(self.0.memory.renew(request)).await
    }

    async fn release(&self, request: &PermitRequest<'_>) -> StoreResult<()> {
        self.round_trip(self.0.memory.release(request)).await
    }
}

impl Reservations for RecordingStore {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        self.round_trip(self.0.memory.reserve(reserve)).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.round_trip(self.0.memory.settle(settle)).await
    }
}

/// A limit of one subject.
#[derive(Clone)]
pub(crate) struct TestLimit {
    pub(crate) subject: Fingerprint,
    pub(crate) rule: RuleName,
    pub(crate) limit: Limit,
    pub(crate) role: Role,
    pub(crate) options: RuleOptions,
}

impl TestLimit {
    pub(crate) fn new(subject: u128, spec: &Spec) -> Self {
        TestLimit {
            subject: Fingerprint::new(subject),
            rule: RuleName::new("lease"),
            limit: Limit::compile(spec, Precision::Memory).expect("a valid rate"),
            role: Role::Enforce,
            options: match spec.lease_ttl {
                Some(_) => LEASED,
                None => RuleOptions::DEFAULT,
            },
        }
    }

    pub(crate) fn charge(&self, cost: u64) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a positive cost"),
            role: self.role,
            options: &self.options,
        }
    }

    pub(crate) fn set(&self, cost: u64) -> ChargeSet<'_> {
        ChargeSet::of_one(self.charge(cost))
    }
}

/// `count` per span, counted with leases.
pub(crate) fn leased(algorithm: Algorithm, count: u64, per: Nanos) -> Spec {
    let mut spec = Spec::new(algorithm, count, per);
    spec.lease_ttl = Some(LEASE);
    spec
}

/// Leases of a node.
pub(crate) fn ahead(
    store: &RecordingStore,
    runtime: NodeRuntime,
    entries: usize,
) -> Ahead<RecordingStore, NodeRuntime> {
    Ahead::new(store.clone(), runtime, entries, Nanos::from_secs(1))
}

/// One node, its leases and its store.
pub(crate) struct LeaseTestbed {
    pub(crate) sim: Sim,
    pub(crate) store: RecordingStore,
    pub(crate) lease: Ahead<RecordingStore, NodeRuntime>,
}

impl LeaseTestbed {
    pub(crate) fn new() -> Self {
        LeaseTestbed::with(1, 64)
    }

    pub(crate) fn with(seed: u64, entries: usize) -> Self {
        let sim = Sim::new(seed);
        let store = RecordingStore::new(&sim);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        LeaseTestbed { lease: ahead(&store, runtime, entries), store, sim }
    }

    /// Another node on the same store.
    pub(crate) fn second_node(&self) -> Ahead<RecordingStore, NodeRuntime> {
        let runtime = NodeRuntime::new(&self.sim, 1, Nanos::from_secs(70), DATE);
        ahead(&self.store, runtime, 64)
    }

    pub(crate) fn charge(&self, own: &TestLimit, cost: u64) -> Outcome {
        let outcome = self.sim.block_on(self.lease.charge(&own.set(cost)));
        outcome.expect("a decision")
    }

    /// Requests of one unit at intervals of `apart`. Returns their sources as a word: `e` exact, `l` by a
    /// lease, `-` denied.
    pub(crate) fn stream(&self, own: &TestLimit, requests: usize, apart: Nanos) -> String {
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

    /// Requests of one unit, all sent at once.
    pub(crate) fn flood(&self, own: &TestLimit, requests: usize) {
        for _ in 0..requests {
            let (lease, own) = (self.lease.clone(), own.clone());
            self.sim.spawn(None, async move {
                let reply = lease.charge(&own.set(1)).await;
                reply.expect("a decision");
            });
        }
    }

    /// Units in use in the store.
    pub(crate) fn used_units(&self, own: &TestLimit) -> u64 {
        let set = own.set(1);
        let found = self.sim.block_on(self.store.0.memory.inspect(&set));
        let found = found.expect("memory replies");
        found[0].map_or(0, |inspection| inspection.used)
    }

    pub(crate) fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}
