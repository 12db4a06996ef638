//! A service that has started without a configuration: nothing is decided until there is a good one.

use std::process::Command;

use crate::grpc::{GrpcClient, request};
use crate::http::HttpReply;
use crate::resp::RespReply;
use crate::server::{BINARY, TestServer, wait_for};

const GOOD: &str = "version: 1
block: [2.2.2.2]
rules: [{ name: login, by: ip, rate: 1/hour }]
";
const BLOCKED: &str = r#"{"attributes": {"ip": "2.2.2.2"}}"#;
const OTHER: &str = r#"{"attributes": {"ip": "1.1.1.1"}}"#;

/// Names and texts.
type NamedFiles<'a> = &'a [(&'a str, &'a str)];

/// A deployment of the reference service that listens at `http`, with these files in its folder, if there is one.
pub(crate) fn start_with(files: Option<NamedFiles<'_>>, http: &str) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    if let Some(files) = files {
        std::fs::create_dir(dir.path().join("config")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join("config").join(name), text).unwrap();
        }
    }
    let mut command = Command::new(BINARY);
    command.args(["serve", "--envoy-compat", "--resp", "127.0.0.1:0", "--http", http]).env("RUNTIME_ROOT", dir.path());
    TestServer::spawn(command, dir)
}

fn get(server: &TestServer, path: &str) -> HttpReply {
    server.client().request("GET", path, &[], "")
}

fn auth(server: &TestServer, query: &str, ip: &str) -> u16 {
    let path = format!("/v1/auth{query}");
    let headers = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-forwarded-for", ip)];
    server.client().request("GET", &path, &headers, "").status
}

#[track_caller]
fn check_nothing_is_decided(server: &TestServer, case: &str) {
    let list = format!("[{BLOCKED}, {OTHER}]");
    for (path, body) in [
        ("/v1/check", BLOCKED),
        ("/v1/check", OTHER),
        ("/v1/check", &list),
        ("/v1/peek", OTHER),
        ("/v1/explain", OTHER),
        ("/v1/acquire", OTHER),
        ("/v1/reserve", OTHER),
        ("/v1/refund", r#"{"receipt": "x"}"#),
        ("/v1/settle", r#"{"reservation": "x", "costs": {}}"#),
    ] {
        let reply = server.post(path, body);
        assert_eq!(reply.status, 503, "{case}: {path} {body}: {}", reply.body);
        let error = reply.json();
        assert_eq!(error["error"], "no_configuration", "{case}: {path}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("the log names each fault"), "{message}");
    }
    for query in ["", "?from=original&deny_status=401", "?from=forwarded"] {
        assert_eq!(auth(server, query, "1.1.1.9"), 503, "{case}: auth{query}");
    }
    let mut redis = server.redis();
    for line in ["TG.CHECK ip 2.2.2.2", "TG.CHECK ip 1.1.1.1 WITH COST 0", "TG.PEEK ip 1.1.1.1", "TG.REFUND x"] {
        let reply = redis.send_line(line);
        let is_error = matches!(&reply, RespReply::Error(text)
            if text.starts_with("ERR no rate limit configuration loaded"));
        assert!(is_error, "{case}: {line}: {reply:?}");
    }
    // This command brings its own limit, so it needs no rule.
    let throttled = ["CL.THROTTLE k 0 1 3600"; 2].map(|line| redis.send_line(line).integers()[0]);
    assert_eq!(throttled, [0, 1], "{case}");
    let json = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}"#;
    assert_eq!(server.post("/json", json).status, 400, "{case}");
    for ready in [get(server, "/readyz"), server.admin_get("/readyz")] {
        let page = ready.json();
        assert_eq!((ready.status, &page["status"]), (503, &"no_configuration".into()), "{case}");
        assert!(page["reason"].as_str().unwrap().contains("no rate limit configuration"));
    }
    // Alive: a restart would not help. And healthy, as the reference service is.
    assert_eq!(get(server, "/healthz").status, 200, "{case}");
    assert_eq!(server.admin_get("/healthz").status, 200, "{case}");
    assert_eq!(get(server, "/healthcheck").status, 200, "{case}");
}

/// Envoy's calls failed, and every other edge allowed everything, even for clients on the block list.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_first_configuration_no_edge_allows_anything() {
    let misspelt = GOOD.replace("rate:", "rte:");
    let cases: [(&str, Option<NamedFiles<'_>>); 3] =
        [("missing", None), ("empty", Some(&[])), ("misspelt", Some(&[("rules.yaml", &misspelt)]))];
    for (case, files) in cases {
        let server = start_with(files, "127.0.0.1:0");
        check_nothing_is_decided(&server, case);
        let caller = GrpcClient::connect(&server).await;
        let (code, text) = caller.fails(&request("shop", &[&[("k", "x")]])).await;
        let want = ("2", "no rate limit configuration loaded");
        assert_eq!((&*code, &*text), want, "{case}");
        assert_eq!(caller.health("ratelimit").await.code.as_deref(), Some("0"), "{case}");

        std::fs::create_dir_all(server.dir.path().join("config")).unwrap();
        server.write("config/rules.yaml", GOOD);
        wait_for("a good configuration", || (get(&server, "/readyz").status == 200).then_some(()));
        assert_eq!(server.admin_get("/readyz").status, 200, "{case}");
        check_rules_decide(&server, case);

        // From then on a bad file changes nothing.
        server.write("config/rules.yaml", &misspelt);
        server.admin_post("/v1/reload", "");
        assert!(server.admin_get("/v1/rules").json()["stale"].is_string());
        assert_eq!(server.post("/v1/check", OTHER).status, 429, "{case}");
        assert_eq!(get(&server, "/readyz").status, 200, "{case}");
    }
}

#[track_caller]
fn check_rules_decide(server: &TestServer, case: &str) {
    assert_eq!(server.post("/v1/check", BLOCKED).status, 403, "{case}");
    let statuses = [OTHER; 2].map(|body| server.post("/v1/check", body).status);
    assert_eq!(statuses, [200, 429], "{case}");
    let statuses = ["1.1.1.9", "1.1.1.9", "2.2.2.2"].map(|ip| auth(server, "", ip));
    assert_eq!(statuses, [200, 429, 403], "{case}");
    let reply = server.redis().send_line("TG.CHECK ip 1.1.1.1");
    assert_eq!(reply.field("allowed"), &RespReply::Integer(0), "{case}");
}
