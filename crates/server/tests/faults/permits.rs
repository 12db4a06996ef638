//! Permits of nodes that end: after a crash no more of them are given out than allowed, and after a shutdown none
//! is lost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::patient;
use crate::history::now;
use crate::http::HttpClient;
use crate::scene::at_once;
use crate::server::{TestServer, wait_for};

const MAX_PERMITS: usize = 5;
const TTL: Nanos = Nanos::from_secs(3);
const HOUR_MS: u64 = 3_600_000;

fn node(redis: &Redis, max: usize) -> TestServer {
    let rules = format!("version: 1\nrules:\n  - {{ name: open, by: user, concurrent: {max} }}\n");
    patient(&redis.url(), &rules)
}

fn request_body(user: &str, ttl_ms: u64) -> String {
    format!(r#"{{"attributes": {{"user": "{user}"}}, "ttl_ms": {ttl_ms}}}"#)
}

fn permit_body(permit: &Value) -> String {
    format!(r#"{{"permit": {permit}}}"#)
}

#[test]
fn permits_of_a_dead_node_stay_taken_until_they_expire() {
    let redis = Redis::redis7();
    let (dies, stays) = (node(&redis, MAX_PERMITS), node(&redis, MAX_PERMITS));
    let (first, mut permits) = (now(), Vec::new());
    let body = request_body("ada", TTL.get() / 1_000_000);
    for _ in 0..MAX_PERMITS {
        permits.push(dies.post("/v1/acquire", &body).json()["permit"].clone());
    }
    let all = now();
    assert!(permits.iter().all(Value::is_string), "{permits:?}");
    dies.signal("KILL");
    // Requests are denied while no permit has expired, and allowed once all have.
    let freed = wait_for("a permit", || {
        let sent = now();
        let reply = stays.post("/v1/acquire", &body);
        let received = now();
        if reply.status == 200 {
            return Some(received);
        }
        assert_eq!(reply.status, 429, "{}", reply.body);
        assert!(sent < all.plus(TTL), "still taken after their time");
        std::thread::sleep(Duration::from_millis(20));
        None
    });
    assert!(freed >= first.plus(TTL), "a permit was given out twice");
    eprintln!("permits of a dead node: free {} after the first was acquired", freed.since(first));
}

/// Permits that the clients of one node acquired and released.
#[derive(Default)]
struct PermitTraffic {
    taken: AtomicU64,
}

impl PermitTraffic {
    /// Acquires and releases a permit until the node closes. Returns the permit that could not be released, if any.
    /// A request without a response was not executed.
    fn acquire_until_closed(&self, mut client: HttpClient, body: &str) -> Option<Value> {
        let mut post = |path: &str, body: &str| {
            client.send("POST", path, &[], body).ok()?;
            client.receive().ok()
        };
        loop {
            let taken = post("/v1/acquire", body)?;
            assert_eq!(taken.status, 200, "{}", taken.body);
            self.taken.fetch_add(1, Relaxed);
            let permit = taken.json()["permit"].clone();
            match post("/v1/release", &permit_body(&permit)) {
                Some(reply) => assert_eq!(reply.status, 200, "{}", reply.body),
                None => return Some(permit),
            }
        }
    }
}

/// Twenty rounds, four at a time.
#[test]
fn a_node_that_shuts_down_under_load_keeps_no_permit_and_loses_none() {
    const CLIENTS: usize = 8;
    let redis = Redis::redis7();
    let stays = node(&redis, 10_000);
    at_once(&[0, 1, 2, 3], |lane| {
        for turn in 0..5 {
            let user = format!("user-{lane}-{turn}");
            let (body, leaves) = (request_body(&user, HOUR_MS), node(&redis, 10_000));
            let seen = PermitTraffic::default();
            let left: Vec<Value> = std::thread::scope(|scope| {
                let clients = (0..CLIENTS).map(|_| {
                    let client = leaves.client();
                    scope.spawn(|| seen.acquire_until_closed(client, &body))
                });
                let clients: Vec<_> = clients.collect();
                wait_for("traffic", || (seen.taken.load(Relaxed) >= 200).then_some(()));
                leaves.signal("TERM");
                let (status, log) = leaves.wait_end();
                assert_eq!(status.code(), Some(0), "{log:#?}");
                let each = clients.into_iter().map(|client| client.join().unwrap());
                each.flatten().collect()
            });
            let open = || stays.post("/v1/acquire", &body).json()["open"][0]["open"].clone();
            assert_eq!(open(), left.len() as u64 + 1, "{user}");
            for permit in &left {
                assert_eq!(stays.post("/v1/release", &permit_body(permit)).status, 200);
            }
            assert_eq!(open(), 2, "{user}: this one and the one before");
            eprintln!(
                "shutdown, {user}: {} permits acquired, {} open as it left",
                seen.taken.load(Relaxed),
                left.len()
            );
        }
    });
}
