//! The content and the volume of the log, and what it never contains.

use std::io::{BufRead, BufReader, PipeReader};
use std::net::SocketAddr;
use std::process::{Child, Command};

use crate::http::{HttpClient, check_body};
use crate::server::{BINARY, TestServer};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour, algorithm: fixed-window }\n";

/// A rule whose match is misspelt applied to nothing, without any message.
#[test]
fn a_rule_that_no_request_matches_is_logged_once_and_counted() {
    let rules = "version: 1\nrules:\n  - { name: used, by: ip, rate: 1000000/hour }\n  - { name: idle, match: { path: /lgoin }, by: ip, rate: 1/hour }\n";
    let server = TestServer::start(rules);
    let item = check_body("192.0.2.1", "/login");
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
    assert_eq!((&lines[0]["rules"], &lines[0]["count"]), (&"idle".into(), &1.into()));
}

#[test]
fn a_flood_of_denials_is_a_hundred_lines_a_second_and_exact_counts() {
    let server = TestServer::start(RULES);
    let item = check_body("192.0.2.1", "/login");
    let list = format!("[{}]", vec![&*item; 1_000].join(","));
    for _ in 0..5 {
        assert_eq!(server.post("/v1/check", &list).status, 200);
    }
    server.signal("TERM");
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(0));
    let lines: Vec<_> = log.iter().filter(|line| line["message"] == "denied").collect();
    let counted: u64 = log
        .iter()
        .filter(|line| line["message"] == "denied more than the log has room for")
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    assert_eq!(lines.len() as u64 + counted, 4_999);
    assert!(lines.len() <= 1_000, "{}", lines.len());
    let line = lines[0];
    for (field, want) in [("rule", "r"), ("edge", "http"), ("ip", "192.0.2.1"), ("path", "/login")] {
        assert_eq!(line[field], want, "{line}");
    }
    assert!(line["id"].is_string() && line["retry_after_ms"].is_u64());
}

/// A log to a pipe that is not read, or that is closed, once stopped the whole service.
#[test]
fn a_log_that_is_not_read_delays_no_decision() {
    for close in [false, true] {
        let server = UnreadLogServer::start(RULES, close);
        let item = check_body("192.0.2.1", &format!("/{}", "x".repeat(180)));
        let list = format!("[{}]", vec![&*item; 500].join(","));
        let mut client = HttpClient::connect(server.http);
        // A pipe holds 64 KiB; 100 lines a second are 30 KiB. Denials are logged as they come.
        for _ in 0..40 {
            assert_eq!(client.post("/v1/check", &list).status, 200);
            assert_eq!(client.post("/v1/check", &item).status, 429);
        }
    }
}

/// Standard output and the log may be one pipe. A logger that reported its trouble there would never end.
#[test]
fn a_log_that_is_not_read_delays_no_shutdown() {
    // A hundred lines for each request, and more than the queue holds.
    let rule = |n| format!("  - {{ name: r{n}, by: ip, rate: 1/hour, algorithm: fixed-window, mode: shadow }}\n");
    let rules = format!("version: 1\nrules:\n{}", (0..100).map(rule).collect::<String>());
    let mut server = UnreadLogServer::start(&rules, false);
    let list = format!("[{}]", vec![&*check_body("192.0.2.1", "/login"); 150].join(","));
    assert_eq!(HttpClient::connect(server.http).post("/v1/check", &list).status, 200);
    server.terminate();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

struct UnreadLogServer {
    child: Child,
    http: SocketAddr,
    _log: Option<BufReader<PipeReader>>,
}

impl UnreadLogServer {
    /// A server whose output is not read after the first lines, or is closed.
    fn start(rules: &str, close: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules.yaml");
        std::fs::write(&file, rules).unwrap();
        let (log, output) = std::io::pipe().unwrap();
        let child = Command::new(BINARY)
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--log-format", "json"])
            .arg("--rules")
            .arg(&file)
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(log);
        let http = loop {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "listening" {
                break line["address"].as_str().unwrap().parse().unwrap();
            }
        };
        UnreadLogServer { child, http, _log: (!close).then_some(log) }
    }

    fn terminate(&self) {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(killed.unwrap().success());
    }
}

impl Drop for UnreadLogServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_denied_line_names_its_subject_and_nothing_that_is_absent() {
    let rules = "version: 1\nrules:\n  \
                 - { name: r, by: user, rate: 1/hour, algorithm: fixed-window }\n  \
                 - { name: trial, by: user, rate: 1/hour, algorithm: fixed-window, mode: shadow }\n";
    let body = r#"{"attributes": {"user": "ada@example.com"}}"#;
    for (flags, subject) in [(&[][..], "user=ada…"), (&["--log-subjects", "clear"], "user=ada@example.com")] {
        let server = TestServer::with(rules, flags);
        assert_eq!(server.post("/v1/check", body).status, 200);
        assert_eq!(server.post("/v1/check", body).status, 429);
        let denied = server.wait_log(|line| line["message"] == "denied");
        assert_eq!((&denied["rule"], &denied["subject"]), (&"r".into(), &subject.into()));
        let watched = server.wait_log(|line| line["rule"] == "trial");
        assert_eq!(watched["message"], "would be denied, but the rule is in shadow mode");
        assert_eq!(watched["subject"], subject);
        for line in [&denied, &watched] {
            assert_eq!(line["subject_id"].as_str().unwrap().len(), 16, "{line}");
            for absent in ["ip", "method", "path"] {
                assert!(line.get(absent).is_none(), "{line}");
            }
        }
    }
}

/// Reservations and checks of the same rules were logged, and permits were not.
#[test]
fn a_shadow_denial_of_an_acquire_is_logged() {
    let rules = "version: 1\nrules:\n  - { name: open, by: user, concurrent: 5 }\n  \
                 - { name: trial, by: user, rate: 1/hour, algorithm: fixed-window, mode: shadow }\n";
    let server = TestServer::start(rules);
    let body = r#"{"attributes": {"user": "ada"}}"#;
    assert_eq!(server.post("/v1/acquire", body).status, 200);
    assert_eq!(server.post("/v1/acquire", body).status, 200);
    let line = server.wait_log(|line| line["rule"] == "trial");
    assert_eq!(line["message"], "would be denied, but the rule is in shadow mode");
}

/// Envoy passes a request whose call is rejected, and nginx discards the reason of a 400. Nothing showed either.
#[test]
fn a_rejected_call_of_a_proxy_is_logged_with_its_reason() {
    let server = TestServer::start(RULES);
    let is_about = |edge: &'static str| {
        move |line: &serde_json::Value| {
            let message = line["message"].as_str().unwrap_or_default();
            line["edge"] == edge && message.starts_with("requests rejected")
        }
    };
    assert_eq!(server.post("/json", r#"{"domain": "shop"}"#).status, 400);
    let line = server.wait_log(is_about("envoy"));
    assert_eq!((&line["level"], &line["times"]), (&"WARN".into(), &1.into()), "{line}");
    assert_eq!(line["reason"], "rate limit descriptor list must not be empty");
    assert_eq!(server.client().request("GET", "/v1/auth", &[], "").status, 400);
    let line = server.wait_log(is_about("auth"));
    assert_eq!((&line["level"], &line["times"]), (&"WARN".into(), &1.into()), "{line}");
    assert!(line["reason"].as_str().unwrap().starts_with("x-original-uri: missing"), "{line}");
}

/// `--log-subjects clear` wrote bearer tokens into the log.
#[test]
fn credentials_of_a_sub_request_are_not_in_the_log() {
    let rules = "version: 1\nrules:\n  - { name: r, by: [header.authorization, header.cookie], rate: 1/hour }\n";
    for shown in ["clear", "masked"] {
        let server = TestServer::with(rules, &["--log-subjects", shown]);
        let mut client = server.client();
        let headers = [
            ("x-original-uri", "/"),
            ("x-forwarded-for", "192.0.2.7"),
            ("authorization", "Bearer CANARY"),
            ("cookie", "session=CANARY"),
        ];
        let mut status = || client.request("GET", "/v1/auth", &headers, "").status;
        assert_eq!([status(), status()], [200, 429]);
        let denied = server.wait_log(|line| line["message"] == "denied");
        let subject = denied["subject"].as_str().unwrap();
        let digests = subject.matches("sha256:").count();
        assert_eq!(digests, 2, "{subject}");
        for (_, line) in server.lines() {
            let line = line.to_string();
            assert!(!line.contains("CANARY"), "{line}");
        }
    }
}

#[test]
fn settings_that_are_open_to_others_are_warned_of_at_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    let warnings = |mode, http: &str| {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
        let flags = ["--secret-file", secret.to_str().unwrap(), "--http", http];
        let server = TestServer::with(RULES, &flags);
        let lines = server.lines().into_iter().map(|(_, line)| line);
        let warned = lines.filter(|line| line["level"] == "WARN");
        warned.map(|line| line["message"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(warnings(0o600, "127.0.0.1:0"), [""; 0]);
    let both = warnings(0o644, "0.0.0.0:0");
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both[0].contains("--http 0.0.0.0:0 can be reached from other machines"), "{both:?}");
    assert!(both[1].contains("chmod 600"), "{both:?}");
}

#[test]
fn keys_secrets_and_control_characters_do_not_reach_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "canary-secret-0123456789").unwrap();
    let server = TestServer::with(RULES, &["--secret-file", secret.to_str().unwrap()]);
    let body = r#"{"attributes": {"ip": "192.0.2.1", "api_key": "canary-key", "user": "canary-user",
        "path": "/x\r\n\u001b[31mforged\u202e"}}"#;
    let denied_id = {
        server.post("/v1/check", body);
        server.post("/v1/check", body).json()["id"].clone()
    };
    let line = server.wait_log(|line| line["message"] == "denied");
    assert_eq!(line["id"], denied_id, "the id in the response is the id in the log");
    assert_eq!(line["path"], r"/x\u{d}\u{a}\u{1b}[31mforged%E2%80%AE");
    server.signal("TERM");
    let (_, log) = server.wait_end();
    for line in log {
        assert!(!line.to_string().contains("canary"), "{line}");
    }
}
