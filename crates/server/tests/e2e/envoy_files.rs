//! Valid and invalid files of descriptors, with a server that reads them while it runs.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::HttpReply;
use crate::server::{BINARY, TestServer, wait_for};
use crate::window::unit;

/// Each file has one fault, and its expected message is beside it.
const BAD: &str = "../../tests/fixtures/descriptors/bad";

fn check(server: &TestServer, key: &str) -> HttpReply {
    let entry = format!(r#"{{"entries": [{{"key": "{key}", "value": "x"}}]}}"#);
    let body = format!(r#"{{"domain": "shop", "descriptors": [{entry}]}}"#);
    server.post("/json", &body)
}

/// Why the file on disk is not in force, with its name but not its folder.
fn stale_reason(server: &TestServer) -> Option<String> {
    let rules = server.admin_get("/v1/rules").json();
    let folder = format!("{}/", server.dir.path().display());
    Some(rules["stale"].as_str()?.replace(&folder, ""))
}

fn replace(server: &TestServer, text: &str) {
    server.write("rules.yaml", text);
    server.admin_post("/v1/reload", "");
}

#[test]
fn every_bad_file_is_rejected_with_its_cause_and_the_old_one_stays() {
    let limit = format!("{{ unit: {}, requests_per_unit: 1000 }}", unit());
    let good = format!("domain: shop\ndescriptors: [{{ key: one, rate_limit: {limit} }}]\n");
    let server = TestServer::start(&good);
    let folder = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(BAD)).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension() == Some("yaml".as_ref())).collect();
    assert!(files.len() >= 40, "{} files", files.len());
    for (before, path) in files.iter().enumerate() {
        let name = path.display();
        let read = |extension| std::fs::read_to_string(path.with_extension(extension)).unwrap();
        replace(&server, &read("yaml"));
        let reason = wait_for("the rejection", || stale_reason(&server));
        let causes = read("txt");
        assert!(!causes.trim().is_empty(), "{name} has no cause");
        for cause in causes.lines() {
            assert!(reason.contains(cause), "{name}: {reason}\nwithout {cause}");
        }
        let status = &check(&server, "one").json()["statuses"][0];
        let left = status["limitRemaining"].as_u64();
        assert_eq!(left, Some(999 - before as u64), "{name}: {status}");
        // So that the next rejection is that of the next file.
        replace(&server, &good);
        wait_for("the good one", || stale_reason(&server).is_none().then_some(()));
    }
}

#[test]
fn every_unit_counts_from_multiples_of_its_length_since_1970() {
    const DAY: u64 = 86_400;
    let units = [
        ("second", 1),
        ("MINUTE", 60),
        ("Hour", 3_600),
        ("day", DAY),
        ("week", 7 * DAY),
        ("month", 30 * DAY),
        ("year", 365 * DAY),
    ];
    let node = |(unit, _): &(&str, u64)| {
        format!("  - {{ key: {unit}, rate_limit: {{ unit: {unit}, requests_per_unit: 9 }} }}\n")
    };
    let nodes: String = units.iter().map(node).collect();
    let server = TestServer::start(&format!("domain: shop\ndescriptors:\n{nodes}"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (unit, length) in units {
        // If the window ended while the response was made, the result is useless.
        let (reply, sent) = wait_for("a response within one window", || {
            let sent = now();
            let reply = check(&server, unit);
            (now() / length == sent / length).then_some((reply, sent..=now()))
        });
        let status = &reply.json()["statuses"][0];
        assert_eq!(status["currentLimit"]["unit"], unit.to_uppercase());
        let reset = status["durationUntilReset"].as_str().unwrap();
        let reset: u64 = reset.trim_end_matches('s').parse().unwrap();
        let ends = sent.map(|now| length - now % length);
        assert!(ends.into_iter().any(|end| end == reset), "{unit}: {reset}");
    }
}

/// A folder with rules, and limits under names that are not read.
fn folder_with_more() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let limits = |key: &str| {
        format!("{{domain: shop, descriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 0}}}}]}}")
    };
    std::fs::create_dir(dir.path().join("below")).unwrap();
    for (name, key) in [("a.yaml", "read"), ("limits.json", "json"), ("below/b.yaml", "below")] {
        std::fs::write(dir.path().join(name), limits(key)).unwrap();
    }
    dir
}

/// A limit in such a file did not exist, without any message.
#[test]
fn files_that_are_not_read_are_reported_in_the_log() {
    let mut command = Command::new(BINARY);
    let dir = folder_with_more();
    command.args(["serve", "--rules"]).arg(dir.path());
    let server = TestServer::spawn(command, dir);
    let wait_named = |name: &str| {
        let ends = |line: &serde_json::Value| {
            let file = line["file"].as_str().unwrap_or_default();
            file.ends_with(name)
        };
        let line = server.wait_log(ends);
        let message = line["message"].as_str().unwrap();
        assert!(message.starts_with("not read"), "{line}");
    };
    wait_named("limits.json");
    wait_named("below/b.yaml");
    server.write("late.yaml.txt", "version: 1\nrules: []\n");
    wait_named("late.yaml.txt");
    assert_eq!(check(&server, "read").status, 429);
    assert_eq!(check(&server, "json").status, 200, "as the log reports");
}

#[test]
fn lint_lists_files_that_are_not_read_and_merges_domains_on_request() {
    let dir = folder_with_more();
    let lint = |flags: &[&str]| {
        let mut command = Command::new(BINARY);
        let output = command.arg("lint").args(flags).arg(dir.path()).output();
        let output = output.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = lint(&[]);
    assert_eq!(code, Some(0), "{text}");
    for name in ["limits.json is not read", "below/b.yaml is not read"] {
        assert!(text.contains(name), "{text}");
    }
    assert!(!text.contains("a.yaml is not read"), "{text}");
    let more = "{domain: shop, descriptors: [{key: more}]}";
    std::fs::write(dir.path().join("c.yaml"), more).unwrap();
    let (code, text) = lint(&[]);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("has the domain `shop`"), "{text}");
    let (code, text) = lint(&["--merge-domains"]);
    assert_eq!(code, Some(0), "{text}");
}
