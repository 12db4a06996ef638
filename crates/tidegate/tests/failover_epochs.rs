//! A reply from before a failover that is read after it: the unit that it admits must be charged. And counters that
//! were moved from a store that had lost some: they must not be trusted, not even once.

mod common;
#[macro_use]
#[path = "common/delegate.rs"]
mod delegate;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{START, request, rules};
use tidegate::clock::{Clock, ManualClock};
use tidegate::resilience::{ResilienceSettings, Resilient, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Policy, Secret};
use tidegate_core::store::{
    ChargeSet, Counters, Epoch, HashSlot, Heartbeat, Outcome, Permits, Probe, Reservations, ShardId, Shards, Source,
    Store, StoreResult, StoreStatus,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

/// A primary and its successor, which is empty.
#[derive(Clone)]
struct FailoverStore {
    primaries: Arc<[MemoryStore<Arc<ManualClock>>; 2]>,
    epoch: Arc<AtomicU64>,
    /// The next charge is made by the first primary, and its reply is read when the second one is trusted.
    fail_over_next: Arc<AtomicBool>,
    recovered: Arc<Notify>,
    lacks: Arc<AtomicBool>,
}

impl FailoverStore {
    fn present(&self) -> &MemoryStore<Arc<ManualClock>> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        &self.primaries[usize::from(epoch > 1)]
    }
}

impl Counters for FailoverStore {
    delegate!(self => self.present(); peek, refund, draw, force, restore, inspect, reset);

    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let reply = self.present().charge(set).await;
        if self.fail_over_next.swap(false, Ordering::SeqCst) {
            let recovered = self.recovered.notified();
            self.epoch.store(2, Ordering::SeqCst);
            recovered.await;
        }
        reply
    }

    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        self.present().charge_each(sets).await
    }
}

impl Permits for FailoverStore {
    delegate!(self => self.present(); acquire, renew, release);
}

impl Reservations for FailoverStore {
    delegate!(self => self.present(); reserve, settle);
}

impl Probe for FailoverStore {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> StoreResult<StoreStatus> {
        Ok(StoreStatus {
            epoch: Epoch(self.epoch.load(Ordering::SeqCst)),
            at: self.present().clock().now(),
            complete_until: Nanos::ZERO,
            heartbeats: vec![heartbeat],
        })
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(Epoch(self.epoch.load(Ordering::SeqCst)))
    }

    fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        let lacks = self.lacks.swap(false, Ordering::SeqCst);
        lacks.then_some(HashSlot(0)).into_iter().collect()
    }
}

impl Shards for FailoverStore {
    type Shard = FailoverStore;

    fn shard_of(&self, _: Fingerprint) -> ShardId {
        ShardId(0)
    }

    fn shard(&self, id: ShardId) -> Option<FailoverStore> {
        (id == ShardId(0)).then(|| self.clone())
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        vec![ShardId(0)]
    }
}

const RULES: &str = "
version: 1
rules:
  - { name: user, by: user, rate: 1000/hour, algorithm: fixed-window, budget: 1h }
";

type FailoverLimiter = Limiter<Resilient<FailoverStore, TokioRuntime>>;

/// A limiter on the first primary, and the channel that reports that it trusts its store.
async fn start() -> (FailoverStore, FailoverLimiter, UnboundedReceiver<()>) {
    let clock = Arc::new(ManualClock::at(START));
    let primaries = [(); 2].map(|()| MemoryStore::new(Arc::clone(&clock)));
    let failover = FailoverStore {
        primaries: Arc::new(primaries),
        epoch: Arc::new(AtomicU64::new(1)),
        fail_over_next: Arc::default(),
        recovered: Arc::default(),
        lacks: Arc::default(),
    };
    let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
    let recovered = Arc::clone(&failover.recovered);
    let watcher = Arc::new(move |event| {
        if event == StoreEvent::Exact {
            recovered.notify_waiters();
            let _receiver_may_be_gone = exact.send(());
        }
    });
    let runtime = TokioRuntime::new().expect("randomness");
    let mut settings = ResilienceSettings::default();
    settings.breaker.silence_timeout = Nanos::from_secs(3_600);
    let store = resilient(failover.clone(), runtime, settings, watcher);
    ready.recv().await.expect("the node joins its store");
    let secret = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
    let builder = Limiter::builder().policy(Policy::of(rules(RULES))).secret(secret).clock(clock);
    (failover, builder.build_on(store).expect("rules are given"), ready)
}

async fn check(limiter: &FailoverLimiter) -> bool {
    let decision = limiter.view().check(request("user=a")).await;
    decision.expect("a decision").allowed()
}

/// A node that was held up between the reply and its use, as on a busy machine, took the reply of the lost primary for
/// one of the primary that it trusted by then. The unit was counted nowhere.
#[tokio::test]
async fn a_unit_charged_by_the_lost_primary_is_charged_to_its_successor() {
    let (failover, limiter, _ready) = start().await;
    let mut admitted = 0;
    for fails_over in [true, false] {
        failover.fail_over_next.store(fails_over, Ordering::SeqCst);
        admitted += u64::from(check(&limiter).await);
    }
    assert_eq!(admitted, 2);
    let used = async || {
        let usages = limiter.view().inspect(request("user=a")).await;
        let inspection = usages.expect("a reply")[0].inspection;
        inspection.map_or(0, |inspection| inspection.used)
    };
    let charged = tokio::time::timeout(Duration::from_secs(60), async {
        while used().await < admitted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(charged.await.is_ok(), "{} charged", used().await);
    assert_eq!(used().await, admitted);
}

/// Requests before the next heartbeat were decided by the counters that the other store had not lost.
#[tokio::test]
async fn counters_from_a_store_with_losses_are_never_trusted() {
    let (failover, limiter, mut ready) = start().await;
    let source = async || {
        let decision = limiter.view().check(request("user=a")).await;
        decision.expect("a decision").source()
    };
    assert_eq!(source().await, Source::Exact);
    failover.lacks.store(true, Ordering::SeqCst);
    assert_eq!(source().await, Source::Fallback);
    ready.recv().await.expect("the store is trusted again");
}
