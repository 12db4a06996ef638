//! A store whose clock is wrong: reported once, shown in the metrics, and no reason to deny anything.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{RedisProgram, ShiftedClock, TestRedis as Redis};

use crate::admin::promtool_accepts;
use crate::http::check_body;
use crate::server::{TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 5/hour, algorithm: token-bucket }\n";
const HALF_A_MINUTE: Duration = Duration::from_secs(30);

fn offset_secs(node: &TestServer) -> f64 {
    let page = node.admin_get("/metrics").body;
    let sample = "tidegate_store_clock_offset_seconds ";
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.unwrap_or_else(|| panic!("no offset in {page}")).parse().unwrap()
}

fn contains(text: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["message"].as_str().is_some_and(|message| message.contains(text))
}

#[test]
fn a_clock_offset_is_logged_once_and_so_is_its_correction() {
    let clock = Arc::new(ShiftedClock::new().unwrap());
    clock.set_ahead(HALF_A_MINUTE).unwrap();
    let redis = Redis::start_with_clock(Arc::clone(&clock), RedisProgram::Redis7, &[]);
    let node = TestServer::with(RULES, &["--store", &redis.url(), "--store-budget", "30000"]);
    let apart = node.wait_log(contains("are apart"));
    assert_eq!(apart["level"], "ERROR", "{apart}");
    assert!((29_000.0..31_000.0).contains(&apart["offset_ms"].as_f64().unwrap()), "{apart}");
    assert!((29.0..31.0).contains(&offset_secs(&node)));
    assert_eq!(node.metric("tidegate_store_clock_level"), 2);
    promtool_accepts(&node.admin_get("/metrics").body);
    let decided = node.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
    assert_eq!((&decided["allowed"], &decided["source"]), (&true.into(), &"exact".into()));

    clock.set_ahead(Duration::ZERO).unwrap();
    node.wait_log(contains("was set"));
    node.wait_log(contains("agree"));
    wait_for("a level that is fine", || (node.metric("tidegate_store_clock_level") == 0).then_some(()));
    assert_eq!(node.metric("tidegate_store_clock_jumps_total"), 1);
    node.signal("TERM");
    let (_, log) = node.wait_end();
    for once in ["are apart", "was set", "agree"] {
        assert_eq!(log.iter().filter(|line| contains(once)(line)).count(), 1, "{once}");
    }
}
