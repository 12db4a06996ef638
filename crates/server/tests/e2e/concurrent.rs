//! Two thousand requests at once against a limit of a hundred: exactly a hundred pass, and what refills
//! meanwhile.

use std::time::{Duration, Instant};

use crate::http::{Client, Reply, ask};
use crate::server::Server;
use crate::window::unit;

const REQUESTS: usize = 2_000;

fn crowd(server: &Server) -> Vec<Client> {
    (0..REQUESTS).map(|_| server.client()).collect()
}

/// Sends on all connections, then reads from all.
fn storm(clients: &mut [Client]) -> Vec<Reply> {
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

fn serving(rate: &str, algorithm: &str) -> Server {
    Server::start(&format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: {rate}, algorithm: {algorithm} }}\n"
    ))
}

/// How many passed, as the clients counted and as the metrics did.
#[track_caller]
fn passed(server: &Server, replies: &[Reply]) -> usize {
    let with = |status| {
        replies
            .iter()
            .filter(|reply| reply.status == status)
            .count()
    };
    let (passed, denied) = (with(200), with(429));
    assert_eq!(passed + denied, replies.len());
    for (outcome, count) in [("allow", passed), ("deny", denied)] {
        let sample = format!(
            r#"tidegate_decisions_total{{rule="r",edge="http",outcome="{outcome}",source="exact"}}"#
        );
        assert_eq!(server.metric(&sample), count as u64, "{outcome}");
    }
    passed
}

/// A window gives back nothing before it ends.
#[track_caller]
fn check_window(algorithm: &str) {
    let server = serving(&format!("100/{}", unit()), algorithm);
    let replies = storm(&mut crowd(&server));
    assert_eq!(passed(&server, &replies), 100, "{algorithm}");
}

/// What a bucket of a hundred has passed when it first refuses is what it holds and what it refilled
/// since it was first charged, rounded down: no more, and no less. How long that was is known from
/// both sides.
#[track_caller]
fn check_bucket(algorithm: &str) {
    const REFILL: Duration = Duration::from_millis(600);
    let server = serving("100/minute burst 100", algorithm);
    let mut clients = crowd(&server);
    let sent = Instant::now();
    // Half of it at once: so it is not full again before the others come, however slow they are.
    let half = r#"{"attributes": {"ip": "192.0.2.1", "path": "/x"}, "cost": 50}"#;
    let mut replies = vec![clients[0].post("/v1/check", half)];
    let charged = Instant::now();
    replies.extend(storm(&mut clients));
    let refused = loop {
        let started = Instant::now();
        replies.push(server.post("/v1/check", &ask("192.0.2.1", "/x")));
        if replies.last().unwrap().status == 429 {
            break started;
        }
    };
    let (least, most) = (refused - charged, sent.elapsed());
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
    let mut left: Vec<u64> = passed
        .map(|reply| reply.json()["remaining"].as_u64().unwrap())
        .collect();
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
fn exactly_the_limit_and_what_refilled_passes_token_bucket() {
    check_bucket("token-bucket");
}

#[test]
fn exactly_the_limit_and_what_refilled_passes_leaky_bucket() {
    check_bucket("leaky-bucket");
}

#[test]
fn the_queue_spaces_what_it_admits() {
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
    // Each is released 36 s after the one before; its delay is that less the time it came later.
    for (place, delay) in (0_u64..).zip(delays) {
        let release = place * PACE_MS;
        let due = release.saturating_sub(took)..=release + 1;
        assert!(due.contains(&delay), "{place}: {delay}");
    }
}
