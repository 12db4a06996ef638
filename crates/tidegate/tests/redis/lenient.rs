//! Lenient counting by two nodes on one real server.

use std::sync::Arc;
use std::time::Duration;

use tidegate::resilience::{ResilienceSettings, Resilient, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::redis::Redis;
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{ChargeSet, Counters, Counting, RuleOptions, Source};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;
use tidegate_testkit::{RedisProgram, TestRedis};
use tokio::sync::Notify;

use crate::{charge, limit, on_runtime, redis, set};

/// A budget that a slow machine does not exceed.
const LENIENT: RuleOptions =
    RuleOptions { counting: Counting::Lenient, budget: Some(Nanos::from_secs(30)), ..RuleOptions::DEFAULT };

type LenientNode = Resilient<Redis, TokioRuntime>;

/// A node that counts exactly.
async fn node(url: &str) -> LenientNode {
    let exact = Arc::new(Notify::new());
    let observed_exact = Arc::clone(&exact);
    let settings = ResilienceSettings { budget: Nanos::from_secs(30), nodes: Some(2), ..ResilienceSettings::default() };
    let watcher = Arc::new(move |event| {
        if event == StoreEvent::Exact {
            observed_exact.notify_one();
        }
    });
    let runtime = TokioRuntime::new().expect("randomness");
    let node = resilient(redis(url).await, runtime, settings, watcher);
    exact.notified().await;
    node
}

fn one<'a>(rule: &'a RuleName, limit: &'a Limit) -> ChargeSet<'a> {
    let mut one = charge(1, rule, 0, limit);
    one.options = &LENIENT;
    set([one])
}

async fn used(node: &LenientNode, set: &ChargeSet<'_>) -> u64 {
    let found = node.inspect(set).await.expect("a reply");
    found[0].as_ref().map_or(0, |inspection| inspection.used)
}

#[test]
fn the_store_has_all_that_two_nodes_admitted_when_they_leave() {
    let server = TestRedis::start(RedisProgram::Redis7, &[]);
    on_runtime(async {
        let nodes = [node(&server.url()).await, node(&server.url()).await];
        let (rule, limit) = (RuleName::new("pixels"), limit(Algorithm::FixedWindow, 100_000));
        let (mut admitted, mut here) = (0, 0);
        for i in 0..5_000_usize {
            let outcome = nodes[i % 2].charge(&one(&rule, &limit)).await;
            let outcome = outcome.expect("decisions do not fail");
            admitted += u64::from(outcome.admitted);
            here += u64::from(outcome.source == Source::Lenient);
            if i % 500 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        assert_eq!(admitted, 5_000);
        assert!(here > 4_000, "{here} of 5,000 were decided locally");
        for node in &nodes {
            node.drain().await;
        }
        assert_eq!(used(&nodes[0], &one(&rule, &limit)).await, 5_000);
    });
}

#[test]
fn two_nodes_exceed_a_limit_by_no_more_than_one_of_them_could() {
    let server = TestRedis::start(RedisProgram::Redis7, &[]);
    on_runtime(async {
        let nodes = [node(&server.url()).await, node(&server.url()).await];
        let (rule, limit) = (RuleName::new("pixels"), limit(Algorithm::FixedWindow, 1_000));
        let mut admitted = 0;
        for i in 0..20_000_usize {
            let outcome = nodes[i % 2].charge(&one(&rule, &limit)).await;
            admitted += u64::from(outcome.expect("decisions do not fail").admitted);
        }
        assert!((1_000..=2_000).contains(&admitted), "{admitted} of 1,000");
        for node in &nodes {
            node.drain().await;
            let outcome = node.charge(&one(&rule, &limit)).await;
            assert!(!outcome.expect("decisions do not fail").admitted);
        }
        assert_eq!(used(&nodes[0], &one(&rule, &limit)).await, admitted);
    });
}
