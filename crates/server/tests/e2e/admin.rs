//! The admin listener: consistent metrics, the state of one subject, access control.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::http::{HttpClient, HttpReply, check_body};
use crate::server::{BINARY, TestServer, wait_for};

const RULES: &str = "
version: 1
rules:
  - { name: login, match: { path: /login }, by: ip, rate: 3/hour, algorithm: fixed-window }
  - { name: all, by: api_key|ip, rate: 1000000/hour }
";

/// The page without values that change by themselves.
fn series(page: &str) -> Vec<&str> {
    let samples = page.lines().filter(|line| !line.starts_with('#') && !line.starts_with("process_"));
    samples.map(|line| line.rsplit_once(' ').unwrap().0).collect()
}

#[test]
fn metrics_match_the_counts_of_a_client() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let (mut passed, mut denied, mut bad) = (0, 0, 0);
    for i in 0..300 {
        let body = match i % 10 {
            0 => "{".to_owned(),
            1..=4 => check_body(&format!("192.0.2.{}", i % 7), "/login"),
            _ => check_body(&format!("192.0.2.{}", i % 7), "/x"),
        };
        match client.post("/v1/check", &body).status {
            200 => passed += 1,
            429 => denied += 1,
            400 => bad += 1,
            other => panic!("{other}"),
        }
    }
    let page = server.admin_get("/metrics").body;
    let sum = |outcome: &str| -> u64 {
        let wanted = |line: &&str| line.starts_with("tidegate_decisions_total{") && line.contains(outcome);
        let values = page.lines().filter(wanted).map(|line| line.rsplit(' ').next().unwrap());
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    };
    assert_eq!((sum("\"allow\""), sum("\"deny\"")), (passed, denied));
    assert_eq!(server.metric(r#"tidegate_http_responses_total{edge="http",status="400"}"#), bad);
    let count = server.metric(r#"tidegate_decision_duration_seconds_count{edge="http"}"#);
    assert_eq!(count, passed + denied);
}

#[test]
fn a_hundred_thousand_random_keys_and_paths_add_no_series() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let list = |round: u32| {
        let items: Vec<String> = (0..1_000)
            .map(|i| {
                let n = round * 1_000 + i;
                format!(
                    r#"{{"attributes":{{"api_key":"k{n}","path":"/p{n}","ip":"10.{}.{}.{}"}}}}"#,
                    n >> 16,
                    n >> 8 & 255,
                    n & 255
                )
            })
            .collect();
        format!("[{}]", items.join(","))
    };
    // One request of each outcome first: a series appears with its first event.
    client.post("/v1/check", &list(0));
    let before = server.admin_get("/metrics").body;
    for round in 1..100 {
        assert_eq!(client.post("/v1/check", &list(round)).status, 200);
    }
    let after = server.admin_get("/metrics").body;
    assert_eq!(series(&before), series(&after));
    let sample = r#"tidegate_decisions_total{rule="all",edge="http",outcome="allow",source="exact"}"#;
    assert_eq!(server.metric(sample), 100_000);
}

#[test]
fn promtool_accepts_the_page() {
    let server = TestServer::start(RULES);
    server.post("/v1/check", &check_body("192.0.2.1", "/login"));
    let page = server.admin_get("/metrics");
    assert!(page.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    promtool_accepts(&page.body);
}

/// Asserts that Prometheus can read the page and reports no problem.
pub(crate) fn promtool_accepts(page: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = promtool.expect("promtool is missing; `make test` installs it (Debian's prometheus)");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && printed.trim().is_empty(), "{printed}");
}

#[test]
fn one_subject_is_inspected_and_reset() {
    let server = TestServer::start(RULES);
    let body = check_body("192.0.2.1", "/login");
    for _ in 0..4 {
        server.post("/v1/check", &body);
    }
    for reply in [server.admin_post("/v1/subjects", &body), server.admin_get("/v1/subjects?ip=192.0.2.1&path=%2Flogin")]
    {
        let limits = reply.json()["limits"].clone();
        assert_eq!((&limits[0]["rule"], &limits[0]["used"]), (&"login".into(), &3.into()), "{reply:?}");
        assert_eq!(limits[0]["rate"], "3/hour", "as it is written in the rules");
    }
    let reset = server.admin_post("/v1/subjects/reset", &body);
    assert_eq!(reset.json()["reset"], 2, "{reset:?}");
    assert_eq!(server.post("/v1/check", &body).status, 200);
}

/// A reset of one client emptied the global ceiling without mentioning it.
#[test]
fn a_reset_of_one_client_does_not_touch_the_counters_of_all() {
    let server = TestServer::start(
        "version: 1\nrules:\n  - { name: ceiling, by: global, rate: 2/hour }\n  \
           - { name: each, by: user, rate: 9/hour }\n  - { name: orgs, by: org, rate: 9/hour }\n",
    );
    let user = |name: &str| format!(r#"{{"attributes": {{"user": "{name}"}}}}"#);
    let status = |name: &str| server.post("/v1/check", &user(name)).status;
    assert_eq!(["ada", "bob", "eve"].map(status), [200, 200, 429]);
    let reset = server.admin_post("/v1/subjects/reset", &user("ada")).json();
    let missing = serde_json::json!([
        {"rule": "ceiling", "attributes": []}, {"rule": "orgs", "attributes": ["org"]},
    ]);
    assert_eq!((&reset["reset"], &reset["missing"]), (&1.into(), &missing));
    assert_eq!(status("eve"), 429);
    let named = |query: &str| server.admin_post(&format!("/v1/subjects/reset?{query}"), "{}");
    for (query, field) in [("rule=cieling", "rule"), ("rule=a&rule=b", "rule"), ("ruel=ceiling", "query")] {
        let reply = named(query);
        assert_eq!((reply.status, &reply.json()["field"]), (400, &field.into()));
    }
    assert_eq!(status("eve"), 429);
    let reset = named("rule=ceiling").json();
    assert_eq!((&reset["reset"], &reset["missing"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(["eve", "ada", "bob"].map(status), [200, 200, 429]);
}

/// The response was an empty list, as if the client had used nothing.
#[test]
fn missing_attributes_that_a_rule_needs_are_listed() {
    let server = TestServer::start(
        "version: 1\nrules:\n  - { name: login, by: [ip, account], match: { path: /login }, rate: 3/hour }\n",
    );
    let body = |path: &str| format!(r#"{{"attributes": {{"ip": "192.0.2.1", "account": "ada"{path}}}}}"#);
    let (bare, whole) = (body(""), body(r#", "path": "/login""#));
    server.post("/v1/check", &whole);
    let missing = serde_json::json!([{"rule": "login", "attributes": ["path"]}]);
    let inspected = server.admin_post("/v1/subjects", &bare).json();
    assert_eq!((&inspected["limits"], &inspected["missing"]), (&serde_json::json!([]), &missing));
    let reset = server.admin_post("/v1/subjects/reset", &bare).json();
    assert_eq!((&reset["reset"], &reset["missing"]), (&0.into(), &missing));
    let inspected = server.admin_post("/v1/subjects", &whole).json();
    assert_eq!(inspected["limits"][0]["used"], 1);
    assert_eq!(inspected["missing"], serde_json::json!([]));
    assert_eq!(server.admin_post("/v1/subjects/reset", &whole).json()["reset"], 1);
    // As for `/v1/check`: under a name that differs by case, a rule would silently not apply.
    let misspelt = body(r#", "Path": "/login""#);
    for path in ["/v1/subjects", "/v1/subjects/reset"] {
        assert_eq!(server.admin_post(path, &misspelt).status, 400, "{path}");
    }
}

#[test]
fn metrics_cover_the_enabled_edges_only() {
    let server = TestServer::with(RULES, &["--grpc", "off"]);
    let page = server.admin_get("/metrics").body;
    for (edge, on) in [("http", true), ("auth", true), ("envoy", false), ("resp", false), ("library", false)] {
        assert_eq!(page.contains(&format!("edge=\"{edge}\"")), on, "{edge}");
    }
}

#[test]
fn the_rules_in_force_are_listed() {
    let server = TestServer::start(RULES);
    let rules = server.admin_get("/v1/rules").json();
    assert_eq!(rules["rules"].as_array().unwrap().len(), 2);
    assert_eq!(rules["hash"].as_str().unwrap().len(), 64);
    assert!(rules["stale"].is_null());
}

/// The response named /openapi.json, which only the public listener has.
#[test]
fn a_404_names_the_paths_of_its_listener() {
    let server = TestServer::start(RULES);
    for (name, get) in [
        ("admin", &(|path: &str| server.admin_get(path)) as &dyn Fn(&str) -> HttpReply),
        ("http", &|path| server.client().request("GET", path, &[], "")),
    ] {
        let reply = get("/nothing");
        assert_eq!(reply.status, 404, "{name}");
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        let paths: Vec<&str> = message.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
        assert!(!paths.is_empty(), "{name}: {message}");
        for path in paths {
            assert_ne!(get(path).status, 404, "{name}: {path}");
        }
    }
}

#[test]
fn other_hosts_and_origins_are_rejected() {
    let server = TestServer::start(RULES);
    let mut admin = HttpClient::connect(server.admin);
    let status = |admin: &mut HttpClient, method: &str, path: &str, headers: &[(&str, &str)]| {
        admin.request(method, path, headers, "").status
    };
    assert_eq!(status(&mut admin, "GET", "/metrics", &[("host", "evil.example")]), 421);
    assert_eq!(status(&mut admin, "POST", "/v1/reload", &[("origin", "http://evil.example")]), 403);
    assert_eq!(status(&mut admin, "POST", "/v1/reload", &[]), 200);
    assert_eq!(status(&mut admin, "GET", "/healthz", &[("host", "evil.example")]), 200);
}

#[test]
fn a_wider_admin_listener_needs_a_token() {
    let output = Command::new(BINARY)
        .args(["serve", "--http", "off", "--grpc", "off", "--admin", "0.0.0.0:0", "--log-format", "text"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--admin-token-file"));
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "correct-horse-battery").unwrap();
    let server = TestServer::with(RULES, &["--admin-token-file", token.to_str().unwrap()]);
    assert_eq!(server.admin_get("/metrics").status, 401);
    let shown = [("authorization", "Bearer correct-horse-battery")];
    assert_eq!(HttpClient::connect(server.admin).request("GET", "/metrics", &shown, "").status, 200);
}

/// New clients at the memory cap were denied together without a line in the log, and the page showed a client that
/// had used nothing as one that had used everything.
#[test]
fn new_clients_at_the_memory_cap_are_reported() {
    let rules = "version: 1\nrules:\n  - { name: r, by: user, rate: 5/day, algorithm: sliding-log }\n";
    let server = TestServer::with(rules, &["--memory-cap", "16MiB"]);
    let mut client = server.client();
    let check = |user: usize| format!(r#"{{"attributes": {{"user": "u{user}"}}}}"#);
    let mut users = (0..).step_by(1_000).map(|first| {
        let list: Vec<String> = (first..first + 1_000).map(check).collect();
        format!("[{}]", list.join(","))
    });
    wait_for("a full memory", || {
        client.post("/v1/check", &users.next().unwrap());
        (server.metric("tidegate_store_overflow_total") > 0).then_some(())
    });
    server.wait_log(|line| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.starts_with("counters are at --memory-cap")
    });
    // Some shards of the table are full before others.
    let mut ids = 1_000_000_000..;
    let new_client = wait_for("a new client without room", || {
        let new_client = check(ids.next().unwrap());
        // A client that finds room begins with a copy of the shared counter, and has its own from then on: its first
        // reply is `overflow` too, its second is not.
        let mut source = || client.post("/v1/check", &new_client).json()["source"].clone();
        let shares_a_counter = source() == "overflow" && source() == "overflow";
        shares_a_counter.then_some(new_client)
    });
    let page = server.admin_post("/v1/subjects", &new_client).json();
    assert_eq!(page["limits"][0]["source"], "overflow", "{page}");
    let known = server.admin_post("/v1/subjects", &check(0)).json();
    assert_eq!(known["limits"][0]["source"], "exact", "{known}");
}
