//! Reservations under limits in several hash slots of a real cluster: these are charged one after another, each at a
//! time of its own, and are all settled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::redis::{Redis, RedisConfig};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Outcome, Reservations, Reserve, RuleOptions, Settle, Settled, Shards, Source, Used,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_testkit::TestCluster;

use crate::{charge, limit, on_runtime, set};

/// The lifetime of a reservation: settled within twice this, or it is too late. The test waits for it once.
const LASTS: Nanos = Nanos::from_secs(5);
const NARROW: RuleOptions = RuleOptions { specificity: 1, ..RuleOptions::DEFAULT };

type ReservingNode = Resilient<Redis, TokioRuntime>;

/// A narrow limit of one client and a wide one of all clients, in two hash slots.
struct TwoShardRules {
    rule: RuleName,
    limit: Limit,
    narrow: u128,
    wide: u128,
}

impl TwoShardRules {
    fn new(narrow: u128, wide: u128) -> Self {
        TwoShardRules { rule: RuleName::new("tokens"), limit: limit(Algorithm::FixedWindow, 1_000), narrow, wide }
    }

    fn set(&self, cost: u64) -> ChargeSet<'_> {
        let cost = Cost::new(cost).expect("a cost");
        let narrow = charge(self.narrow, &self.rule, 0, &self.limit);
        let wide = charge(self.wide, &self.rule, 0, &self.limit);
        let narrow = Charge { options: &NARROW, ..narrow };
        set([narrow, wide].map(|charge| Charge { cost, ..charge }))
    }

    async fn reserve(&self, node: &ReservingNode, id: u128, cost: u64) -> Outcome {
        let reserve = Reserve { id, ttl: LASTS, set: self.set(cost) };
        let outcome = node.reserve(&reserve).await.expect("a reply");
        assert!(outcome.admitted && outcome.source == Source::Exact);
        outcome
    }

    async fn settle(&self, node: &ReservingNode, id: u128, made: &Outcome, used: Used) -> Settled {
        let settle = Settle { id, charged_at: made.at, expires_at: made.at.plus(LASTS), set: self.set(100), used };
        node.settle(&settle).await.expect("a reply")
    }

    async fn used(&self, node: &ReservingNode) -> [u64; 2] {
        let found = node.inspect(&self.set(1)).await.expect("a reply");
        [0, 1].map(|at| found[at].as_ref().map_or(0, |counter| counter.used))
    }
}

async fn node(url: &str) -> (Redis, ReservingNode) {
    let redis = Redis::open(&RedisConfig::new(url)).expect("an address");
    redis.ready().await;
    let settings = ResilienceSettings {
        budget: Nanos::from_secs(20), // a busy machine is no outage
        ..ResilienceSettings::default()
    };
    let runtime = TokioRuntime::new().expect("randomness");
    let node = resilient(redis.clone(), runtime, settings, Arc::new(|_| {}));
    (redis, node)
}

/// Polls until `is_so` is true; panics after a minute.
async fn wait(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn known(narrow: u64, wide: u64) -> Used {
    Used::Known([narrow, wide].into_iter().collect())
}

/// The time of the charge was part of the key by which a reservation was found. Of limits in two hash slots only the
/// one charged last was found, and all of the other was refunded at the end, although it had been used.
#[test]
fn limits_in_two_hash_slots_are_both_settled() {
    let cluster = TestCluster::start();
    let url = format!("redis+cluster://{}", cluster.servers[0].address());
    on_runtime(async {
        let (redis, node) = node(&url).await;
        let shard_of = |subject: u128| redis.shard_of(Fingerprint::new(subject));
        let other = (3..).find(|other| shard_of(*other) != shard_of(1));
        let other = other.expect("a subject elsewhere");
        let same = (other + 1..).find(|same| shard_of(*same) == shard_of(2));
        // In two servers, and in two hash slots of one.
        let apart = TwoShardRules::new(1, other);
        let beside = TwoShardRules::new(2, same.expect("a subject beside it"));
        for pair in [&apart, &beside] {
            wait("both exact", async || {
                let peeked = node.peek(&pair.set(1)).await.expect("a reply");
                peeked.source == Source::Exact
            })
            .await;
            let less = pair.reserve(&node, 1, 100).await;
            let more = pair.reserve(&node, 2, 100).await;
            let unknown = pair.reserve(&node, 3, 100).await;
            assert_eq!(pair.used(&node).await, [300, 300]);
            let done = pair.settle(&node, 1, &less, known(10, 20)).await;
            assert_eq!((done, pair.used(&node).await), (Settled::Done, [210, 220]));
            let done = pair.settle(&node, 2, &more, known(130, 140)).await;
            assert_eq!((done, pair.used(&node).await), (Settled::Done, [240, 260]));
            let done = pair.settle(&node, 3, &unknown, Used::Unknown).await;
            assert_eq!((done, pair.used(&node).await), (Settled::Done, [140, 160]));
            let late = pair.settle(&node, 3, &unknown, known(5, 6)).await;
            assert_eq!((late, pair.used(&node).await), (Settled::Late, [145, 166]));
            wait("the expiry", async || {
                let peeked = node.peek(&pair.set(1)).await.expect("a reply");
                peeked.at > unknown.at.plus(LASTS)
            })
            .await;
            pair.reserve(&node, 4, 1).await;
            assert_eq!(pair.used(&node).await, [146, 167], "nothing is refunded");
        }
    });
}
