//! What a client sees: decisions, headers, lists, receipts, explanations.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::http::check_body;
use crate::server::TestServer;

const RULES: &str = "
version: 1
rules:
  - { name: login, match: { path: /login }, by: ip, rate: 2/hour, algorithm: fixed-window }
  - { name: watched, match: { path: /login }, by: ip, rate: 1/hour, mode: shadow }
  - { name: tokens, match: { path: /llm }, by: ip, unit: tokens, rate: 1000/hour }
block: [203.0.113.66]
";

#[test]
fn a_reply_carries_the_remaining_units_and_the_retry_time() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let first = client.post("/v1/check", &check_body("192.0.2.1", "/login"));
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("x-ratelimit-limit"), Some("2"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"login\";q=2;w=3600"));
    assert_eq!(first.json()["id"].as_str(), first.header("x-tidegate-id"));
    assert_eq!(first.json()["limits"][1]["mode"], "shadow");
    let second = client.post("/v1/check", &check_body("192.0.2.1", "/login"));
    assert_ne!(first.json()["id"], second.json()["id"]);
    assert_eq!(second.json()["limits"][1]["allowed"], false, "a shadow limit only reports");
    let denied = client.post("/v1/check", &check_body("192.0.2.1", "/login"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    let retry_after: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3630).contains(&retry_after), "{retry_after}");
    assert_eq!(denied.json()["rule"], "login");
    assert_eq!(denied.json()["error"], "rate_limit_exceeded");
    // Other clients and other paths are not affected.
    assert_eq!(client.post("/v1/check", &check_body("192.0.2.2", "/login")).status, 200);
    let free = client.post("/v1/check", &check_body("192.0.2.1", "/other"));
    assert_eq!((free.status, free.header("ratelimit")), (200, None));
    assert!(free.json()["rule"].is_null());
}

#[test]
fn a_denial_is_a_problem_document_for_clients_that_accept_one() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let accept = [("accept", "application/problem+json")];
    let mut last = None;
    for _ in 0..3 {
        last = Some(client.request("POST", "/v1/check", &accept, &check_body("192.0.2.1", "/login")));
    }
    let problem = last.unwrap();
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    assert_eq!(problem.json()["violated-policies"][0], "login");
}

#[test]
fn the_block_list_is_403_and_a_cost_that_never_fits_is_422() {
    let server = TestServer::start(RULES);
    assert_eq!(server.post("/v1/check", &check_body("203.0.113.66", "/x")).status, 403);
    let body = r#"{"attributes": {"ip": "192.0.2.1", "path": "/login"}, "cost": 3}"#;
    let never = server.post("/v1/check", body);
    assert_eq!((never.status, never.header("retry-after")), (422, None));
    let body = r#"{"attributes": {"ip": "192.0.2.1", "path": "/llm"}, "costs": {"tokens": 1500}}"#;
    assert_eq!(server.post("/v1/check", body).status, 422);
}

/// A misspelt unit was free, and so was a request that named none.
#[test]
fn a_cost_that_is_misspelt_or_absent_is_not_free() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let costs =
        |costs: &str| format!(r#"{{"attributes": {{"ip": "192.0.2.1", "path": "/llm"}}, "costs": {{{costs}}}}}"#);
    let paths = ["/v1/check", "/v1/peek", "/v1/explain", "/v1/acquire", "/v1/reserve"];
    for path in paths {
        let rejected = client.post(path, &costs(r#""tokns": 5"#));
        let field = &rejected.json()["field"];
        assert_eq!((rejected.status, field), (400, &json!("costs.tokns")), "{path}");
        assert!(rejected.body.contains("write tokens"), "{rejected:?}");
    }
    let list = format!("[{}, {}]", costs(""), costs(r#""tokens": 1, "images": 0"#));
    let rejected = client.post("/v1/check", &list);
    assert_eq!(rejected.json()["field"], "[1].costs.images");
    let mut left = |body: &str| client.post("/v1/check", body).json()["remaining"].clone();
    assert_eq!(left(&costs("")), 999);
    assert_eq!(left(&costs(r#""tokens": 9"#)), 990);
    assert_eq!(left(&costs(r#""tokens": 0"#)), Value::Null, "nothing is counted");
}

/// `/login/?x=1` and `post` did not match the rule, and passed.
#[test]
fn a_path_and_a_method_are_normalized() {
    let rules = "
version: 1
rules: [{ name: login, match: { path: /login/, method: POST }, by: path, rate: 5/hour, algorithm: fixed-window }]
";
    let server = TestServer::start(rules);
    let mut client = server.client();
    let mut check = |path: &str, method: &str| {
        let body = json!({"attributes": {"path": path, "method": method}});
        client.post("/v1/check", &body.to_string()).json()
    };
    for (used, path) in ["/login", "/login/?x=1", "//login/", "/%6cogin"].iter().enumerate() {
        assert_eq!(check(path, "post")["remaining"], json!(4 - used), "{path}");
    }
    assert_eq!(check("/Login", "POST")["rule"], Value::Null, "case is significant");
    let paths = [("x-original-uri", "/login/?y"), ("x-original-method", "POST"), ("x-forwarded-for", "192.0.2.7")];
    assert_eq!(server.client().request("GET", "/v1/auth", &paths, "").status, 200);
    assert_eq!(check("/login", "POST")["error"], "rate_limit_exceeded");
    assert_eq!(check("/a/..;x/login", "POST")["field"], "attributes.path");
}

#[test]
fn a_peek_and_a_cost_of_zero_charge_nothing() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    for _ in 0..5 {
        let peek = client.post("/v1/peek", &check_body("192.0.2.1", "/login"));
        assert_eq!(peek.json()["remaining"], 2, "{peek:?}");
        let body = r#"{"attributes": {"ip": "192.0.2.1", "path": "/login"}, "cost": 0}"#;
        assert_eq!(client.post("/v1/check", body).json()["remaining"], 2);
    }
}

/// Such a denial was in the log and in no metric.
#[test]
fn a_denial_of_a_request_of_cost_zero_is_counted() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let denials = |rule: &str, source: &str| {
        let labels = format!(r#"rule="{rule}",edge="http",outcome="deny",source="{source}""#);
        server.metric(&format!("tidegate_decisions_total{{{labels}"))
    };
    let free = |ip: &str| format!(r#"{{"attributes": {{"ip": "{ip}", "path": "/login"}}, "cost": 0}}"#);
    assert_eq!(client.post("/v1/check", &free("203.0.113.66")).status, 403);
    assert_eq!(denials("none", "block-list"), 1);
    for status in [200, 200, 429] {
        assert_eq!(client.post("/v1/check", &check_body("192.0.2.1", "/login")).status, status);
    }
    assert_eq!(client.post("/v1/check", &free("192.0.2.1")).status, 429);
    assert_eq!(denials("login", "exact"), 2);
    let list = format!("[{0}, {0}]", free("192.0.2.1"));
    client.post("/v1/check", &list);
    assert_eq!(denials("login", "exact"), 4);
}

/// A plain cost of 0 made every rule with a unit free.
#[test]
fn a_cost_of_zero_charges_one_of_each_unit_that_is_not_named() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let body = |rest: &str| format!(r#"{{"attributes": {{"ip": "192.0.2.1", "path": "/llm"}}, "cost": 0{rest}}}"#);
    let mut left = |path: &str, rest: &str| {
        let reply = client.post(path, &body(rest));
        reply.json()["remaining"].as_u64().unwrap()
    };
    assert_eq!(left("/v1/check", ""), 999);
    assert_eq!(left("/v1/check", ""), 998);
    assert_eq!(left("/v1/peek", ""), 998);
    assert_eq!(left("/v1/check", r#", "costs": {"tokens": 8}"#), 990);
    let list = format!("[{0}, {0}]", body(""));
    let reply = client.post("/v1/check", &list).json();
    assert_eq!(reply[1]["remaining"], 988, "{reply}");
    let charged = client.post("/v1/check", &body(r#", "receipt": true"#));
    let receipt = charged.json()["receipt"].as_str().unwrap().to_owned();
    let refund = format!(r#"{{"receipt": "{receipt}"}}"#);
    assert_eq!(client.post("/v1/refund", &refund).json()["result"], "done");
}

#[test]
fn a_receipt_refunds_once() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let body = r#"{"attributes": {"ip": "192.0.2.1", "path": "/login"}, "receipt": true}"#;
    let charged = client.post("/v1/check", body);
    let receipt = charged.json()["receipt"].as_str().unwrap().to_owned();
    let refund = format!(r#"{{"receipt": "{receipt}"}}"#);
    assert_eq!(client.post("/v1/refund", &refund).json()["result"], "done");
    assert_eq!(client.post("/v1/refund", &refund).json()["result"], "already");
    assert_eq!(client.post("/v1/peek", &check_body("192.0.2.1", "/login")).json()["remaining"], 2);
    let mut forged = receipt.into_bytes();
    forged[4] ^= 1;
    let forged = format!(r#"{{"receipt": "{}"}}"#, String::from_utf8_lossy(&forged));
    let rejected = client.post("/v1/refund", &forged);
    assert_eq!((rejected.status, &rejected.json()["field"]), (400, &"receipt".into()));
}

#[test]
fn a_list_is_decided_in_order_each_on_its_own() {
    let server = TestServer::start(RULES);
    let item = check_body("192.0.2.1", "/login");
    let body = format!("[{item}, {item}, {item}, {}]", check_body("192.0.2.2", "/login"));
    let reply = server.post("/v1/check", &body);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("ratelimit"), None);
    let statuses: Vec<_> = reply.json().as_array().unwrap().iter().map(|i| i["status"].clone()).collect();
    assert_eq!(statuses, [200, 200, 429, 200]);
    let ids: std::collections::HashSet<_> =
        reply.json().as_array().unwrap().iter().map(|i| i["id"].to_string()).collect();
    assert_eq!(ids.len(), 4);
    assert_eq!(server.post("/v1/check", "[]").body, "[]");
}

#[test]
fn an_explanation_lists_which_rules_apply_and_why_the_others_do_not() {
    let server = TestServer::start(RULES);
    let one = server.post("/v1/explain", &check_body("192.0.2.1", "/login"));
    let rules = one.json()["rules"].clone();
    assert_eq!((&rules[0]["rule"], &rules[0]["applies"]), (&"login".into(), &true.into()));
    assert_eq!(rules[2]["unmatched"]["attribute"], "path");
    let list = format!("[{}, {}]", check_body("192.0.2.1", "/login"), check_body("192.0.2.1", "/x"));
    let many = server.post("/v1/explain", &list).json();
    assert_eq!(many.as_array().unwrap().len(), 2);
    assert_eq!(server.post("/v1/peek", &check_body("192.0.2.1", "/login")).json()["remaining"], 2);
}

#[test]
fn an_explanation_names_the_list_entry_that_decides() {
    let lists = "block: [{ match: 192.0.2.0/24, until: 2099-01-01T00:00:00Z }]\nallow: [192.0.2.10]\n";
    let server = TestServer::start(&RULES.replace("block: [203.0.113.66]\n", lists));
    let explain = |ip: &str| server.post("/v1/explain", &check_body(ip, "/login")).json();
    let blocked = json!({"list": "block", "entry": "192.0.2.0/24", "until": "2099-01-01T00:00:00Z"});
    assert_eq!(explain("192.0.2.1")["listed"], blocked);
    let allowed = json!({"list": "allow", "entry": "192.0.2.10", "until": null});
    assert_eq!(explain("192.0.2.10")["listed"], allowed);
    assert_eq!(explain("198.51.100.1")["listed"], Value::Null);
}

#[test]
fn health_readiness_and_the_description_are_there() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    for (path, want) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let reply = client.request("GET", path, &[], "");
        assert_eq!((reply.status, &reply.json()["status"]), (200, &want.into()));
    }
    let description = client.request("GET", "/openapi.json", &[], "").json();
    assert!(description["paths"]["/v1/check"]["post"].is_object());
}

#[test]
fn the_description_is_valid_openapi() {
    let server = TestServer::start(RULES);
    let description = server.client().request("GET", "/openapi.json", &[], "");
    let file = server.dir.path().join("openapi.json");
    std::fs::write(&file, description.body).unwrap();
    let validator = "../../target/tools/python/bin/openapi-spec-validator";
    let validator = Path::new(env!("CARGO_MANIFEST_DIR")).join(validator);
    let ran = Command::new(validator).arg(&file).output();
    let ran = ran.expect("openapi-spec-validator is missing; `make test` installs it, by scripts/tools");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && printed.trim().ends_with("OK"), "{printed}");
}

#[test]
fn in_shadow_mode_nothing_is_denied_and_everything_is_counted() {
    let server = TestServer::with(RULES, &["--shadow"]);
    let mut client = server.client();
    for _ in 0..5 {
        assert_eq!(client.post("/v1/check", &check_body("192.0.2.1", "/login")).status, 200);
    }
    let sample = r#"tidegate_decisions_total{rule="login",edge="http",outcome="shadow_deny",source="exact"}"#;
    assert_eq!(server.metric(sample), 3);
}

/// No rule looked at such an attribute, and the limit did not apply.
#[test]
fn an_attribute_in_another_case_is_rejected() {
    let server = TestServer::start(
        "version: 1\nattributes: [org]\nrules:\n  \
         - { name: login, match: { path: /login, method: POST }, by: ip, rate: 1/hour }\n",
    );
    for (attributes, field) in [
        (r#""Path": "/login", "method": "POST""#, "attributes.Path"),
        (r#""path": "/login", "Org": "a""#, "attributes.Org"),
        (r#""path": "/login", "method": "POST ""#, "attributes.method"),
    ] {
        let body = format!(r#"{{"attributes": {{{attributes}}}}}"#);
        for (body, field) in [(body.clone(), field.to_owned()), (format!("[{{}}, {body}]"), format!("[1].{field}"))] {
            let reply = server.post("/v1/check", &body);
            assert_eq!((reply.status, &reply.json()["field"]), (400, &field.into()));
        }
    }
    let own = r#"{"attributes": {"path": "/login", "regionId": "eu"}}"#;
    assert_eq!(server.post("/v1/check", own).status, 200);
}
