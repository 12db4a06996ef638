//! The page about Redis clients, run as written.

use std::process::Command;

use crate::server::{BINARY, TestServer};

const PAGE: &str = include_str!("../../../../docs/resp.md");

/// The commands of the page, and the output under each.
fn examples() -> Vec<(String, String)> {
    let blocks = PAGE.split("```console\n").skip(1);
    let mut examples = Vec::new();
    for block in blocks {
        let block = block.split("```").next().unwrap();
        for example in block.split("$ ").skip(1) {
            let (command, shown) = example.split_once('\n').unwrap();
            examples.push((command.to_owned(), shown.to_owned()));
        }
    }
    examples
}

/// Whether both are equal, where `*` stands for any number.
fn alike(found: &str, shown: &str) -> bool {
    let (found, shown) = (found.lines(), shown.lines());
    let same = |(found, shown): (&str, &str)| match shown.strip_suffix('*') {
        Some(start) => {
            let rest = found.strip_prefix(start);
            rest.is_some_and(|rest| rest.parse::<u64>().is_ok())
        }
        None => found == shown,
    };
    found.clone().count() == shown.clone().count() && found.zip(shown).all(same)
}

#[test]
fn the_commands_print_what_the_page_shows() {
    let dir = tempfile::tempdir().unwrap();
    let mut examples = examples().into_iter();
    let (start, shown) = examples.next().unwrap();
    assert_eq!((start.as_str(), shown.as_str()), ("tidegate serve --resp 127.0.0.1:6380 &", ""));
    let mut serve = Command::new(BINARY);
    serve.args(["serve", "--resp", "127.0.0.1:0"]);
    let server = TestServer::spawn(serve, dir);
    let port = server.resp().port().to_string();
    let mut ran = 0;
    for (command, shown) in examples {
        let command = command.replace("6380", &port);
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        assert!(alike(&found, &shown), "{command} gives\n{found}\nthe page shows\n{shown}");
        ran += 1;
    }
    assert_eq!(ran, 3);
}
