//! Units drawn in advance by real nodes: what a node holds when it is told to end is there for the others.

use tidegate_parts::TestRedis as Redis;

use crate::http::ask;
use crate::server::{Server, wait_for};
use crate::window::window;

/// What flows in during a lease. It lasts the longest there is, and half of that is more than any test
/// needs between a request and the end of a node: what nobody asks for is given back by then.
const LEASE: u64 = 60 * 50;

/// Fifty in a second, in the window of the tests.
fn limit() -> u64 {
    50 * window().secs
}

fn node(redis: &Redis) -> Server {
    let (rate, unit) = (limit(), window().name);
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: {rate}/{unit}, algorithm: fixed-window, \
         counting: leased 1m }}\n"
    );
    let flags = [
        ["--store", &redis.url()],
        ["--store-budget", "30000"],
        ["--drain-delay", "0"],
    ];
    let node = Server::with(&rules, &flags.concat());
    wait_for("an exact node", || {
        (node.metric("tidegate_store_exact") == 1).then_some(())
    });
    node
}

/// Asks a node for a client until it holds units of it. How often that was, and how many it holds.
fn until_held(node: &Server, client: &str) -> (u64, u64) {
    let (mut connection, mut sent) = (node.client(), 0);
    let held = wait_for("units that are held", || {
        for _ in 0..60 {
            let reply = connection.post("/v1/check", &ask(client, "/x"));
            assert_eq!(reply.status, 200);
            sent += 1;
        }
        Some(node.metric("tidegate_lease_held_units")).filter(|held| *held > 0)
    });
    (sent, held)
}

#[test]
fn a_node_that_shuts_down_returns_its_leases() {
    let redis = Redis::redis7();
    let others = node(&redis);
    for round in 0..20 {
        let (ending, client) = (node(&redis), format!("192.0.2.{round}"));
        let (sent, held) = until_held(&ending, &client);
        ending.signal("TERM");
        let (status, log) = ending.wait_end();
        assert_eq!(status.code(), Some(0), "{log:#?}");
        let log_line = log
            .iter()
            .find(|line| line["message"] == "gave back what was drawn in advance");
        let returned = log_line.and_then(|line| line["units"].as_u64());
        // More may have been on the way when it was asked what it holds.
        assert!(returned >= Some(held), "round {round}: {log:#?}");
        let answer = others.post("/v1/check", &ask(&client, "/x")).json();
        let used = limit() - answer["remaining"].as_u64().unwrap_or(0);
        assert_eq!(used, sent + 1, "round {round}: {answer}");
    }
}

#[test]
fn what_a_killed_node_held_stays_charged_and_is_no_more_than_flows_in_during_a_lease() {
    let redis = Redis::redis7();
    let (killed, others) = (node(&redis), node(&redis));
    let (sent, held) = until_held(&killed, "192.0.2.1");
    killed.signal("KILL");
    let answer = others.post("/v1/check", &ask("192.0.2.1", "/x")).json();
    let used = limit() - answer["remaining"].as_u64().unwrap_or(0);
    // More may have been on the way when it was asked what it holds.
    let (least, most) = (sent + 1 + held, sent + 1 + LEASE);
    assert!((least..=most).contains(&used), "{used} used, {held} held");
}
