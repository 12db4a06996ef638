//! A connection that loses replies and continues: no call may use the reply of another.
//!
//! A proxy that drops replies for a while and then forwards again shifts the replies of a connection: each later reply
//! arrives one or more calls too early. Such replies were used, and the connection stayed in use for as long as
//! requests kept coming, because a ping accepted any reply as its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::stores::redis::{Redis, RedisConfig, RedisStore, SecretError};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{Counters, ShardId, Shards};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Cost;
use tidegate_testkit::{FaultProxy, ProxyFault, TestRedis};
use tokio::task::JoinSet;

use crate::fake_server::{FakeBehaviour, FakeRedis};
use crate::{charge, eventually, limit, on_runtime, redis, set, store};

const CLIENTS: u64 = 40;
/// Client `i` has used `i` times as much, so what remains after a charge identifies the client.
const APART: u64 = 100;
const LIMIT: u64 = 2 * CLIENTS * APART;

struct MismatchClients {
    rule: RuleName,
    limit: Limit,
}

impl MismatchClients {
    async fn new(algorithm: Algorithm, direct: &RedisStore) -> Arc<Self> {
        let (rule, limit) = (RuleName::new("api"), limit(algorithm, LIMIT));
        let clients = MismatchClients { rule, limit };
        for client in 1..=CLIENTS {
            let used = clients.charge(direct, client, client * APART).await;
            assert_eq!(used, Some(LIMIT - client * APART));
        }
        Arc::new(clients)
    }

    /// What remains after one charge, if its reply is used.
    async fn charge(&self, store: &RedisStore, client: u64, cost: u64) -> Option<u64> {
        let mut charge = charge(u128::from(client), &self.rule, 0, &self.limit);
        charge.cost = Cost::new(cost).expect("a cost");
        let outcome = store.charge(&set([charge])).await.ok()?;
        Some(outcome.readings[0].figures.remaining)
    }

    /// Charges every client once, all at the same time. A reply that is used must be the client's own.
    async fn charge_all(self: &Arc<Self>, store: &RedisStore) {
        let mut charges = JoinSet::new();
        for client in 1..=CLIENTS {
            let (clients, store) = (Arc::clone(self), store.clone());
            charges.spawn(async move { (client, clients.charge(&store, client, 1).await) });
        }
        for (client, left) in charges.join_all().await {
            let max = LIMIT - client * APART;
            assert!(
                left.is_none_or(|left| (max - APART..max).contains(&left)),
                "client {client} has at most {max} left, but the reply has {left:?}"
            );
        }
    }
}

/// One connection through the proxy. Calls time out long before a ping does.
async fn config(server: &TestRedis) -> (FaultProxy, RedisConfig) {
    let proxy = FaultProxy::new(server.address()).await.expect("a port");
    let mut config = RedisConfig::new(&format!("redis://{}", proxy.address()));
    config.connections = 1;
    config.reply_timeout = Duration::from_millis(100);
    (proxy, config)
}

/// Drops the reply to a call, and to pings sent meanwhile.
async fn drop_reply(proxy: &FaultProxy, call: impl Future<Output = bool>) {
    let muted = proxy.muted();
    proxy.set(ProxyFault::Mute);
    assert!(!call.await, "there was a reply");
    eventually("a reply that is dropped", async || proxy.muted() > muted).await;
    proxy.set(ProxyFault::None);
}

#[test]
fn no_charge_uses_the_reply_of_another() {
    let server = TestRedis::redis7();
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::SlidingLog] {
        on_runtime(async {
            server.run_command(&["FLUSHALL"]);
            let clients = MismatchClients::new(algorithm, &store(&server.url()).await).await;
            let (proxy, config) = config(&server).await;
            let store = RedisStore::open(&config).expect("an address");
            for _ in 0..5 {
                let is_serving = async || clients.charge(&store, 1, 1).await.is_some();
                eventually("a reply", is_serving).await;
                let accepted = proxy.accepted();
                drop_reply(&proxy, is_serving()).await;
                // A stream of requests kept the mismatched connection in use.
                eventually("another connection", async || {
                    clients.charge_all(&store).await;
                    proxy.accepted() > accepted
                })
                .await;
            }
        });
    }
}

/// A node took the reply to a charge for the secret, and reported that another program had written it.
#[test]
fn no_plain_command_uses_the_reply_of_another() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let secret = redis(&server.url()).await.share_secret(None).await;
        let secret = secret.expect("a secret").to_hex();
        let (proxy, config) = config(&server).await;
        let shared = Redis::open(&config).expect("an address");
        let store = shared.shard(ShardId(0)).expect("one server");
        let clients = MismatchClients::new(Algorithm::FixedWindow, &crate::store(&server.url()).await).await;
        for _ in 0..5 {
            let is_serving = async || clients.charge(&store, 1, 1).await.is_some();
            eventually("a reply", is_serving).await;
            drop_reply(&proxy, is_serving()).await;
            eventually("the secret", async || {
                let (found, ()) = tokio::join!(shared.share_secret(None), clients.charge_all(&store));
                match found {
                    Ok(found) => {
                        assert_eq!(found.to_hex(), secret);
                        true
                    }
                    Err(SecretError::Store(_)) => false,
                    Err(other) => panic!("a reply of another call was used: {other}"),
                }
            })
            .await;
        }
    });
}

/// The check of the secret waited for its timeout on a connection that was replaced long before, and then reported a
/// failure of a store that served again.
#[test]
fn a_plain_command_fails_when_its_connection_is_replaced() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let (proxy, mut config) = config(&server).await;
        config.reply_timeout = Duration::from_secs(3_600);
        let shared = Redis::open(&config).expect("an address");
        shared.share_secret(None).await.expect_err("no connection yet");
        shared.ready().await;
        shared.share_secret(None).await.expect("a secret");
        proxy.drop_silently();
        shared.share_secret(None).await.expect_err("a dead connection");
        eventually("a reply", async || shared.share_secret(None).await.is_ok()).await;
    });
}

/// The first ping with the reply of another call ends the connection, also where nothing else is sent.
#[test]
fn a_ping_that_gets_another_reply_ends_the_connection() {
    on_runtime(async {
        let fake = FakeRedis::start(FakeBehaviour::OtherId).await;
        let mut config = RedisConfig::new(&fake.url);
        config.connections = 1;
        let _store = RedisStore::open(&config).expect("an address");
        eventually("a third connection", async || fake.opened.load(Ordering::SeqCst) >= 3).await;
    });
}
