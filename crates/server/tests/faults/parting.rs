//! A node that is told to leave, in full traffic: what it had drawn in advance goes back and what it had
//! admitted by hearsay is told, to the last unit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_parts::TestRedis as Redis;

use crate::fleet::{patient, wait_exact};
use crate::history::{CheckReply, ReplySource};
use crate::http::{Client, ask};
use crate::rates::{TestRate, rules};
use crate::scene::at_once;
use crate::server::{Server, wait_for};
use crate::window::window;

/// Rounds that go on at the same time, and how many each is of.
const SHARED_RULES: u64 = 4;
const ROUNDS: u64 = 5;
const CLIENTS: usize = 4;
/// What has passed before a node is told to leave.
const ENOUGH: u64 = 300;
/// So many that leases are of some size also where the window is a month.
const COUNT: u64 = 1_000_000_000;

/// Never used up and never forgotten: every admission can be found in the store.
fn rate(name: &'static str, counting: &'static str) -> TestRate {
    TestRate::window(name, COUNT, Nanos::from_secs(window().secs)).counting(counting)
}

/// What the clients of one rule saw.
#[derive(Default)]
struct RuleTraffic {
    admitted: AtomicU64,
    /// Without asking the store.
    here: AtomicU64,
}

impl RuleTraffic {
    /// One request after another until nobody takes them. One that was taken is answered, so what is not
    /// answered was not charged.
    fn send_until_closed(&self, node: SocketAddr, body: &str) {
        while let Ok(mut client) = Client::try_connect(node) {
            while client.send("POST", "/v1/check", &[], body).is_ok() {
                let Ok(reply) = client.receive() else { break };
                assert_eq!(reply.status, 200, "{}", reply.body);
                let answer = CheckReply::read(&reply.body).unwrap();
                assert!(answer.allowed);
                assert_ne!(answer.source, ReplySource::Fallback);
                self.admitted.fetch_add(1, Relaxed);
                let here = matches!(answer.source, ReplySource::Lease | ReplySource::Lenient);
                self.here.fetch_add(u64::from(here), Relaxed);
                if reply.header("connection") == Some("close") {
                    break;
                }
            }
        }
    }
}

/// One round: how many were admitted under each rule, how many of them without asking the store, and what
/// the store knows of.
fn round(
    store: &str,
    text: &str,
    rates: &[TestRate],
    stays: &Server,
    subject: &str,
) -> Vec<[u64; 3]> {
    let leaves = patient(store, text);
    let bodies: Vec<String> = rates
        .iter()
        .map(|rate| ask(subject, &format!("/{}", rate.name)))
        .collect();
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
fn a_node_that_leaves_in_full_traffic_loses_no_unit_and_forgets_none() {
    let rates = [rate("leased", "leased"), rate("lenient", "lenient")];
    let (redis, text) = (Redis::redis7(), rules(&rates));
    let stays = Server::with(&text, &["--store", &redis.url(), "--store-budget", "30000"]);
    wait_exact(&stays);
    let here: Vec<AtomicU64> = rates.iter().map(|_| AtomicU64::new(0)).collect();
    at_once(&Vec::from_iter(0..SHARED_RULES), |lane| {
        for turn in 0..ROUNDS {
            let number = lane * ROUNDS + turn;
            let subject = format!("192.0.2.{number}");
            let each = round(&redis.url(), &text, &rates, &stays, &subject);
            for (place, [admitted, by_itself, used]) in each.into_iter().enumerate() {
                let name = rates[place].name;
                eprintln!(
                    "parting {number}, {name}: {admitted} admitted, {by_itself} of them without asking; \
                     {used} charged"
                );
                assert_eq!(used, admitted, "round {number}, {name}");
                here[place].fetch_add(by_itself, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(7 * lane));
        }
    });
    for (rate, here) in rates.iter().zip(&here) {
        assert!(
            here.load(Relaxed) > 0,
            "{}: the store was asked for all",
            rate.name
        );
    }
}
