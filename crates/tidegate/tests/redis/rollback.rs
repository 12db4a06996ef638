//! A server that returns with the data of an earlier moment: later refunds and settlements are missing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::stores::redis::RedisStore;
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Epoch, Heartbeat, NodeId, Outcome, Probe, Refund, Refunded, Reservations, Reserve,
    Settle, Settled, StoreError, StoreStatus, Used,
};
use tidegate_core::subject::RuleName;
use tidegate_core::units::{Cost, Nanos};
use tidegate_testkit::{RedisProgram, ShiftedClock, TestRedis};

use super::{charge, eventually, limit, on_runtime, set, store};

const LASTS: Nanos = Nanos::from_secs(600);
const AFTER_END: Duration = Duration::from_secs(601);
const ESTIMATE: u64 = 100;

/// A server with a clock that can be advanced, and a node that has charged and reserved there.
struct RollbackFixture {
    server: TestRedis,
    clock: Arc<ShiftedClock>,
    node: RedisStore,
    rule: RuleName,
    limit: Limit,
}

impl RollbackFixture {
    async fn new() -> Self {
        let clock = Arc::new(ShiftedClock::new().expect("a clock"));
        let server = TestRedis::start_with_clock(Arc::clone(&clock), RedisProgram::Redis7, &[]);
        let node = store(&server.url()).await;
        RollbackFixture {
            server,
            clock,
            node,
            rule: RuleName::new("tokens"),
            limit: limit(Algorithm::FixedWindow, 1_000),
        }
    }

    fn set(&self, cost: u64) -> ChargeSet<'_> {
        let cost = Cost::new(cost).expect("a cost");
        let charge = charge(1, &self.rule, 0, &self.limit);
        set([Charge { cost, ..charge }])
    }

    /// Sends heartbeats until one is in a later millisecond. Returns its epoch.
    async fn heartbeat(&self) -> Epoch {
        let heartbeat = Heartbeat { node: NodeId(1), restored: None };
        let mut found = Vec::new();
        eventually("two heartbeats", async || {
            found.extend(self.node.heartbeat(heartbeat).await.ok());
            let millis = |at: Nanos| at.get() / 1_000_000;
            matches!(&found[..], [first, .., last] if millis(first.at) < millis(last.at))
        })
        .await;
        found.pop().expect("a heartbeat").epoch
    }

    async fn reserve(&self, id: u128, cost: u64) -> Outcome {
        let set = self.set(cost);
        let ttl = LASTS;
        let reserved = self.node.reserve(&Reserve { id, ttl, set }).await;
        reserved.expect("an outcome")
    }

    async fn settle(&self, id: u128, made: &Outcome, used: u64) -> Settled {
        let settle = Settle {
            id,
            charged_at: made.at,
            expires_at: made.at.plus(LASTS),
            set: self.set(ESTIMATE),
            used: Used::Known([used].into_iter().collect()),
        };
        self.node.settle(&settle).await.expect("a result")
    }

    async fn refund(&self, id: u128, made: &Outcome) -> Refunded {
        self.try_refund(id, made).await.expect("a result")
    }

    async fn try_refund(&self, id: u128, made: &Outcome) -> Result<Refunded, StoreError> {
        let refund = Refund { id, charged_at: made.at, expires_at: made.at.plus(LASTS), set: self.set(1) };
        self.node.refund(&refund).await
    }

    async fn used(&self) -> u64 {
        let found = self.node.inspect(&self.set(1)).await.expect("counters");
        found[0].as_ref().map_or(0, |counter| counter.used)
    }

    fn save(&self) {
        assert_eq!(self.server.run_command(&["SAVE"]), "OK");
    }

    fn crash(&mut self) {
        self.server.kill();
        self.server.restart();
    }
}

/// A settled reservation was open again after the rollback, and its estimate was refunded. Refunds were made twice.
#[test]
fn settlements_and_refunds_since_the_snapshot_are_not_made_twice() {
    on_runtime(async {
        let mut rollback = RollbackFixture::new().await;
        let before = rollback.heartbeat().await;
        let reserved = rollback.reserve(1, ESTIMATE).await;
        let open = rollback.reserve(2, ESTIMATE).await;
        let charged = rollback.node.charge(&rollback.set(1)).await;
        let charged = charged.expect("an outcome");
        rollback.save();
        assert_eq!(rollback.settle(1, &reserved, ESTIMATE).await, Settled::Done);
        assert_eq!(rollback.refund(1, &charged).await, Refunded::Done);
        rollback.crash();

        // Nothing is refunded before a heartbeat has shown that data is lost.
        eventually("a new connection", async || {
            let result = rollback.try_refund(1, &charged).await;
            let error = result.expect_err("a refund before the first heartbeat");
            format!("{error:?}").contains("no heartbeat was acknowledged")
        })
        .await;
        assert_ne!(rollback.heartbeat().await, before);
        assert_eq!(rollback.used().await, 2 * ESTIMATE + 1, "the snapshot");
        assert_eq!(rollback.settle(1, &reserved, 0).await, Settled::Already);
        assert_eq!(rollback.settle(2, &open, 0).await, Settled::Already);
        assert_eq!(rollback.refund(1, &charged).await, Refunded::Lapsed);
        // The next reservation after their expiry refunds nothing of them.
        rollback.clock.set_ahead(AFTER_END).expect("a clock");
        rollback.reserve(3, 1).await;
        assert_eq!(rollback.used().await, 2 * ESTIMATE + 2);
    });
}

/// The opposite case: nothing lapses where nothing was lost.
#[test]
fn open_reservations_stay_open_when_a_restart_loses_nothing() {
    on_runtime(async {
        let mut rollback = RollbackFixture::new().await;
        rollback.heartbeat().await;
        let reserved = rollback.reserve(1, ESTIMATE).await;
        let abandoned = rollback.reserve(2, ESTIMATE).await;
        let charged = rollback.node.charge(&rollback.set(1)).await;
        let charged = charged.expect("an outcome");
        let before = rollback.heartbeat().await;
        rollback.save();
        rollback.crash();

        assert_ne!(rollback.heartbeat().await, before, "another run");
        assert_eq!(rollback.settle(1, &reserved, 10).await, Settled::Done);
        assert_eq!(rollback.refund(1, &charged).await, Refunded::Done);
        assert_eq!(rollback.used().await, ESTIMATE + 10);
        rollback.clock.set_ahead(AFTER_END).expect("a clock");
        rollback.reserve(3, 1).await;
        assert_eq!(rollback.used().await, 11);
        assert_eq!(rollback.settle(2, &abandoned, 0).await, Settled::Late);
    });
}

/// This node refunded nothing, but writes of other nodes may be missing from the data.
#[test]
fn a_missing_heartbeat_is_enough_to_detect_a_rollback() {
    on_runtime(async {
        let mut rollback = RollbackFixture::new().await;
        rollback.heartbeat().await;
        let reserved = rollback.reserve(1, ESTIMATE).await;
        rollback.save();
        rollback.heartbeat().await;
        rollback.crash();
        rollback.heartbeat().await;
        assert_eq!(rollback.settle(1, &reserved, 0).await, Settled::Already);
    });
}

/// The replication id changes with the first replica, and the connections stay. A node that reconnected later took that
/// for a rollback.
#[test]
fn a_first_replica_makes_nothing_lapse() {
    on_runtime(async {
        let rollback = RollbackFixture::new().await;
        rollback.heartbeat().await;
        let reserved = rollback.reserve(1, ESTIMATE).await;
        let replica = TestRedis::redis7();
        let port = rollback.server.port().to_string();
        replica.run_command(&["REPLICAOF", "127.0.0.1", &port]);
        eventually("a replica", async || {
            let replication = rollback.server.run_command(&["INFO", "replication"]);
            replication.contains("state=online")
        })
        .await;
        rollback.heartbeat().await;
        rollback.server.run_command(&["CLIENT", "KILL", "TYPE", "normal"]);
        rollback.heartbeat().await;
        assert_eq!(rollback.settle(1, &reserved, 10).await, Settled::Done);
    });
}

/// A node that was never connected to the server before is the first to find it, and has nothing to compare.
#[test]
fn a_new_node_that_comes_first_hides_no_rollback() {
    on_runtime(async {
        let mut rollback = RollbackFixture::new().await;
        rollback.heartbeat().await;
        let charged = rollback.node.charge(&rollback.set(1)).await;
        let charged = charged.expect("an outcome");
        rollback.save();
        assert_eq!(rollback.refund(1, &charged).await, Refunded::Done);
        rollback.crash();

        let newcomer = store(&rollback.server.url()).await;
        let heartbeat = Heartbeat { node: NodeId(2), restored: None };
        let found = newcomer.heartbeat(heartbeat).await.expect("a status").epoch;
        assert_ne!(rollback.heartbeat().await, found, "a new epoch");
        assert_eq!(rollback.refund(1, &charged).await, Refunded::Lapsed);
        newcomer.heartbeat(heartbeat).await.expect("a status");
        assert_eq!(newcomer.epoch(), rollback.node.epoch());
    });
}

/// A heartbeat of a node that has restored what it remembers, in a later millisecond than all earlier calls.
async fn restored(rollback: &RollbackFixture) -> StoreStatus {
    let mut last = None;
    eventually("a heartbeat in the known epoch", async || {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let heartbeat = Heartbeat { node: NodeId(1), restored: rollback.node.epoch() };
        last = rollback.node.heartbeat(heartbeat).await.ok();
        last.as_ref().map(|status| status.epoch) == heartbeat.restored && last.is_some()
    })
    .await;
    last.expect("a status")
}

/// A restart that loses nothing in the middle of a loss made the loss final: heartbeats were taken for proof that
/// unrestored counts are there.
#[test]
fn heartbeats_are_proof_only_where_everything_was_restored_before() {
    on_runtime(async {
        let mut rollback = RollbackFixture::new().await;
        restored(&rollback).await;
        restored(&rollback).await;
        rollback.save();
        rollback.crash();
        let whole = restored(&rollback).await;
        assert_ne!(whole.complete_until, Nanos::ZERO, "nothing was lost");
        assert!(whole.complete_until < whole.at);

        rollback.heartbeat().await;
        rollback.save();
        rollback.heartbeat().await;
        rollback.crash();
        rollback.heartbeat().await;
        rollback.save();
        rollback.crash();
        let amid_loss = restored(&rollback).await.complete_until;
        assert_eq!(amid_loss, Nanos::ZERO, "nothing was restored yet");

        restored(&rollback).await;
        rollback.save();
        rollback.crash();
        assert_ne!(restored(&rollback).await.complete_until, Nanos::ZERO);
    });
}
