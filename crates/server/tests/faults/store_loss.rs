//! A store that loses its counts in the middle of a window, under load: the counts are restored.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::{ProxyFault, RedisProgram, TestRedis as Redis};

use crate::fleet::{Fleet, LOST, StoreLink, wait_exact};
use crate::history::{RequestHistory, RequestRecord, now};
use crate::http::check_body;
use crate::load::RequestLoad;
use crate::rates::TestRate;
use crate::server::{TestServer, wait_for};
use crate::window::unit;

/// At the loss, half of one limit is used, three quarters of another, and nearly all of the third.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(7);
const PER_SECOND: u32 = 150;

/// The percentage of its limit that traffic which reaches all nodes gets through a quick loss.
const STATED: u64 = 101;

/// Four nodes and a store that has counted for a while, and the result of its loss.
struct LossScenario {
    rates: Vec<TestRate>,
    fleet: Fleet,
    history: RequestHistory,
    at: Nanos,
}

/// Rates with windows that outlast the test.
fn rates() -> Vec<TestRate> {
    let per = TestRate::ledger().per;
    [("half", 1_500), ("most", 1_000), ("nearly-all", 800)]
        .map(|(name, count)| TestRate::window(name, count, per))
        .to_vec()
}

fn loss(options: &[&str], forget: impl FnOnce(&mut Redis, &mut Fleet)) -> LossScenario {
    let rates = rates();
    let mut store = Redis::start(RedisProgram::Redis7, options);
    let mut fleet = Fleet::start(&rates, &store.url());
    let per_second: Vec<_> = rates.iter().map(|rate| (rate.name, PER_SECOND)).collect();
    let load = RequestLoad::start(&fleet, &per_second);
    std::thread::sleep(BEFORE);
    let at = now();
    forget(&mut store, &mut fleet);
    std::thread::sleep(AFTER);
    LossScenario { history: load.stop(), rates, fleet, at }
}

impl LossScenario {
    /// All of each limit was used, as far as requests came, and no more than that except for what is stated and
    /// `more`. The time at which the loss was noticed is printed; the simulator asserts that it is within 100 ms.
    #[track_caller]
    fn judge(&self, name: &str, more: impl Fn(&TestRate) -> u64) {
        for rate in &self.rates {
            let admitted = self.history.of_rule(rate.name).filter(|r| r.admitted());
            let (admitted, more) = (admitted.count() as u64, more(rate));
            eprintln!(
                "{name}: {admitted} of {} admitted, {more} forgotten for good at most; \
                 noticed {} after, {:?} times",
                rate.count,
                self.noticed().since(self.at),
                self.fleet.count_logged(LOST),
            );
            let most = rate.count * STATED / 100 + more;
            assert!(admitted <= most, "{}: {admitted} of {most}", rate.name);
            let requests = self.history.of_rule(rate.name).count() as u64;
            let least = rate.count.min(requests) * 95 / 100;
            assert!(admitted >= least, "{}: {admitted} of {least}", rate.name);
        }
    }

    fn noticed(&self) -> Nanos {
        let first = self.fleet.first_logged(LOST, self.at);
        first.expect("a node notices the loss")
    }
}

#[test]
fn counts_survive_a_store_that_restarts_empty() {
    let loss = loss(&[], |store, _| {
        store.kill();
        store.restart();
    });
    loss.history.none_failed();
    loss.judge("restarted", |_| 0);
}

#[test]
fn counts_survive_a_flush_of_the_store() {
    let loss = loss(&[], |store, _| {
        assert_eq!(store.run_command(&["FLUSHALL"]), "OK");
    });
    loss.history.none_failed();
    loss.judge("emptied", |_| 0);
}

/// No node knows the charges of the dead node after the last reply that another node saw.
#[test]
fn a_node_that_dies_with_the_store_loses_only_charges_that_no_other_had_seen() {
    const DEAD: usize = 3;
    let loss = loss(&[], |store, fleet| {
        store.kill();
        drop(fleet.nodes.remove(DEAD));
        store.restart();
    });
    let failed = |r: &&RequestRecord| r.decision.is_err() && (r.node != DEAD || r.received < loss.at);
    assert_eq!(loss.history.records.iter().find(failed).map(|r| &r.decision), None);
    loss.judge("restarted, and a node died", |rate| {
        let exact = || {
            let records = loss.history.of_rule(rate.name);
            records.filter(|record| record.exact() && record.sent <= loss.at)
        };
        let seen = exact().filter(|r| r.node != DEAD).map(|r| r.sent).max();
        let unseen = |r: &&RequestRecord| r.node == DEAD && r.admitted() && Some(r.received) > seen;
        exact().filter(unseen).count() as u64
    });
}

/// A round trip for each counter would take longer than a decision may wait, however often it is tried.
#[test]
fn a_node_that_remembers_much_restores_it_over_a_slow_link() {
    let mut store = Redis::redis7();
    let line = StoreLink::to(store.address());
    line.set(ProxyFault::Delay(Duration::from_millis(2)));
    let rules =
        format!("version: 1\nrules:\n  - {{ name: r, by: ip, rate: 100/{}, algorithm: fixed-window }}\n", unit());
    let url = line.url();
    let node = TestServer::with(&rules, &["--store", &url, "--store-budget", "40"]);
    wait_exact(&node);
    let mut client = node.client();
    for i in 0..20 {
        let ten = (0..10).map(|j| check_body(&format!("198.51.{i}.{j}"), "/x"));
        let list = format!("[{}]", ten.collect::<Vec<_>>().join(","));
        assert_eq!(client.post("/v1/check", &list).status, 200);
    }
    store.kill();
    store.restart();
    wait_for("a loss", || (node.metric("tidegate_store_epoch_changes_total") > 0).then_some(()));
    wait_exact(&node);
}

/// The store evicts records, which expire, but not keys without an expiry.
#[test]
fn evicted_counters_are_restored() {
    let policy = ["--maxmemory-policy", "volatile-ttl"];
    let loss = loss(&policy, |store, _| {
        store.run_command(&["CONFIG", "SET", "maxmemory", "1"]);
        store.run_command(&["SET", "filler", "x"]);
        store.run_command(&["CONFIG", "SET", "maxmemory", "0"]);
        let stats = store.run_command(&["INFO", "stats"]);
        assert!(stats.contains("evicted_keys:3"), "{stats}");
    });
    loss.history.none_failed();
    loss.judge("evicted", |_| 0);
}
