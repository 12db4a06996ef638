//! Reservations that are open while their node ends: they are settled elsewhere or expire, and none is counted
//! twice or not at all.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::patient;
use crate::history::{CheckReply, now};
use crate::http::HttpClient;
use crate::scene::at_once;
use crate::server::{TestServer, wait_for};
use crate::window::unit;

/// Never used up and never forgotten.
const COUNT: u64 = 1_000_000;
const ESTIMATE: u64 = 100;
const USED: u64 = 60;

fn node(redis: &Redis) -> TestServer {
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: tokens, by: user, rate: {COUNT}/{}, algorithm: fixed-window }}\n",
        unit()
    );
    patient(&redis.url(), &rules)
}

fn request_body(user: &str, expires: Nanos) -> String {
    let expires_ms = expires.get() / 1_000_000;
    format!(r#"{{"attributes": {{"user": "{user}"}}, "cost": {ESTIMATE}, "expires_ms": {expires_ms}}}"#)
}

fn settlement(reservation: &Value) -> String {
    format!(r#"{{"reservation": {reservation}, "cost": {USED}}}"#)
}

/// Units that are charged.
fn used(node: &TestServer, user: &str) -> u64 {
    let body = format!(r#"{{"attributes": {{"user": "{user}"}}}}"#);
    let peek = CheckReply::read(&node.post("/v1/peek", &body).body).unwrap();
    COUNT - peek.remaining
}

#[test]
fn reservations_of_a_dead_node_are_settled_elsewhere_or_expire() {
    const OPEN: u64 = 5;
    let lasts = Nanos::from_secs(4);
    let redis = Redis::redis7();
    let (dies, stays) = (node(&redis), node(&redis));
    let body = request_body("ada", lasts);
    let reserve = |node: &TestServer| node.post("/v1/reserve", &body).json()["reservation"].clone();
    let begun = now();
    let open: Vec<Value> = (0..OPEN).map(|_| reserve(&dies)).collect();
    let all = now();
    assert!(open.iter().all(Value::is_string), "{open:?}");
    dies.signal("KILL");
    let before = used(&stays, "ada");
    // They have expired already only if this machine was slow.
    if now() < begun.plus(lasts) {
        assert_eq!(before, OPEN * ESTIMATE, "all are still charged");
    }
    let settled = stays.post("/v1/settle", &settlement(&open[0])).json();
    assert!(["done", "late"].contains(&settled["settled"].as_str().unwrap()), "{settled}");
    wait_for("their end", || {
        std::thread::sleep(Duration::from_millis(20));
        (now() > all.plus(lasts)).then_some(())
    });
    // The next reservation finds that they have expired.
    assert!(reserve(&stays).is_string());
    let after = used(&stays, "ada");
    eprintln!("{before} reserved as a node died, {after} after their end, one new and one settled");
    assert_eq!(after, USED + ESTIMATE, "{before} before");
}

/// Reserves and settles until the node closes. Returns the reservation that could not be settled, if any. A request
/// without a response was not executed.
fn reserve_until_closed(mut client: HttpClient, body: &str, taken: &AtomicU64) -> Option<Value> {
    let mut post = |path: &str, body: &str| {
        client.send("POST", path, &[], body).ok()?;
        client.receive().ok()
    };
    loop {
        let reply = post("/v1/reserve", body)?;
        assert_eq!(reply.status, 200, "{}", reply.body);
        taken.fetch_add(1, Relaxed);
        let reservation = reply.json()["reservation"].clone();
        match post("/v1/settle", &settlement(&reservation)) {
            Some(reply) => assert_eq!(reply.json()["settled"], "done", "{}", reply.body),
            None => return Some(reservation),
        }
    }
}

/// Twenty rounds, four at a time.
#[test]
fn a_node_that_shuts_down_under_load_loses_no_reservation_and_no_settlement() {
    const CLIENTS: usize = 8;
    let redis = Redis::redis7();
    let stays = node(&redis);
    at_once(&[0, 1, 2, 3], |lane| {
        for turn in 0..5 {
            let user = format!("user-{lane}-{turn}");
            let (body, leaves) = (request_body(&user, Nanos::from_secs(3_600)), node(&redis));
            let taken = AtomicU64::new(0);
            let left: Vec<Value> = std::thread::scope(|scope| {
                let clients = (0..CLIENTS).map(|_| {
                    let client = leaves.client();
                    scope.spawn(|| reserve_until_closed(client, &body, &taken))
                });
                let clients: Vec<_> = clients.collect();
                wait_for("traffic", || (taken.load(Relaxed) >= 200).then_some(()));
                leaves.signal("TERM");
                let (status, log) = leaves.wait_end();
                assert_eq!(status.code(), Some(0), "{log:#?}");
                let each = clients.into_iter().map(|client| client.join().unwrap());
                each.flatten().collect()
            });
            let (taken, open) = (taken.load(Relaxed), left.len() as u64);
            let charged = used(&stays, &user);
            let settled = (taken - open) * USED;
            assert_eq!(charged, settled + open * ESTIMATE, "{user}: {open} open");
            for reservation in &left {
                let reply = stays.post("/v1/settle", &settlement(reservation));
                assert_eq!(reply.json()["settled"], "done", "{user}");
            }
            assert_eq!(used(&stays, &user), taken * USED, "{user}");
            eprintln!("shutdown, {user}: {taken} reserved, {open} open as it left");
        }
    });
}
