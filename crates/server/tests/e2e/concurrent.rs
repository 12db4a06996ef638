//! Two thousand requests at once against a limit of a hundred: exactly a hundred pass.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::http::{Client, Reply, ask};
use crate::server::Server;

const REQUESTS: usize = 2_000;

/// Opens every connection, sends on all of them, then reads from all.
fn storm(server: &Server) -> Vec<Reply> {
    let mut clients: Vec<Client> = (0..REQUESTS).map(|_| server.client()).collect();
    let body = ask("192.0.2.1", "/x");
    std::thread::scope(|scope| {
        for part in clients.chunks_mut(REQUESTS / 8) {
            scope.spawn(|| {
                for client in part {
                    client.send("POST", "/v1/check", &[], &body).unwrap();
                }
            });
        }
    });
    clients
        .iter_mut()
        .map(|client| client.receive().unwrap())
        .collect()
}

/// A window that does not end while the test runs.
fn unit() -> &'static str {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    if now % 3600 < 3480 { "hour" } else { "day" }
}

fn run(algorithm: &str) -> Vec<Reply> {
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: 100/{}, algorithm: {algorithm} }}\n",
        unit()
    );
    let server = Server::start(&rules);
    let replies = storm(&server);
    let passed = replies.iter().filter(|reply| reply.status == 200).count();
    let denied = replies.iter().filter(|reply| reply.status == 429).count();
    assert_eq!(passed + denied, REQUESTS);
    for (outcome, count) in [("allow", passed), ("deny", denied)] {
        let sample = format!(
            r#"tidegate_decisions_total{{rule="r",edge="http",outcome="{outcome}",source="exact"}}"#
        );
        assert_eq!(
            server.metric(&sample),
            count as u64,
            "{outcome} as the client counted"
        );
    }
    replies
}

fn check(algorithm: &str) {
    let replies = run(algorithm);
    let passed = replies.iter().filter(|reply| reply.status == 200).count();
    // A bucket of 100 an hour refills one every 36 s, which a busy machine may just live to see.
    assert!((100..=101).contains(&passed), "{algorithm}: {passed}");
}

#[test]
fn exactly_the_limit_passes_fixed_window_and_each_remaining_appears_once() {
    let replies = run("fixed-window");
    let passed = replies.iter().filter(|reply| reply.status == 200);
    let mut left: Vec<u64> = passed
        .map(|reply| reply.json()["remaining"].as_u64().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left, (0..100).collect::<Vec<_>>());
}

#[test]
fn exactly_the_limit_passes_sliding_log() {
    check("sliding-log");
}

#[test]
fn exactly_the_limit_passes_sliding_window() {
    check("sliding-window");
}

#[test]
fn exactly_the_limit_passes_strict_window() {
    check("sliding-window-strict");
}

#[test]
fn exactly_the_limit_passes_token_bucket() {
    check("token-bucket");
}

#[test]
fn exactly_the_limit_passes_leaky_bucket() {
    check("leaky-bucket");
}

#[test]
fn the_queue_spaces_what_it_admits() {
    let rules = "version: 1\nrules:\n  - { name: q, by: ip, rate: 100/hour burst 100, algorithm: leaky-queue, max_delay: 2h }\n";
    let server = Server::start(rules);
    let begun = Instant::now();
    let replies = storm(&server);
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let mut delays: Vec<u64> = replies
        .iter()
        .filter(|reply| reply.status == 200)
        .map(|reply| reply.json()["delay_ms"].as_u64().unwrap_or(0))
        .collect();
    delays.sort_unstable();
    assert!((100..=102).contains(&delays.len()), "{}", delays.len());
    // Each is released 36 s after the one before; its delay is that less the time it came later.
    for (place, delay) in (0_u64..).zip(delays) {
        let release = place * 36_000;
        let due = release.saturating_sub(took)..=release + 1;
        assert!(due.contains(&delay), "{place}: {delay}");
    }
}
