//! Units drawn in advance by real nodes: what a node holds when it is told to end is there for the others.

use tidegate_parts::Server as Redis;

use crate::http::ask;
use crate::server::{Server, wait_for};
use crate::window::window;

/// Fifty in a second, in the window of the tests; five hundred flow in during a lease of ten seconds.
fn limit() -> u64 {
    50 * window().secs
}

fn node(redis: &Redis) -> Server {
    let (rate, unit) = (limit(), window().name);
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: {rate}/{unit}, algorithm: fixed-window, \
         counting: leased 10s }}\n"
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

#[test]
fn a_node_that_is_told_to_end_gives_back_what_it_holds() {
    const REQUESTS: u64 = 60;
    let redis = Redis::redis7();
    let others = node(&redis);
    for round in 0..20 {
        let (ending, client) = (node(&redis), format!("192.0.2.{round}"));
        let mut connection = ending.client();
        for _ in 0..REQUESTS {
            let reply = connection.post("/v1/check", &ask(&client, "/x"));
            assert_eq!(reply.status, 200);
        }
        let held = wait_for("units that are held", || {
            Some(ending.metric("tidegate_lease_held_units")).filter(|held| *held > 0)
        });
        drop(connection);
        ending.signal("TERM");
        let (status, log) = ending.wait_end();
        assert_eq!(status.code(), Some(0), "{log:#?}");
        let told = log
            .iter()
            .find(|line| line["message"] == "gave back what was drawn in advance");
        let told = told.and_then(|line| line["units"].as_u64());
        // More may have been on the way when it was asked what it holds.
        assert!(told >= Some(held), "round {round}: {log:#?}");
        let answer = others.post("/v1/check", &ask(&client, "/x")).json();
        let used = limit() - answer["remaining"].as_u64().unwrap_or(0);
        assert_eq!(used, REQUESTS + 1, "round {round}: {answer}");
    }
}

#[test]
fn what_a_killed_node_held_stays_charged_and_is_no_more_than_flows_in_during_a_lease() {
    const REQUESTS: u64 = 60;
    let redis = Redis::redis7();
    let (killed, others) = (node(&redis), node(&redis));
    let mut connection = killed.client();
    for _ in 0..REQUESTS {
        let reply = connection.post("/v1/check", &ask("192.0.2.1", "/x"));
        assert_eq!(reply.status, 200);
    }
    let held = wait_for("units that are held", || {
        Some(killed.metric("tidegate_lease_held_units")).filter(|held| *held > 0)
    });
    killed.signal("KILL");
    let answer = others.post("/v1/check", &ask("192.0.2.1", "/x")).json();
    let used = limit() - answer["remaining"].as_u64().unwrap_or(0);
    // More may have been on the way when it was asked what it holds.
    let (least, most) = (REQUESTS + 1 + held, REQUESTS + 1 + 500);
    assert!((least..=most).contains(&used), "{used} used, {held} held");
}
