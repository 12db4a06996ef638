//! Durable charges: killed primaries, missing and frozen replicas, servers without support.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidegate::resilience::{
    LocalAdmissions, PendingLimit, PendingUnits, ResilienceSettings, StoreEvent, Watcher, resilient,
};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Degraded, Durability, Heartbeat, NodeId, OnStoreFailure, Probe, Refund, Refunded,
    Reservations, Reserve, RuleOptions, Source, Store, StoreError,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;
use tidegate_testkit::{RedisProgram, TestRedis, free_port};

use crate::{charge, direct, eventually, info, limit, on_runtime, set};

/// A budget that a slow machine does not exceed.
pub(crate) const REPLICA: RuleOptions =
    RuleOptions { durability: Durability::Replica, budget: Some(Nanos::from_secs(30)), ..RuleOptions::DEFAULT };
const AOF: RuleOptions = RuleOptions { durability: Durability::ReplicaAof, ..REPLICA };
/// Every write is on disk before its reply; otherwise it would be within a second.
const ON_DISK: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A primary that syncs a new replica without delay.
fn primary(program: RedisProgram, options: &[&str]) -> TestRedis {
    let options = [&["--repl-diskless-sync-delay", "0"], options].concat();
    TestRedis::start(program, &options)
}

/// A replica that is in sync.
fn replica_of(primary: &TestRedis, program: RedisProgram, options: &[&str]) -> TestRedis {
    let port = primary.port().to_string();
    let options = [&["--replicaof", "127.0.0.1", &port], options].concat();
    let replica = TestRedis::start_on(free_port(), program, &options);
    // It is `online` before the primary sends it anything: after a diskless sync that begins with its first
    // acknowledgement, up to a second later.
    until("a replica", || {
        primary.run_command(&["PUBLISH", "replicated", ""]);
        let state = primary.run_command(&["INFO", "replication"]);
        state.contains("state=online") && !state.contains(",offset=0,")
    });
    replica
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        sleep(Duration::from_millis(10));
    }
}

/// A store with a reply timeout that a slow machine does not exceed.
pub(crate) fn patient(url: &str) -> RedisConfig {
    RedisConfig { reply_timeout: Duration::from_secs(30), ..RedisConfig::new(url) }
}

async fn store(url: &str) -> RedisStore {
    let store = RedisStore::open(&patient(url)).expect("an address");
    store.ready().await;
    store
}

pub(crate) struct BillingRule {
    rule: RuleName,
    limit: Limit,
}

impl BillingRule {
    pub(crate) fn new(count: u64) -> Self {
        BillingRule { rule: RuleName::new("bills"), limit: limit(Algorithm::FixedWindow, count) }
    }

    pub(crate) fn set<'s>(&'s self, subject: u128, options: &'s RuleOptions) -> ChargeSet<'s> {
        let charge = charge(subject, &self.rule, 0, &self.limit);
        set([Charge { options, ..charge }])
    }

    pub(crate) async fn used(&self, store: &RedisStore, subject: u128) -> u64 {
        let found = store.inspect(&self.set(subject, &REPLICA)).await;
        found.expect("a reply")[0].map_or(0, |found| found.used)
    }
}

pub(crate) fn unacknowledged_reason(result: Result<impl std::fmt::Debug, StoreError>) -> String {
    let error = result.expect_err("not durable");
    assert!(error.is_unacknowledged(), "{error:?}");
    std::error::Error::source(&error).expect("a reason").to_string()
}

/// One round: charges from many tasks, then the primary is killed.
async fn primary_lost(round: u64) {
    let program = [RedisProgram::Redis7, RedisProgram::Redis8, RedisProgram::Valkey9][round as usize % 3];
    let mut primary = primary(program, &[]);
    let replica = replica_of(&primary, program, &[]);
    let (bill, node) = (Arc::new(BillingRule::new(1_000_000)), store(&primary.url()).await);
    let (acknowledged, doubtful) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (bill, node) = (Arc::clone(&bill), node.clone());
        let (acknowledged, doubtful) = (Arc::clone(&acknowledged), Arc::clone(&doubtful));
        clients.spawn(async move {
            while node.charge(&bill.set(7, &REPLICA)).await.is_ok_and(|outcome| outcome.degraded.is_none()) {
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            doubtful.fetch_add(1, Ordering::SeqCst);
        });
    }
    while acknowledged.load(Ordering::SeqCst) < 100 + 37 * round {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    primary.kill();
    clients.join_all().await;
    drop(node);
    replica.run_command(&["REPLICAOF", "NO", "ONE"]);
    let used = bill.used(&store(&replica.url()).await, 7).await;
    let (acknowledged, doubtful) = (acknowledged.load(Ordering::SeqCst), doubtful.load(Ordering::SeqCst));
    assert!(used >= acknowledged, "round {round}: {used} of {acknowledged} are there");
    assert!(used <= acknowledged + doubtful, "round {round}: {used} for {acknowledged} and {doubtful}");
}

#[test]
fn acknowledged_charges_are_there_when_the_replica_takes_over() {
    for round in 0..10 {
        on_runtime(primary_lost(round));
    }
}

#[test]
fn charges_on_disk_are_there_when_both_servers_have_crashed() {
    for program in [RedisProgram::Redis8, RedisProgram::Valkey9] {
        let mut primary = primary(program, &ON_DISK);
        let mut replica = replica_of(&primary, program, &ON_DISK);
        on_runtime(async {
            let (bill, node) = (BillingRule::new(100), store(&primary.url()).await);
            for _ in 0..20 {
                let outcome = node.charge(&bill.set(7, &AOF)).await.expect("a reply");
                assert!(outcome.admitted && outcome.source == Source::Exact);
            }
            replica.kill();
            primary.kill();
            primary.restart();
            let node = store(&primary.url()).await;
            assert_eq!(bill.used(&node, 7).await, 20, "{program:?}");
        });
    }
}

#[test]
fn a_list_is_sent_in_one_pipeline_with_one_wait_and_refunds_and_debts_wait_too() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let _replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    let waits = || info(&primary, "commandstats", "cmdstat_wait:calls=");
    on_runtime(async {
        let (bill, node) = (BillingRule::new(100), store(&primary.url()).await);
        let sets: Vec<ChargeSet<'_>> = (0..50).map(|i| bill.set(i, &REPLICA)).collect();
        let outcomes = node.charge_each(&sets.iter().collect::<Vec<_>>()).await;
        assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(|o| o.admitted)));
        assert_eq!(waits(), 2, "one to check support, one for the list");
        let at = outcomes[1].as_ref().expect("a reply").at;
        let refund =
            Refund { id: 3, charged_at: at, expires_at: at.plus(Nanos::from_secs(60)), set: bill.set(1, &REPLICA) };
        assert_eq!(node.refund(&refund).await.expect("a reply"), Refunded::Done);
        assert_eq!((waits(), bill.used(&node, 1).await), (3, 0));
        node.force(&bill.set(2, &REPLICA)).await.expect("a reply");
        assert_eq!((waits(), bill.used(&node, 2).await), (4, 2));
        node.charge(&bill.set(3, &RuleOptions::DEFAULT)).await.expect("a reply");
        assert_eq!(waits(), 4, "other charges do not wait");
    });
}

#[test]
fn missing_support_is_reported_and_nothing_is_charged() {
    let check = |server: &TestRedis, options: &RuleOptions, want: &str| {
        on_runtime(async {
            let (bill, node) = (BillingRule::new(100), store(&server.url()).await);
            for _ in 0..3 {
                let reason = unacknowledged_reason(node.charge(&bill.set(7, options)).await);
                assert!(reason.contains(want), "{reason}");
            }
            let current_reason = node.unacknowledged().expect("a reason").to_string();
            assert!(current_reason.contains(want), "{current_reason}");
            assert_eq!(bill.used(&node, 7).await, 0);
            let plain = node.charge(&bill.set(8, &RuleOptions::DEFAULT)).await;
            assert!(plain.expect("a reply").admitted, "others are served");
        });
    };
    let old = primary(RedisProgram::Redis7, &[]);
    check(&old, &REPLICA, "no replica is connected; connect one");
    check(&old, &AOF, "does not know WAITAOF");
    let new = primary(RedisProgram::Valkey9, &[]);
    check(&new, &AOF, "set `appendonly yes`");
}

#[test]
fn a_replica_without_an_append_only_file_is_reported_as_such() {
    let primary = primary(RedisProgram::Redis8, &ON_DISK);
    let _replica = replica_of(&primary, RedisProgram::Redis8, &[]);
    on_runtime(async {
        let (bill, node) = (BillingRule::new(100), store(&primary.url()).await);
        let options = RuleOptions { budget: Some(Nanos::from_millis(200)), ..AOF };
        let outcome = node.charge(&bill.set(7, &options)).await.expect("it is charged");
        assert_eq!(outcome.degraded, Some(Degraded::NotDurable));
        let reason = node.unacknowledged().expect("a reason").to_string();
        assert!(reason.contains("no replica had it on its disk"), "{reason}");
    });
}

#[test]
fn a_denial_need_not_be_durable_and_a_new_replica_is_noticed() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let mut replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    on_runtime(async {
        let (bill, node) = (BillingRule::new(1), store(&primary.url()).await);
        assert!(node.charge(&bill.set(7, &REPLICA)).await.expect("a reply").admitted);
        replica.kill();
        until("the replica to be missed", || {
            primary.run_command(&["INFO", "replication"]).contains("connected_slaves:0")
        });
        // Sent before the missing replica is known; its wait must not take long.
        let options = RuleOptions { budget: Some(Nanos::from_millis(200)), ..REPLICA };
        let denied = node.charge(&bill.set(7, &options)).await.expect("a reply");
        assert!(!denied.admitted);
        let reason = unacknowledged_reason(node.charge(&bill.set(8, &options)).await);
        assert!(reason.contains("no replica is connected"), "{reason}");
        replica.restart();
        let deadline = Instant::now() + Duration::from_secs(60);
        while node.charge(&bill.set(8, &options)).await.is_err() {
            assert!(Instant::now() < deadline, "the replica was never noticed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.unacknowledged(), None);
    });
}

/// A new connection gave a replica one millisecond to acknowledge earlier writes. Where that was too short, durable
/// rules were decided without the store, and the log blamed a replica that was healthy.
#[test]
fn a_replica_that_takes_a_moment_is_waited_for_on_a_new_connection() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    on_runtime(async {
        let (bill, node) = (Arc::new(BillingRule::new(100)), store(&primary.url()).await);
        replica.freeze();
        primary.run_command(&["SET", "other", "1"]); // which the replica has not acknowledged
        let charging = tokio::spawn(async move { node.charge(&bill.set(7, &REPLICA)).await });
        while !charging.is_finished() && info(&primary, "clients", "blocked_clients:") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        replica.thaw();
        let outcome = charging.await.expect("no panic");
        assert!(outcome.expect("it is acknowledged").admitted);
    });
}

/// Scripts that the server has lost are sent again on durable connections too.
#[test]
fn lost_scripts_are_sent_again_and_charge_once() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let _replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    on_runtime(async {
        let (bill, node) = (BillingRule::new(100), store(&primary.url()).await);
        for _ in 0..5 {
            node.charge(&bill.set(7, &REPLICA)).await.expect("a reply");
            direct(&primary, &["SCRIPT", "FLUSH"]);
        }
        assert_eq!(bill.used(&node, 7).await, 5);
    });
}

/// A durable rule is decided without its frozen replica, other rules by the store as usual.
#[test]
fn with_a_frozen_replica_durable_rules_fall_back_and_no_others() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bare = store(&primary.url()).await;
        let settings = ResilienceSettings { budget: Nanos::from_secs(20), ..ResilienceSettings::default() };
        let opened = Arc::new(AtomicBool::new(false));
        let (exact, seen) = (Arc::new(AtomicBool::new(false)), Arc::clone(&opened));
        let is_exact = Arc::clone(&exact);
        let node = resilient(
            bare,
            TokioRuntime::new().expect("randomness"),
            settings,
            Arc::new(move |event| match event {
                StoreEvent::Exact => is_exact.store(true, Ordering::SeqCst),
                StoreEvent::BreakerOpened { .. } => seen.store(true, Ordering::SeqCst),
                _ => {}
            }),
        );
        while !exact.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let bill = BillingRule::new(10_000);
        let options = RuleOptions { budget: Some(Nanos::from_secs(1)), ..REPLICA };
        let outcome = async |subject: u128, options: &RuleOptions| {
            let outcome = node.charge(&bill.set(subject, options)).await.expect("none fails");
            (outcome.source, outcome.degraded)
        };
        let decide = async |subject: u128, options: &RuleOptions| outcome(subject, options).await.0;
        // Each with a counter of its own: one that was decided locally stays local until its charge is written back.
        let mut subject = 1_000;
        let mut exact_soon = async || {
            let deadline = Instant::now() + Duration::from_secs(60);
            while decide(subject, &options).await != Source::Exact {
                assert!(Instant::now() < deadline, "durable rules are never exact");
                subject += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        exact_soon().await;
        replica.freeze();
        // The first is charged before the node knows; nothing durable is sent after it.
        assert_eq!(outcome(99, &options).await, (Source::Exact, Some(Degraded::NotDurable)));
        for i in 0..40 {
            assert_eq!(decide(100 + i, &options).await, Source::Fallback);
            assert_eq!(decide(2, &RuleOptions::DEFAULT).await, Source::Exact);
        }
        assert!(!opened.load(Ordering::SeqCst), "the store itself is healthy");
        replica.thaw();
        exact_soon().await;
    });
}

/// Every unit whose acknowledgement was late was charged by its decision, and once more by its write-back. Where each
/// push was acknowledged late too, its units were charged again without end.
#[test]
fn a_unit_that_is_acknowledged_late_is_charged_once() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bare = store(&primary.url()).await;
        let settings = ResilienceSettings { budget: Nanos::from_secs(20), ..ResilienceSettings::default() };
        let (exact, is_exact) = watch_exact();
        let node = resilient(bare.clone(), TokioRuntime::new().expect("randomness"), settings, is_exact);
        until_true(&exact).await;
        let (bill, late) = (BillingRule::new(10_000), RuleOptions { budget: Some(Nanos::from_secs(1)), ..REPLICA });
        assert!(node.charge(&bill.set(1, &late)).await.expect("a reply").admitted);
        replica.freeze();
        // The first is charged and not acknowledged; the store is not called for the second.
        for subject in [7, 8] {
            assert!(node.charge(&bill.set(subject, &late)).await.expect("a reply").admitted);
        }
        replica.thaw();
        eventually("every pending unit", async || {
            let pending = node.local_admissions().units;
            pending.iter().all(|units| units.units == 0)
        })
        .await;
        for subject in [1, 7, 8] {
            assert_eq!(bill.used(&bare, subject).await, 1, "{subject}");
        }
    });
}

/// A push waited no longer than a second, and one that was acknowledged later, or not within the budget of its rule,
/// charged its units again and again.
#[test]
fn a_push_that_is_acknowledged_late_charges_its_units_once() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        for (subject, budget) in [(7, Nanos::from_millis(200)), (8, Nanos::from_secs(3))] {
            let bare = store(&primary.url()).await;
            let settings = ResilienceSettings { budget: Nanos::from_secs(20), ..ResilienceSettings::default() };
            let (exact, is_exact) = watch_exact();
            let node = resilient(bare.clone(), TokioRuntime::new().expect("randomness"), settings, is_exact);
            until_true(&exact).await;
            let (bill, late) = (BillingRule::new(10_000), RuleOptions { budget: Some(budget), ..REPLICA });
            assert_eq!(node.charge(&bill.set(1, &REPLICA)).await.expect("a reply").degraded, None);
            let at = node.peek(&bill.set(1, &REPLICA)).await.expect("a reply").at;
            replica.freeze();
            let limit = PendingLimit {
                tag: 0,
                algorithm: Algorithm::FixedWindow,
                count: 1,
                per: Nanos::from_secs(1),
                capacity: 1,
            };
            let (subject_of, rule) = (Fingerprint::new(subject), bill.rule.clone());
            let units =
                PendingUnits { subject: subject_of, rule, rate: 0, limit, units: 5, at, shared: 5, shared_at: at };
            let admissions = LocalAdmissions { units: vec![units], ..LocalAdmissions::default() };
            let limit_of = |_: &PendingUnits| Some((bill.limit.clone(), late));
            node.restore_local_admissions(&admissions, limit_of, |_| late);
            eventually("a push", async || node.local_admissions().units.iter().all(|units| units.units == 0)).await;
            assert_eq!(bill.used(&bare, subject).await, 5, "{budget}");
            replica.thaw();
            eventually("an acknowledgement", async || bare.unacknowledged().is_none()).await;
            assert_eq!(bill.used(&bare, subject).await, 5, "{budget}");
        }
    });
}

/// A charge that is made and not acknowledged in time was an error, like one that was not made.
#[test]
fn what_is_charged_without_an_acknowledgement_is_a_result_and_says_so() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    on_runtime(async {
        let (bill, late) = (BillingRule::new(100), RuleOptions { budget: Some(Nanos::from_millis(500)), ..REPLICA });
        for (subject, verb) in (1..).zip(["charge", "list", "force", "reserve"]) {
            // A store of its own, because nothing is sent until the write is acknowledged.
            let node = store(&primary.url()).await;
            node.heartbeat(Heartbeat { node: NodeId(1), restored: None }).await.expect("a status");
            node.charge(&bill.set(100 + subject, &REPLICA)).await.expect("it is acknowledged");
            replica.freeze();
            let set = bill.set(subject, &late);
            let outcome = match verb {
                "charge" => node.charge(&set).await,
                "list" => node.charge_each(&[&set]).await.remove(0),
                "force" => node.force(&set).await,
                _ => node.reserve(&Reserve { id: subject, ttl: Nanos::from_secs(60), set: set.clone() }).await,
            };
            let outcome = outcome.expect("it is charged");
            assert_eq!((outcome.admitted, outcome.degraded), (true, Some(Degraded::NotDurable)), "{verb}");
            let reason = node.unacknowledged().expect("a reason").to_string();
            assert!(reason.contains("no replica acknowledged in time"), "{reason}");
            assert_eq!(bill.used(&node, subject).await, 1, "{verb}");
            unacknowledged_reason(node.charge(&bill.set(200 + subject, &late)).await);
            assert_eq!(bill.used(&node, 200 + subject).await, 0, "{verb}");
            replica.thaw();
        }
    });
}

/// What may not survive is denied by a rule that denies without its store, also where the store has charged it.
#[test]
fn a_strict_rule_denies_what_is_not_acknowledged_in_time() {
    let primary = primary(RedisProgram::Redis7, &[]);
    let replica = replica_of(&primary, RedisProgram::Redis7, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bare = store(&primary.url()).await;
        let settings = ResilienceSettings { budget: Nanos::from_secs(20), ..ResilienceSettings::default() };
        let (exact, is_exact) = watch_exact();
        let node = resilient(bare.clone(), TokioRuntime::new().expect("randomness"), settings, is_exact);
        until_true(&exact).await;
        let strict = RuleOptions { budget: Some(Nanos::from_secs(1)), on_failure: OnStoreFailure::Deny, ..REPLICA };
        let bill = BillingRule::new(10_000);
        assert!(node.charge(&bill.set(1, &strict)).await.expect("a reply").admitted);
        replica.freeze();
        for _ in 0..3 {
            let denied = node.charge(&bill.set(7, &strict)).await.expect("a reply");
            assert_eq!((denied.admitted, denied.degraded), (false, Some(Degraded::DeniedByPolicy { charge: 0 })));
        }
        replica.thaw();
    });
}

/// Whether a node has become exact, and the watcher that notices it.
fn watch_exact() -> (Arc<AtomicBool>, Watcher) {
    let exact = Arc::new(AtomicBool::new(false));
    let is_exact = Arc::clone(&exact);
    let watcher = move |event| {
        if event == StoreEvent::Exact {
            is_exact.store(true, Ordering::SeqCst);
        }
    };
    (exact, Arc::new(watcher))
}

async fn until_true(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
