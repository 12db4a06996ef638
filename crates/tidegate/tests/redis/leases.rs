//! Leases of a real server, by two nodes with a constant load on one key.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::resilience::{ResilienceSettings, Resilient, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::redis::Redis;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::store::{Charge, ChargeSet, Counters, Counting, RuleOptions, Source};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

use crate::{charge, on_runtime, redis, set};
use tidegate_testkit::{RedisProgram, TestRedis};

const LIMIT: u64 = 60_000;
const LEASED: RuleOptions = RuleOptions { counting: Counting::Leased, ..RuleOptions::DEFAULT };

type LeasingNode = Arc<Resilient<Redis, TokioRuntime>>;

/// One window of `LIMIT`, which begins now and outlasts every test: forty units are added during a lease.
fn limit() -> Limit {
    const WIDTH: u64 = 150_000;
    let width = Nanos::from_millis(WIDTH);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a date").as_millis() as u64 - 1_000; // the server's clock may be behind
    let mut spec = Spec::new(Algorithm::FixedWindow, LIMIT, width);
    spec.window = Window::Shifted {
        width,
        phase: Nanos::from_millis(WIDTH - 1 - now % WIDTH), // by so much before a multiple
    };
    spec.lease_ttl = Some(Nanos::from_millis(100));
    Limit::compile(&spec, Precision::Double).expect("a limit")
}

async fn node(url: &str) -> LeasingNode {
    let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
    let watcher = Arc::new(move |event| {
        if event == StoreEvent::Exact {
            let _nobody_waits_twice = exact.send(());
        }
    });
    let settings = ResilienceSettings {
        budget: Nanos::from_secs(20), // a busy machine is no outage
        ..ResilienceSettings::default()
    };
    let runtime = TokioRuntime::new().expect("randomness");
    let node = resilient(redis(url).await, runtime, settings, watcher);
    ready.recv().await.expect("the node joins its store");
    Arc::new(node)
}

fn one<'a>(rule: &'a RuleName, limit: &'a Limit) -> ChargeSet<'a> {
    set([Charge { limit: Cow::Borrowed(limit), options: &LEASED, ..charge(7, rule, 0, limit) }])
}

/// Charges until nothing remains for a while. Returns how many were allowed, and how many of them by a lease.
async fn charge_until_denied(node: LeasingNode, rule: RuleName, limit: Limit) -> (u64, u64) {
    let (mut allowed, mut by_lease, mut denied) = (0, 0, 0);
    while denied < 20 {
        let outcome = node.charge(&one(&rule, &limit)).await.expect("a decision");
        if outcome.admitted {
            (allowed, denied) = (allowed + 1, 0);
            by_lease += u64::from(outcome.source == Source::Lease);
            tokio::task::yield_now().await;
        } else {
            denied += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    (allowed, by_lease)
}

#[test]
fn two_nodes_allow_the_limit_by_leases_and_no_more() {
    for program in [RedisProgram::Redis7, RedisProgram::Valkey9] {
        let server = TestRedis::start(program, &[]);
        on_runtime(async {
            let (limit, rule) = (limit(), RuleName::new("leased"));
            let nodes = [node(&server.url()).await, node(&server.url()).await];
            let mut tasks = tokio::task::JoinSet::new();
            for i in 0..8 {
                let node = Arc::clone(&nodes[i % 2]);
                tasks.spawn(charge_until_denied(node, rule.clone(), limit.clone()));
            }
            let allowed = tasks.join_all().await;
            let all: u64 = allowed.iter().map(|(allowed, _)| allowed).sum();
            let by_lease: u64 = allowed.iter().map(|(_, leased)| leased).sum();
            assert!(all <= LIMIT, "{all} of {LIMIT} on {program:?}");
            assert!(all >= LIMIT / 100 * 98, "{all} of {LIMIT} on {program:?}");
            assert!(by_lease > 0, "all were exact on {program:?}");
            for node in &nodes {
                node.drain().await;
                let leases = node.lease_stats();
                assert_eq!((leases.units_outstanding, leases.units_lapsed), (0, 0), "{program:?}");
            }
            let found = nodes[0].inspect(&one(&rule, &limit)).await;
            let found = found.expect("a reply")[0].expect("a counter");
            assert_eq!(found.used, all, "{program:?}");
        });
    }
}
