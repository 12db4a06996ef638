//! Rules with leased or lenient counting, as clients and operators see them.

use std::process::Command;

use serde_json::Value;
use tidegate_testkit::TestRedis as Redis;

use crate::http::{HttpClient, check_body};
use crate::server::{BINARY, TestServer, metric, wait_for};
use crate::window::unit;

/// A bucket that gives up a tenth of its burst, and a lenient count.
fn rules() -> String {
    format!(
        "version: 1\nrules:\n  \
         - {{ name: hot, match: {{ path: /hot }}, by: ip, rate: 1000/second burst 1000, counting: leased }}\n  \
         - {{ name: loose, match: {{ path: /loose }}, by: ip, rate: 1000000/{}, \
         algorithm: fixed-window, counting: lenient }}\n",
        unit()
    )
}

/// Sends lists of requests until a decision comes from `source`.
fn wait_source(client: &mut HttpClient, path: &str, source: &str) -> Value {
    let one = check_body("192.0.2.1", path);
    let list = format!("[{}]", vec![one.as_str(); 20].join(","));
    wait_for(source, || {
        client.post("/v1/check", &list);
        let reply = client.post("/v1/check", &one).json();
        (reply["source"] == source).then_some(reply)
    })
}

/// Whether the units in replies and metrics add up: drawn units are used, outstanding, or returned.
fn adds_up(server: &TestServer) -> bool {
    let page = server.admin_get("/metrics").body;
    let used = r#"tidegate_decisions_total{rule="hot",edge="http",outcome="allow",source="lease"}"#;
    let sample = |name: &str| metric(&page, &format!("tidegate_{name} "));
    let accounted = metric(&page, used) + sample("lease_units_returned_total") + sample("lease_units_lapsed_total");
    sample("leases_drawn_total") > 0
        && metric(&page, used) > 0
        && sample("lease_outstanding_units") == 0
        && sample("lease_units_granted_total") == accounted
}

#[test]
fn a_leased_rule_shows_in_replies_headers_metrics_and_explanations() {
    let redis = Redis::redis7();
    let store = ["--store", &redis.url(), "--store-budget", "30000"];
    let server = TestServer::with(&rules(), &store);
    wait_for("an exact node", || (server.metric("tidegate_store_exact") == 1).then_some(()));
    let mut client = server.client();
    let reply = wait_source(&mut client, "/hot", "lease");
    assert_eq!(reply["limit"], 900, "{reply}");
    assert!(reply["remaining"].as_u64().unwrap() <= 900, "{reply}");
    let headers = client.post("/v1/peek", &check_body("192.0.2.1", "/hot"));
    assert_eq!(headers.header("x-ratelimit-limit"), Some("900"));
    let policy = headers.header("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"hot\";q=900"), "{policy}");
    // No more requests come, so outstanding units are returned.
    wait_for("all of it to be accounted for", || adds_up(&server).then_some(()));

    let reply = wait_source(&mut client, "/loose", "lenient");
    assert_eq!(reply["limit"], 1_000_000, "{reply}");
    let sample = r#"tidegate_lenient_overshoot_bound_units{rule="loose"}"#;
    wait_for("the bound on the metrics page", || {
        client.post("/v1/check", &check_body("192.0.2.1", "/loose"));
        let page = server.admin_get("/metrics").body;
        page.contains(sample).then_some(())
    });

    let explanation = server.post("/v1/explain", &check_body("192.0.2.1", "/hot")).json();
    assert_eq!(explanation["rules"][0]["counting"], "leased", "{explanation}");
    assert_eq!(explanation["rules"][0]["leases"][0]["usable"], 900, "{explanation}");
    assert_eq!(explanation["rules"][0]["leases"][0]["written_burst"], 1_000);
    assert_eq!(explanation["rules"][1]["counting"], "lenient", "{explanation}");
}

/// A single node has a single count.
#[test]
fn in_memory_every_counting_mode_is_exact() {
    let server = TestServer::start(&rules());
    let mut client = server.client();
    for (path, limit) in [("/hot", 1_000), ("/loose", 1_000_000)] {
        let list = format!("[{}]", vec![check_body("192.0.2.1", path); 100].join(","));
        let replies = client.post("/v1/check", &list).json();
        for one in replies.as_array().unwrap() {
            assert_eq!(one["source"], "exact", "{one}");
            assert_eq!(one["limit"], limit, "{one}");
        }
    }
}

#[test]
fn an_explanation_shows_the_cost_of_leases_and_lint_warns_where_they_are_useless() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    let run = |words: &[&str]| {
        let output = Command::new(BINARY).args(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    let path = file.to_str().unwrap();
    std::fs::write(&file, rules()).unwrap();
    let printed = run(&["explain", "--rules", path, "-a", "ip=192.0.2.1", "-a", "path=/hot"]);
    assert!(printed.contains("burst 900 of the 1000 written"), "{printed}");
    let cold = "version: 1\nrules:\n  - { name: cold, by: ip, rate: 10/minute, counting: leased }\n";
    std::fs::write(&file, cold).unwrap();
    let printed = run(&["lint", path]);
    assert!(printed.contains("nothing is ever leased"), "{printed}");
}
