//! The Redis store on real servers with their own clocks: exactness among nodes, errors, size, keys.
//!
//! Tests that need to advance the time are beside the scripts, in `src/stores/redis`.

mod cluster;
mod cluster_rollback;
mod concurrent;
mod connect;
mod described;
mod durable;
mod durable_topologies;
mod epoch;
mod errors;
mod fake_sentinel;
mod fake_server;
mod keys;
mod leases;
mod lenient;
mod permits;
mod primary_fence;
mod receipts;
mod reconnect;
mod reply_mismatch;
mod reservations;
mod rollback;
mod rotation;
mod sentinel;
mod size;
mod tls;
#[path = "../described/words.rs"]
#[allow(clippy::unwrap_used, reason = "a word that cannot be parsed is an error in the test")]
mod words;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use redis::Value;
use tidegate::stores::redis::{Redis, RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use tidegate_testkit::TestRedis;

/// A limit whose window outlasts every test.
fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(86_400 * 365));
    Limit::compile(&spec, Precision::Double).expect("a limit")
}

fn charge<'a>(subject: u128, rule: &'a RuleName, rate: u8, limit: &'a Limit) -> Charge<'a> {
    Charge {
        subject: Fingerprint::new(subject),
        rule,
        rate,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    }
}

fn set<'a>(charges: impl IntoIterator<Item = Charge<'a>>) -> ChargeSet<'a> {
    ChargeSet::of(charges)
}

/// Runs a test on a runtime of its own.
fn on_runtime<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

async fn store(url: &str) -> RedisStore {
    let store = RedisStore::open(&RedisConfig::new(url)).expect("an address");
    let ready = tokio::time::timeout(Duration::from_secs(60), store.ready());
    ready.await.expect("a server that replies");
    store
}

/// Polls until `is_so` is true; panics after a minute.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn redis(url: &str) -> Redis {
    let redis = Redis::open(&RedisConfig::new(url)).expect("an address");
    let ready = tokio::time::timeout(Duration::from_secs(60), redis.ready());
    ready.await.expect("a server that replies");
    redis
}

/// Sends a command directly to the server, past the store.
fn direct(server: &TestRedis, command: &[&str]) -> Value {
    let client = redis::Client::open(server.url()).expect("an address");
    let mut connection = client.get_connection().expect("a server");
    let mut request = redis::cmd(command[0]);
    request.arg(&command[1..]);
    request.query(&mut connection).expect("a reply")
}

/// The number of script calls that a server has received from its clients.
fn script_calls(server: &TestRedis) -> u64 {
    let stats = server.run_command(&["INFO", "commandstats"]);
    if stats.contains("cmdstat_evalsha:calls") { number(&stats, "cmdstat_evalsha:calls") } else { 0 }
}

/// A number from INFO.
fn info(server: &TestRedis, section: &str, name: &str) -> u64 {
    let Value::VerbatimString { text, .. } = direct(server, &["INFO", section]) else {
        let Value::BulkString(text) = direct(server, &["INFO", section]) else {
            panic!("INFO is text");
        };
        return number(&String::from_utf8_lossy(&text), name);
    };
    number(&text, name)
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in INFO"));
    let digits: String = line.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}
