//! A server that goes and comes back: no call waits for it, and it is found again by itself.

use std::time::{Duration, Instant};

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Store, StoreError};
use tidegate_core::subject::RuleName;

use crate::{charge, limit, on_runtime, set, store};
use tidegate_parts::{Program, Server};

#[test]
fn a_server_that_returns_is_found_again() {
    let mut server = Server::redis7();
    on_runtime(async {
        let store = store(&server.url()).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        let one = set([charge(1, &rule, 0, &limit)]);
        let outcome = store.charge(&one).await.expect("an answer");
        assert!(!outcome.seen[0].was_there);

        let port = server.port();
        server.kill();
        // Each connection notices by a call that fails; after that calls fail without being sent.
        for _ in 0..20 {
            let lost = store.charge(&one).await;
            assert!(matches!(lost, Err(StoreError::Unavailable { .. })));
        }

        let _again = Server::start_on(port, Program::Redis7, &[]);
        let began = Instant::now();
        let outcome = loop {
            match store.charge(&one).await {
                Ok(outcome) => break outcome,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            assert!(began.elapsed() < Duration::from_secs(30), "not found again");
        };
        assert!(
            outcome.admitted && !outcome.seen[0].was_there,
            "it came back empty"
        );
    });
}

#[test]
fn a_store_starts_without_its_server() {
    let port = tidegate_parts::free_port();
    on_runtime(async {
        let config =
            tidegate::stores::redis::RedisConfig::new(&format!("redis://127.0.0.1:{port}"));
        let store = tidegate::stores::redis::RedisStore::open(&config).expect("an address");
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        let one = set([charge(1, &rule, 0, &limit)]);
        assert!(matches!(
            store.charge(&one).await,
            Err(StoreError::Unavailable { .. })
        ));
        let _server = Server::start_on(port, Program::Valkey9, &[]);
        let ready = tokio::time::timeout(Duration::from_secs(20), store.ready());
        ready.await.expect("a server that answers");
        assert!(store.charge(&one).await.expect("an answer").admitted);
    });
}
