//! Concurrency limits with real callers on real nodes: never more permits than the rule allows, and all of those.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tidegate_testkit::TestRedis as Redis;

use crate::http::{HttpClient, HttpReply};
use crate::server::{DEADLINE, TestServer, wait_for};
use crate::window::unit;

pub(crate) const UPLOADS: &str = "version: 1\nrules: [{ name: uploads, by: user, concurrent: 2 }]\n";

/// A node that waits for its store as long as it takes.
pub(crate) fn node(redis: &Redis, rules: &str) -> TestServer {
    let node = TestServer::with(rules, &["--store", &redis.url(), "--store-budget", "30000"]);
    exact(&node);
    node
}

pub(crate) fn exact(node: &TestServer) {
    wait_for("an exact node", || (node.metric("tidegate_store_exact") == 1).then_some(()));
}

fn limit(max_permits: u32) -> String {
    UPLOADS.replace("concurrent: 2", &format!("concurrent: {max_permits}"))
}

pub(crate) fn ada(ttl_ms: u64) -> String {
    format!(r#"{{"attributes": {{"user": "ada"}}, "ttl_ms": {ttl_ms}}}"#)
}

pub(crate) fn acquire(client: &mut HttpClient, ttl_ms: u64) -> HttpReply {
    let reply = client.post("/v1/acquire", &ada(ttl_ms));
    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
    reply
}

/// A body with the permit of a response.
pub(crate) fn permit_body(reply: &HttpReply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    format!(r#"{{"permit": {}}}"#, reply.json()["permit"])
}

pub(crate) fn is_renewed(node: &TestServer, permit: &str) -> bool {
    let reply = node.post("/v1/renew", permit);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["renewed"].as_bool().unwrap()
}

#[test]
fn a_permit_is_acquired_renewed_and_released() {
    let server = TestServer::start(UPLOADS);
    let mut client = server.client();
    let first = acquire(&mut client, 10_000);
    let permit = first.json();
    assert_eq!((&permit["allowed"], &permit["ttl_ms"]), (&true.into(), &10_000.into()));
    let open = &permit["open"][0];
    assert_eq!((&open["rule"], &open["limit"]), (&"uploads".into(), &2.into()));
    assert_eq!((&open["open"], &open["allowed"]), (&1.into(), &true.into()));
    let second = acquire(&mut client, 10_000);
    let full = acquire(&mut client, 10_000);
    assert_eq!(full.status, 429);
    let policy = r#""uploads";q=2;qu="concurrent-requests""#;
    assert_eq!(full.header("ratelimit-policy"), Some(policy));
    assert!(matches!(full.header("retry-after"), Some("1" | "2")));
    let denial = full.json();
    assert_eq!((&denial["error"], &denial["rule"]), (&"too_many_open".into(), &"uploads".into()));
    assert_eq!((&denial["limit"], &denial["open"]), (&2.into(), &2.into()));
    let samples = |outcome| {
        format!(r#"tidegate_decisions_total{{rule="uploads",edge="http",outcome="{outcome}",source="exact"}}"#)
    };
    assert_eq!(server.metric(&samples("deny")), 1);
    assert_eq!(server.metric(r#"tidegate_open_requests{rule="uploads"}"#), 2);
    // Other clients have their own permits.
    let bob = client.post("/v1/acquire", r#"{"attributes": {"user": "bob"}}"#);
    assert_eq!(bob.status, 200);
    assert!(is_renewed(&server, &permit_body(&first)));
    for _ in 0..2 {
        let released = client.post("/v1/release", &permit_body(&first));
        assert_eq!((released.status, &released.json()["released"]), (200, &true.into()));
    }
    assert!(!is_renewed(&server, &permit_body(&first)), "released, and not acquired again");
    assert!(is_renewed(&server, &permit_body(&second)));
    assert_eq!(acquire(&mut client, 10_000).status, 200);
    for path in ["/v1/renew", "/v1/release"] {
        let forged = client.post(path, r#"{"permit": "73"}"#);
        assert_eq!((forged.status, &forged.json()["field"]), (400, &"permit".into()));
    }
    // A plain check has no end, so it takes no permit.
    let check = client.post("/v1/check", r#"{"attributes": {"user": "ada"}}"#);
    assert_eq!((check.status, &check.json()["rule"]), (200, &serde_json::Value::Null));
}

#[test]
fn a_denial_by_a_rate_or_by_a_wider_rule_leaves_no_permit_taken() {
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: uploads, by: user, concurrent: 5 }}\n  \
         - {{ name: all, by: global, concurrent: 2 }}\n  \
         - {{ name: tried, by: global, concurrent: 1, mode: shadow }}\n  \
         - {{ name: rate, by: user, rate: 3/{}, algorithm: fixed-window }}\n",
        unit()
    );
    let server = TestServer::start(&rules);
    let mut client = server.client();
    let first = acquire(&mut client, 10_000);
    let second = acquire(&mut client, 10_000);
    let open = second.json()["open"].clone();
    let shadow = open.as_array().unwrap().iter();
    let shadow: Vec<_> = shadow.filter(|open| open["mode"] == "shadow").collect();
    assert_eq!((shadow.len(), &shadow[0]["allowed"]), (1, &false.into()));
    assert_eq!(acquire(&mut client, 10_000).json()["rule"], "all");
    client.post("/v1/release", &permit_body(&first));
    let third = acquire(&mut client, 10_000);
    assert_eq!(third.json()["remaining"], 0, "the full one was not charged");
    client.post("/v1/release", &permit_body(&third));
    for _ in 0..9 {
        let denied = acquire(&mut client, 10_000);
        assert_eq!(denied.json()["error"], "rate_limit_exceeded");
    }
    assert_eq!(server.metric(r#"tidegate_open_requests{rule="uploads"}"#), 1);
    let bob = r#"{"attributes": {"user": "bob"}}"#;
    let open = client.post("/v1/acquire", bob).json()["open"].clone();
    let all = open.as_array().unwrap().iter().find(|o| o["rule"] == "all");
    assert_eq!(all.unwrap()["open"], 2, "{open}");
}

/// Two hundred callers over four nodes. The callers themselves count open permits.
#[test]
fn of_two_hundred_callers_fifty_have_permits_and_never_more() {
    const MAX_HOLDERS: usize = 50;
    let redis = Redis::redis7();
    let nodes: Vec<_> = (0..4).map(|_| node(&redis, &limit(50))).collect();
    let (open, peak, passed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for i in 0..200 {
            let (open, peak, passed) = (&open, &peak, &passed);
            let mut client = nodes[i % nodes.len()].client();
            scope.spawn(move || {
                let begun = Instant::now();
                loop {
                    let reply = acquire(&mut client, 60_000);
                    if reply.status == 429 {
                        assert!(begun.elapsed() < DEADLINE, "{reply:?}");
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    let now = open.fetch_add(1, SeqCst) + 1;
                    peak.fetch_max(now, SeqCst);
                    assert!(now <= MAX_HOLDERS, "{now} have permits");
                    // No caller releases before all of the limit has been used.
                    wait_for("fifty permits", || (peak.load(SeqCst) == MAX_HOLDERS).then_some(()));
                    open.fetch_sub(1, SeqCst);
                    let released = client.post("/v1/release", &permit_body(&reply));
                    assert_eq!(released.status, 200);
                    passed.fetch_add(1, SeqCst);
                    return;
                }
            });
        }
    });
    assert_eq!((peak.load(SeqCst), passed.load(SeqCst)), (MAX_HOLDERS, 200));
}

#[test]
fn permits_of_a_dead_caller_expire_and_those_of_a_dead_node_are_renewed_elsewhere() {
    let redis = Redis::redis7();
    let nodes = [node(&redis, UPLOADS), node(&redis, UPLOADS)];
    let [first, second] = nodes;
    let lasting = permit_body(&acquire(&mut first.client(), 3_600_000));
    let brief = permit_body(&acquire(&mut first.client(), 3_600_000));
    assert_eq!(acquire(&mut second.client(), 3_000).status, 429);
    assert_eq!(first.post("/v1/release", &brief).status, 200);
    // Two callers; one of them dies, and sends nothing any more.
    let dying = acquire(&mut first.client(), 3_000);
    assert_eq!(dying.json()["open"][0]["open"], 2, "{dying:?}");
    first.signal("KILL");
    first.wait_end();
    assert!(is_renewed(&second, &lasting), "the node is gone, the permit is not");
    let next = wait_for("the permit of the dead caller", || {
        let reply = acquire(&mut second.client(), 3_600_000);
        (reply.status == 200).then_some(reply)
    });
    assert_eq!(acquire(&mut second.client(), 3_000).status, 429);
    // A node that shuts down cleanly leaves permits to their callers.
    second.signal("TERM");
    second.wait_end();
    let third = node(&redis, UPLOADS);
    assert!(is_renewed(&third, &lasting) && is_renewed(&third, &permit_body(&next)));
    assert_eq!(acquire(&mut third.client(), 3_000).status, 429);
    assert_eq!(third.post("/v1/release", &lasting).status, 200);
    assert_eq!(acquire(&mut third.client(), 3_000).status, 200);
}

/// The server restarts empty. Open permits are restored before a new one is given out.
#[test]
fn a_restart_of_the_store_gives_out_no_permit_beyond_the_limit() {
    let mut redis = Redis::redis7();
    let nodes = [node(&redis, &limit(10)), node(&redis, &limit(10))];
    let permits: Vec<String> = (0..10).map(|i| permit_body(&acquire(&mut nodes[i % 2].client(), 600_000))).collect();
    redis.kill();
    redis.restart();
    for node in &nodes {
        wait_for("a loss", || {
            let denied = acquire(&mut node.client(), 600_000);
            assert_eq!(denied.status, 429, "{denied:?}");
            (node.metric("tidegate_store_epoch_changes_total") == 1).then_some(())
        });
        exact(node);
    }
    for (i, permit) in permits.iter().enumerate() {
        assert_eq!(acquire(&mut nodes[i % 2].client(), 600_000).status, 429);
        assert!(is_renewed(&nodes[i % 2], permit), "{i}");
    }
    assert_eq!(nodes[0].post("/v1/release", &permits[0]).status, 200);
    assert_eq!(acquire(&mut nodes[1].client(), 600_000).status, 200);
    assert_eq!(acquire(&mut nodes[0].client(), 600_000).status, 429);
}

const PAGE: &str = include_str!("../../../../docs/concurrency.md");

/// The page, run as written: its output matches. `*` stands for values that change.
#[test]
fn the_page_about_concurrency_shows_what_happens() {
    let rules = PAGE.split("```yaml\n").nth(1).unwrap();
    let server = TestServer::start(rules.split("```").next().unwrap());
    let mut ran = 0;
    for block in PAGE.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for example in block.split("$ ").skip(1) {
            let (command, shown) = example.split_once('\n').unwrap();
            let command = command.replace("127.0.0.1:8080", &server.http.to_string());
            let shell = std::process::Command::new("sh").args(["-c", &command]).output();
            let found = String::from_utf8(shell.unwrap().stdout).unwrap();
            assert!(alike(found.trim(), shown.trim()), "{command} gives\n{found}");
            ran += 1;
        }
    }
    assert_eq!(ran, 2, "one is open, one is denied");
}

fn alike(found: &str, shown: &str) -> bool {
    let mut parts = shown.split('*');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else {
        return false;
    };
    for part in parts {
        let Some((_, after)) = rest.split_once(part).filter(|_| !part.is_empty()) else {
            return part.is_empty();
        };
        rest = after;
    }
    rest.is_empty()
}
