//! The examples run and print what they promise. They are built with the tests; the one for Redis is run by the tests
//! of Redis.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of an example, beside the programs of the tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let program = folder.join("examples").join(name);
    assert!(program.exists(), "{}: build it by `cargo build -p tidegate --all-features --examples`", program.display());
    Command::new(program)
}

/// The lines that an example prints.
fn printed(example: &mut Command) -> Vec<String> {
    let output = example.stderr(Stdio::inherit()).output().expect("it runs");
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn a_throttle_denies_the_sixth_attempt() {
    let lines = printed(&mut example("throttle"));
    assert!(lines[..5].iter().all(|line| line.ends_with("allowed")), "{lines:?}");
    assert!(lines[5..7].iter().all(|line| line.contains("denied, come back in")), "{lines:?}");
    assert_eq!(lines[7], "bob has 5 left");
}

#[test]
fn a_worker_waits_and_does_every_job() {
    let lines = printed(&mut example("waiting_worker"));
    assert_eq!(lines.len(), 6, "{lines:?}");
}

#[test]
fn a_rules_file_decides() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules.yaml");
    let lines = printed(example("rules_file").arg(rules));
    let decided: Vec<_> = lines.iter().filter(|line| line.contains(" by ")).collect();
    assert_eq!(decided[0], "allowed by hello");
    assert!(decided[1].starts_with("denied by hello, come back in"), "{lines:?}");
}

#[test]
fn a_reservation_settles_what_was_used() {
    let lines = printed(&mut example("reservations"));
    let want = [
        "a short question: reserved 4000, used 800, settlement done",
        "a long question: reserved 4000, used 5500, settlement done",
        "another long question: denied",
    ];
    assert_eq!(lines, want);
}

#[test]
fn permits_bound_what_is_open() {
    let want = ["upload 1: open", "upload 2: open", "upload 3: 2 of 2 are open", "after one has ended: open"];
    assert_eq!(printed(&mut example("permits")), want);
}

#[test]
fn an_axum_service_denies_the_third_request_of_a_user() {
    let mut service = example("axum_handler").arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().expect("it runs");
    let mut first = String::new();
    BufReader::new(service.stdout.take().expect("its output")).read_line(&mut first).expect("a line");
    let address = first.trim().strip_prefix("listening on ").expect("its address").to_owned();
    let get = |user: &str| {
        let mut connection = TcpStream::connect(&address).expect("it listens");
        write!(connection, "GET /hello HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\nconnection: close\r\n\r\n")
            .expect("sent");
        let mut response = String::new();
        connection.read_to_string(&mut response).expect("a response");
        response
    };
    let responses = [get("ada"), get("ada"), get("ada"), get("bob")];
    service.kill().expect("it ends");
    service.wait().expect("it has ended");
    let statuses: Vec<&str> = responses.iter().map(|response| &response[9..12]).collect();
    assert_eq!(statuses, ["200", "200", "429", "200"], "{responses:?}");
    assert!(responses[0].contains("x-ratelimit-remaining: 1"), "{}", responses[0]);
    assert!(responses[2].contains("retry-after: "), "{}", responses[2]);
}

/// Users have the public API alone: what it does not list, no example names.
#[test]
fn examples_use_the_public_api() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let api = std::fs::read_to_string(folder.join("public-api.txt")).expect("the list");
    let listed = |path: &str| api.lines().any(|line| line.split_once(' ').is_some_and(|(_, item)| item == path));
    let mut sources: Vec<PathBuf> = Vec::new();
    for entry in folder.join("examples").read_dir().expect("a folder") {
        sources.push(entry.expect("an entry").path());
    }
    assert!(sources.len() >= 7, "{sources:?}");
    for source in sources {
        let text = std::fs::read_to_string(&source).expect("a source file");
        for import in text.lines().filter_map(|line| line.strip_prefix("use tidegate::")) {
            let import = import.trim_end_matches(';');
            let (module, names) = import.split_once('{').unwrap_or(("", import));
            for name in names.trim_end_matches('}').split(", ") {
                let path = format!("{module}{name}");
                assert!(listed(&path), "{}: {path} is not public", source.display());
            }
        }
    }
}
