//! Leases of real nodes: units that a node has leased when it shuts down are available to the others.

use tidegate_testkit::TestRedis as Redis;

use crate::http::check_body;
use crate::server::{TestServer, wait_for};
use crate::window::window;

/// The units that refill during a lease. The lease has the maximum duration. Unused units are returned after half of
/// it, which is longer than any test needs between a request and the end of a node.
const LEASE: u64 = 60 * 50;

/// Fifty in a second, in the window of the tests.
fn limit() -> u64 {
    50 * window().secs
}

fn node(redis: &Redis) -> TestServer {
    let (rate, unit) = (limit(), window().name);
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: {rate}/{unit}, algorithm: fixed-window, \
         counting: leased 1m }}\n"
    );
    let flags = [["--store", &redis.url()], ["--store-budget", "30000"], ["--drain-delay", "0"]];
    let node = TestServer::with(&rules, &flags.concat());
    wait_for("an exact node", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    node
}

/// Sends requests of a client until the node has outstanding units of it. Returns the number of requests, and the
/// outstanding units.
fn draw_lease(node: &TestServer, client: &str) -> (u64, u64) {
    let (mut connection, mut sent) = (node.client(), 0);
    let leased = wait_for("outstanding units", || {
        for _ in 0..60 {
            let reply = connection.post("/v1/check", &check_body(client, "/x"));
            assert_eq!(reply.status, 200);
            sent += 1;
        }
        Some(node.metric("tidegate_lease_outstanding_units")).filter(|leased| *leased > 0)
    });
    (sent, leased)
}

#[test]
fn a_node_that_shuts_down_returns_its_leases() {
    let redis = Redis::redis7();
    let others = node(&redis);
    for round in 0..20 {
        let (ending, client) = (node(&redis), format!("192.0.2.{round}"));
        let (sent, leased) = draw_lease(&ending, &client);
        ending.signal("TERM");
        let (status, log) = ending.wait_end();
        assert_eq!(status.code(), Some(0), "{log:#?}");
        let log_line = log.iter().find(|line| line["message"] == "returned leased units");
        let returned = log_line.and_then(|line| line["units"].as_u64());
        // More may have been in flight when the metric was read.
        assert!(returned >= Some(leased), "round {round}: {log:#?}");
        let decision = others.post("/v1/check", &check_body(&client, "/x")).json();
        let used = limit() - decision["remaining"].as_u64().unwrap_or(0);
        assert_eq!(used, sent + 1, "round {round}: {decision}");
    }
}

#[test]
fn leases_of_a_killed_node_stay_charged_and_are_no_more_than_refills_during_a_lease() {
    let redis = Redis::redis7();
    let (killed, others) = (node(&redis), node(&redis));
    let (sent, leased) = draw_lease(&killed, "192.0.2.1");
    killed.signal("KILL");
    let decision = others.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
    let used = limit() - decision["remaining"].as_u64().unwrap_or(0);
    // More may have been in flight when the metric was read.
    let (least, most) = (sent + 1 + leased, sent + 1 + LEASE);
    assert!((least..=most).contains(&used), "{used} used, {leased} held");
}
