//! The commands and their exit codes.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

use crate::http::check_body;
use crate::server::{BINARY, TestServer};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour, algorithm: fixed-window }\n";

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn check(args: &[&str], code: i32, wanted: &str) -> String {
    let output = run(args);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    assert!(out.contains(wanted) || err.contains(wanted), "{args:?} prints\n{out}\n{err}");
    out
}

#[test]
fn usage_errors_end_with_2_and_a_hint() {
    check(&[], 2, "Usage");
    check(&["serve", "--no-such-flag"], 2, "--no-such-flag");
    check(&["serve", "--store", "mongodb://:hunter2@localhost"], 2, "store `mongodb` is unknown");
    check(&["serve", "--http", "nowhere"], 2, "write host:port, a port, :port, unix:path or off");
    let off = ["serve", "--http", "off", "--grpc", "off", "--admin", "off"];
    check(&off, 2, "all off");
    for half in [
        &["--grpc-cert", "c.pem"][..],
        &["--grpc-key", "k.pem"],
        &["--grpc-client-ca", "ca.pem"],
        &["--grpc-cert", "c", "--grpc-key", "k", "--grpc-client-san", "n"],
        &["--resp-password-file", "p"],
        &["--metrics-path", "/m"],
    ] {
        check(&[&["serve"], half].concat(), 2, "write both, or neither");
    }
    for names in ["foo,,bar", "foo bar", "*.foo", ""] {
        check(&["serve", "--admin-host", names], 2, "which is no name");
    }
    check(&["serve", "--memory-cap", "1MiB"], 2, "below 16MiB");
    check(&["serve", "--store", ""], 2, "--store is empty; write memory");
    check(&["try", "--url", ""], 2, "--url is empty; write http://host:port");
    let out = run(&["peek", "--url", "http://ada:hunter2@127.0.0.1:1"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(!String::from_utf8(out.stderr).unwrap().contains("hunter2"));
    check(&["--version"], 0, "tidegate");
}

/// The errors named the file and not the flag.
#[test]
fn an_error_of_a_secret_file_names_the_flag() {
    for flag in ["--admin-token-file", "--secret-file", "--resp-password-file"] {
        let listeners = ["serve", "--http", "off", "--grpc", "off", "--admin", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let file = [flag, "/no/such/file"];
        check(&[&listeners[..], &file].concat(), 78, &format!("{flag} /no/such/file: No such file"));
    }
}

#[test]
fn lint_reports_every_fault_and_ends_with_78() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, RULES).unwrap();
    check(&["lint", path], 0, "1 rule, 0 warnings");
    check(&["check", dir.path().to_str().unwrap()], 0, "1 rule, 0 warnings");
    let broken = "version: 1\nrules:\n  - { name: a, by: ip, rate: 0/hour }\n  - { name: a, rat: 1/hour }\n";
    std::fs::write(&file, broken).unwrap();
    check(&["lint", path], 78, "rules.yaml:3");
    check(&["lint", path], 78, "rules.yaml:4");
    check(&["serve", "--rules", path, "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"], 78, "rules.yaml:3");
    check(&["lint", "/no/such/file"], 78, "/no/such/file");
}

#[test]
fn lint_reads_standard_input() {
    let lint = |text: &str| {
        let mut lint = Command::new(BINARY)
            .args(["lint", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = lint.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        let output = lint.wait_with_output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(printed).unwrap())
    };
    assert_eq!(lint(RULES), (Some(0), "-: 1 rule, 0 warnings\n".to_owned()));
    let (code, printed) = lint("version: 1\nrules: [{ name: a, by: ip, rate: 0/hour }]\n");
    assert_eq!(code, Some(78));
    assert!(printed.contains("standard input:2"), "{printed}");
}

/// A first start has no last good rules, and rules without tiers have none to choose from.
#[test]
fn missing_rules_and_tiers_are_reported_accurately() {
    let out = run(&["serve", "--rules", "/no/such/rules.yaml"]);
    assert_eq!(out.status.code(), Some(78));
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(log.contains("/no/such/rules.yaml: does not exist; check the path"), "{log}");
    assert!(!log.contains("in force"), "{log}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    std::fs::write(&file, format!("{RULES}keys_file: keys.txt\n")).unwrap();
    let line = format!("sha256:{} pro ada\n", "0".repeat(64));
    std::fs::write(dir.path().join("keys.txt"), line).unwrap();
    let path = file.to_str().unwrap();
    check(&["lint", path], 78, "the rules list no tiers: add them there, such as `tiers: [free, pro]`");
}

#[test]
fn explain_needs_no_server() {
    check(&["explain", "--attr", "ip=192.0.2.1", "-a", "path=/login"], 0, "login");
    check(&["explain", "-a", "path=/login"], 0, "no rules are given, so these are the built-in ones");
    let out = check(&["explain", "--output", "json", "-a", "path=/x"], 0, "unmatched");
    assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{RULES}block: [192.0.2.0/24]\n")).unwrap();
    let file = file.path().to_str().unwrap();
    check(
        &["explain", "--rules", file, "-a", "ip=192.0.2.1"],
        0,
        "the block list decides, by `192.0.2.0/24`: the request is denied",
    );
    check(&["explain", "-a", "ip=nonsense"], 2, "attributes.ip");
    check(&["explain", "-a", "nonsense"], 2, "NAME=VALUE");
    // Both were treated as requests that the rules do not limit.
    check(&["explain", "-a", "Path=/login"], 2, "write `path`");
    check(&["explain", "-a", "path=/a", "-a", "path=/b"], 2, "given twice");
}

#[test]
fn try_charges_and_ends_with_75_when_denied() {
    let server = TestServer::start(RULES);
    let url = format!("http://{}", server.http);
    let args = ["--url", &url, "-a", "ip=192.0.2.1"];
    let with = |verb| [&[verb], &args[..]].concat();
    check(&with("peek"), 0, "allowed: 1 of 1 left under rule `r`");
    check(&with("try"), 0, "allowed: 0 of 1 left under rule `r`");
    check(&with("try"), 75, "denied: ");
    check(&with("peek"), 75, "denied: ");
    check(&["try", "--url", &url, "-a", "ip=x"], 2, "attributes.ip");
    check(&["try", "--url", "http://127.0.0.1:1", "-a", "ip=192.0.2.1"], 69, "127.0.0.1:1");
    let out = check(&["peek", "--url", &url, "-a", "ip=192.0.2.9", "--output", "json"], 0, "remaining");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["remaining"], 1);
}

#[test]
fn try_peek_and_explain_accept_costs_of_units() {
    let rules = "version: 1\nrules:\n  \
                 - { name: r, by: ip, unit: tokens, rate: 100/hour, algorithm: fixed-window }\n";
    let server = TestServer::start(rules);
    let port = server.http.port().to_string();
    let arguments = |verb, costs| [verb, "--url", &*port, "-a", "ip=192.0.2.1", "--costs", costs];
    check(&arguments("peek", "tokens=100"), 0, "allowed: 100 of 100 left under rule `r`");
    check(&arguments("peek", "tokens=101"), 75, "denied: ");
    check(&arguments("try", "tokens=60"), 0, "allowed: 40 of 100 left under rule `r`");
    check(&arguments("try", "tokens=60"), 75, "denied: ");
    check(&arguments("try", "tokens"), 2, "write UNIT=N");
    let path = server.rules_path();
    let explain = ["explain", "--rules", path.to_str().unwrap(), "-a", "ip=192.0.2.1"];
    check(&[&explain[..], &["--costs", "tokens=1"]].concat(), 0, "r: applies");
}

#[test]
fn keys_are_made_and_hashed() {
    let made = run(&["key", "new", "--tier", "pro", "--name", "ada"]);
    let key = String::from_utf8(made.stderr).unwrap();
    let line = String::from_utf8(made.stdout).unwrap();
    assert!(line.starts_with("sha256:") && line.trim_end().ends_with(" pro ada"), "{line}");
    assert!(!line.contains(key.trim()));
    let mut hash = Command::new(BINARY)
        .args(["key", "hash", "--tier", "pro", "--name", "ada"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    hash.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
    let again = hash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(again.stdout).unwrap(), line, "the same key gives the same line");
}

/// Of a longer one the line had the hash of its beginning, so the key was unknown.
#[test]
fn a_key_that_is_too_long_has_no_line() {
    let hash = |length: usize| {
        let mut hash = Command::new(BINARY)
            .args(["key", "hash"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It does not read all of a long one.
        let _ = hash.stdin.take().unwrap().write_all("k".repeat(length).as_bytes());
        hash.wait_with_output().unwrap()
    };
    assert_eq!(hash(4_096).status.code(), Some(0));
    for length in [4_097, 10_000] {
        let long = hash(length);
        assert_eq!((long.status.code(), &*long.stdout), (Some(2), &b""[..]), "{length}");
        let error = String::from_utf8(long.stderr).unwrap();
        assert!(error.contains("at most 4096 bytes"), "{error}");
    }
}

/// The key was printed, and then the reason why there is no line for it.
#[test]
fn a_key_without_a_line_is_not_shown() {
    let made = run(&["key", "new", "--tier", "gold x"]);
    let stderr = String::from_utf8(made.stderr).unwrap();
    assert_eq!((made.status.code(), &*made.stdout), (Some(2), &b""[..]));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("the tier is empty or has blanks"), "{stderr}");
}

/// Its line was lost on a full disk, and the command reported success.
#[test]
fn a_key_whose_line_cannot_be_written_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let made = Command::new(BINARY).args(["key", "new"]).stdout(full).output().unwrap();
    assert_eq!(made.status.code(), Some(1));
    let stderr = String::from_utf8(made.stderr).unwrap();
    assert!(stderr.contains("the output cannot be written") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn the_schema_is_json() {
    let out = check(&["schema"], 0, "rules");
    assert!(serde_json::from_str::<serde_json::Value>(&out).unwrap().is_object());
}

#[test]
fn flags_win_over_environment_over_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tidegate.yaml");
    let rules = dir.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    std::fs::write(&config, "reset: delta\nshadow: true\n").unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--rules"]).arg(&rules).arg("--config").arg(&config);
    command.env("TIDEGATE_SHADOW", "false");
    let server = TestServer::spawn(command, dir);
    server.post("/v1/check", &check_body("192.0.2.1", "/"));
    let denied = server.post("/v1/check", &check_body("192.0.2.1", "/"));
    assert_eq!(denied.status, 429, "the environment disables shadow mode");
    let reset: u64 = denied.header("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!(reset <= 3600, "the file sets delta");
    drop(server);
    let bad = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bad.path(), "shadwo: true\n").unwrap();
    check(&["serve", "--config", bad.path().to_str().unwrap()], 78, "shadwo");
}

#[test]
fn the_server_listens_on_unix_sockets_and_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("tg.sock");
    let address = format!("unix:{}", socket.display());
    let mut child = Command::new(BINARY)
        .args(["serve", "--http", &address, "--grpc", "off", "--admin", "off"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    crate::server::wait_for("the socket", || UnixStream::connect(&socket).ok());
    check(&["try", "--url", &address, "-a", "ip=192.0.2.1", "-a", "path=/login"], 0, "4 of 5 left");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

/// A misspelt variable was ignored: built-in rules ran instead of the operator's, and counters were not shared.
#[test]
fn an_unknown_variable_stops_every_command() {
    for (command, name, near) in [
        ("serve", "TIDEGATE_RULLES", "write `TIDEGATE_RULES`?"),
        ("serve", "TIDEGATE_STOER", "write `TIDEGATE_STORE`?"),
        ("serve", "TIDEGATE_MAX_COLOUR", "lists the settings"),
        ("doctor", "TIDEGATE_STOER", "write `TIDEGATE_STORE`?"),
        ("explain", "TIDEGATE_RULLES", "write `TIDEGATE_RULES`?"),
        ("try", "TIDEGATE_URI", "write `TIDEGATE_URL`?"),
        ("peek", "TIDEGATE_URI", "write `TIDEGATE_URL`?"),
    ] {
        let mut tidegate = Command::new(BINARY);
        let output = tidegate.arg(command).env(name, "x").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{printed}");
        assert!(printed.contains(name) && printed.contains(near), "{printed}");
    }
}

/// Only `tidegate lint`, which was not run, reported these warnings.
#[test]
fn warnings_of_rules_are_in_the_log_at_the_start_and_after_a_reload() {
    let rule = |i| format!("  - {{ name: r{i}, match: {{ method: FETCH{i} }}, by: ip, rate: 5/hour }}\n");
    let rules = |count: usize| format!("version: 1\nrules:\n{}", (0..count).map(rule).collect::<String>());
    let server = TestServer::start(&rules(2));
    let warned = |part: &str| {
        server.wait_log(|line| line.to_string().contains(part));
    };
    warned("rule `r1` matches method `FETCH1`, which is no registered method");
    server.write("rules.yaml", &rules(12));
    server.admin_post("/v1/reload", "");
    warned("rule `r9` matches method `FETCH9`");
    warned("the rules have more warnings");
    let lines = server.lines();
    let logged = lines.iter().filter(|(_, line)| line.to_string().contains("FETCH"));
    assert_eq!(logged.count(), 12, "two, then the first ten of twelve");
}

#[test]
fn every_setting_of_the_service_is_documented() {
    let docs = include_str!("../../../../docs/service.md");
    let help = check(&["serve", "--help"], 0, "--rules");
    let variables = help.split("[env: ").skip(1);
    let variables: Vec<&str> = variables.filter_map(|rest| rest.split(['=', ']']).next()).collect();
    assert!(variables.len() > 10, "{help}");
    for variable in variables {
        let flag = variable.trim_start_matches("TIDEGATE_").to_lowercase();
        let row = format!("| `--{}` | `{variable}` |", flag.replace('_', "-"));
        assert!(docs.contains(&row), "docs/service.md misses {row}");
    }
}
