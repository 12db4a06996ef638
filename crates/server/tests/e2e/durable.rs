//! Durable counts of the real service: killed under load, on a full disk, without a folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use tidegate_testkit::TestRedis as Redis;

use crate::http::{HttpClient, HttpReply};
use crate::server::{BINARY, TestServer, wait_for};

const LIMIT: u64 = 1_000_000;
const REQUEST: &str = r#"{"attributes": {"user": "ada"}}"#;

/// Rules whose windows do not end while this runs, and that wait as long as the disk takes.
fn rules(name: &str, more: &str) -> String {
    format!("version: 1\nrules:\n{}", rule(name, more))
}

fn rule(name: &str, more: &str) -> String {
    format!(
        "  - {{ name: {name}, by: user, match: {{ path: /{name} }}, rate: {LIMIT}/3650d, algorithm: fixed-window, \
         durability: disk, budget: 60s, {more} }}\n"
    )
}

fn request(rule: &str) -> String {
    format!(r#"{{"attributes": {{"user": "ada", "path": "/{rule}"}}}}"#)
}

fn node(rules: &str, data: &Path) -> TestServer {
    TestServer::with(rules, &["--data-dir", data.to_str().unwrap()])
}

fn used(server: &TestServer) -> u64 {
    let reply = server.post("/v1/peek", &request("bills"));
    LIMIT - reply.json()["remaining"].as_u64().unwrap()
}

/// Charges until the connection ends; `in_flight` counts requests that were sent and have no response.
fn load(server: &TestServer, acknowledged: &AtomicU64, in_flight: &AtomicU64, over: &AtomicBool) {
    let Ok(mut client) = HttpClient::try_connect(server.http) else {
        return;
    };
    while !over.load(Ordering::SeqCst) {
        in_flight.fetch_add(1, Ordering::SeqCst);
        if client.send("POST", "/v1/check", &[], &request("bills")).is_err() {
            return;
        }
        let Ok(reply) = client.receive() else {
            return;
        };
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.json()["source"], "exact", "{reply:?}");
        acknowledged.fetch_add(1, Ordering::SeqCst);
        in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_kill_under_load_loses_nothing_that_was_acknowledged_and_adds_no_more_than_was_in_flight() {
    let data = tempfile::tempdir().unwrap();
    let mut before = 0;
    let mut server = node(&rules("bills", ""), data.path());
    for round in 0..20 {
        let (acknowledged, in_flight) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| load(&server, &acknowledged, &in_flight, &over));
            }
            let enough = 10 + 7 * (round % 5);
            wait_for("some acknowledgements", || (acknowledged.load(Ordering::SeqCst) >= enough).then_some(()));
            server.signal("KILL");
            over.store(true, Ordering::SeqCst);
        });
        drop(server);
        server = node(&rules("bills", ""), data.path());
        let (acknowledged_count, flying) = (acknowledged.into_inner(), in_flight.into_inner());
        let found = used(&server) - before;
        assert!(found >= acknowledged_count, "round {round}: {found} of {acknowledged_count} are there");
        assert!(
            found <= acknowledged_count + flying,
            "round {round}: {found}, but {acknowledged_count} were acknowledged and {flying} in flight"
        );
        before = used(&server);
    }
    assert!(before >= 200, "{before}");
}

#[test]
fn the_folder_is_created_for_its_owner_alone_and_keeps_the_secret() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("made/by/tidegate");
    let server = node(&rules("bills", ""), &data);
    assert_eq!(server.post("/v1/check", &request("bills")).status, 200);
    server.signal("TERM");
    assert!(server.wait_end().0.success());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("secret")), 0o600);
    let server = node(&rules("bills", ""), &data);
    assert_eq!(used(&server), 1, "found again, so it has the same name");
    let line = server.wait_log(|line| line["message"] == "durable counts restored");
    assert_eq!(line["counters"], 1);
}

/// A missing secret was generated again, and the service went on with nothing counted.
#[test]
fn a_missing_secret_beside_counts_is_an_error_with_the_cure() {
    let data = tempfile::tempdir().unwrap();
    let end = |server: TestServer| {
        server.signal("TERM");
        assert!(server.wait_end().0.success());
    };
    let server = node(&rules("bills", ""), data.path());
    assert_eq!(server.post("/v1/check", &request("bills")).status, 200);
    end(server);
    let (secret, aside) = (data.path().join("secret"), data.path().join("aside"));
    std::fs::rename(&secret, &aside).unwrap();
    let flags = ["--data-dir", data.path().to_str().unwrap()];
    for _ in 0..2 {
        let message = start_error(&rules("bills", ""), &flags);
        assert!(message.contains("secret: is missing"), "{message}");
        assert!(message.contains("restore the secret from a copy"), "{message}");
        assert!(!secret.exists(), "none is drawn");
    }
    std::fs::write(data.path().join("other"), "fedcba9876543210").unwrap();
    let other = data.path().join("other");
    let flags = [&flags[..], &["--secret-file", other.to_str().unwrap()]].concat();
    let message = start_error(&rules("bills", ""), &flags);
    assert!(message.contains("counts.redb"), "{message}");
    assert!(message.contains("named by another secret"), "{message}");
    std::fs::rename(&aside, &secret).unwrap();
    let server = node(&rules("bills", ""), data.path());
    assert_eq!(used(&server), 1);
}

/// Runs a service that must not start. Returns its output.
fn start_error(rules: &str, flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    std::fs::write(&file, rules).unwrap();
    let ended = Command::new(BINARY)
        .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--rules"])
        .arg(&file)
        .args(flags)
        .output()
        .unwrap();
    assert!(!ended.status.success());
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

#[test]
fn durability_that_the_store_lacks_is_rejected_at_the_start_and_on_a_reload() {
    let message = start_error(&rules("bills", ""), &[]);
    assert!(message.contains("rules.yaml:3: rule `bills` has durability disk"), "{message}");
    assert!(message.contains("name one with `--data-dir`"), "{message}");
    let message = start_error(&rules("bills", ""), &["--store", "redis://127.0.0.1:1"]);
    assert!(message.contains("write replica, replica+aof or none"), "{message}");

    let plain = "version: 1\nrules:\n  - { name: r, by: user, rate: 9/day }\n";
    let server = TestServer::start(plain);
    server.write("rules.yaml", &rules("bills", ""));
    server.signal("HUP");
    let is = |line: &Value| line.to_string().contains("has durability disk");
    server.wait_log(is);
    assert_eq!(server.post("/v1/check", REQUEST).json()["rule"], "r", "the old rules stay");
}

#[test]
fn a_damaged_journal_is_rejected_by_name_and_not_changed() {
    let data = tempfile::tempdir().unwrap();
    let journal = data.path().join("counts.redb");
    std::fs::write(&journal, "not a journal").unwrap();
    let message = start_error(&rules("bills", ""), &["--data-dir", data.path().to_str().unwrap()]);
    assert!(message.contains("counts.redb: is damaged or no journal"), "{message}");
    assert_eq!(std::fs::read(&journal).unwrap(), b"not a journal");
}

/// The library that reads it panics over such pages, and its backtrace was printed before the message.
#[test]
fn a_journal_with_damaged_pages_is_one_message_and_no_backtrace() {
    const PAGE: usize = 4_096;
    let data = tempfile::tempdir().unwrap();
    let server = node(&rules("bills", ""), data.path());
    assert_eq!(server.post("/v1/check", &request("bills")).status, 200);
    server.signal("INT");
    server.wait_end();
    let journal = data.path().join("counts.redb");
    let whole = std::fs::read(&journal).unwrap();
    // All but the first page. A page begins with its kind: a leaf, a branch, and some that do not exist.
    for kind in [1, 2, 0xA5, 0xFF] {
        let mut bytes = whole.clone();
        bytes[PAGE..].fill(kind);
        std::fs::write(&journal, &bytes).unwrap();
        let flags = ["--data-dir", data.path().to_str().unwrap(), "--log-format", "json"];
        let output = start_error(&rules("bills", ""), &flags);
        let lines: Vec<&str> = output.lines().collect();
        let [line] = lines[..] else { panic!("pages of {kind}: {output}") };
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let message = line["message"].as_str().unwrap();
        assert!(message.contains("counts.redb: is damaged"), "{message}");
    }
}

/// Limits the size of any file that the process writes to `bytes`, like a full disk.
fn set_room(server: &TestServer, bytes: &str) {
    let status = Command::new("prlimit")
        .args(["--pid", &server.pid().to_string(), &format!("--fsize={bytes}:unlimited")])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Why durable counts are not safe, from the verbose page. The metric must agree with it.
#[track_caller]
fn durability_failure(server: &TestServer, kind: &str) -> Option<String> {
    let page = server.admin_get("/readyz?verbose");
    assert_eq!(page.status, 200, "a node that decides is ready");
    let page = page.json();
    let failure = &page["store"]["durability"];
    let failing = server.metric(&format!(r#"tidegate_durability_failing{{kind="{kind}"}}"#));
    assert_eq!(failing, u64::from(!failure.is_null()), "{page}");
    let cause = failure["cause"].as_str()?;
    assert_eq!(failure["kind"], kind, "{page}");
    Some(cause.to_owned())
}

#[test]
fn on_a_full_disk_each_rule_follows_its_failure_mode_and_one_line_is_logged() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text = rules("lenient", "") + &rule("strict", "on_store_failure: deny");
    std::fs::write(dir.path().join("rules.yaml"), text).unwrap();
    // The signal of a full quota would end the process before it sees the error.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", BINARY, "serve"])
        .arg("--rules")
        .arg(dir.path().join("rules.yaml"))
        .arg("--data-dir")
        .arg(data.path());
    let server = TestServer::spawn(command, dir);
    let check = |rule: &str| -> HttpReply { server.post("/v1/check", &request(rule)) };
    for rule in ["lenient", "strict"] {
        let reply = check(rule);
        assert_eq!((reply.status, &reply.json()["source"]), (200, &Value::from("exact")));
    }
    set_room(&server, "0");
    for _ in 0..10 {
        let reply = check("lenient");
        assert_eq!((reply.status, &reply.json()["source"]), (200, &Value::from("exact")));
        assert_eq!(check("strict").status, 503);
    }
    assert_eq!(server.metric("tidegate_journal_failing"), 1);
    assert!(server.metric("tidegate_journal_lost_total") >= 20);
    let failure = durability_failure(&server, "disk").expect("it fails");
    assert!(failure.starts_with("the journal: "), "{failure}");
    assert!(failure.contains("File too large"), "{failure}");
    assert_eq!(server.admin_get("/readyz").status, 200, "it still decides");
    set_room(&server, "unlimited");
    wait_for("the journal to work again", || {
        let reply = check("strict");
        (reply.status == 200).then_some(())
    });
    assert_eq!(server.metric("tidegate_journal_failing"), 0);
    assert_eq!(durability_failure(&server, "disk"), None);
    server.signal("KILL");
    let (_, lines) = server.wait_end();
    let again = node(&rules("lenient", ""), data.path());
    let left = again.post("/v1/peek", &request("lenient")).json()["remaining"].clone();
    assert_eq!(left, LIMIT - 11, "what memory decided was written afterwards");
    let logged = |text: &str| {
        let has_text = |line: &&Value| line.to_string().contains(text);
        lines.iter().filter(has_text).count()
    };
    assert_eq!(logged("durable counts are in memory alone"), 1);
    assert_eq!(logged("durable counts are on disk again"), 1);
}

#[test]
fn a_store_without_a_replica_is_reported_and_decides_nothing_durable() {
    let redis = Redis::redis7();
    let durable = rules("bills", "").replace("disk", "replica");
    let plain = "  - { name: plain, by: user, match: { path: /plain }, rate: 9/h }\n";
    let flags = ["--store", &redis.url(), "--store-budget", "30000"];
    let server = TestServer::with(&(durable + plain), &flags);
    wait_for("an exact node", || (server.metric("tidegate_store_exact") == 1).then_some(()));
    let source = |rule: &str| {
        let reply = server.post("/v1/check", &request(rule));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["source"].clone()
    };
    assert_eq!(durability_failure(&server, "replica"), None);
    assert_eq!(source("bills"), "fallback");
    assert_eq!(source("plain"), "exact");
    let failure = durability_failure(&server, "replica").expect("it fails");
    assert!(failure.starts_with("no replica is connected"), "{failure}");
    assert!(!failure.contains(&redis.port().to_string()), "{failure}");
    assert_eq!(server.admin_get("/readyz").status, 200, "it still decides");
    let is = |line: &Value| line.to_string().contains("not acknowledged: no replica is connected");
    server.wait_log(is);
}
