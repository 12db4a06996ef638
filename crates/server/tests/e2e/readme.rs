//! The first minute of the README, run as written: its commands print what it shows, times and ids masked.

use std::path::Path;
use std::process::Command;

use crate::server::{TestServer, wait_for};

const README: &str = include_str!("../../../../README.md");
const RULES: &str = include_str!("../../../../examples/rules.yaml");

/// A command and the output under it.
struct Example {
    command: String,
    shown: String,
}

fn examples() -> Vec<Example> {
    let blocks = README.split("```console\n").skip(1);
    blocks
        .map(|block| {
            let block = block.split("```").next().unwrap();
            let (command, shown) = block.split_once('\n').unwrap();
            let command = command.strip_prefix("$ ").unwrap().to_owned();
            let shown = shown.to_owned();
            Example { command, shown }
        })
        .collect()
}

/// Runs a command of the page against `server` instead of the default port.
fn run(command: &str, server: &TestServer) -> String {
    let command = command.replace("127.0.0.1:8080", &server.http.to_string());
    let ran = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(ran.status.success(), "`{command}` failed; is curl installed? (apt-get install curl)");
    String::from_utf8(ran.stdout).unwrap().replace('\r', "")
}

/// Replaces values that change from run to run by `*`: dates, ids, waits and lengths.
fn masked(text: &str) -> String {
    const CHANGING: [&str; 10] = [
        "x-ratelimit-reset: ",
        "x-tidegate-id: ",
        "content-length: ",
        "retry-after: ",
        "date: ",
        "\"id\":",
        "\"reset_after_ms\":",
        "\"retry_after_ms\":",
        "\"retry_after_seconds\":",
        "come back in ",
    ];
    let mut out = text.to_owned();
    for name in CHANGING {
        let mut parts = out.split(name);
        let mut joined = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let ends = |c: char| c == '\n' || c == '"' || (c == ',' && name != "date: ") || c == '}';
            let start = usize::from(name == "\"id\":");
            let end = part[start..].find(ends).map_or(part.len(), |at| at + start);
            joined = joined + name + "*" + &part[end..];
        }
        out = joined;
    }
    out.trim_end().to_owned()
}

#[test]
fn the_first_minute_goes_as_the_readme_shows() {
    let server = TestServer::start(RULES);
    let examples = examples();
    assert_eq!(examples.len(), 2, "one request allowed, one denied");
    for example in examples {
        let found = run(&example.command, &server);
        assert_eq!(masked(&found), masked(&example.shown), "{}", example.command);
    }
    // ...and the third: the rule is edited in place while the service runs.
    let edited = RULES.replace("rate: 1/minute burst 1", "rate: 100/minute burst 100");
    assert_ne!(edited, RULES, "the README edits this rate");
    std::fs::write(server.rules_path(), edited).unwrap();
    let body = r#"{"attributes": {"user": "ada", "path": "/hello"}}"#;
    wait_for("the edited rule", || (server.post("/v1/check", body).status == 200).then_some(()));
}

#[test]
fn the_page_has_both_commands_and_its_links_resolve() {
    assert!(README.contains("make run") && README.contains("make test"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for link in README.split("](").skip(1) {
        let target = link.split(')').next().unwrap();
        assert!(root.join(target).exists(), "{target} is not there");
    }
}
