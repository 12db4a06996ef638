//! Every error of a server, and the action taken on it. Nothing is sent twice except a missing script, and no
//! password is ever reported.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tidegate::stores::redis::{Action, RedisConfig, RedisStore, RedisStoreError};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Counters, FailureKind, StoreError};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fake_server::{FakeBehaviour, FakeRedis};
use crate::{charge, direct, limit, on_runtime, set, store};
use tidegate_testkit::{RedisProgram, TestRedis};

/// The error of one charge.
async fn charge_error(store: &RedisStore) -> (RedisStoreError, StoreError) {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
    let one = set([charge(1, &rule, 0, &limit)]);
    let error = store.charge(&one).await.expect_err("an error");
    let (StoreError::Unavailable { source, .. } | StoreError::Rejected { source, .. }) = &error;
    let redis_error = source.downcast_ref::<RedisStoreError>().expect("an error").clone();
    (redis_error, error)
}

async fn start_fake(behaviour: FakeBehaviour) -> (FakeRedis, RedisStore) {
    let silent = matches!(behaviour, FakeBehaviour::Silence);
    let fake = FakeRedis::start(behaviour).await;
    let mut config = RedisConfig::new(&fake.url);
    config.connections = 1;
    // Only silence times out: all other replies arrive, however busy this machine is.
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(60));
    config.reply_timeout = if silent { short } else { long };
    let store = RedisStore::open(&config).expect("an address");
    store.ready().await;
    (fake, store)
}

/// Checks one reply of a server and the resulting action.
fn check(reply: &str, action: Action) {
    on_runtime(async {
        let (fake, store) = start_fake(FakeBehaviour::Bytes(format!("-{reply}\r\n"))).await;
        let (redis_error, error) = charge_error(&store).await;
        assert_eq!(redis_error.action(), action, "{reply}");
        let ours = matches!(error, StoreError::Rejected { .. });
        assert_eq!(ours, action == Action::Report, "{reply}");
        assert_eq!(fake.by_hash.load(Ordering::SeqCst), 1, "{reply}: sent once");
        assert_eq!(fake.by_text.load(Ordering::SeqCst), 0, "{reply}");
        let text = format!("{redis_error} {redis_error:?} {error} {error:?} {store:?}");
        assert!(!text.contains("planted-s3cret"), "{text}");
        assert!(text.contains(reply.split(' ').next().unwrap_or_default()), "{text}");
    });
}

macro_rules! rows {
    ($($name:ident: $reply:literal => $action:ident,)*) => {
        $(#[test]
        fn $name() {
            check($reply, Action::$action);
        })*
    };
}

rows! {
    noauth: "NOAUTH Authentication required." => NeedsOperator,
    wrongpass: "WRONGPASS invalid username-password pair or user is disabled." => NeedsOperator,
    noperm: "NOPERM this user has no permissions to run the 'evalsha' command" => NeedsOperator,
    noperm_inside_a_script: "ERR The user executing the script can't run this command or subcommand script: d9, on @user_script:1." => NeedsOperator,
    nokey_inside_a_script: "ERR The user executing the script can't access at least one of the keys mentioned in the command script: d9" => NeedsOperator,
    noperm_in_valkey_scripts: "ERR ACL failure in script: No permissions to access a key script: d9" => NeedsOperator,
    protected_mode: "DENIED Redis is running in protected mode" => NeedsOperator,
    readonly: "READONLY You can't write against a read only replica. script: d9, on @user_script:1." => FindPrimary,
    masterdown: "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'." => FindPrimary,
    moved: "MOVED 3999 127.0.0.1:6381" => Redirect,
    ask: "ASK 3999 127.0.0.1:6381" => Redirect,
    crossslot: "CROSSSLOT Keys in request don't hash to the same slot" => Redirect,
    clusterdown: "CLUSTERDOWN The cluster is down" => FallBack,
    tryagain: "TRYAGAIN Multiple keys request during rehashing of slot" => FallBack,
    loading: "LOADING Redis is loading the dataset in memory" => FallBack,
    busy: "BUSY Redis is busy running a script." => FallBack,
    unkillable: "UNKILLABLE Sorry the script already executed write commands" => FallBack,
    oom: "OOM command not allowed when used memory > 'maxmemory'." => FallBack,
    misconf: "MISCONF Redis is configured to save RDB snapshots" => FallBack,
    noreplicas: "NOREPLICAS Not enough good replicas to write." => FallBack,
    too_many_clients: "ERR max number of clients reached" => FallBack,
    wrongtype: "WRONGTYPE Operation against a key holding the wrong kind of value" => Report,
    execabort: "EXECABORT Transaction discarded because of previous errors." => Report,
    unknown_command: "ERR unknown command 'EVALSHA', with args beginning with: 'planted-s3cret'" => NeedsOperator,
    a_secret_that_is_repeated: "ERR something about planted-s3cret" => Report,
    bare_err: "ERR Error running script" => Report,
    unknown_prefix: "PLUGH a hollow voice" => FallBack,
}

#[test]
fn a_missing_script_is_sent_once_as_text() {
    on_runtime(async {
        let reply = "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned();
        let (fake, store) = start_fake(FakeBehaviour::Bytes(reply)).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        let one = set([charge(1, &rule, 0, &limit)]);
        assert!(store.charge(&one).await.expect("a reply").admitted);
        assert_eq!(fake.by_hash.load(Ordering::SeqCst), 1);
        assert_eq!(fake.by_text.load(Ordering::SeqCst), 1);
    });
}

/// Its operator read that the connection was refused.
#[test]
fn a_server_of_another_protocol_is_named_as_such() {
    on_runtime(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 4_096];
                    while stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                        let sent = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
                        sent.await.expect("the client waits for its reply");
                    }
                });
            }
        });
        let store = RedisStore::open(&RedisConfig::new(&format!("redis://127.0.0.1:{port}"))).expect("an address");
        let error = loop {
            match store.last_error() {
                Some(error) => break error,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        assert_eq!(error.cause().kind, FailureKind::Protocol, "{error}");
        assert!(error.to_string().contains("Redis or Valkey"), "{error}");
    });
}

/// Whether the charge was made is unknown: it must not be made again.
#[test]
fn a_closed_connection_ends_the_call_and_nothing_is_sent_again() {
    on_runtime(async {
        let (fake, store) = start_fake(FakeBehaviour::Close).await;
        let (redis_error, _) = charge_error(&store).await;
        assert_eq!(redis_error.action(), Action::Reconnect);
        tokio::time::sleep(Duration::from_millis(300)).await; // connected again by now
        assert_eq!(fake.by_hash.load(Ordering::SeqCst), 1);
        assert_eq!(fake.by_text.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn silence_is_an_outage_and_nothing_is_sent_again() {
    on_runtime(async {
        let (fake, store) = start_fake(FakeBehaviour::Silence).await;
        let (redis_error, error) = charge_error(&store).await;
        assert_eq!(redis_error.action(), Action::FallBack);
        assert!(matches!(error, StoreError::Unavailable { waited, .. } if waited > Nanos::ZERO));
        // The call may arrive after it timed out.
        while fake.by_hash.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fake.by_hash.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn garbage_ends_the_connection() {
    on_runtime(async {
        let (_fake, store) = start_fake(FakeBehaviour::Bytes("?!\r\n".to_owned())).await;
        assert_eq!(charge_error(&store).await.0.action(), Action::Reconnect);
    });
}

/// A reply that the script cannot have sent belongs to another call, and so do all that follow it.
#[test]
fn a_reply_without_the_call_id_ends_the_connection() {
    for reply in [":1\r\n", "+OK\r\n", "$-1\r\n", "$3\r\nxyz\r\n", "*0\r\n"] {
        on_runtime(async {
            let (_fake, store) = start_fake(FakeBehaviour::Bytes(reply.to_owned())).await;
            let (redis_error, error) = charge_error(&store).await;
            assert_eq!(redis_error.action(), Action::Reconnect, "{reply:?}: {redis_error}");
            assert_eq!(redis_error.cause().kind, FailureKind::Protocol, "{reply:?}");
            assert!(matches!(error, StoreError::Unavailable { .. }), "{reply:?}");
        });
    }
}

#[test]
fn a_limit_made_for_memory_is_rejected_before_it_is_sent() {
    on_runtime(async {
        let (fake, store) = start_fake(FakeBehaviour::Close).await;
        let spec = Spec::new(Algorithm::TokenBucket, 7, Nanos::new(1_000_000_007));
        let limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
        let rule = RuleName::new("api");
        let error = store.charge(&set([charge(1, &rule, 0, &limit)])).await;
        assert!(matches!(error, Err(StoreError::Rejected { .. })));
        assert_eq!(fake.by_hash.load(Ordering::SeqCst), 0);
    });
}

/// The same errors from real servers, as far as they can be provoked.
#[test]
fn real_servers_send_the_errors_in_the_table() {
    for program in RedisProgram::ALL {
        let server = TestRedis::start(program, &[]);
        on_runtime(async {
            let store = store(&server.url()).await;
            let expect = async |action: Action, code: &str| {
                let (redis_error, _) = charge_error(&store).await;
                assert_eq!((redis_error.action(), redis_error.code()), (action, code), "{program:?}: {redis_error}");
            };
            direct(&server, &["CONFIG", "SET", "min-replicas-to-write", "3"]);
            expect(Action::FallBack, "NOREPLICAS").await;
            direct(&server, &["CONFIG", "SET", "min-replicas-to-write", "0"]);

            direct(&server, &["CONFIG", "SET", "maxmemory", "1"]);
            expect(Action::FallBack, "OOM").await;
            direct(&server, &["CONFIG", "SET", "maxmemory", "0"]);

            direct(&server, &["SET", "tg:{AAAAAAAAAAAAAAAAAAAAAQ}:api", "not a record"]);
            let (damaged, error) = charge_error(&store).await;
            assert_eq!(damaged.action(), Action::Report, "{damaged}");
            assert!(matches!(error, StoreError::Rejected { .. }));
            assert_eq!(damaged.cause().kind, FailureKind::Record, "{damaged}");
            assert!(damaged.to_string().contains("tg:{AAAAAAAAAAAAAAAAAAAAAQ}:api"));
            direct(&server, &["DEL", "tg:{AAAAAAAAAAAAAAAAAAAAAQ}:api"]);
            direct(&server, &["LPUSH", "tg:{AAAAAAAAAAAAAAAAAAAAAQ}:api", "x"]);
            let (foreign, _) = charge_error(&store).await;
            assert_eq!(foreign.cause().kind, FailureKind::Record, "{foreign}");
            direct(&server, &["DEL", "tg:{AAAAAAAAAAAAAAAAAAAAAQ}:api"]);

            direct(&server, &["REPLICAOF", "127.0.0.1", "1"]);
            expect(Action::FindPrimary, "READONLY").await;
            direct(&server, &["REPLICAOF", "NO", "ONE"]);
        });
    }
}

#[test]
fn a_script_that_hangs_the_server_is_an_outage() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--lua-time-limit", "20"]);
    on_runtime(async {
        let store = store(&server.url()).await;
        let url = server.url();
        let hang = std::thread::spawn(move || {
            let client = redis::Client::open(url).expect("an address");
            let mut connection = client.get_connection().expect("a server");
            let endless = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
            endless.query::<Value>(&mut connection).expect_err("killed");
        });
        let code = loop {
            let (redis_error, _) = match tokio::time::timeout(Duration::from_secs(60), try_charge_error(&store)).await {
                Ok(Some(redis_error)) => redis_error,
                Ok(None) => continue,
                Err(_) => panic!("never busy"),
            };
            if redis_error.code() == "BUSY" {
                break redis_error.action();
            }
        };
        assert_eq!(code, Action::FallBack);
        direct(&server, &["SCRIPT", "KILL"]);
        hang.join().expect("no panic");
    });
}

async fn try_charge_error(store: &RedisStore) -> Option<(RedisStoreError, ())> {
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000_000));
    let one = set([charge(1, &rule, 0, &limit)]);
    let error = store.charge(&one).await.err()?;
    let (StoreError::Unavailable { source, .. } | StoreError::Rejected { source, .. }) = &error;
    source.downcast_ref::<RedisStoreError>().map(|redis_error| (redis_error.clone(), ()))
}

/// The server denies permissions inside a script; the missing one is reported.
#[test]
fn missing_permissions_are_reported() {
    for program in RedisProgram::ALL {
        let server = TestRedis::start(program, &[]);
        let user = ["ACL", "SETUSER", "poor", "on", ">pa55", "~tg:*", "+@all", "-set"];
        direct(&server, &user);
        on_runtime(async {
            let url = format!("redis://poor:pa55@127.0.0.1:{}", server.port());
            let store = store(&url).await;
            let (redis_error, _) = charge_error(&store).await;
            assert_eq!(redis_error.action(), Action::NeedsOperator, "{program:?}: {redis_error}");
            assert!(!format!("{redis_error:?} {redis_error}").contains("pa55"));
        });
    }
}

#[test]
fn a_wrong_password_is_reported_without_the_password() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--requirepass", "right"]);
    on_runtime(async {
        for url in [
            format!("redis://:planted-s3cret@127.0.0.1:{}", server.port()),
            format!("redis://127.0.0.1:{}", server.port()),
        ] {
            let store = RedisStore::open(&RedisConfig::new(&url)).expect("an address");
            let text = loop {
                let (redis_error, error) = charge_error(&store).await;
                if redis_error.action() == Action::NeedsOperator {
                    break format!("{redis_error} {redis_error:?} {error} {error:?} {store:?}");
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            assert!(!text.contains("planted-s3cret"), "{text}");
        }
    });
}
