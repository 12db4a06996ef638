//! A store that breaks the contract of one reply per set: no request of a batch disappears.

mod common;
#[macro_use]
#[path = "common/delegate.rs"]
mod delegate;

use std::sync::Arc;

use common::{START, request, rules};
use tidegate::clock::{Clock, ManualClock};
use tidegate::resilience::{ResilienceSettings, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Policy, Secret};
use tidegate_core::store::{
    ChargeSet, Counters, Epoch, Heartbeat, Outcome, Permits, Probe, Reservations, ShardId, Shards, Store, StoreResult,
    StoreStatus,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

/// A memory store that replies to a batch with one reply too few, or one too many.
#[derive(Clone)]
struct MiscountingStore {
    memory: Arc<MemoryStore<Arc<ManualClock>>>,
    /// The number of replies beyond one per set.
    off_by: isize,
}

impl MiscountingStore {
    fn new(off_by: isize) -> (MiscountingStore, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(START));
        let memory = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        (MiscountingStore { memory, off_by }, clock)
    }
}

impl Counters for MiscountingStore {
    delegate!(self => self.memory; charge, peek, refund, draw, force, restore, inspect, reset);

    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let replies = sets.len().saturating_add_signed(self.off_by);
        let mut all = Vec::new();
        for i in 0..replies {
            all.push(self.memory.charge(sets[i % sets.len()]).await);
        }
        all
    }
}

impl Permits for MiscountingStore {
    delegate!(self => self.memory; acquire, renew, release);
}

impl Reservations for MiscountingStore {
    delegate!(self => self.memory; reserve, settle);
}

impl Probe for MiscountingStore {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> StoreResult<StoreStatus> {
        Ok(StoreStatus {
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

impl Shards for MiscountingStore {
    type Shard = MiscountingStore;

    fn shard_of(&self, _: Fingerprint) -> ShardId {
        ShardId(0)
    }

    fn shard(&self, id: ShardId) -> Option<MiscountingStore> {
        (id == ShardId(0)).then(|| self.clone())
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        vec![ShardId(0)]
    }
}

const RULES: &str = "
version: 1
rules:
  - { name: user, by: user, rate: 1000/hour, algorithm: fixed-window }
";

fn limiter<S: Store>(store: S, clock: Arc<ManualClock>) -> Limiter<S> {
    let secret = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
    let builder = Limiter::builder().policy(Policy::of(rules(RULES))).secret(secret).clock(clock);
    builder.build_on(store).expect("rules are given")
}

/// The list sent to a client was once as short as the replies, and replies of others could move up.
#[tokio::test]
async fn a_batch_has_one_result_per_request_whatever_the_store_replies() {
    for (off_by, fails) in [(-1, true), (1, true), (0, false)] {
        let (store, clock) = MiscountingStore::new(off_by);
        let limiter = limiter(store, clock);
        let mut requests = ["user=a", "user=b", "user=c"].map(request);
        let view = limiter.view();
        let decided = view.check_each(&mut requests).await;
        assert_eq!(decided.len(), 3, "off by {off_by}");
        assert!(
            decided.iter().all(|one| one.is_err() == fails),
            "off by {off_by}: which reply belongs to which request is unknown"
        );
    }
}

/// Around a shared store nothing fails: requests without a reply are decided by this node.
#[tokio::test]
async fn around_a_shared_store_every_request_is_decided() {
    for off_by in [-1, 0, 1] {
        let (store, clock) = MiscountingStore::new(off_by);
        let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
        let watcher = Arc::new(move |event| {
            if event == StoreEvent::Exact {
                let _receiver_may_be_gone = exact.send(());
            }
        });
        let runtime = TokioRuntime::new().expect("randomness");
        let store = resilient(store, runtime, ResilienceSettings::default(), watcher);
        ready.recv().await.expect("the node joins its store");
        let limiter = limiter(store, clock);
        let mut requests = ["user=a", "user=b", "user=c"].map(request);
        let view = limiter.view();
        let decided = view.check_each(&mut requests).await;
        assert_eq!(decided.len(), 3, "off by {off_by}");
        assert!(decided.iter().all(Result::is_ok), "off by {off_by}");
    }
}
