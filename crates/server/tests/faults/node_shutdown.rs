//! A node that shuts down under load: its leases are returned and its lenient charges are written back, to the last
//! unit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::{patient, wait_exact};
use crate::history::{CheckReply, ReplySource};
use crate::http::{HttpClient, check_body};
use crate::rates::{TestRate, rules};
use crate::scene::at_once;
use crate::server::{TestServer, wait_for};
use crate::window::window;

/// Lanes run at the same time. Each has this many rounds, one after another.
const LANES: u64 = 4;
const ROUNDS: u64 = 5;
const CLIENTS: usize = 4;
/// Requests that have passed before a node is shut down.
const ENOUGH: u64 = 300;
/// So large that leases have some size even where the window is a month.
const COUNT: u64 = 1_000_000_000;

/// Never used up and never forgotten: every admission can be found in the store.
fn rate(name: &'static str, counting: &'static str) -> TestRate {
    TestRate::window(name, COUNT, Nanos::from_secs(window().secs)).counting(counting)
}

/// The responses to the clients of one rule.
#[derive(Default)]
struct RuleTraffic {
    admitted: AtomicU64,
    /// Decided without waiting for the store.
    here: AtomicU64,
}

impl RuleTraffic {
    /// Sends one request after another until the node closes. Every accepted request gets a response, so a request
    /// without a response was not charged.
    fn send_until_closed(&self, node: SocketAddr, body: &str) {
        while let Ok(mut client) = HttpClient::try_connect(node) {
            while client.send("POST", "/v1/check", &[], body).is_ok() {
                let Ok(reply) = client.receive() else { break };
                assert_eq!(reply.status, 200, "{}", reply.body);
                let decision = CheckReply::read(&reply.body).unwrap();
                assert!(decision.allowed);
                assert_ne!(decision.source, ReplySource::Fallback);
                self.admitted.fetch_add(1, Relaxed);
                let here = matches!(decision.source, ReplySource::Lease | ReplySource::Lenient);
                self.here.fetch_add(u64::from(here), Relaxed);
                if reply.header("connection") == Some("close") {
                    break;
                }
            }
        }
    }
}

/// One round. Returns how many requests were admitted under each rule, how many of them without waiting for the
/// store, and how many the store has counted.
fn round(store: &str, text: &str, rates: &[TestRate], stays: &TestServer, subject: &str) -> Vec<[u64; 3]> {
    let leaves = patient(store, text);
    let bodies: Vec<String> = rates.iter().map(|rate| check_body(subject, &format!("/{}", rate.name))).collect();
    let seen: Vec<RuleTraffic> = rates.iter().map(|_| RuleTraffic::default()).collect();
    std::thread::scope(|scope| {
        for (seen, body) in seen.iter().zip(&bodies) {
            for _ in 0..CLIENTS {
                let node = leaves.http;
                scope.spawn(move || seen.send_until_closed(node, body));
            }
        }
        wait_for("traffic", || {
            let enough = seen.iter().all(|s| s.admitted.load(Relaxed) >= ENOUGH);
            enough.then_some(())
        });
        leaves.signal("TERM");
        let (status, log) = leaves.wait_end();
        assert_eq!(status.code(), Some(0), "{log:#?}");
    });
    let each = seen.iter().zip(&bodies).map(|(seen, body)| {
        let peek = CheckReply::read(&stays.post("/v1/peek", body).body).unwrap();
        let used = COUNT - peek.remaining;
        [seen.admitted.load(Relaxed), seen.here.load(Relaxed), used]
    });
    each.collect()
}

#[test]
fn a_node_that_shuts_down_under_load_loses_no_unit() {
    let rates = [rate("leased", "leased"), rate("lenient", "lenient")];
    let (redis, text) = (Redis::redis7(), rules(&rates));
    let stays = TestServer::with(&text, &["--store", &redis.url(), "--store-budget", "30000"]);
    wait_exact(&stays);
    let here: Vec<AtomicU64> = rates.iter().map(|_| AtomicU64::new(0)).collect();
    at_once(&Vec::from_iter(0..LANES), |lane| {
        for turn in 0..ROUNDS {
            let number = lane * ROUNDS + turn;
            let subject = format!("192.0.2.{number}");
            let each = round(&redis.url(), &text, &rates, &stays, &subject);
            for (place, [admitted, by_itself, used]) in each.into_iter().enumerate() {
                let name = rates[place].name;
                eprintln!(
                    "shutdown {number}, {name}: {admitted} admitted, {by_itself} of them without the store; \
                     {used} charged"
                );
                assert_eq!(used, admitted, "round {number}, {name}");
                here[place].fetch_add(by_itself, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(7 * lane));
        }
    });
    for (rate, here) in rates.iter().zip(&here) {
        assert!(here.load(Relaxed) > 0, "{}: every decision waited for the store", rate.name);
    }
}
