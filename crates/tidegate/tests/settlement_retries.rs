//! Unsettled reservations, on a store of which one shard does not reply.

mod common;
#[macro_use]
#[path = "common/delegate.rs"]
mod delegate;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{START, request, rules};
use tidegate::clock::ManualClock;
use tidegate::stores::memory::MemoryStore;
use tidegate::units::{Cost, Nanos};
use tidegate::{Actual, Limiter, Policy, Secret, Settlement};
use tidegate_core::store::{Counters, Permits, Reservations, Settle, Settled, StoreError, StoreResult};

const MINUTE: Nanos = Nanos::from_secs(60);
/// Estimates of this size are in the shard that can be away.
const SECOND_SHARD_COST: u64 = 7;

/// A memory store that replies to no settlement of such estimates while that shard is away.
struct HalfAvailableStore {
    memory: MemoryStore<Arc<ManualClock>>,
    away: AtomicBool,
    in_flight: AtomicUsize,
    max_in_flight: AtomicUsize,
}

impl Counters for HalfAvailableStore {
    delegate!(self => self.memory; charge, peek, refund, draw, force, restore, inspect, reset);
}

impl Permits for HalfAvailableStore {
    delegate!(self => self.memory; acquire, renew, release);
}

impl Reservations for HalfAvailableStore {
    delegate!(self => self.memory; reserve);

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let in_flight = 1 + self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.max_in_flight.fetch_max(in_flight, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let there = Cost::new(SECOND_SHARD_COST) == Some(settle.set.charges[0].cost);
        if there && self.away.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable { waited: Nanos::ZERO, source: "away".into() });
        }
        self.memory.settle(settle).await
    }
}

const RULES: &str = "
version: 1
units: [here, there]
rules:
  - { name: here, by: user, unit: here, rate: 1000/hour, algorithm: fixed-window }
  - { name: there, by: user, unit: there, rate: 1000/hour, algorithm: fixed-window }
";

async fn used(limiter: &Limiter<HalfAvailableStore>) -> (u64, u64) {
    let usages = limiter.view().inspect(request("user=a")).await;
    let usages = usages.expect("memory replies");
    let of = |rule: &str| {
        let of_rule = usages.iter().find(|found| found.rule == rule);
        let inspection = of_rule.and_then(|found| found.inspection.as_ref());
        inspection.map_or(0, |inspection| inspection.used)
    };
    (of("here"), of("there"))
}

/// A limiter with a shard that is away, and its clock.
fn limiter_with_shard_away() -> (Limiter<HalfAvailableStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    let store = HalfAvailableStore {
        memory: MemoryStore::new(Arc::clone(&clock)),
        away: AtomicBool::new(true),
        in_flight: AtomicUsize::new(0),
        max_in_flight: AtomicUsize::new(0),
    };
    let secret = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
    let limiter =
        Limiter::builder().policy(Policy::of(rules(RULES))).secret(secret).clock(clock.clone()).build_on(store);
    (limiter.expect("rules are given"), clock)
}

#[tokio::test]
async fn a_shard_that_is_away_delays_no_other_settlement() {
    let (limiter, clock) = limiter_with_shard_away();
    let mut tokens = Vec::new();
    for _ in 0..40 {
        for words in ["user=a here:5 there:0", "user=a here:0 there:7"] {
            let reserved = limiter.reserve(request(words), MINUTE.duration()).await;
            tokens.extend(reserved.expect("memory replies").token);
        }
    }
    assert_eq!(used(&limiter).await, (200, 280));
    let waits = limiter.settle(&tokens[1], &Actual::of("there", 3)).await;
    assert_eq!(waits.expect("room"), Settlement::Waiting);
    clock.advance(MINUTE);
    limiter.retry_settlements().await;
    assert_eq!(used(&limiter).await, (0, 280), "one shard replies");
    limiter.store().away.store(false, Ordering::Relaxed);
    clock.advance(Nanos::from_secs(1));
    limiter.retry_settlements().await;
    assert_eq!(used(&limiter).await, (0, 3), "the actual cost of the settled one");
    assert!(limiter.store().max_in_flight.load(Ordering::Relaxed) > 1);
}

/// It began to wait in time. The actual cost is lost by then, and the estimate must not stay charged.
#[tokio::test]
async fn the_estimate_of_a_settlement_that_waited_too_long_is_refunded() {
    for away in [80, 200] {
        let (limiter, clock) = limiter_with_shard_away();
        let reserved = limiter.reserve(request("user=a here:0 there:7"), MINUTE.duration()).await;
        let token = reserved.expect("memory replies").token.expect("admitted");
        clock.advance(Nanos::from_secs(50));
        let waits = limiter.settle(&token, &Actual::of("there", 3)).await;
        assert_eq!(waits.expect("room"), Settlement::Waiting);
        for _ in 0..away {
            clock.advance(Nanos::from_secs(1));
            limiter.retry_settlements().await;
        }
        assert_eq!(used(&limiter).await, (0, 7));
        limiter.store().away.store(false, Ordering::Relaxed);
        for _ in 0..2 {
            clock.advance(Nanos::from_secs(1));
            limiter.retry_settlements().await;
        }
        assert_eq!(used(&limiter).await, (0, 0), "away for {away} s");
    }
}
