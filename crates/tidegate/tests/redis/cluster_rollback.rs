//! Receipts through failovers, rollbacks and moves of hash slots: none is refunded twice, and none lapses where nothing
//! was lost.

use std::sync::Arc;

use tidegate::stores::redis::Redis;
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{Counters, HashSlot, Heartbeat, NodeId, Outcome, Probe, Refund, Refunded, Shards};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;
use tidegate_testkit::{TestCluster, TestRedis};

use crate::cluster::{hash_slot_of, node, shard_of, store_of, url_of, wait};
use crate::{charge, eventually, info, limit, on_runtime, set};

const LASTS: Nanos = Nanos::from_secs(600);
/// Hash slots of the first primary that are moved to the second.
const MOVED_HASH_SLOTS: u16 = 1_000;

/// A cluster without automatic failover, and a subject of its first primary.
struct ClusterReceipts {
    cluster: TestCluster,
    subject: u128,
    rule: RuleName,
    limit: Limit,
}

impl ClusterReceipts {
    async fn new() -> Self {
        let cluster = TestCluster::start();
        for server in &cluster.servers {
            for (name, value) in [("cluster-replica-no-failover", "yes"), ("cluster-require-full-coverage", "no")] {
                assert_eq!(server.run_command(&["CONFIG", "SET", name, value]), "OK");
            }
        }
        let mut receipts = ClusterReceipts {
            cluster,
            subject: 0,
            rule: RuleName::new("api"),
            limit: limit(Algorithm::FixedWindow, 1_000),
        };
        let node = receipts.node().await;
        let mut subjects = (1..2_000).filter(|subject| hash_slot_of(&node, *subject) < MOVED_HASH_SLOTS);
        receipts.subject = subjects.next().expect("a subject of the first primary");
        receipts
    }

    async fn node(&self) -> Redis {
        node(&url_of(&self.cluster.servers.iter().collect::<Vec<_>>())).await
    }

    async fn charge(&self, node: &Redis) -> Outcome {
        let set = set([charge(self.subject, &self.rule, 0, &self.limit)]);
        let outcome = store_of(node, self.subject).charge(&set).await;
        outcome.expect("an outcome")
    }

    async fn refund(&self, node: &Redis, id: u128, made: &Outcome) -> Refunded {
        let refund = Refund {
            id,
            charged_at: made.at,
            expires_at: made.at.plus(LASTS),
            set: set([charge(self.subject, &self.rule, 0, &self.limit)]),
        };
        let store = store_of(node, self.subject);
        store.refund(&refund).await.expect("a result")
    }

    fn index_of(&self, port: u16) -> usize {
        let mut servers = self.cluster.servers.iter();
        let index = servers.position(|server| server.port() == port);
        index.expect("a server")
    }

    /// The index of the first primary.
    fn primary(&self) -> usize {
        self.index_of(self.cluster.primaries()[0].1)
    }

    /// The index of a primary's replica.
    fn replica(&self, primary: usize) -> usize {
        let port = format!("master_port:{}\r", self.cluster.servers[primary].port());
        let follows = |server: &TestRedis| server.run_command(&["INFO", "replication"]).contains(port.trim());
        let mut servers = self.cluster.servers.iter();
        servers.position(follows).expect("a replica")
    }

    /// Waits until the replica has all writes so far.
    async fn replicate(&self, primary: usize, replica: usize) {
        let [primary, replica] = [primary, replica].map(|index| &self.cluster.servers[index]);
        let written = info(primary, "replication", "master_repl_offset");
        eventually("the replica", async || info(replica, "replication", "slave_repl_offset") >= written).await;
    }

    /// Makes `server` a primary without a vote, and waits until `node` is connected to it.
    async fn promote(&self, server: usize, node: &Redis) {
        let before = shard_of(node, self.subject);
        let promoted = self.cluster.servers[server].run_command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        assert_eq!(promoted, "OK");
        eventually("a new primary", async || shard_of(node, self.subject) != before && self.try_heartbeat(node).await)
            .await;
    }

    /// A heartbeat in a later millisecond than all earlier calls.
    async fn heartbeat(&self, node: &Redis) {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        eventually("a heartbeat", async || self.try_heartbeat(node).await).await;
    }

    async fn try_heartbeat(&self, node: &Redis) -> bool {
        let heartbeat = Heartbeat { node: NodeId(1), restored: None };
        let Some(store) = node.shard(shard_of(node, self.subject)) else {
            return false;
        };
        store.heartbeat(heartbeat).await.is_ok()
    }

    /// Moves hash slots, including that of the subject, from the first primary to the second.
    async fn move_hash_slots(self: &Arc<Self>, node: &Redis) {
        let before = shard_of(node, self.subject);
        let moving = Arc::clone(self);
        let moved = tokio::task::spawn_blocking(move || {
            moving.cluster.move_hash_slots(u32::from(MOVED_HASH_SLOTS));
        });
        moved.await.expect("moved");
        eventually("the new map", async || shard_of(node, self.subject) != before).await;
    }
}

#[test]
fn a_failover_that_loses_nothing_keeps_receipts() {
    on_runtime(async {
        let receipts = ClusterReceipts::new().await;
        let node = receipts.node().await;
        let made = receipts.charge(&node).await;
        let second = receipts.charge(&node).await;
        receipts.heartbeat(&node).await;
        let primary = receipts.primary();
        let replica = receipts.replica(primary);
        receipts.replicate(primary, replica).await;
        receipts.promote(replica, &node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Done);
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Already);
        let newcomer = receipts.node().await;
        assert_eq!(receipts.refund(&newcomer, 2, &second).await, Refunded::Done);
    });
}

/// The former primary has the charge and not the refund.
#[test]
fn a_former_primary_that_takes_over_again_refunds_nothing_twice() {
    on_runtime(async {
        let mut receipts = ClusterReceipts::new().await;
        let node = receipts.node().await;
        let made = receipts.charge(&node).await;
        receipts.heartbeat(&node).await;
        let former = receipts.primary();
        let replica = receipts.replica(former);
        receipts.replicate(former, replica).await;

        receipts.cluster.servers[former].freeze();
        receipts.promote(replica, &node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Done);
        receipts.heartbeat(&node).await;
        receipts.cluster.servers[replica].kill();
        receipts.cluster.servers[former].thaw();
        let role = || receipts.cluster.servers[former].run_command(&["ROLE"]);
        wait("a replica", async || role().starts_with("slave").then_some(())).await;
        receipts.promote(former, &node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Lapsed);
        let after = receipts.charge(&node).await;
        assert_eq!(receipts.refund(&node, 2, &after).await, Refunded::Done);
    });
}

/// Moved hash slots bring along the time since which their data is whole, also for nodes that start later.
#[test]
fn hash_slots_that_move_after_a_rollback_refund_nothing_twice() {
    on_runtime(async {
        let mut receipts = ClusterReceipts::new().await;
        let node = receipts.node().await;
        let made = receipts.charge(&node).await;
        let primary = receipts.primary();
        receipts.heartbeat(&node).await;
        let server = &mut receipts.cluster.servers[primary];
        assert_eq!(server.run_command(&["SAVE"]), "OK");
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Done);
        receipts.heartbeat(&node).await;
        let server = &mut receipts.cluster.servers[primary];
        server.kill();
        server.restart();
        receipts.heartbeat(&node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Lapsed);
        let after = receipts.charge(&node).await;
        let second = receipts.charge(&node).await;

        let receipts = Arc::new(receipts);
        receipts.move_hash_slots(&node).await;
        receipts.heartbeat(&node).await;
        let newcomer = receipts.node().await;
        for (node, id, live) in [(&node, 2, &after), (&newcomer, 3, &second)] {
            assert_eq!(receipts.refund(node, 1, &made).await, Refunded::Lapsed);
            assert_eq!(receipts.refund(node, id, live).await, Refunded::Done);
        }
    });
}

/// Counts that a node has not restored where they were lost, it must restore where the hash slots go.
#[test]
fn hash_slots_that_move_before_they_are_restored_may_lack_counts() {
    on_runtime(async {
        let receipts = Arc::new(ClusterReceipts::new().await);
        let node = receipts.node().await;
        receipts.charge(&node).await;
        receipts.heartbeat(&node).await;
        receipts.move_hash_slots(&node).await;
        let store = store_of(&node, receipts.subject);
        let lacking = store.take_incomplete_hash_slots();
        assert!(lacking.contains(&HashSlot(hash_slot_of(&node, receipts.subject))));
        assert_eq!(store.take_incomplete_hash_slots(), [], "once");
    });
}

/// For two seconds a restarted primary replies only that the cluster is down, and no node knows its loss.
#[test]
fn hash_slots_that_leave_a_primary_before_its_loss_is_known_refund_nothing_twice() {
    on_runtime(async {
        let mut receipts = ClusterReceipts::new().await;
        let node = receipts.node().await;
        let made = receipts.charge(&node).await;
        receipts.heartbeat(&node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Done);
        let primary = receipts.primary();
        let server = &mut receipts.cluster.servers[primary];
        server.kill();
        server.restart();
        let receipts = Arc::new(receipts);
        receipts.move_hash_slots(&node).await;
        receipts.heartbeat(&node).await;
        assert_eq!(receipts.refund(&node, 1, &made).await, Refunded::Lapsed);
        let after = receipts.charge(&node).await;
        assert_eq!(receipts.refund(&node, 2, &after).await, Refunded::Done);
    });
}
