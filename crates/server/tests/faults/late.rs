//! A healthy store whose replies are late: the limit holds, no client is denied wrongly, nothing fails.
//!
//! Judged by counts: the duration of a decision depends on the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_testkit::{ProxyFault, TestRedis as Redis};

use crate::fleet::{OPENED, StoreLink, wait_exact};
use crate::http::{HttpReply, check_body};
use crate::server::{TestServer, wait_for};

const LIMIT: u64 = 300;
const NODES: usize = 4;
const CLIENTS: usize = 16;

/// Four nodes with default settings, on a link that can be disturbed.
fn nodes(line: &StoreLink) -> Vec<TestServer> {
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: window, match: {{ path: /window }}, by: ip, rate: {LIMIT}/day, algorithm: \
         fixed-window }}\n  - {{ name: bucket, match: {{ path: /bucket }}, by: ip, rate: {LIMIT}/day burst {LIMIT} \
         }}\n  - {{ name: money, match: {{ path: /money }}, by: ip, rate: {LIMIT}/day, algorithm: fixed-window, \
         on_store_late: deny }}\n"
    );
    let store = line.url();
    let start = || TestServer::with(&rules, &["--store", &store]);
    let nodes: Vec<TestServer> = (0..NODES).map(|_| start()).collect();
    nodes.iter().for_each(wait_exact);
    // A node that has just started takes a second to learn the number of nodes.
    std::thread::sleep(Duration::from_millis(1_500));
    nodes
}

/// Sends requests of one client address over many connections to all nodes. Returns how many were allowed.
fn storm(nodes: &[TestServer], ip: &str, path: &str, requests: u64) -> u64 {
    let (left, allowed) = (AtomicU64::new(requests), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for i in 0..CLIENTS {
            let (left, allowed, body) = (&left, &allowed, check_body(ip, path));
            scope.spawn(move || {
                let mut clients: Vec<_> = nodes.iter().map(TestServer::client).collect();
                let mut turn = i;
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| l.checked_sub(1)).is_ok() {
                    turn += 1;
                    let reply = clients[turn % NODES].post("/v1/check", &body);
                    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
                    allowed.fetch_add(u64::from(reply.status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    allowed.into_inner()
}

/// It was 0.4 of the limit, because the breaker counted lateness as failure, or 1.4 of it, because a fresh local
/// share decided beside a store that was counting.
#[test]
fn half_of_all_replies_late_admit_the_limit() {
    let redis = Redis::redis7();
    let line = StoreLink::to(redis.address());
    let nodes = nodes(&line);
    line.set(ProxyFault::Jitter(Duration::from_millis(2), Duration::from_millis(40)));
    for (ip, path) in [("192.0.2.1", "/window"), ("192.0.2.2", "/bucket")] {
        let allowed = storm(&nodes, ip, path, 4 * LIMIT);
        let max = LIMIT * 102 / 100 + NODES as u64;
        eprintln!("{path}: {allowed} of {LIMIT}");
        assert!(allowed >= LIMIT * 9 / 10, "{path}: {allowed}");
        assert!(allowed <= max, "{path}: {allowed}");
    }
    let allowed = storm(&nodes, "192.0.2.3", "/money", 4 * LIMIT);
    eprintln!("/money: {allowed} of {LIMIT}");
    assert!(allowed <= LIMIT, "never over: {allowed}");
    assert!(allowed >= LIMIT * 9 / 10, "{allowed}");
    for node in &nodes {
        let opened = node.lines().iter().any(|(_, line)| {
            let message = line["message"].as_str();
            message.is_some_and(|message| message.starts_with(OPENED))
        });
        assert!(!opened, "lateness opens no breaker");
    }
    let late = |node: &TestServer| {
        let page = node.admin_get("/metrics").body;
        page.lines().any(|line| line.contains("source=\"late\"") && !line.ends_with(" 0"))
    };
    assert!(nodes.iter().any(late), "some decisions were late");
}

/// Such a store denied every client of a limit of 1 for as long as it lasted, and no line of the log said why.
#[test]
fn a_store_that_is_always_late_admits_the_unit_of_a_limit_of_1_and_is_reported() {
    let redis = Redis::redis7();
    let line = StoreLink::to(redis.address());
    let rules = "version: 1\nrules: [{ name: once, by: user, rate: 1/day, algorithm: fixed-window }]\n";
    let node = TestServer::with(rules, &["--store", &line.url()]);
    wait_exact(&node);
    line.set(ProxyFault::Delay(Duration::from_millis(60)));
    let body = |user: u32| format!(r#"{{"attributes": {{"user": "{user}"}}}}"#);
    let mut users = 0..;
    wait_for("the number of nodes, which a new node takes a second to learn", || {
        (node.post("/v1/check", &body(users.next()?)).status == 200).then_some(())
    });
    for user in users.take(30) {
        let first = node.post("/v1/check", &body(user));
        assert_eq!((first.status, &first.json()["source"]), (200, &"late".into()), "{user}");
        assert_eq!(node.post("/v1/check", &body(user)).status, 429, "{user}");
    }
    wait_for("a line about late replies", || {
        let is_reported = |(_, line): &(_, serde_json::Value)| {
            line["message"].as_str().is_some_and(|text| text.starts_with("the store replies later than the budget"))
        };
        node.lines().iter().any(is_reported).then_some(())
    });
}

/// Permits, reservations, and the calls that end them have no decision to make in milliseconds, so they wait for
/// the reply of a store in another region. Retried with another user where this machine took longer than they wait.
#[test]
fn permits_reservations_and_refunds_wait_for_late_replies() {
    const PERMITS: usize = 10;
    let redis = Redis::redis7();
    let line = StoreLink::to(redis.address());
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: open, match: {{ path: /open }}, by: user, concurrent: {PERMITS} }}\n  - {{ \
         name: tokens, match: {{ path: /tokens }}, by: user, rate: 1000/day, algorithm: fixed-window }}\n"
    );
    let store = line.url();
    let nodes = [0; 2].map(|_| TestServer::with(&rules, &["--store", &store]));
    nodes.iter().for_each(wait_exact);
    let delay = Duration::from_millis(40);
    line.set(ProxyFault::Jitter(delay, delay));
    let body = |user: u32, path: &str, cost: u64| {
        format!(r#"{{"attributes": {{"user": "{user}", "path": "{path}"}}, "cost": {cost}}}"#)
    };
    let mut users = 0..;
    let mut with_new_user = |what: &str, succeeds: &dyn Fn(u32) -> bool| {
        wait_for(what, || succeeds(users.next()?).then_some(()));
    };
    with_new_user("all permits by the store", &|user| {
        let replies: Vec<_> =
            (0..3 * PERMITS).map(|i| nodes[i % 2].post("/v1/acquire", &body(user, "/open", 1))).collect();
        let open = replies.iter().filter(|reply| reply.status == 200).count();
        let denied = replies.iter().filter(|reply| reply.status == 429);
        let by_store = denied.filter(|reply| reply.json()["source"] == "exact");
        open == PERMITS && by_store.count() == 2 * PERMITS
    });
    with_new_user("all reservations by the store", &|user| {
        let replies: Vec<_> = (0..14).map(|i| nodes[i % 2].post("/v1/reserve", &body(user, "/tokens", 100))).collect();
        let admitted = replies.iter().filter(|reply| reply.status == 200).count();
        let exact = |reply: &&HttpReply| reply.json()["source"] == "exact";
        admitted == 10 && replies.iter().filter(exact).count() >= 10
    });
    with_new_user("a refund that is done", &|user| {
        let check = format!(r#"{{"attributes": {{"user": "{user}", "path": "/tokens"}}, "receipt": true}}"#);
        let charged = nodes[0].post("/v1/check", &check).json();
        let refund = format!(r#"{{"receipt": {}}}"#, charged["receipt"]);
        nodes[1].post("/v1/refund", &refund).status == 200
    });
}

/// A list waited for the store once for every 16 requests, and a list of peeks once for every peek: so long that the
/// breaker opened before its end, and the rest was decided by the share.
#[test]
fn a_list_waits_once_for_a_store_that_hangs() {
    for path in ["/v1/check", "/v1/peek"] {
        let redis = Redis::redis7();
        let line = StoreLink::to(redis.address());
        let rules = "version: 1\nrules:\n  - { name: r, by: user, rate: 100/day }\n";
        let node = TestServer::with(rules, &["--store", &line.url(), "--store-budget", "100ms"]);
        wait_exact(&node);
        let items: Vec<String> = (0..1_000).map(|user| format!(r#"{{"attributes":{{"user":"{user}"}}}}"#)).collect();
        line.set(ProxyFault::BlackHole);
        let reply = node.post(path, &format!("[{}]", items.join(",")));
        let decided = reply.json();
        let decided = decided.as_array().expect("a list");
        assert_eq!(decided.len(), items.len());
        let other: Vec<_> = decided.iter().filter(|item| item["source"] != "late").take(1).collect();
        assert!(other.is_empty(), "{path}: {other:?}");
    }
}
