//! A password that changes while the store is in use.

use std::fs;

use tidegate::stores::redis::{Action, RedisConfig, RedisStore};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Store, StoreError};
use tidegate_core::subject::RuleName;
use tidegate_parts::{Program, Server};

use crate::{charge, eventually, limit, on_runtime, set, store};

async fn answers(store: &RedisStore) -> bool {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000));
    let one = set([charge(1, &rule, 0, &limit)]);
    match store.charge(&one).await {
        Ok(_) => true,
        Err(StoreError::Unavailable { .. }) => false,
        Err(error) => panic!("an outage, not our fault: {error}"),
    }
}

/// Sets another password and ends all connections, as `old` may.
fn rotate(server: &Server, old: &str, new: &str) {
    server.ask(&["-a", old, "CONFIG", "SET", "requirepass", new]);
    server.ask(&["-a", new, "CLIENT", "KILL", "TYPE", "normal"]);
}

async fn refused(store: &RedisStore) {
    eventually("refused", async || {
        let answered = answers(store).await;
        let fault = store.last_fault();
        !answered && fault.is_some_and(|fault| fault.action() == Action::AskOperator)
    })
    .await;
    let fault = store.last_fault().expect("a fault");
    let told = format!("{fault} {fault:?} {store:?}");
    assert!(!told.contains("planted"), "{told}");
}

#[test]
fn a_rotated_password_is_an_outage_until_ours_fits_again() {
    let server = Server::start(Program::Redis7, &["--requirepass", "planted-1"]);
    on_runtime(async {
        let url = format!("redis://:planted-1@127.0.0.1:{}", server.port());
        let store = store(&url).await;
        assert!(answers(&store).await);
        rotate(&server, "planted-1", "planted-2");
        refused(&store).await;
        rotate(&server, "planted-2", "planted-1");
        eventually("let in again", async || answers(&store).await).await;
    });
}

#[test]
fn a_password_file_is_read_anew() {
    let server = Server::start(Program::Redis7, &["--requirepass", "planted-1"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    fs::write(&file, "planted-1\n").expect("a file");
    on_runtime(async {
        let place = format!("127.0.0.1:{}", server.port());
        let url = format!("redis://{place}?password_file={}", file.display());
        let store = store(&url).await;
        assert!(answers(&store).await);
        rotate(&server, "planted-1", "planted-2");
        refused(&store).await;
        fs::write(&file, "planted-2\n").expect("a file");
        eventually("let in again", async || answers(&store).await).await;

        fs::remove_file(&file).expect("no file");
        let told = RedisStore::open(&RedisConfig::new(&url)).expect_err("no file");
        assert!(told.to_string().contains("`password_file`"), "{told}");
        // Nor is the path told: it may be the password itself.
        let url = format!("redis://{place}?password_file=planted-1");
        let told = RedisStore::open(&RedisConfig::new(&url)).expect_err("no file");
        assert!(!format!("{told} {told:?}").contains("planted"), "{told}");
    });
}
