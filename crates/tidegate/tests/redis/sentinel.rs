//! The primary that sentinels know: the store follows it wherever it goes, whatever fails.

use std::time::Duration;

use tidegate::stores::redis::{Action, RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{Counters, StoreError};
use tidegate_core::subject::RuleName;
use tidegate_testkit::{PRIMARY_NAME, RedisProgram, SentinelGroup, TestRedis, TestSentinel};

use crate::fake_sentinel::{FakeSentinel, FakeSentinelReply, url};
use crate::{charge, direct, eventually, limit, on_runtime, script_calls, set, store};

/// A rule with one counter of a thousand, and its store.
struct SentinelCounter {
    store: RedisStore,
    rule: RuleName,
    limit: Limit,
}

impl SentinelCounter {
    fn of(store: RedisStore) -> SentinelCounter {
        SentinelCounter { store, rule: RuleName::new("api"), limit: limit(Algorithm::FixedWindow, 1_000) }
    }

    /// Charges one unit. Returns how many remain.
    async fn charge(&self) -> Result<u64, StoreError> {
        let one = set([charge(1, &self.rule, 0, &self.limit)]);
        let outcome = self.store.charge(&one).await?;
        Ok(outcome.readings[0].figures.remaining)
    }

    /// Charges until there is a reply. Returns how many remain then.
    async fn charge_at_last(&self) -> u64 {
        let mut left = 0;
        eventually("a reply", async || match self.charge().await {
            Ok(found) => {
                left = found;
                true
            }
            Err(_) => false,
        })
        .await;
        left
    }

    /// The same until both connections reply. They take turns, so that one may be dead without having been
    /// noticed.
    async fn charge_on_both(&self) -> u64 {
        loop {
            let first = self.charge_at_last().await;
            if let Ok(left) = self.charge().await {
                assert!(left < first);
                return left;
            }
        }
    }

    /// Every charge has a reply, from the counter that had `left` remaining.
    async fn counts_on_from(&self, left: u64) {
        for i in 1..=20 {
            assert_eq!(self.charge().await.expect("a reply"), left - i);
        }
    }
}

/// The server that listens on `port`.
fn on_port(sentinels: &SentinelGroup, port: u16) -> &TestRedis {
    let mut servers = sentinels.servers.iter();
    servers.find(|s| s.port() == port).expect("a server")
}

async fn wait_for_replicas(sentinels: &SentinelGroup) {
    let primary = on_port(sentinels, sentinels.primary());
    assert_eq!(primary.run_command(&["WAIT", "1", "10000"]), "1");
}

#[test]
fn a_requested_failover_is_followed() {
    let sentinels = SentinelGroup::start(1);
    on_runtime(async {
        let counter = SentinelCounter::of(store(&sentinels.url()).await);
        counter.counts_on_from(1_000).await;
        let before = sentinels.primary();
        wait_for_replicas(&sentinels).await;
        sentinels.fail_over();
        let (old, new) = (on_port(&sentinels, before), on_port(&sentinels, sentinels.primary()));
        eventually("a call to the new primary", async || counter.charge().await.is_ok() && script_calls(new) > 0).await;
        // The old server stays a primary for seconds, until the sentinels make it a replica.
        let (left, calls_before) = (counter.charge_at_last().await, script_calls(old));
        counter.counts_on_from(left).await;
        assert_eq!(script_calls(old), calls_before);
    });
}

#[test]
fn the_next_primary_is_found_when_one_is_killed() {
    let mut sentinels = SentinelGroup::start(1);
    on_runtime(async {
        let counter = SentinelCounter::of(store(&sentinels.url()).await);
        counter.counts_on_from(1_000).await;
        wait_for_replicas(&sentinels).await;
        sentinels.servers[0].kill();
        // Nothing is admitted twice meanwhile: earlier charges are still counted.
        let left = counter.charge_at_last().await;
        assert_eq!(left, 979);
        counter.counts_on_from(left).await;
    });
}

/// A frozen primary is replaced, and does not know it when it continues: it still reports itself as a primary, and
/// connections to it are still established.
#[test]
fn a_frozen_primary_is_never_used_again() {
    let sentinels = SentinelGroup::start(1);
    on_runtime(async {
        let counter = SentinelCounter::of(store(&sentinels.url()).await);
        counter.counts_on_from(1_000).await;
        wait_for_replicas(&sentinels).await;
        let old = &sentinels.servers[0];
        old.freeze();
        let mut left = counter.charge_at_last().await;
        assert_eq!(left, 979);
        old.thaw();
        counter.counts_on_from(left).await;
        // Nor by new connections, although it reports itself as a primary.
        let new = on_port(&sentinels, sentinels.primary());
        for _ in 0..5 {
            new.run_command(&["CLIENT", "KILL", "TYPE", "normal"]);
            let now = counter.charge_at_last().await;
            assert!(now < left, "{now} of {left}");
            left = now;
        }
    });
}

#[test]
fn one_sentinel_is_enough_and_the_loss_of_all_ends_no_connection() {
    let mut sentinels = SentinelGroup::start(1);
    on_runtime(async {
        let counter = SentinelCounter::of(store(&sentinels.url()).await);
        let cut = |sentinels: &SentinelGroup| {
            sentinels.servers[0].run_command(&["CLIENT", "KILL", "TYPE", "normal"]);
        };
        for dead in 0..2 {
            sentinels.kill(dead);
            cut(&sentinels);
            let left = counter.charge_on_both().await;
            counter.counts_on_from(left).await;
        }
        eventually("both connections", async || format!("{:?}", counter.store).contains("connected: 2")).await;
        sentinels.kill(2);
        let left = counter.charge_at_last().await;
        counter.counts_on_from(left).await;
        // A connection that is lost now is not replaced: no sentinel knows where the primary is.
        cut(&sentinels);
        eventually("an error of the sentinels", async || {
            let _lost = counter.charge().await;
            let redis_error = counter.store.last_error();
            redis_error.is_some_and(|redis_error| redis_error.to_string().starts_with("sentinel: "))
        })
        .await;
        assert!(matches!(counter.charge().await, Err(StoreError::Unavailable { .. })));
    });
}

#[test]
fn a_name_that_no_sentinel_knows_is_reported() {
    let sentinels = SentinelGroup::start(0);
    let url = sentinels.url().replace("/counters", "/other");
    on_runtime(async {
        let store = RedisStore::open(&RedisConfig::new(&url)).expect("an address");
        eventually("the error", async || {
            let redis_error = store.last_error();
            redis_error.is_some_and(|redis_error| redis_error.to_string().starts_with("unknown primary"))
        })
        .await;
    });
}

/// Three sentinels with the same reply.
async fn fakes(reply: FakeSentinelReply) -> Vec<FakeSentinel> {
    let mut fakes = Vec::new();
    for _ in 0..3 {
        fakes.push(FakeSentinel::start(reply.clone()).await);
    }
    fakes
}

#[test]
fn a_lying_sentinel_does_not_win_over_two_others() {
    let (right, wrong) = (TestRedis::redis7(), TestRedis::redis7());
    on_runtime(async {
        let fakes = fakes(FakeSentinelReply::Primary(right.port())).await;
        fakes[0].set_reply(FakeSentinelReply::Primary(wrong.port()));
        let counter = SentinelCounter::of(store(&url(&fakes)).await);
        counter.counts_on_from(1_000).await;
        // Neither by its publications nor for new connections.
        eventually("a subscriber", async || fakes[0].publish(right.port(), wrong.port()) > 0).await;
        counter.counts_on_from(980).await;
        right.run_command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let left = counter.charge_at_last().await;
        counter.counts_on_from(left).await;
        assert_eq!(script_calls(&wrong), 0);

        // Two that agree do win, with and without a hint: then the third one is stale.
        fakes[1].set_reply(FakeSentinelReply::Primary(wrong.port()));
        eventually("the other server", async || counter.charge().await.is_ok_and(|left| left == 999)).await;
        counter.counts_on_from(999).await;
    });
}

#[test]
fn a_single_sentinel_is_trusted() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let only = FakeSentinel::start(FakeSentinelReply::Primary(server.port())).await;
        let by_name = url(&[only]).replace("127.0.0.1", "localhost");
        let counter = SentinelCounter::of(store(&by_name).await);
        counter.counts_on_from(1_000).await;
    });
}

#[test]
fn a_server_that_reports_itself_as_a_replica_is_not_used() {
    let primary = TestRedis::redis7();
    let of = primary.port().to_string();
    let replica = TestRedis::start(RedisProgram::Redis7, &["--replicaof", "127.0.0.1", &of]);
    on_runtime(async {
        let fakes = fakes(FakeSentinelReply::Primary(replica.port())).await;
        let store = RedisStore::open(&RedisConfig::new(&url(&fakes))).expect("an address");
        eventually("the error", async || {
            let redis_error = store.last_error();
            redis_error.is_some_and(|redis_error| redis_error.code() == "no primary")
        })
        .await;
        direct(&replica, &["REPLICAOF", "NO", "ONE"]);
        let ready = tokio::time::timeout(Duration::from_secs(60), store.ready());
        ready.await.expect("a primary now");
    });
}

/// The user in `docs/redis.md`.
fn documented_user() -> Vec<String> {
    let page = include_str!("../../../../docs/redis.md");
    let mut lines = page.lines().map(str::trim);
    let recipe = lines.find(|line| line.starts_with("ACL SETUSER tidegate-sentinel "));
    let words = recipe.expect("a recipe").split_whitespace();
    words.map(|word| word.replace("PASSWORD", "pa55")).collect()
}

#[test]
fn every_sentinel_can_be_queried_with_the_documented_permissions() {
    for program in RedisProgram::ALL {
        let server = TestRedis::start(program, &[]);
        let sentinel = TestSentinel::with(program, server.port(), 1, &[]);
        let user = documented_user();
        let user: Vec<&str> = user.iter().map(String::as_str).collect();
        assert_eq!(sentinel.run_command(&user), "OK", "{program:?}");
        sentinel.run_command(&["ACL", "SETUSER", "default", "resetpass", ">other"]);
        on_runtime(async {
            let address = format!("127.0.0.1:{}/{PRIMARY_NAME}", sentinel.port);
            let login = "sentinel_user=tidegate-sentinel&sentinel_pass=pa55";
            let counter = SentinelCounter::of(store(&format!("redis+sentinel://{address}?{login}")).await);
            counter.counts_on_from(1_000).await;
            let clients = sentinel.run_command(&["-a", "other", "CLIENT", "LIST"]);
            let mut ours = clients.lines().filter(|line| line.contains("tidegate"));
            assert!(ours.any(|line| line.contains(" sub=1 ")), "{clients}");
        });
    }
}

#[test]
fn no_password_is_printed_when_a_sentinel_or_a_server_rejects_it() {
    let server = TestRedis::start(RedisProgram::Redis7, &["--requirepass", "right"]);
    on_runtime(async {
        let rejecting = FakeSentinelReply::Error("WRONGPASS planted-s3cret is wrong".to_owned());
        let [sentinels, open] = [fakes(rejecting).await, fakes(FakeSentinelReply::Primary(server.port())).await];
        for (fakes, begins) in [(sentinels, "sentinel: "), (open, "authentication failed")] {
            let url = url(&fakes).replace("//", "//u:planted-s3cret@");
            let url = format!("{url}?sentinel_user=s&sentinel_pass=planted-s3cret");
            let config = RedisConfig::new(&url);
            let store = RedisStore::open(&config).expect("an address");
            eventually("a rejection", async || {
                let redis_error = store.last_error();
                redis_error.is_some_and(|redis_error| redis_error.action() == Action::NeedsOperator)
            })
            .await;
            let redis_error = store.last_error().expect("an error");
            let text = format!("{redis_error} {redis_error:?} {store:?} {config:?}");
            assert!(text.starts_with(begins), "{text}");
            assert!(!text.contains("planted-s3cret"), "{text}");
        }
    });
}
