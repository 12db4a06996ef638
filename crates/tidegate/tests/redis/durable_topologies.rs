//! Durable charges on several servers: after a failover, and while hash slots move.

use tidegate::stores::redis::{Redis, RedisStore};
use tidegate_core::store::{Counters, Probe, ShardId, Shards};
use tidegate_core::subject::Fingerprint;
use tidegate_testkit::{SentinelGroup, TestCluster, TestRedis};

use crate::durable::{BillingRule, REPLICA, patient, unacknowledged_reason};
use crate::{eventually, on_runtime};

/// The server that listens on `port`.
fn on_port(servers: &[TestRedis], port: u16) -> &TestRedis {
    let mut servers = servers.iter();
    servers.find(|s| s.port() == port).expect("a server")
}

/// The number of `WAIT` commands that a server has received.
fn waits(server: &TestRedis) -> u64 {
    let stats = server.run_command(&["INFO", "commandstats"]);
    let mut calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    let calls = calls.next().and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn the_next_primary_has_all_acknowledged_charges_and_is_waited_for() {
    let sentinels = SentinelGroup::start(1);
    on_runtime(async {
        let config = patient(&sentinels.url());
        let node = RedisStore::open(&config).expect("an address");
        node.ready().await;
        let bill = BillingRule::new(100);
        for _ in 0..20 {
            let outcome = node.charge(&bill.set(7, &REPLICA)).await;
            assert!(outcome.expect("a reply").admitted);
        }
        sentinels.fail_over();
        let next = on_port(&sentinels.servers, sentinels.primary());
        // It has exactly the acknowledged charges: nothing else was sent.
        let fresh = RedisStore::open(&patient(&next.url())).expect("an address");
        fresh.ready().await;
        assert_eq!(bill.used(&fresh, 7).await, 20);
        sentinels.wait_until_stable();
        eventually("a charge that the other server acknowledged", async || {
            node.charge(&bill.set(7, &REPLICA)).await.is_ok() && waits(next) > 1
        })
        .await;
        assert!(bill.used(&node, 7).await > 20);
    });
}

/// A node that is connected to every primary of the cluster.
async fn connected_redis(cluster: &TestCluster) -> Redis {
    let at = cluster.servers[0].address();
    let config = patient(&format!("redis+cluster://{at}"));
    let redis = Redis::open(&config).expect("an address");
    eventually("every primary", async || redis.shard_ids().len() == 3).await;
    for id in redis.shard_ids() {
        redis.shard(id).expect("a shard").ready().await;
    }
    redis
}

fn shard_of(redis: &Redis, subject: u128) -> ShardId {
    redis.shard_of(Fingerprint::new(subject))
}

fn store_of(redis: &Redis, subject: u128) -> RedisStore {
    redis.shard(shard_of(redis, subject)).expect("a shard")
}

fn hash_slot_of(redis: &Redis, subject: u128) -> u16 {
    let hash_slot = store_of(redis, subject).hash_slot(Fingerprint::new(subject));
    hash_slot.expect("a hash slot of the shard").0
}

#[test]
fn each_primary_waits_for_its_own_replicas() {
    let mut cluster = TestCluster::start();
    on_runtime(async {
        let (redis, bill) = (connected_redis(&cluster).await, BillingRule::new(100));
        for subject in 1..60 {
            let store = store_of(&redis, subject);
            let outcome = store.charge(&bill.set(subject, &REPLICA)).await;
            assert!(outcome.expect("a reply").admitted);
        }
        let primaries = cluster.primaries();
        for (_, port) in &primaries {
            assert!(waits(on_port(&cluster.servers, *port)) > 1, "{port}");
        }
        assert_eq!(redis.unacknowledged(), None);

        // The primary of the first hash slots loses its replica, so no replica can acknowledge.
        let (alone, of) = (primaries[0].1, primaries[0].1.to_string());
        let follows = |s: &TestRedis| s.port() != alone && s.run_command(&["ROLE"]).contains(&of);
        let replica = cluster.servers.iter().position(follows);
        cluster.servers[replica.expect("a replica")].kill();
        let alone = on_port(&cluster.servers, alone);
        eventually("the replica to be missed", async || {
            alone.run_command(&["INFO", "replication"]).contains("connected_slaves:0")
        })
        .await;
        let redis = connected_redis(&cluster).await;
        let first = (1..).find(|subject| hash_slot_of(&redis, *subject) < 5_000);
        let first = shard_of(&redis, first.expect("a subject of the first primary"));
        let mut rejected = 0;
        for subject in 100..160 {
            let store = store_of(&redis, subject);
            let charged = store.charge(&bill.set(subject, &REPLICA)).await;
            if shard_of(&redis, subject) != first {
                assert!(charged.expect("a reply").admitted);
                continue;
            }
            let reason = unacknowledged_reason(charged);
            assert!(reason.contains("no replica is connected"), "{reason}");
            assert_eq!(bill.used(&store, subject).await, 0);
            rejected += 1;
        }
        assert!(rejected > 0 && redis.unacknowledged().is_some());
    });
}

/// A moving hash slot: a call for a record that the old server lacks is redirected to the new one, and waits there.
#[test]
fn a_redirected_charge_waits_on_the_server_that_runs_it() {
    let cluster = TestCluster::start();
    on_runtime(async {
        let (redis, bill) = (connected_redis(&cluster).await, BillingRule::new(100));
        let primaries = cluster.primaries();
        let [(from, source), (to, target), ..] = primaries.as_slice() else {
            panic!("not two primaries: {primaries:?}");
        };
        let (source, target) = (on_port(&cluster.servers, *source), on_port(&cluster.servers, *target));
        let subject = (1..).find(|subject| hash_slot_of(&redis, *subject) < 5_000);
        let subject = subject.expect("a subject of the first primary");
        let hash_slot = hash_slot_of(&redis, subject).to_string();
        let sets = |server: &TestRedis, how: [&str; 2]| {
            let set = server.run_command(&["CLUSTER", "SETSLOT", &hash_slot, how[0], how[1]]);
            assert_eq!(set, "OK");
        };
        let store = store_of(&redis, subject);
        let charged = async || {
            let outcome = store.charge(&bill.set(subject, &REPLICA)).await;
            assert!(outcome.expect("a reply").admitted);
            (waits(source), waits(target))
        };
        sets(target, ["IMPORTING", from]);
        sets(source, ["MIGRATING", to]);
        let moving = charged().await;
        assert!(moving.1 > 1, "waited for {moving:?} times");
        assert!(target.run_command(&["KEYS", "tg:{*"]).contains("tg:{"));
        sets(target, ["NODE", to]);
        sets(source, ["NODE", to]);
        let moved = charged().await;
        assert!(moved.1 > moving.1, "waited for {moved:?} after {moving:?} times");
        let now = store_of(&redis, subject);
        assert_eq!(bill.used(&now, subject).await, 2);
        assert_eq!(redis.unacknowledged(), None);
    });
}
