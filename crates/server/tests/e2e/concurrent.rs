//! Two thousand requests at once against a limit of a hundred: exactly a hundred pass, plus what refills meanwhile.

use std::time::{Duration, Instant};

use crate::http::{HttpClient, HttpReply, check_body};
use crate::server::TestServer;
use crate::window::unit;

const REQUESTS: usize = 2_000;

fn crowd(server: &TestServer) -> Vec<HttpClient> {
    (0..REQUESTS).map(|_| server.client()).collect()
}

/// Sends on all connections, then reads from all.
fn storm(clients: &mut [HttpClient]) -> Vec<HttpReply> {
    let body = check_body("192.0.2.1", "/x");
    std::thread::scope(|scope| {
        for part in clients.chunks_mut(REQUESTS / 8) {
            scope.spawn(|| {
                for client in part {
                    client.send("POST", "/v1/check", &[], &body).unwrap();
                }
            });
        }
    });
    clients.iter_mut().map(|client| client.receive().unwrap()).collect()
}

fn serving(rate: &str, algorithm: &str) -> TestServer {
    TestServer::start(&format!("version: 1\nrules:\n  - {{ name: r, by: ip, rate: {rate}, algorithm: {algorithm} }}\n"))
}

/// How many passed, by the count of the clients and by the metrics.
#[track_caller]
fn passed(server: &TestServer, replies: &[HttpReply]) -> usize {
    let with = |status| replies.iter().filter(|reply| reply.status == status).count();
    let (passed, denied) = (with(200), with(429));
    assert_eq!(passed + denied, replies.len());
    for (outcome, count) in [("allow", passed), ("deny", denied)] {
        let sample = format!(r#"tidegate_decisions_total{{rule="r",edge="http",outcome="{outcome}",source="exact"}}"#);
        assert_eq!(server.metric(&sample), count as u64, "{outcome}");
    }
    passed
}

/// A window refills nothing before it ends.
#[track_caller]
fn check_window(algorithm: &str) {
    let server = serving(&format!("100/{}", unit()), algorithm);
    let replies = storm(&mut crowd(&server));
    assert_eq!(passed(&server, &replies), 100, "{algorithm}");
}

/// When a bucket of a hundred first denies, it has passed its capacity and what it refilled since it was first
/// charged, rounded down: no more, and no less. The refill time is bounded from both sides.
#[track_caller]
fn check_bucket(algorithm: &str) {
    const REFILL: Duration = Duration::from_millis(600);
    let server = serving("100/minute burst 100", algorithm);
    let mut clients = crowd(&server);
    let sent = Instant::now();
    // Half of the capacity at once: so the bucket is not full again before the others come, however slow they are.
    let half = r#"{"attributes": {"ip": "192.0.2.1", "path": "/x"}, "cost": 50}"#;
    let mut replies = vec![clients[0].post("/v1/check", half)];
    let charged = Instant::now();
    replies.extend(storm(&mut clients));
    let denied_at = loop {
        let started = Instant::now();
        replies.push(server.post("/v1/check", &check_body("192.0.2.1", "/x")));
        if replies.last().unwrap().status == 429 {
            break started;
        }
    };
    let (least, most) = (denied_at - charged, sent.elapsed());
    let refilled = |time: Duration| (time.as_nanos() / REFILL.as_nanos()) as usize;
    let units = 50 + passed(&server, &replies) - 1;
    let exact = 100 + refilled(least)..=100 + refilled(most);
    assert!(exact.contains(&units), "{algorithm}: {units} of {exact:?}");
}

#[test]
fn exactly_the_limit_passes_fixed_window_and_each_remaining_appears_once() {
    let server = serving(&format!("100/{}", unit()), "fixed-window");
    let replies = storm(&mut crowd(&server));
    assert_eq!(passed(&server, &replies), 100);
    let passed = replies.iter().filter(|reply| reply.status == 200);
    let mut left: Vec<u64> = passed.map(|reply| reply.json()["remaining"].as_u64().unwrap()).collect();
    left.sort_unstable();
    assert_eq!(left, (0..100).collect::<Vec<_>>());
}

#[test]
fn exactly_the_limit_passes_sliding_log() {
    check_window("sliding-log");
}

#[test]
fn exactly_the_limit_passes_sliding_window() {
    check_window("sliding-window");
}

#[test]
fn exactly_the_limit_passes_strict_window() {
    check_window("sliding-window-strict");
}

#[test]
fn exactly_the_limit_and_the_refill_pass_token_bucket() {
    check_bucket("token-bucket");
}

#[test]
fn exactly_the_limit_and_the_refill_pass_leaky_bucket() {
    check_bucket("leaky-bucket");
}

#[test]
fn the_queue_spaces_admitted_requests() {
    const PACE_MS: u64 = 36_000;
    let server = serving("100/hour burst 100", "leaky-queue, max_delay: 2h");
    let mut clients = crowd(&server);
    let begun = Instant::now();
    let replies = storm(&mut clients);
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let mut delays: Vec<u64> = replies
        .iter()
        .filter(|reply| reply.status == 200)
        .map(|reply| reply.json()["delay_ms"].as_u64().unwrap_or(0))
        .collect();
    delays.sort_unstable();
    let most = 100 + took / PACE_MS;
    assert!((100..=most).contains(&(delays.len() as u64)), "{delays:?}");
    // Each request is released 36 s after the one before; its delay is that minus the time by which it came later.
    for (place, delay) in (0_u64..).zip(delays) {
        let release = place * PACE_MS;
        let due = release.saturating_sub(took)..=release + 1;
        assert!(due.contains(&delay), "{place}: {delay}");
    }
}
