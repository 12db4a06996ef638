//! `CL.THROTTLE` and `THROTTLE` on the served port, on every store.

use std::time::{Duration, Instant};

use crate::resp::{RespClient, RespReply};
use crate::server::{TestServer, wait_for};

const NONE: &str = "version: 1\nrules: []\n";

/// Sends a command and compares the reply. A refill time in hours may have become less by the time that a slow
/// machine takes.
#[track_caller]
fn check(redis: &mut RespClient, line: &str, want: [i64; 5]) {
    let reply = redis.send_line(line).integers();
    let like = |(actual, want): (&i64, i64)| match want {
        3_600.. => (want - 600..=want).contains(actual),
        _ => *actual == want,
    };
    let alike = reply.len() == 5 && reply.iter().zip(want).all(like);
    assert!(alike, "{line} gives {reply:?}, not {want:?}");
}

/// So slow that nothing refills while a test runs: one unit in an hour.
fn vectors(redis: &mut RespClient) {
    check(redis, "CL.THROTTLE published 15 30 60", [0, 16, 15, -1, 2]);
    check(redis, "CL.THROTTLE k 4 1 3600 6", [1, 5, 5, -1, 0]);
    for used in 1..=5 {
        let want = [0, 5, 5 - used, -1, 3_600 * used];
        check(redis, "CL.THROTTLE k 4 1 3600", want);
    }
    check(redis, "CL.THROTTLE k 4 1 3600 2", [1, 5, 0, 7_200, 18_000]);
    check(redis, "cl.throttle k 4 1 3600", [1, 5, 0, 3_600, 18_000]);
    check(redis, "CL.THROTTLE k 4 1 3600 0", [0, 5, 0, -1, 18_000]);
    check(redis, "CL.THROTTLE other 4 1 3600 3", [0, 5, 2, -1, 10_800]);
    check(redis, "CL.THROTTLE none -1 1 10", [1, 0, 0, -1, 0]);
    check(redis, "THROTTLE k 5 1 3600", [1, 5, 4, 3_600, 0]);
    check(redis, "THROTTLE k 5 1 3600 4", [1, 5, 0, 18_000, 0]);
    check(redis, "THROTTLE k 5 1 3600 6", [0, 5, 0, 18_000, -1]);
    check(redis, "THROTTLE k 5 1 3600", [0, 5, 0, 18_000, 3_600]);
}

#[test]
fn the_vectors_of_the_original_hold_in_memory() {
    let server = TestServer::with_resp(NONE, &[]);
    vectors(&mut server.redis());
    let metric = |labels: &str| server.metric(&format!("tidegate_decisions_total{{{labels}"));
    let allowed = r#"rule="cl.throttle",edge="resp",outcome="allow",source="exact""#;
    assert_eq!(metric(allowed), 7);
    let denied = r#"rule="throttle",edge="resp",outcome="deny",source="exact""#;
    assert_eq!(metric(denied), 2);
    // Without room for one request it was denied in no metric and without a line in the log.
    let denied = r#"rule="cl.throttle",edge="resp",outcome="deny",source="exact""#;
    assert_eq!(metric(denied), 4);
}

#[test]
fn the_vectors_of_the_original_hold_on_disk() {
    let data = tempfile::tempdir().unwrap();
    let server = TestServer::with_resp(NONE, &["--data-dir", data.path().to_str().unwrap()]);
    vectors(&mut server.redis());
}

#[test]
fn the_vectors_of_the_original_hold_in_a_shared_store() {
    let store = tidegate_testkit::TestRedis::redis7();
    let flags = ["--store", &store.url(), "--store-budget", "30000"];
    let server = TestServer::with_resp(NONE, &flags);
    server.wait_log(|line| line["message"] == "decisions are exact");
    vectors(&mut server.redis());
    // Another node continues the count.
    let other = TestServer::with_resp(NONE, &flags);
    other.wait_log(|line| line["message"] == "decisions are exact");
    let reply = other.redis().send_line("CL.THROTTLE other 4 1 3600 2").integers();
    assert_eq!(reply[..3], [0, 5, 0]);
    // A limit that a script cannot count exactly is an error, not an estimate.
    let error = server.redis().error("CL.THROTTLE k 99999999999 7 86400");
    assert!(error.starts_with("Cell error: the window cannot be computed exactly"), "{error}");
}

#[test]
fn the_advised_wait_suffices() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let mut keys = 0..;
    // If a pair of calls took as long as one unit takes to refill, it is repeated with another key.
    let (command, denied) = wait_for("two calls within two seconds", || {
        let command = format!("CL.THROTTLE k{} 0 1 2", keys.next()?);
        let begun = Instant::now();
        assert_eq!(redis.send_line(&command).integers(), [0, 1, 0, -1, 2]);
        let second = redis.send_line(&command).integers();
        (begun.elapsed() < Duration::from_secs(2)).then_some((command, second))
    });
    assert_eq!(denied[..3], [1, 1, 0]);
    let wait = u64::try_from(denied[3]).unwrap();
    assert!((1..=2).contains(&wait), "{denied:?}");
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(redis.send_line(&command).integers()[0], 0);
}

#[test]
fn keys_of_any_bytes_and_up_to_16_kib_are_distinct() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let long = "k".repeat(16 << 10);
    let longer = long.clone() + "k";
    for key in ["", " ", "\r\n", "{a}", &long, &longer] {
        let words = ["CL.THROTTLE", key, "0", "1", "3600"];
        assert_eq!(redis.send_words(&words).integers()[0], 0, "{key:.10}");
        assert_eq!(redis.send_words(&words).integers()[0], 1, "{key:.10}");
    }
    redis.send(b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\n\xff\x00\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n60\r\n");
    assert_eq!(redis.receive().unwrap().integers(), [0, 1, 0, -1, 60]);
}

#[test]
fn no_attribute_reaches_a_key_and_no_key_an_attribute() {
    let rules = "version: 1\nrules: [{ name: cl.throttle, by: key, rate: 1/hour burst 1 }]\n";
    let server = TestServer::with_resp(rules, &[]);
    let mut redis = server.redis();
    let allowed = RespReply::Integer(1);
    assert_eq!(redis.send_line("CL.THROTTLE k 0 1 3600").integers()[0], 0);
    assert_eq!(redis.send_line("TG.CHECK key k").field("allowed"), &allowed);
    assert_eq!(redis.send_line("THROTTLE k 1 1 3600").integers()[0], 1);
}

#[test]
fn in_shadow_mode_nothing_is_denied() {
    let server = TestServer::with_resp(NONE, &["--shadow"]);
    let mut redis = server.redis();
    for _ in 0..3 {
        assert_eq!(redis.send_line("CL.THROTTLE k 0 1 3600").integers()[0], 0);
        assert_eq!(redis.send_line("CL.THROTTLE k -1 1 3600").integers()[0], 0);
    }
    let shadowed = r#"tidegate_decisions_total{rule="cl.throttle",edge="resp",outcome="shadow_deny""#;
    assert_eq!(server.metric(shadowed), 5, "all but the first");
}

#[test]
fn without_the_store_a_node_decides_by_its_share() {
    let mut store = tidegate_testkit::TestRedis::redis7();
    let server = TestServer::with_resp(NONE, &["--store", &store.url(), "--nodes", "1"]);
    server.wait_log(|line| line["message"] == "decisions are exact");
    let mut redis = server.redis();
    assert_eq!(redis.send_line("CL.THROTTLE k 99 1 3600").integers()[..2], [0, 100]);
    store.kill();
    let denied = wait_for("the share to be used up", || {
        let reply = redis.send_line("CL.THROTTLE k 99 1 3600").integers();
        (reply[0] == 1).then_some(reply)
    });
    assert_eq!(denied[1], 100);
    let fallback = r#"tidegate_decisions_total{rule="cl.throttle",edge="resp",outcome="allow",source="fallback"}"#;
    let passed = server.metric(fallback);
    assert!((60..=100).contains(&passed), "{passed} of a share of 80");
}
