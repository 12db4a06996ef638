//! A server that stops and returns: no call waits for it, and the store reconnects on its own.

use std::time::{Duration, Instant};

use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, StoreError};
use tidegate_core::subject::RuleName;

use crate::{charge, eventually, limit, on_runtime, set, store};
use tidegate_testkit::{FaultProxy, RedisProgram, TestRedis};

#[test]
fn a_server_that_returns_is_found_again() {
    let mut server = TestRedis::redis7();
    on_runtime(async {
        let store = store(&server.url()).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        let one = set([charge(1, &rule, 0, &limit)]);
        let outcome = store.charge(&one).await.expect("a reply");
        assert!(!outcome.snapshots[0].existed);

        let port = server.port();
        server.kill();
        // A failed call shows each connection the loss; after that calls fail without being sent.
        for _ in 0..20 {
            let lost = store.charge(&one).await;
            assert!(matches!(lost, Err(StoreError::Unavailable { .. })));
        }

        let _again = TestRedis::start_on(port, RedisProgram::Redis7, &[]);
        let began = Instant::now();
        let outcome = loop {
            match store.charge(&one).await {
                Ok(outcome) => break outcome,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            assert!(began.elapsed() < Duration::from_secs(60), "not found again");
        };
        assert!(outcome.admitted && !outcome.snapshots[0].existed, "it returned empty");
    });
}

#[test]
fn a_store_starts_without_its_server() {
    let port = tidegate_testkit::free_port();
    on_runtime(async {
        let config = tidegate::stores::redis::RedisConfig::new(&format!("redis://127.0.0.1:{port}"));
        let store = tidegate::stores::redis::RedisStore::open(&config).expect("an address");
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        let one = set([charge(1, &rule, 0, &limit)]);
        assert!(matches!(store.charge(&one).await, Err(StoreError::Unavailable { .. })));
        let _server = TestRedis::start_on(port, RedisProgram::Valkey9, &[]);
        let ready = tokio::time::timeout(Duration::from_secs(60), store.ready());
        ready.await.expect("a server that replies");
        assert!(store.charge(&one).await.expect("a reply").admitted);
    });
}

/// No call times out within these tests: only pings can show that a connection is lost.
const NEVER: Duration = Duration::from_secs(3_600);

/// A store on one connection through a proxy.
async fn behind_proxy(server: &TestRedis) -> (FaultProxy, RedisStore) {
    let proxy = FaultProxy::new(([127, 0, 0, 1], server.port()).into()).await;
    let proxy = proxy.expect("a port");
    let store = RedisStore::open(&RedisConfig {
        connections: 1,
        reply_timeout: NEVER,
        ..RedisConfig::new(&format!("redis://{}", proxy.address()))
    });
    let store = store.expect("an address");
    store.ready().await;
    (proxy, store)
}

/// A firewall that forgets a connection closes nothing. Three pings had to fail by the reply timeout before the
/// connection was given up: 18 s and more. `liveness` tests how soon it is replaced.
#[test]
fn a_connection_that_is_lost_without_a_sign_is_replaced() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let (proxy, store) = behind_proxy(&server).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000_000));
        let one = set([charge(1, &rule, 0, &limit)]);
        store.charge(&one).await.expect("a reply");
        let before = proxy.accepted();
        proxy.drop_silently();
        eventually("a charge on another connection", async || {
            let charged = tokio::time::timeout(Duration::from_millis(100), store.charge(&one));
            charged.await.is_ok_and(|charged| charged.is_ok())
        })
        .await;
        assert_eq!(proxy.accepted(), before + 1, "one replacement is enough");
    });
}

/// A server that pauses is as silent as a lost connection. It replies to earlier charges when it continues, so its
/// connection must not be given up.
#[test]
fn a_server_that_pauses_keeps_its_connection_and_its_late_replies() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let (proxy, store) = behind_proxy(&server).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000_000));
        let one = set([charge(1, &rule, 0, &limit)]);
        store.charge(&one).await.expect("a reply");
        let before = proxy.accepted();
        server.freeze();
        let late = store.charge(&one);
        let thaw = async {
            eventually("a second connection", async || proxy.accepted() > before).await;
            server.thaw();
        };
        let (late, ()) = tokio::join!(late, thaw);
        assert!(late.expect("a late reply").admitted);
        assert!(store.charge(&one).await.expect("a reply").admitted);
    });
}
