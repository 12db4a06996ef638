//! A store that forgets in the middle of a window, under load: what it had counted is counted still.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_parts::{ProxyFault, RedisProgram, TestRedis as Redis};

use crate::fleet::{Fleet, LOST, StoreLink, wait_exact};
use crate::history::{RequestHistory, RequestRecord, now};
use crate::http::ask;
use crate::load::RequestLoad;
use crate::rates::TestRate;
use crate::server::{Server, wait_for};
use crate::window::unit;

/// At the loss half of one limit is used, three quarters of another, and nearly all of the third.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(7);
const PER_SECOND: u32 = 150;

/// What traffic that reaches all nodes gets of its limit through a quick loss, in hundredths.
const STATED: u64 = 101;

/// Four nodes and a store that has counted for a while, and what became of it.
struct LossScenario {
    rates: Vec<TestRate>,
    fleet: Fleet,
    history: RequestHistory,
    at: Nanos,
}

/// Windows that outlast the test.
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
    LossScenario {
        history: load.stop(),
        rates,
        fleet,
        at,
    }
}

impl LossScenario {
    /// All of each limit was used, as far as it was asked for, and no more than that but for what is stated
    /// and `more`. When the loss was noticed is reported; the simulator asserts that it is within 100 ms.
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
        first.expect("somebody notices the loss")
    }
}

#[test]
fn a_store_that_restarts_empty_has_forgotten_nothing() {
    let loss = loss(&[], |store, _| {
        store.kill();
        store.restart();
    });
    loss.history.none_failed();
    loss.judge("restarted", |_| 0);
}

#[test]
fn a_store_that_is_emptied_has_forgotten_nothing() {
    let loss = loss(&[], |store, _| {
        assert_eq!(store.run_command(&["FLUSHALL"]), "OK");
    });
    loss.history.none_failed();
    loss.judge("emptied", |_| 0);
}

/// What the dead node had charged after the last answer that another node saw is known to nobody.
#[test]
fn a_node_that_dies_with_the_store_takes_only_what_no_other_had_seen() {
    const DEAD: usize = 3;
    let loss = loss(&[], |store, fleet| {
        store.kill();
        drop(fleet.nodes.remove(DEAD));
        store.restart();
    });
    let failed = |r: &&RequestRecord| r.answer.is_err() && (r.node != DEAD || r.received < loss.at);
    assert_eq!(
        loss.history.records.iter().find(failed).map(|r| &r.answer),
        None
    );
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

/// A round trip for each of them would take longer than a decision may wait, however often it is tried.
#[test]
fn a_node_that_remembers_much_puts_it_back_over_a_slow_line() {
    let mut store = Redis::redis7();
    let line = StoreLink::to(store.address());
    line.set(ProxyFault::Delay(Duration::from_millis(2)));
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: 100/{}, algorithm: fixed-window }}\n",
        unit()
    );
    let url = line.url();
    let node = Server::with(&rules, &["--store", &url, "--store-budget", "40"]);
    wait_exact(&node);
    let mut client = node.client();
    for i in 0..20 {
        let ten = (0..10).map(|j| ask(&format!("198.51.{i}.{j}"), "/x"));
        let list = format!("[{}]", ten.collect::<Vec<_>>().join(","));
        assert_eq!(client.post("/v1/check", &list).status, 200);
    }
    store.kill();
    store.restart();
    wait_for("a loss", || {
        (node.metric("tidegate_store_losses_total") > 0).then_some(())
    });
    wait_exact(&node);
}

/// Evicted are the records, which expire; the keys that stay are not.
#[test]
fn evicted_counters_are_put_back() {
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
