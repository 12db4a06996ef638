//! A receipt that was used stays used when rules change, on a real server and on a real cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::resilience::{ResilienceSettings, resilient};
use tidegate::rules::SourceFile;
use tidegate::runtime::TokioRuntime;
use tidegate::stores::redis::{Redis, RedisConfig};
use tidegate::{Limiter, Policy, Refunded, Request, Secret, Source};
use tidegate_core::store::Capabilities;
use tidegate_core::units::Nanos;
use tidegate_testkit::{TestCluster, TestRedis};

use crate::on_runtime;

/// The rules `own` and `all`, with these limits.
fn policy(own: u64, all: u64) -> Policy {
    let text = format!(
        "version: 1\nrules:\n  - {{ name: own, by: user, rate: {own}/day }}\n  \
         - {{ name: all, by: global, rate: {all}/day }}\n"
    );
    Policy::parse_for(&[SourceFile { name: "rules.yaml", text: &text }], Capabilities::SHARED).expect("good rules")
}

/// The receipt was marked as used beside the first of its limits that had not changed, and in a cluster under an id
/// that depended on how many were left: under other limits its mark was not found, and it was refunded again.
async fn check(url: &str) {
    let redis = Redis::open(&RedisConfig::new(url)).expect("an address");
    redis.ready().await;
    let settings = ResilienceSettings {
        budget: Nanos::from_secs(20), // a busy machine is no outage
        ..ResilienceSettings::default()
    };
    let node = resilient(redis, TokioRuntime::new().expect("randomness"), settings, Arc::new(|_| {}));
    let builder = Limiter::builder().policy(policy(10, 10)).secret(Secret::from_bytes(&[7; 16]).expect("a secret"));
    let limiter = builder.build_on(node).expect("rules are given");
    let request = || Request::default().with("user", "ada");
    let deadline = Instant::now() + Duration::from_secs(60);
    while limiter.peek(request()).await.expect("a reply").source() != Source::Exact {
        assert!(Instant::now() < deadline, "the store is not trusted in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for changed in [policy(11, 10), policy(10, 11)] {
        let mut charged = Vec::new();
        for _ in 0..2 {
            charged.push(limiter.check(request()).await.expect("a reply"));
        }
        let receipt = limiter.receipt(&charged[0]).expect("randomness").expect("a charge");
        assert_eq!(limiter.refund(&receipt).await.expect("a reply"), Refunded::Done);
        assert_eq!(limiter.refund(&receipt).await.expect("a reply"), Refunded::Already);
        let before = limiter.policy().get();
        limiter.replace_policy(changed);
        assert_eq!(limiter.refund(&receipt).await.expect("a reply"), Refunded::Already);
        limiter.replace_policy(Policy::clone(&before));
        let peeked = limiter.peek(request()).await.expect("a reply");
        let remaining: Vec<u64> = peeked.limits().map(|limit| limit.reading.figures.remaining).collect();
        assert_eq!(remaining, [9, 9], "one of two charges was refunded");
        let last = limiter.receipt(&charged[1]).expect("randomness").expect("a charge");
        assert_eq!(limiter.refund(&last).await.expect("a reply"), Refunded::Done);
    }
}

#[test]
fn a_used_receipt_stays_used_when_a_rule_changes() {
    let server = TestRedis::redis7();
    on_runtime(check(&server.url()));
}

#[test]
fn a_used_receipt_stays_used_in_a_cluster_when_a_rule_changes() {
    let cluster = TestCluster::start();
    on_runtime(check(&format!("redis+cluster://{}", cluster.servers[0].address())));
}
