//! Tests of `scripts/test`, which `make test` runs, with a fake cargo that only prints.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The output of the script after that of a cargo that prints `output` and exits with `status`, and the exit
/// status of the script. The instruction counts succeed.
fn run(output: &str, status: i32) -> (Vec<String>, Option<i32>) {
    run_and_count(output, status, 0)
}

/// The same where the instruction counts exit with `counted`.
fn run_and_count(output: &str, status: i32, counted: i32) -> (Vec<String>, Option<i32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    let text =
        format!("#!/bin/sh\n[ \"$2\" = --profile ] && exit {counted}\ncat <<'END'\n{output}\nEND\nexit {status}\n");
    fs::write(&cargo, text).expect("a program");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("executable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test");
    let path = std::env::var("PATH").expect("a path");
    let ran = Command::new(script)
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .stderr(Stdio::inherit())
        .output()
        .expect("the script runs");
    let printed = String::from_utf8(ran.stdout).expect("text");
    let rest = printed.strip_prefix(output).expect("output is passed on");
    let lines = rest.lines().filter(|line| !line.is_empty());
    (lines.map(str::to_owned).collect(), ran.status.code())
}

#[test]
fn results_of_all_programs_are_added() {
    let output = "test a ... ok\ntest result: ok. 3 passed; 0 failed; 1 ignored\n\
                  test result: ok. 4 passed; 0 failed; 0 ignored";
    assert_eq!(run(output, 0), (vec!["7 passed, 0 failed".into()], Some(0)));
}

#[test]
fn failed_tests_are_named_and_the_status_is_that_of_cargo() {
    let output = "test b::late ... FAILED\ntest a ... ok\ntest c - should panic ... FAILED\n\
                  test result: FAILED. 1 passed; 2 failed; 0 ignored\n\
                  test result: ok. 5 passed; 0 failed; 0 ignored";
    let want = ["failed: b::late", "failed: c - should panic", "6 passed, 2 failed"];
    assert_eq!(run(output, 101), (want.map(str::to_owned).into(), Some(101)));
}

#[test]
fn a_program_without_results_is_reported() {
    let output = "test result: ok. 5 passed; 0 failed; 0 ignored\nerror: 1 target failed:";
    let want = ["error: 1 target failed:", "cargo ended with status 101, and no test failed", "5 passed, 0 failed"];
    assert_eq!(run(output, 101), (want.map(str::to_owned).into(), Some(101)));
}

#[test]
fn failed_instruction_counts_fail_the_run() {
    let output = "test result: ok. 5 passed; 0 failed; 0 ignored";
    let want = ["cargo ended with status 101, and no test failed", "5 passed, 0 failed"];
    assert_eq!(run_and_count(output, 0, 101), (want.map(str::to_owned).into(), Some(101)));
}
