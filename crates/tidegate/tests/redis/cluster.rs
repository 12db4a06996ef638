//! A cluster: counters are on the right primaries and stay exact while hash slots move, and each primary has an epoch
//! and failures of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::stores::redis::{Redis, RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{ChargeSet, Counters, Epoch, Heartbeat, NodeId, Probe, ShardId, Shards, Store, StoreError};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_testkit::{TestCluster, TestRedis};

use crate::keys::{documented_user, every_verb};
use crate::{charge, limit, on_runtime, set};

/// Enough subjects that each primary has many.
const SUBJECTS: std::ops::Range<u128> = 1..301;

pub(crate) fn url_of(servers: &[&TestRedis]) -> String {
    let hosts = servers.iter().map(|server| server.address().to_string());
    format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
}

/// A node that is connected to every primary.
pub(crate) async fn node(url: &str) -> Redis {
    let redis = Redis::open(&RedisConfig::new(url)).expect("an address");
    redis.ready().await;
    wait("every primary", async || {
        let shards = shards(&redis);
        let mut ready = shards.len() == 3;
        for store in shards.values() {
            ready &= store.heartbeat(heartbeat(1)).await.is_ok();
        }
        ready.then_some(())
    })
    .await;
    redis
}

/// Polls until there is a result; panics after a minute.
pub(crate) async fn wait<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn heartbeat(node: u64) -> Heartbeat {
    Heartbeat { node: NodeId(node), restored: None }
}

pub(crate) fn shard_of(redis: &Redis, subject: u128) -> ShardId {
    redis.shard_of(Fingerprint::new(subject))
}

pub(crate) fn store_of(redis: &Redis, subject: u128) -> RedisStore {
    let shard = redis.shard(shard_of(redis, subject));
    shard.expect("a shard")
}

pub(crate) fn hash_slot_of(redis: &Redis, subject: u128) -> u16 {
    let hash_slot = store_of(redis, subject).hash_slot(Fingerprint::new(subject));
    hash_slot.expect("a hash slot of the shard").0
}

fn shards(redis: &Redis) -> BTreeMap<ShardId, RedisStore> {
    let ids = redis.shard_ids().into_iter();
    ids.filter_map(|id| Some((id, redis.shard(id)?))).collect()
}

async fn epochs(redis: &Redis) -> BTreeMap<ShardId, Epoch> {
    let mut epochs = BTreeMap::new();
    for (id, store) in shards(redis) {
        epochs.insert(id, store.heartbeat(heartbeat(1)).await.expect("a status").epoch);
    }
    epochs
}

fn primaries(cluster: &TestCluster) -> Vec<&TestRedis> {
    let ports = cluster.primaries().into_iter().map(|(_, port)| port);
    let at = |port| cluster.servers.iter().find(|server| server.port() == port);
    ports.filter_map(at).collect()
}

/// The number of redirects that the servers have sent.
fn redirects(cluster: &TestCluster, kind: &str) -> u64 {
    let stats = cluster.servers.iter().map(|s| s.run_command(&["INFO", "errorstats"]));
    let wanted = format!("errorstat_{kind}:count=");
    let count = |stats: String| -> u64 {
        let mut counts = stats.lines().filter_map(|line| line.strip_prefix(&wanted));
        counts.next().map_or(0, |count| count.parse().expect("a number"))
    };
    stats.map(count).sum()
}

#[test]
fn counters_are_on_the_primaries_of_their_hash_slots() {
    let cluster = TestCluster::start();
    on_runtime(async {
        // A replica knows the map too.
        let replica = cluster.servers.iter().find(|server| {
            let role = server.run_command(&["ROLE"]);
            role.starts_with("slave")
        });
        let url = url_of(&[replica.expect("a replica")]);
        let (one, two) = (node(&url).await, node(&url).await);
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 2));
        for subject in SUBJECTS {
            let only = set([charge(subject, &rule, 0, &limit)]);
            let store = store_of(&one, subject);
            assert!(store.hash_slot(Fingerprint::new(subject)).is_some());
            assert!(store.charge(&only).await.expect("a reply").admitted);
            assert_eq!(shard_of(&one, subject), shard_of(&two, subject));
        }
        for (id, store) in shards(&two) {
            let subjects: Vec<_> = SUBJECTS.filter(|s| shard_of(&two, *s) == id).collect();
            let sets: Vec<_> = subjects.iter().map(|subject| set([charge(*subject, &rule, 0, &limit)])).collect();
            let sets: Vec<_> = sets.iter().collect();
            for outcome in store.charge_each(&sets).await {
                let outcome = outcome.expect("a reply");
                assert!(outcome.admitted && outcome.snapshots[0].existed);
            }
            let others = SUBJECTS.filter(|subject| !subjects.contains(subject));
            let none = others.map(|other| store.hash_slot(Fingerprint::new(other)));
            assert!(none.into_iter().all(|hash_slot| hash_slot.is_none()));
        }
        let each = primaries(&cluster).into_iter().map(|server| server.run_command(&["KEYS", "tg:{*"]).lines().count());
        let each: Vec<_> = each.collect();
        assert_eq!(each.iter().sum::<usize>(), SUBJECTS.count(), "{each:?}");
        assert!(each.iter().all(|count| *count > 0), "{each:?}");
        assert_eq!(redirects(&cluster, "MOVED"), 0, "the map was right");
        two_hash_slots_are_rejected(&one, &limit).await;
        one_secret(&one, &two).await;
    });
}

/// One call with keys of two hash slots is a bug of the caller; nothing is sent.
async fn two_hash_slots_are_rejected(redis: &Redis, limit: &Limit) {
    let rule = RuleName::new("api");
    let id = shard_of(redis, 1);
    let mut near = SUBJECTS.skip(1).filter(|subject| shard_of(redis, *subject) == id);
    let other = near.next().expect("another subject of the shard");
    let store = store_of(redis, 1);
    let both = set([charge(1, &rule, 0, limit), charge(other, &rule, 0, limit)]);
    for outcome in [
        store.charge(&both).await,
        store.peek(&both).await,
        store.force(&both).await,
        store.charge_each(&[&both]).await.remove(0),
    ] {
        assert!(matches!(outcome, Err(StoreError::Rejected { .. })));
    }
    assert!(matches!(store.reset(&both).await, Err(StoreError::Rejected { .. })));
}

/// The key of the secret is on one primary, whichever one a node starts from.
async fn one_secret(one: &Redis, two: &Redis) {
    let first = one.share_secret(None).await.expect("a secret");
    let second = two.share_secret(None).await.expect("a secret");
    assert_eq!(first.fingerprint_key(), second.fingerprint_key());
    one.lock();
    let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 2));
    for (_, store) in shards(one) {
        let only = set([charge(1, &rule, 0, &limit)]);
        assert!(store.peek(&only).await.is_err(), "locked");
    }
    one.share_secret(None).await.expect("a secret");
    one.unlock();
    let only = set([charge(1, &rule, 0, &limit)]);
    store_of(one, 1).peek(&only).await.expect("a reply");
}

#[test]
fn each_primary_has_an_epoch_of_its_own() {
    let cluster = TestCluster::start();
    let all: Vec<_> = cluster.servers.iter().collect();
    on_runtime(async {
        let (one, two) = (node(&url_of(&all)).await, node(&url_of(&all)).await);
        for (id, store) in shards(&two) {
            let other = one.shard(id).expect("the same shards");
            let seen = store.heartbeat(heartbeat(2)).await.expect("a status");
            let nodes: BTreeSet<_> = seen.heartbeats.iter().map(|heartbeat| heartbeat.node.0).collect();
            assert_eq!(nodes, BTreeSet::from([1, 2]));
            let known = other.heartbeat(heartbeat(1)).await.expect("a status").epoch;
            assert_eq!((known, other.epoch()), (seen.epoch, Some(seen.epoch)));
        }
        let before = epochs(&one).await;
        assert_eq!(before.len(), 3);
        assert_eq!(epochs(&two).await, before);

        let emptied = primaries(&cluster)[1];
        assert_eq!(emptied.run_command(&["FLUSHALL"]), "OK");
        let after = epochs(&one).await;
        let changed: Vec<_> = before.iter().filter(|(id, epoch)| after[*id] != **epoch).collect();
        assert_eq!(changed.len(), 1, "only the emptied one");
        assert_eq!(epochs(&two).await, after, "and nodes agree");
    });
}

/// So many that they are not used up before all hash slots have moved.
const PLENTY: u64 = 1_000_000;
/// So few that they are.
const FEW: u64 = 200;

/// A subject that is charged over and over, and the results.
struct ClusterSubject {
    id: u128,
    rules: Vec<RuleName>,
    limit: Limit,
    calls: AtomicU64,
    admitted: AtomicU64,
    /// Not decided; may have been charged.
    failed: AtomicU64,
}

impl ClusterSubject {
    /// Every other subject has records of two rules, which a script needs together.
    fn new(number: usize, id: u128) -> Arc<ClusterSubject> {
        let rules = ["api", "search"].into_iter().map(RuleName::new);
        let count = if number % 4 < 2 { FEW } else { PLENTY };
        Arc::new(ClusterSubject {
            id,
            rules: rules.take(1 + number % 2).collect(),
            limit: limit(Algorithm::FixedWindow, count),
            calls: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    fn set(&self) -> ChargeSet<'_> {
        let rules = self.rules.iter();
        set(rules.map(|rule| charge(self.id, rule, 0, &self.limit)))
    }

    /// Charges it once, on its current primary.
    async fn charge(&self, redis: &Redis) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let count = match store_of(redis, self.id).charge(&self.set()).await {
            Ok(outcome) if outcome.admitted => &self.admitted,
            Ok(_) => return,
            Err(StoreError::Unavailable { .. }) => &self.failed,
            Err(error) => panic!("{error:?}"),
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that it was allowed its limit: never more, and all of it.
    async fn check(&self, redis: &Redis) {
        let admitted = self.admitted.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        let max = self.limit.capacity();
        assert!(admitted <= max, "{admitted} of {max}");
        let full = max == FEW;
        assert_eq!(admitted + failed >= max, full, "{admitted} of {max}");
        let store = store_of(redis, self.id);
        for found in store.inspect(&self.set()).await.expect("a reply") {
            let used = found.expect("a counter").used;
            let possible = admitted..=admitted + failed;
            assert!(possible.contains(&used), "{used} used, {possible:?} expected");
        }
    }
}

/// A move without a redirect of one kind is seen once in some runs, ten of them never.
const MAX_MOVES: usize = 10;

/// While a quarter of all hash slots moves, each of many subjects is allowed exactly its limit, and nothing is lost.
#[test]
fn limits_are_exact_while_hash_slots_move() {
    let cluster = Arc::new(TestCluster::start());
    let url = url_of(&[&cluster.servers[0]]);
    on_runtime(async {
        let nodes = [node(&url).await, node(&url).await];
        let before = epochs(&nodes[0]).await;
        let moving = (1..2_000).filter(|id| hash_slot_of(&nodes[0], *id) < 4_096);
        let subjects = moving.take(60).enumerate();
        let subjects: Vec<_> = subjects.map(|(i, id)| ClusterSubject::new(i, id)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = tokio::task::JoinSet::new();
        for (subject, node) in subjects.iter().flat_map(|s| nodes.iter().map(move |n| (s, n))) {
            let (subject, node, stop) = (Arc::clone(subject), node.clone(), Arc::clone(&stop));
            clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    subject.charge(&node).await;
                    // Leaves processor time for moving the hash slots.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        for (node, number) in nodes.iter().zip(1..) {
            let (node, stop, before) = (node.clone(), Arc::clone(&stop), before.clone());
            clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    for (id, store) in shards(&node) {
                        // On a machine that stalls, a connection is given up now and then.
                        if let Ok(status) = store.heartbeat(heartbeat(number)).await {
                            assert_eq!(status.epoch, before[&id], "no loss");
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        let (began, refreshes_before) = (Instant::now(), nodes[0].topology_refreshes());
        let moves = Arc::clone(&cluster);
        // On a fast machine no charge may meet a hash slot between two servers: then they move back.
        let moved = tokio::task::spawn_blocking(move || {
            for _ in 0..MAX_MOVES {
                moves.move_hash_slots(4_096);
                if ["ASK", "MOVED"].iter().all(|kind| redirects(&moves, kind) > 0) {
                    break;
                }
            }
        });
        moved.await.expect("moved");
        let (refreshes, took) = (nodes[0].topology_refreshes() - refreshes_before, began.elapsed());
        stop.store(true, Ordering::Relaxed);
        clients.join_all().await;

        let sum = |count: fn(&ClusterSubject) -> &AtomicU64| -> u64 {
            let counts = subjects.iter().map(|s| count(s).load(Ordering::Relaxed));
            counts.sum()
        };
        let (calls, failed) = (sum(|s| &s.calls), sum(|s| &s.failed));
        println!("{calls} calls, {failed} failed, {refreshes} refreshes in {took:?}");
        for kind in ["ASK", "MOVED"] {
            let count = redirects(&cluster, kind);
            assert!(count > 0, "no {kind}: nothing was charged while it moved");
        }
        assert!(failed * 100 <= calls, "{failed} of {calls} failed");
        let max = took.as_millis() / 100 + 1;
        assert!(u128::from(refreshes) <= max, "{refreshes} refreshes, not {max}");
        for subject in &subjects {
            subject.check(&nodes[1]).await;
        }
        assert_eq!(epochs(&nodes[0]).await, before, "nothing was lost");
    });
}

/// A hash slot halfway between two primaries: records that have not moved are charged at the old one, new ones at the
/// new one, and a call that needs both waits. Afterwards at most one call is redirected.
#[test]
fn a_moving_hash_slot_is_read_where_its_keys_are() {
    let cluster = TestCluster::start();
    let primaries = cluster.primaries();
    let [(from, source), (to, target), ..] = primaries.as_slice() else {
        panic!("not two primaries: {primaries:?}");
    };
    let at = |port: u16| cluster.servers.iter().find(|server| server.port() == port);
    let (source, target) = (at(*source).expect("a server"), at(*target).expect("a server"));
    on_runtime(async {
        let redis = node(&url_of(&[source])).await;
        let mut first = (1..2_000).filter(|subject| hash_slot_of(&redis, *subject) < 5_000);
        let subject = first.next().expect("a subject of the first primary");
        let hash_slot = hash_slot_of(&redis, subject).to_string();
        let (old, new) = (RuleName::new("old"), RuleName::new("new"));
        let limit = limit(Algorithm::FixedWindow, PLENTY);
        let of = |rule| set([charge(subject, rule, 0, &limit)]);
        let both = set([&old, &new].map(|rule| charge(subject, rule, 0, &limit)));
        let store = store_of(&redis, subject);
        let was_there = async |rule| {
            let outcome = store.charge(&of(rule)).await.expect("a reply");
            outcome.snapshots[0].existed
        };
        assert!(!was_there(&old).await);
        let sets = |server: &TestRedis, how: [&str; 2]| {
            let set = server.run_command(&["CLUSTER", "SETSLOT", &hash_slot, how[0], how[1]]);
            assert_eq!(set, "OK");
        };
        sets(target, ["IMPORTING", from]);
        sets(source, ["MIGRATING", to]);

        assert!(was_there(&old).await);
        assert!(!was_there(&new).await && was_there(&new).await);
        let (old_set, new_set) = (of(&old), of(&new));
        for outcome in store.charge_each(&[&old_set, &new_set, &old_set]).await {
            let outcome = outcome.expect("a reply");
            assert!(outcome.admitted && outcome.snapshots[0].existed);
        }
        let split = store.charge(&both).await;
        assert!(matches!(split, Err(StoreError::Unavailable { .. })));
        assert!(source.run_command(&["KEYS", "tg:{*"]).ends_with("}:old"));
        assert!(target.run_command(&["KEYS", "tg:{*"]).ends_with("}:new"));
        assert_eq!(redirects(&cluster, "MOVED"), 0);
        assert_eq!(redirects(&cluster, "ASK"), 3);
        assert_eq!(redirects(&cluster, "TRYAGAIN"), 4, "three retries");

        let key = source.run_command(&["KEYS", "tg:{*"]);
        let port = target.port().to_string();
        let moved = source.run_command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        assert_eq!(moved, "OK");
        for (_, port) in [1, 0, 2].map(|i| &primaries[i]) {
            sets(at(*port).expect("a server"), ["NODE", to]);
        }
        assert!(was_there(&old).await);
        let here = Fingerprint::new(subject);
        assert_eq!(store.hash_slot(here), None, "the map is right at once");
        for _ in 0..20 {
            let store = store_of(&redis, subject);
            let outcome = store.charge(&both).await.expect("a reply");
            assert!(outcome.snapshots.iter().all(|seen| seen.existed));
        }
        let count = redirects(&cluster, "MOVED");
        assert!(count <= 1, "{count} calls were redirected");
        let used = store_of(&redis, subject).inspect(&both).await;
        let used: Vec<_> = used.expect("a reply").into_iter().flatten().collect();
        assert_eq!((used[0].used, used[1].used), (2 + 2 + 1 + 20, 2 + 1 + 20));
    });
}

/// The loss of a primary.
#[derive(Clone, Copy, PartialEq)]
enum PrimaryLoss {
    /// Its connections are reset.
    Killed,
    /// They stay, without any reply.
    Frozen,
}

fn a_replica_takes_over(loss: PrimaryLoss) {
    let mut cluster = TestCluster::start();
    for server in &cluster.servers {
        // Otherwise no primary replies until the replica has taken over.
        let set = server.run_command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        assert_eq!(set, "OK");
    }
    let url = url_of(&cluster.servers.iter().collect::<Vec<_>>());
    on_runtime(async {
        let redis = node(&url).await;
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::FixedWindow, PLENTY));
        let only = |subject| set([charge(subject, &rule, 0, &limit)]);
        let before = shards(&redis);
        let (_, port) = cluster.primaries()[0].clone();
        let mut first = (1..2_000).filter(|subject| hash_slot_of(&redis, *subject) < 5_000);
        let lost = first.next().expect("a subject of the first primary");
        let gone = shard_of(&redis, lost);
        let others: Vec<u128> = SUBJECTS.filter(|s| shard_of(&redis, *s) != gone).collect();
        store_of(&redis, lost).charge(&only(lost)).await.expect("a reply");
        // The primary replies before the replica has the write.
        let has = |server: &&TestRedis| server.run_command(&["KEYS", "tg:{*"]).contains("tg:{");
        let copies = || cluster.servers.iter().filter(has).count();
        wait("a copy", async || (copies() == 2).then_some(())).await;
        let at = cluster.servers.iter().position(|server| server.port() == port);
        let server = &mut cluster.servers[at.expect("a server")];
        match loss {
            PrimaryLoss::Killed => server.kill(),
            PrimaryLoss::Frozen => server.freeze(),
        }
        let (began, refreshes_before) = (Instant::now(), redis.topology_refreshes());
        let (mut served, mut errors) = (0, Vec::new());
        let new = wait("a replica", async || {
            for other in others.iter().take(3) {
                match store_of(&redis, *other).charge(&only(*other)).await {
                    Ok(outcome) => served += usize::from(outcome.admitted),
                    Err(error) => errors.push(error),
                }
            }
            // Only polled: a call to a frozen primary would block.
            let _ = tokio::time::timeout(Duration::from_millis(20), store_of(&redis, lost).peek(&only(lost))).await;
            Some(shard_of(&redis, lost)).filter(|shard| *shard != gone)
        })
        .await;
        // On a machine that stalls, a connection is given up now and then.
        assert!(10 * errors.len() <= served, "healthy shards served {served} calls and failed with {errors:?}");
        // Every failed call requested a refresh.
        let (refreshes, max) = (redis.topology_refreshes() - refreshes_before, began.elapsed().as_millis() / 100 + 1);
        assert!(u128::from(refreshes) <= max, "{refreshes} refreshes, not {max}");
        assert!(!before.contains_key(&new) && redis.shard(gone).is_none());
        assert_eq!(shards(&redis).len(), 3);
        let outcome = wait("the new shard", async || store_of(&redis, lost).charge(&only(lost)).await.ok()).await;
        assert!(outcome.admitted && outcome.snapshots[0].existed, "replicated");
        assert_eq!(before[&gone].hash_slot(Fingerprint::new(lost)), None);
        assert!(before[&gone].charge(&only(lost)).await.is_err());
        if loss == PrimaryLoss::Frozen {
            cluster.servers[at.expect("a server")].thaw();
            let seen = redis.topology_refreshes() + 3;
            wait("refreshes", async || {
                let _ = store_of(&redis, lost).charge(&only(lost)).await;
                (redis.topology_refreshes() >= seen).then_some(())
            })
            .await;
            assert_eq!(shard_of(&redis, lost), new, "the map of the former primary is not used");
        }
    });
}

#[test]
fn a_replica_takes_over_from_a_primary_that_died() {
    a_replica_takes_over(PrimaryLoss::Killed);
}

#[test]
fn a_replica_takes_over_from_a_primary_that_hangs() {
    a_replica_takes_over(PrimaryLoss::Frozen);
}

#[test]
fn the_documented_permissions_suffice_for_a_cluster() {
    let cluster = TestCluster::start();
    let user = documented_user();
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    for server in &cluster.servers {
        assert_eq!(server.run_command(&user), "OK");
    }
    let at = cluster.servers[0].address();
    on_runtime(async {
        let redis = node(&format!("redis+cluster://tidegate:pa55@{at}")).await;
        redis.share_secret(None).await.expect("a secret");
        for subject in 1..20 {
            every_verb(&store_of(&redis, subject), subject).await;
        }
        let text = format!("{redis:?} {:?}", store_of(&redis, 1));
        assert!(!text.contains("pa55"), "{text}");
    });
}

#[test]
fn a_server_that_is_not_a_cluster_is_reported() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let redis = Redis::open(&RedisConfig::new(&url_of(&[&server]))).expect("an address");
        let redis_error = wait("an error", async || redis.last_error()).await;
        assert!(redis_error.to_string().contains("write redis://HOST:PORT"), "{redis_error}");
        assert!(redis.shard_ids().is_empty() && redis.shard(shard_of(&redis, 1)).is_none());
        assert!(redis.share_secret(None).await.is_err());
    });
}
