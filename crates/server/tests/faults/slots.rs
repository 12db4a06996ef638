//! Slots of what is open at once, while the nodes that gave them end: by a crash nobody gets more of
//! them, by leaving none is lost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use tidegate_core::units::Nanos;
use tidegate_parts::TestRedis as Redis;

use crate::fleet::patient;
use crate::history::now;
use crate::http::Client;
use crate::scene::at_once;
use crate::server::{Server, wait_for};

const MAX_PERMITS: usize = 5;
const TTL: Nanos = Nanos::from_secs(3);
const HOUR_MS: u64 = 3_600_000;

fn node(redis: &Redis, most: usize) -> Server {
    let rules = format!("version: 1\nrules:\n  - {{ name: open, by: user, concurrent: {most} }}\n");
    patient(&redis.url(), &rules)
}

fn request_body(user: &str, ttl_ms: u64) -> String {
    format!(r#"{{"attributes": {{"user": "{user}"}}, "ttl_ms": {ttl_ms}}}"#)
}

fn named(slot: &Value) -> String {
    format!(r#"{{"slot": {slot}}}"#)
}

#[test]
fn slots_of_a_dead_node_stay_taken_and_are_back_when_they_end() {
    let redis = Redis::redis7();
    let (dies, stays) = (node(&redis, MAX_PERMITS), node(&redis, MAX_PERMITS));
    let (first, mut slots) = (now(), Vec::new());
    let body = request_body("ada", TTL.get() / 1_000_000);
    for _ in 0..MAX_PERMITS {
        slots.push(dies.post("/v1/acquire", &body).json()["slot"].clone());
    }
    let all = now();
    assert!(slots.iter().all(Value::is_string), "{slots:?}");
    dies.signal("KILL");
    // Whoever asks meanwhile is refused as long as none has ended, and is let in once all have.
    let freed = wait_for("a slot", || {
        let sent = now();
        let reply = stays.post("/v1/acquire", &body);
        let heard = now();
        if reply.status == 200 {
            return Some(heard);
        }
        assert_eq!(reply.status, 429, "{}", reply.body);
        assert!(sent < all.plus(TTL), "still taken after their time");
        std::thread::sleep(Duration::from_millis(20));
        None
    });
    assert!(freed >= first.plus(TTL), "given twice");
    eprintln!(
        "slots of a dead node: free {} after the first was taken",
        freed.since(first)
    );
}

/// What the clients of one node took and gave back.
#[derive(Default)]
struct PermitTraffic {
    taken: AtomicU64,
}

impl PermitTraffic {
    /// Takes a slot and gives it back, until nobody answers. The slot that could not be given back, if
    /// any: what is not answered was not done.
    fn come_and_go(&self, mut client: Client, body: &str) -> Option<Value> {
        let mut post = |path: &str, body: &str| {
            client.send("POST", path, &[], body).ok()?;
            client.receive().ok()
        };
        loop {
            let taken = post("/v1/acquire", body)?;
            assert_eq!(taken.status, 200, "{}", taken.body);
            self.taken.fetch_add(1, Relaxed);
            let slot = taken.json()["slot"].clone();
            match post("/v1/release", &named(&slot)) {
                Some(reply) => assert_eq!(reply.status, 200, "{}", reply.body),
                None => return Some(slot),
            }
        }
    }
}

/// Twenty rounds, four at a time.
#[test]
fn a_node_that_leaves_in_full_traffic_keeps_no_slot_and_loses_none() {
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
                    scope.spawn(|| seen.come_and_go(client, &body))
                });
                let clients: Vec<_> = clients.collect();
                wait_for("traffic", || {
                    (seen.taken.load(Relaxed) >= 200).then_some(())
                });
                leaves.signal("TERM");
                let (status, log) = leaves.wait_end();
                assert_eq!(status.code(), Some(0), "{log:#?}");
                let each = clients.into_iter().map(|client| client.join().unwrap());
                each.flatten().collect()
            });
            let open = || stays.post("/v1/acquire", &body).json()["open"][0]["open"].clone();
            assert_eq!(open(), left.len() as u64 + 1, "{user}");
            for slot in &left {
                assert_eq!(stays.post("/v1/release", &named(slot)).status, 200);
            }
            assert_eq!(open(), 2, "{user}: this one and the one before");
            eprintln!(
                "parting, {user}: {} slots taken, {} open as it left",
                seen.taken.load(Relaxed),
                left.len()
            );
        }
    });
}
