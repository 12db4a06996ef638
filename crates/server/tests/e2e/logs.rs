//! What the log says, how much of it, and what it never says.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::http::{Client, ask};
use crate::server::{BINARY, Server};

const RULES: &str =
    "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour, algorithm: fixed-window }\n";

/// A rule whose match is misspelt applied to nothing, and nothing said so.
#[test]
fn a_rule_that_no_request_matches_is_logged_once_and_counted() {
    let rules = "version: 1\nrules:\n  - { name: used, by: ip, rate: 1000000/hour }\n  - { name: idle, match: { path: /lgoin }, by: ip, rate: 1/hour }\n";
    let server = Server::start(rules);
    let item = ask("192.0.2.1", "/login");
    let list = format!("[{}]", vec![&*item; 1_000].join(","));
    for _ in 0..10 {
        assert_eq!(server.post("/v1/check", &list).status, 200);
    }
    let is_about = |line: &serde_json::Value| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("rules matched no request")
    };
    server.wait_log(is_about);
    for (rule, matches) in [("used", 10_000), ("idle", 0)] {
        let series = format!(r#"tidegate_rule_matches_total{{rule="{rule}"}}"#);
        assert_eq!(server.metric(&series), matches, "{rule}");
    }
    server.signal("TERM");
    let (_, log) = server.wait_end();
    let lines: Vec<_> = log.iter().filter(|line| is_about(line)).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (&lines[0]["rules"], &lines[0]["count"]),
        (&"idle".into(), &1.into())
    );
}

#[test]
fn a_flood_of_denials_is_a_hundred_lines_a_second_and_exact_counts() {
    let server = Server::start(RULES);
    let item = ask("192.0.2.1", "/login");
    let list = format!("[{}]", vec![&*item; 1_000].join(","));
    for _ in 0..5 {
        assert_eq!(server.post("/v1/check", &list).status, 200);
    }
    server.signal("TERM");
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(0));
    let lines: Vec<_> = log
        .iter()
        .filter(|line| line["message"] == "denied")
        .collect();
    let counted: u64 = log
        .iter()
        .filter(|line| line["message"] == "denied more than the log has room for")
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    assert_eq!(lines.len() as u64 + counted, 4_999);
    assert!(lines.len() <= 1_000, "{}", lines.len());
    let line = lines[0];
    for (field, want) in [
        ("rule", "r"),
        ("edge", "http"),
        ("ip", "192.0.2.1"),
        ("path", "/login"),
    ] {
        assert_eq!(line[field], want, "{line}");
    }
    assert!(line["id"].is_string() && line["retry_after_ms"].is_u64());
}

/// A log to a pipe that nobody reads, or that is closed, once stopped the whole service.
#[test]
fn a_log_that_nobody_reads_holds_up_no_decision() {
    for close in [false, true] {
        let server = Unread::start(close);
        let item = ask("192.0.2.1", &format!("/{}", "x".repeat(180)));
        let list = format!("[{}]", vec![&*item; 500].join(","));
        let mut client = Client::connect(server.http);
        // A pipe holds 64 KiB; 100 lines a second are 30 KiB. Refusals are logged as they come.
        for _ in 0..40 {
            assert_eq!(client.post("/v1/check", &list).status, 200);
            assert_eq!(client.post("/v1/check", &item).status, 429);
        }
    }
}

struct Unread {
    child: Child,
    http: SocketAddr,
    _log: Option<BufReader<ChildStderr>>,
}

impl Unread {
    fn start(close: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let mut child = Command::new(BINARY)
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "off",
                "--admin",
                "off",
                "--log-format",
                "json",
            ])
            .arg("--rules")
            .arg(&rules)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let http = loop {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "listening" {
                break line["address"].as_str().unwrap().parse().unwrap();
            }
        };
        Unread {
            child,
            http,
            _log: (!close).then_some(log),
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_secrets_and_tricks_of_clients_do_not_reach_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "canary-secret-0123456789").unwrap();
    let server = Server::with(RULES, &["--secret-file", secret.to_str().unwrap()]);
    let body = r#"{"attributes": {"ip": "192.0.2.1", "api_key": "canary-key", "user": "canary-user",
        "path": "/x\r\n\u001b[31mforged\u202e"}}"#;
    let denied_id = {
        server.post("/v1/check", body);
        server.post("/v1/check", body).json()["id"].clone()
    };
    let line = server.wait_log(|line| line["message"] == "denied");
    assert_eq!(
        line["id"], denied_id,
        "the id in the answer is the id in the log"
    );
    assert_eq!(line["path"], r"/x\u{d}\u{a}\u{1b}[31mforged\u{202e}");
    server.signal("TERM");
    let (_, log) = server.wait_end();
    for line in log {
        assert!(!line.to_string().contains("canary"), "{line}");
    }
}
