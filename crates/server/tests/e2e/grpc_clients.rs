//! An unmodified gRPC client: grpc-python, which is C-core, as Envoy's `google_grpc` is.

use std::process::Command;

use prost::Message;

use crate::grpc::{OK, OVER, request};
use crate::messages::RateLimitResponse;
use crate::server::TestServer;

const RULES: &str = "version: 1\nrules: [{ name: r, by: ip, rate: 3/hour burst 3 }]\n";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/clients/grpc_python.py");
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python/bin/python");

/// The verdicts of `count` calls on one channel.
#[track_caller]
fn called(address: &str, count: usize) -> Vec<i32> {
    let message = request("shop", &[&[("remote_address", "203.0.113.9")]]).encode_to_vec();
    let digits = message.iter().map(|byte| format!("{byte:02x}"));
    let ran = Command::new(PYTHON)
        .args([SCRIPT, address, &digits.collect::<String>(), &count.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("no {PYTHON} ({error}): run scripts/tools"));
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{address}: {complaint}");
    let replies = String::from_utf8(ran.stdout).unwrap();
    let verdict = |line: &str| {
        let bytes = (0..line.len()).step_by(2).map(|at| &line[at..at + 2]);
        let bytes = bytes.map(|digits| u8::from_str_radix(digits, 16).unwrap());
        let bytes: Vec<u8> = bytes.collect();
        RateLimitResponse::decode(&*bytes).unwrap().overall_code
    };
    replies.lines().map(verdict).collect()
}

/// C-core sends the path of the socket as authority, percent-encoded. Its streams were reset.
#[test]
fn grpc_python_is_served_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("rls.sock").display());
    let _server = TestServer::with(RULES, &["--grpc", &address]);
    assert_eq!(called(&address, 2), [OK, OK]);
    assert_eq!(called(&address, 3), [OK, OVER, OVER]);
}

#[test]
fn grpc_python_is_served_over_tcp() {
    let server = TestServer::start(RULES);
    assert_eq!(called(&server.grpc, 4), [OK, OK, OK, OVER]);
}
