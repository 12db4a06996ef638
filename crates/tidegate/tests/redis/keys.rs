//! The keys of a store, their cost and their expiry; URLs; the shared secret.

use redis::Value;
use tidegate::Secret;
use tidegate::stores::redis::{RedisConfig, RedisStore, SecretError};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{
    Counters, Heartbeat, NodeId, Outcome, PermitRequest, Permits, Probe, Refund, Reservations, Reserve, Restore,
    RuleOptions, Settle, Settled, Used,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use crate::{charge, direct, info, limit, number, on_runtime, redis, set, store};
use tidegate_testkit::{RedisProgram, TestRedis};

fn keys(server: &TestRedis) -> Vec<String> {
    let Value::Array(keys) = direct(server, &["KEYS", "*"]) else {
        panic!("KEYS gives a list");
    };
    let text = |key| match key {
        Value::BulkString(key) => String::from_utf8(key).expect("text"),
        other => panic!("a key is not {other:?}"),
    };
    keys.into_iter().map(text).collect()
}

#[test]
fn every_key_has_an_expiry_and_the_tag_of_its_subject() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let store = store(&server.url()).await;
        let rule = RuleName::new("search");
        for (i, algorithm) in (0..).zip(Algorithm::ALL) {
            let limit = limit(algorithm, 10);
            let one = set([charge(i, &rule, 0, &limit), charge(i, &rule, 1, &limit)]);
            let charged = store.charge(&one).await.expect("a reply");
            assert!(charged.admitted && charged.snapshots.iter().all(|seen| !seen.existed));
            let again = store.charge(&one).await.expect("a reply");
            assert!(again.snapshots.iter().all(|seen| seen.existed));
            let refund = Refund {
                id: i + 77,
                charged_at: charged.at,
                expires_at: charged.at.plus(Nanos::from_secs(600)),
                set: one.clone(),
            };
            store.refund(&refund).await.expect("a reply");
        }
        let permit = PermitRequest {
            subject: Fingerprint::new(1),
            rule: &rule,
            holder: 1,
            max_permits: 2,
            ttl: Nanos::from_secs(600),
            options: &RuleOptions::DEFAULT,
            max_wait: None,
        };
        store.acquire(&permit).await.expect("a reply");
        let keys = keys(&server);
        assert_eq!(keys.len(), 15, "{keys:?}");
        for key in keys {
            let tagged = key.starts_with("tg:{AAAAAAAAAAAAAAAAAAAA") && key.contains('}');
            assert!(tagged, "{key}");
            let Value::Int(ttl) = direct(&server, &["PTTL", &key]) else {
                panic!("PTTL gives a number");
            };
            assert!(ttl > 0, "{key} lasts {ttl}");
        }
    });
}

/// However a reservation ends, its ledger expires, and a settled one leaves no member.
#[test]
fn every_ledger_has_an_expiry_however_its_reservations_end() {
    let server = TestRedis::redis7();
    let (rule, limit) = (RuleName::new("tokens"), limit(Algorithm::FixedWindow, 100));
    let ledgers = || {
        let ledger = |key: &String| key.contains("}e:");
        let keys: Vec<String> = keys(&server).into_iter().filter(ledger).collect();
        for key in &keys {
            let Value::Int(ttl) = direct(&server, &["PTTL", key]) else {
                panic!("PTTL gives a number");
            };
            assert!(ttl > 0, "{key} lasts {ttl}");
        }
        keys.len()
    };
    on_runtime(async {
        let store = store(&server.url()).await;
        let make = async |subject, id, ttl| {
            let one = set([charge(subject, &rule, 0, &limit)]);
            let reserve = Reserve { id, ttl, set: one };
            store.reserve(&reserve).await.expect("a reply")
        };
        let settle = async |subject, id, made: &Outcome, ttl, used| {
            let settle = Settle {
                id,
                charged_at: made.at,
                expires_at: made.at.plus(ttl),
                set: set([charge(subject, &rule, 0, &limit)]),
                used,
            };
            store.settle(&settle).await.expect("a reply")
        };
        let minute = Nanos::from_secs(60);
        let open = make(1, 1, minute).await;
        assert_eq!(ledgers(), 1, "open");
        let refunded = settle(1, 1, &open, minute, Used::Unknown).await;
        assert_eq!((refunded, ledgers()), (Settled::Done, 1), "refunded");
        let actual_use = Used::Known([7].into_iter().collect());
        let late = settle(1, 1, &open, minute, actual_use.clone()).await;
        assert_eq!((late, ledgers()), (Settled::Late, 0), "charged late");
        let open = make(1, 2, minute).await;
        let done = settle(1, 2, &open, minute, actual_use).await;
        assert_eq!((done, ledgers()), (Settled::Done, 0), "settled");
        // Expires at once, so that the next one refunds it and both share a ledger.
        make(2, 3, Nanos::new(1_000)).await;
        make(2, 4, minute).await;
        assert_eq!(ledgers(), 1);
    });
}

/// All clients of a server wait while a script runs. A script that scanned every reservation of a subject blocked them
/// for half a second.
#[test]
fn a_reset_takes_the_same_number_of_commands_for_any_number_of_reservations() {
    let server = TestRedis::redis7();
    let (rule, limit) = (RuleName::new("tokens"), limit(Algorithm::FixedWindow, 1_000));
    let calls = || {
        let stats = server.run_command(&["INFO", "commandstats"]);
        let of = |line: &str| line.starts_with("cmdstat_z").then(|| number(line, "cmdstat_"));
        stats.lines().filter_map(of).sum::<u64>()
    };
    on_runtime(async {
        let store = store(&server.url()).await;
        let reset_of = async |subject, reserved: u128| {
            let one = || set([charge(subject, &rule, 0, &limit)]);
            for id in 0..reserved {
                let (ttl, set) = (Nanos::from_secs(60), one());
                let reserve = Reserve { id, ttl, set };
                let made = store.reserve(&reserve).await.expect("a reply");
                assert!(made.admitted);
            }
            let before = calls();
            assert_eq!(store.reset(&one()).await.expect("a reply"), 1);
            calls() - before
        };
        assert_eq!(reset_of(1, 500).await, reset_of(2, 1).await);
    });
}

/// A flood of denials costs a server no write, no replication and no memory; neither does a peek.
#[test]
fn a_denial_and_a_peek_write_nothing() {
    for program in RedisProgram::ALL {
        let server = TestRedis::start(program, &[]);
        on_runtime(async {
            let store = store(&server.url()).await;
            let (rule, limit) = (RuleName::new("tight"), limit(Algorithm::SlidingWindow, 1));
            let one = set([charge(1, &rule, 0, &limit)]);
            assert!(store.charge(&one).await.expect("a reply").admitted);
            for _ in 0..20 {
                assert!(!store.charge(&one).await.expect("a reply").admitted);
                assert!(!store.peek(&one).await.expect("a reply").admitted);
            }
            let writes = info(&server, "commandstats", "cmdstat_set:calls=");
            assert_eq!(writes, 1, "{program:?}");
            let peeks = info(&server, "commandstats", "cmdstat_evalsha_ro:calls=");
            assert_eq!(peeks, 20, "{program:?}");
        });
    }
}

#[test]
fn urls_contain_user_password_database_or_a_socket() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--requirepass", "s3cret"]);
    let user = [
        "ACL",
        "SETUSER",
        "gate",
        "on",
        ">pa55",
        "~tg:*",
        "+@scripting",
        "+@read",
        "+@write",
        "+time",
        "+ping",
        "+client",
        "+select",
        "+hello",
        "+info",
    ];
    let client = redis::Client::open(format!("redis://:s3cret@127.0.0.1:{}", server.port()));
    let mut admin = client.expect("an address").get_connection().expect("a server");
    let mut request = redis::cmd(user[0]);
    let () = request.arg(&user[1..]).query(&mut admin).expect("a user");
    let socket = server.socket();
    let urls = [
        format!("redis://:s3cret@127.0.0.1:{}/3", server.port()),
        format!("redis://gate:pa55@127.0.0.1:{}", server.port()),
        format!("unix:{}?pass=s3cret&db=4", socket.display()),
        format!("redis+unix://{}?user=gate&pass=pa55", socket.display()),
    ];
    on_runtime(async {
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
        for url in &urls {
            let store = store(url).await;
            let one = set([charge(5, &rule, 0, &limit)]);
            let outcome = store.charge(&one).await.expect("a reply");
            assert!(outcome.admitted);
            for text in [format!("{store:?}"), format!("{:?}", RedisConfig::new(url))] {
                assert!(!text.contains("s3cret") && !text.contains("pa55"), "{text}");
            }
        }
    });
    for (database, records) in [(0, 1), (3, 1), (4, 1), (5, 0)] {
        let () = redis::cmd("SELECT").arg(database).query(&mut admin).expect("a reply");
        let found: i64 = redis::cmd("DBSIZE").query(&mut admin).expect("a number");
        assert_eq!(found, records, "database {database}");
    }
}

#[test]
fn bad_urls_are_rejected_at_once_and_not_repeated() {
    on_runtime(async {
        for url in ["nonsense", "http://u:pa55@host", "redis://u:pa55@host/x"] {
            let rejected = RedisStore::open(&RedisConfig::new(url)).expect_err("no address");
            assert!(!format!("{rejected} {rejected:?}").contains("pa55"), "{rejected}");
        }
    });
}

#[test]
fn nodes_of_one_store_share_one_secret() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let store = redis(&server.url()).await;
        let first = store.share_secret(None).await.expect("a secret");
        let second = store.share_secret(None).await.expect("a secret");
        assert_eq!(first.fingerprint_key(), second.fingerprint_key());
        let own = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
        let another = store.share_secret(Some(&own)).await;
        assert!(matches!(another, Err(SecretError::Another)));

        // With a secret from a file the store has only a check value.
        direct(&server, &["FLUSHALL"]);
        let given = store.share_secret(Some(&own)).await.expect("the same");
        assert_eq!(given.fingerprint_key(), own.fingerprint_key());
        let given = store.share_secret(Some(&own)).await.expect("the same");
        assert_eq!(given.fingerprint_key(), own.fingerprint_key());
        assert!(matches!(store.share_secret(None).await, Err(SecretError::FileNeeded)));
        let other = Secret::from_bytes(b"0123456789abcdeX").expect("long enough");
        assert!(matches!(store.share_secret(Some(&other)).await, Err(SecretError::Another)));
        assert_eq!(direct(&server, &["PTTL", "tg:ctl:secret"]), Value::Int(-1));

        direct(&server, &["SET", "tg:ctl:secret", "something else"]);
        assert!(matches!(store.share_secret(None).await, Err(SecretError::Unreadable)));
    });
}

#[test]
fn a_new_node_waits_for_a_deleted_secret_only_while_another_node_sends_heartbeats() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let store = redis(&server.url()).await;
        let awaits = async || store.awaits_secret().await.expect("a reply");
        assert!(!awaits().await, "no node has used the store");
        let secret = store.share_secret(None).await.expect("a secret");
        let heartbeat = |ago_ms: u64| {
            let Value::Array(time) = direct(&server, &["TIME"]) else {
                panic!("no time");
            };
            let Value::BulkString(secs) = &time[0] else {
                panic!("no seconds");
            };
            let secs: u64 = String::from_utf8_lossy(secs).parse().expect("a number");
            let heartbeat = format!("{} ", secs * 1_000 - ago_ms);
            direct(&server, &["HSET", "tg:ctl:nodes", "epoch", "7", "0000000000000001", &heartbeat]);
        };
        heartbeat(0);
        assert!(!awaits().await, "the secret is there");
        direct(&server, &["DEL", "tg:ctl:secret"]);
        assert!(awaits().await, "another node knows it");
        heartbeat(60_000);
        assert!(!awaits().await, "that node is gone");
        heartbeat(0);
        store.restore_secret(&secret, false).await.expect("room for it");
        assert!(!awaits().await);
        let found = store.share_secret(None).await.expect("a secret");
        assert_eq!(found.fingerprint_key(), secret.fingerprint_key());
    });
}

/// The words of the line in docs/redis.md that creates a user.
pub(crate) fn documented_user() -> Vec<String> {
    let page = include_str!("../../../../docs/redis.md");
    let lines = page.lines().map(str::trim);
    let recipe = lines.filter(|line| line.starts_with("ACL SETUSER tidegate "));
    let words = recipe.flat_map(str::split_whitespace);
    words.map(|word| word.replace("PASSWORD", "pa55")).collect()
}

#[test]
fn the_documented_permissions_suffice_for_every_verb() {
    for program in RedisProgram::ALL {
        let server = TestRedis::start(program, &[]);
        let user = documented_user();
        let user: Vec<&str> = user.iter().map(String::as_str).collect();
        assert_eq!(server.run_command(&user), "OK", "{program:?}");
        let url = format!("redis://tidegate:pa55@127.0.0.1:{}", server.port());
        on_runtime(async {
            let redis = redis(&url).await;
            redis.share_secret(None).await.expect("a secret");
            every_verb(&store(&url).await, 5).await;
        });
    }
}

/// Calls every verb of a store, for one subject.
pub(crate) async fn every_verb(store: &RedisStore, subject: u128) {
    let heartbeat = Heartbeat { node: NodeId(1), restored: None };
    store.heartbeat(heartbeat).await.expect("a status");
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 10));
    let one = set([charge(subject, &rule, 0, &limit)]);
    let outcome = store.charge(&one).await.expect("a charge");
    store.peek(&one).await.expect("a peek");
    store.force(&one).await.expect("a debt");
    store.draw(&one.charges[0]).await.expect("a lease");
    let restore = Restore { charge: charge(subject, &rule, 0, &limit), state: outcome.snapshots[0].state.clone() };
    store.restore(&[restore]).await.expect("a restore");
    let refund =
        Refund { id: 1, charged_at: outcome.at, expires_at: outcome.at.plus(Nanos::from_secs(60)), set: one.clone() };
    store.refund(&refund).await.expect("a refund");
    let permit = PermitRequest {
        subject: Fingerprint::new(subject),
        rule: &rule,
        holder: 1,
        max_permits: 1,
        ttl: Nanos::from_secs(1),
        options: &RuleOptions::DEFAULT,
        max_wait: None,
    };
    store.acquire(&permit).await.expect("a permit");
    store.release(&permit).await.expect("a release");
    store.inspect(&one).await.expect("an inspection");
    store.reset(&one).await.expect("a reset");
}
