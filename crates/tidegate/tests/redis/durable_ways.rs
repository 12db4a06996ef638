//! Durable charges on the ways that lead to several servers: after a failover, and while slots move.

use tidegate::stores::redis::{Redis, RedisStore};
use tidegate_core::store::{PartId, Parts, Probe, Store};
use tidegate_core::subject::Fingerprint;
use tidegate_parts::{Cluster, Sentinels, Server};

use crate::durable::{Bill, REPLICA, patient, why};
use crate::{eventually, on_runtime};

/// The server that listens on `port`.
fn on_port(servers: &[Server], port: u16) -> &Server {
    let mut servers = servers.iter();
    servers.find(|s| s.port() == port).expect("a server")
}

/// How often a server was told to wait for its replicas.
fn waits(server: &Server) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let mut calls = stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    let calls = calls.next().and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn the_next_primary_is_waited_for_with_all_that_was_acknowledged() {
    let sentinels = Sentinels::start(1);
    on_runtime(async {
        let config = patient(&sentinels.url());
        let node = RedisStore::open(&config).expect("an address");
        node.ready().await;
        let bill = Bill::new(100);
        for _ in 0..20 {
            let outcome = node.charge(&bill.set(7, &REPLICA)).await;
            assert!(outcome.expect("an answer").admitted);
        }
        sentinels.fail_over();
        let next = on_port(&sentinels.servers, sentinels.primary());
        // What it has is what was acknowledged: nothing else was sent.
        let fresh = RedisStore::open(&patient(&next.url())).expect("an address");
        fresh.ready().await;
        assert_eq!(bill.used(&fresh, 7).await, 20);
        sentinels.settle();
        eventually("a charge that the other acknowledged", async || {
            node.charge(&bill.set(7, &REPLICA)).await.is_ok() && waits(next) > 1
        })
        .await;
        assert!(bill.used(&node, 7).await > 20);
    });
}

/// A node of a cluster that has met every primary.
async fn met(cluster: &Cluster) -> Redis {
    let at = cluster.servers[0].address();
    let config = patient(&format!("redis+cluster://{at}"));
    let redis = Redis::open(&config).expect("an address");
    eventually("every primary", async || redis.ids().len() == 3).await;
    for id in redis.ids() {
        redis.part(id).expect("a part").ready().await;
    }
    redis
}

fn part_of(redis: &Redis, subject: u128) -> PartId {
    redis.part_of(Fingerprint::new(subject))
}

fn store_of(redis: &Redis, subject: u128) -> RedisStore {
    redis.part(part_of(redis, subject)).expect("a part")
}

fn slot_of(redis: &Redis, subject: u128) -> u16 {
    let slot = store_of(redis, subject).slot(Fingerprint::new(subject));
    slot.expect("a slot of the part").0
}

#[test]
fn each_primary_waits_for_its_own_replicas() {
    let mut cluster = Cluster::start();
    on_runtime(async {
        let (redis, bill) = (met(&cluster).await, Bill::new(100));
        for subject in 1..60 {
            let store = store_of(&redis, subject);
            let outcome = store.charge(&bill.set(subject, &REPLICA)).await;
            assert!(outcome.expect("an answer").admitted);
        }
        let primaries = cluster.primaries();
        for (_, port) in &primaries {
            assert!(waits(on_port(&cluster.servers, *port)) > 1, "{port}");
        }
        assert_eq!(redis.unacknowledged(), None);

        // The one with the first slots loses its replica; it has nothing more to wait for.
        let (alone, of) = (primaries[0].1, primaries[0].1.to_string());
        let follows = |s: &Server| s.port() != alone && s.ask(&["ROLE"]).contains(&of);
        let replica = cluster.servers.iter().position(follows);
        cluster.servers[replica.expect("a replica")].kill();
        let alone = on_port(&cluster.servers, alone);
        eventually("the replica to be missed", async || {
            alone
                .ask(&["INFO", "replication"])
                .contains("connected_slaves:0")
        })
        .await;
        let redis = met(&cluster).await;
        let first = (1..).find(|subject| slot_of(&redis, *subject) < 5_000);
        let first = part_of(&redis, first.expect("a subject of the first primary"));
        let mut told = 0;
        for subject in 100..160 {
            let store = store_of(&redis, subject);
            let charged = store.charge(&bill.set(subject, &REPLICA)).await;
            if part_of(&redis, subject) != first {
                assert!(charged.expect("an answer").admitted);
                continue;
            }
            let said = why(charged);
            assert!(said.contains("no replica is connected"), "{said}");
            assert_eq!(bill.used(&store, subject).await, 0);
            told += 1;
        }
        assert!(told > 0 && redis.unacknowledged().is_some());
    });
}

/// A slot on its way: what the old server does not have is asked for at the new one, and waited for there.
#[test]
fn a_charge_that_is_sent_on_is_waited_for_where_it_arrives() {
    let cluster = Cluster::start();
    on_runtime(async {
        let (redis, bill) = (met(&cluster).await, Bill::new(100));
        let primaries = cluster.primaries();
        let [(from, source), (to, target), ..] = primaries.as_slice() else {
            panic!("not two primaries: {primaries:?}");
        };
        let (source, target) = (
            on_port(&cluster.servers, *source),
            on_port(&cluster.servers, *target),
        );
        let subject = (1..).find(|subject| slot_of(&redis, *subject) < 5_000);
        let subject = subject.expect("a subject of the first primary");
        let slot = slot_of(&redis, subject).to_string();
        let sets = |server: &Server, how: [&str; 2]| {
            let set = server.ask(&["CLUSTER", "SETSLOT", &slot, how[0], how[1]]);
            assert_eq!(set, "OK");
        };
        let store = store_of(&redis, subject);
        let charged = async || {
            let outcome = store.charge(&bill.set(subject, &REPLICA)).await;
            assert!(outcome.expect("an answer").admitted);
            (waits(source), waits(target))
        };
        sets(target, ["IMPORTING", from]);
        sets(source, ["MIGRATING", to]);
        let asked = charged().await;
        assert!(asked.1 > 1, "waited for {asked:?} times");
        assert!(target.ask(&["KEYS", "tg:{*"]).contains("tg:{"));
        sets(target, ["NODE", to]);
        sets(source, ["NODE", to]);
        let moved = charged().await;
        assert!(
            moved.1 > asked.1,
            "waited for {moved:?} after {asked:?} times"
        );
        let now = store_of(&redis, subject);
        assert_eq!(bill.used(&now, subject).await, 2);
        assert_eq!(redis.unacknowledged(), None);
    });
}
