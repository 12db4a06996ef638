//! A password that changes while the store is in use.

use std::fs;

use tidegate::stores::redis::{Action, RedisConfig, RedisStore};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, StoreError};
use tidegate_core::subject::RuleName;
use tidegate_testkit::{RedisProgram, TestRedis};

use crate::{charge, eventually, limit, on_runtime, set, store};

async fn is_serving(store: &RedisStore) -> bool {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000));
    let one = set([charge(1, &rule, 0, &limit)]);
    match store.charge(&one).await {
        Ok(_) => true,
        Err(StoreError::Unavailable { .. }) => false,
        Err(error) => panic!("an outage, not our fault: {error}"),
    }
}

/// Sets another password and ends all connections, with the permissions of `old`.
fn rotate(server: &TestRedis, old: &str, new: &str) {
    server.run_command(&["-a", old, "CONFIG", "SET", "requirepass", new]);
    server.run_command(&["-a", new, "CLIENT", "KILL", "TYPE", "normal"]);
}

async fn wait_rejected(store: &RedisStore) {
    eventually("a rejection", async || {
        let serving = is_serving(store).await;
        let redis_error = store.last_error();
        !serving && redis_error.is_some_and(|redis_error| redis_error.action() == Action::NeedsOperator)
    })
    .await;
    let redis_error = store.last_error().expect("an error");
    let text = format!("{redis_error} {redis_error:?} {store:?}");
    assert!(!text.contains("planted"), "{text}");
}

#[test]
fn a_rotated_password_is_an_outage_until_it_matches_again() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--requirepass", "planted-1"]);
    on_runtime(async {
        let url = format!("redis://:planted-1@127.0.0.1:{}", server.port());
        let store = store(&url).await;
        assert!(is_serving(&store).await);
        rotate(&server, "planted-1", "planted-2");
        wait_rejected(&store).await;
        rotate(&server, "planted-2", "planted-1");
        eventually("a login", async || is_serving(&store).await).await;
    });
}

#[test]
fn a_password_file_is_read_anew() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--requirepass", "planted-1"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    fs::write(&file, "planted-1\n").expect("a file");
    on_runtime(async {
        let address = format!("127.0.0.1:{}", server.port());
        let url = format!("redis://{address}?password_file={}", file.display());
        let store = store(&url).await;
        assert!(is_serving(&store).await);
        rotate(&server, "planted-1", "planted-2");
        wait_rejected(&store).await;
        fs::write(&file, "planted-2\n").expect("a file");
        eventually("a login", async || is_serving(&store).await).await;

        fs::remove_file(&file).expect("no file");
        let error = RedisStore::open(&RedisConfig::new(&url)).expect_err("no file");
        assert!(error.to_string().contains("`password_file`"), "{error}");
        // Errors omit the path, too: it may be the password itself.
        let url = format!("redis://{address}?password_file=planted-1");
        let error = RedisStore::open(&RedisConfig::new(&url)).expect_err("no file");
        assert!(!format!("{error} {error:?}").contains("planted"), "{error}");
    });
}
