//! The whole stack on real threads, around a store that fails and recovers: every request is decided, and no more is
//! admitted than the limit and the share. No claim here depends on speed.

#[macro_use]
#[path = "common/delegate.rs"]
mod delegate;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::clock::{Clock, SystemClock};
use tidegate::resilience::{ResilienceSettings, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Epoch, Heartbeat, LeaseReply, Outcome, Permits, Probe, Refund, Refunded, Reservations,
    Reserve, Restore, Role, RuleOptions, Settle, Settled, ShardId, Shards, StoreError, StoreResult, StoreStatus,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

/// A memory store that is unavailable while it is away.
#[derive(Clone)]
struct FlakyStore {
    memory: Arc<MemoryStore<SystemClock>>,
    away: Arc<AtomicBool>,
}

impl FlakyStore {
    fn here<T>(&self, result: T) -> StoreResult<T> {
        if !self.away.load(Ordering::Acquire) {
            return Ok(result);
        }
        Err(StoreError::Unavailable { waited: Nanos::ZERO, source: "away".into() })
    }
}

impl Counters for FlakyStore {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        tokio::task::yield_now().await;
        self.here(())?;
        self.memory.charge(set).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.memory.peek(set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        self.here(())?;
        self.memory.refund(refund).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.memory.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.here(())?;
        self.memory.force(set).await
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.here(())?;
        self.memory.restore(restores).await
    }

    delegate!(self => self.memory; inspect, reset);
}

impl Permits for FlakyStore {
    delegate!(self => self.memory; acquire, renew, release);
}

impl Reservations for FlakyStore {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        self.here(())?;
        self.memory.reserve(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.here(())?;
        self.memory.settle(settle).await
    }
}

impl Probe for FlakyStore {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> StoreResult<StoreStatus> {
        self.here(StoreStatus {
            epoch: Epoch(1),
            at: self.memory.clock().now(),
            complete_until: Nanos::ZERO,
            heartbeats: vec![heartbeat],
        })
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(Epoch(1))
    }
}

impl Shards for FlakyStore {
    type Shard = FlakyStore;

    fn shard_of(&self, _: Fingerprint) -> ShardId {
        ShardId(0)
    }

    fn shard(&self, id: ShardId) -> Option<FlakyStore> {
        (id == ShardId(0)).then(|| self.clone())
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        vec![ShardId(0)]
    }
}

const TASKS: u64 = 8;
const EACH: u64 = 2_000;
const LIMIT: u64 = 3_000;

#[test]
fn a_store_that_fails_and_recovers_fails_no_decision_and_keeps_the_bound() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().expect("a runtime");
    tokio.block_on(async {
        let (away, clock) = (Arc::new(AtomicBool::new(false)), SystemClock::new());
        let flaky = FlakyStore { memory: Arc::new(MemoryStore::new(clock)), away: Arc::clone(&away) };
        let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
        let watcher = Arc::new(move |event| {
            if event == StoreEvent::Exact {
                let _receiver_may_be_gone = exact.send(());
            }
        });
        let settings = ResilienceSettings { ping_interval: Nanos::from_millis(2), ..ResilienceSettings::default() };
        let runtime = TokioRuntime::new().expect("randomness");
        let store = resilient(flaky, runtime, settings, watcher);
        let store = Arc::new(store);
        ready.recv().await.expect("the node joins its store");
        let admitted = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (store, admitted) = (Arc::clone(&store), Arc::clone(&admitted));
            let away = Arc::clone(&away);
            tasks.push(tokio::spawn(async move {
                let rule = RuleName::new("threads");
                let year = Nanos::from_secs(3_600 * 24 * 365);
                let spec = Spec::new(Algorithm::SlidingLog, LIMIT, year);
                let limit = Limit::compile(&spec, Precision::Memory).expect("a fit rate");
                for i in 0..EACH {
                    if i % 100 == 50 {
                        away.fetch_xor(true, Ordering::AcqRel); // by any of the tasks
                    }
                    let charge = Charge {
                        subject: Fingerprint::new(1),
                        rule: &rule,
                        rate: 0,
                        limit: Cow::Borrowed(&limit),
                        cost: Cost::ONE,
                        role: Role::Enforce,
                        options: &RuleOptions::DEFAULT,
                    };
                    let set = ChargeSet::of([charge]);
                    let outcome = store.charge(&set).await.expect("no decision fails");
                    admitted.fetch_add(u64::from(outcome.admitted), Ordering::AcqRel);
                }
            }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
        let admitted = admitted.load(Ordering::Acquire);
        let max = LIMIT + LIMIT * 4 / 5;
        assert!(admitted <= max, "{admitted} of {max}");
        assert!(admitted >= LIMIT / 10, "{admitted}");
    });
}
