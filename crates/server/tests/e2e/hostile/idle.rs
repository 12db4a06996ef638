//! Ten thousand idle connections: what each costs, and that a good client is served beside them.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, RawHttp2, frame, post};
use crate::background_client::BackgroundClient;
use crate::grpc::{SHOULD_RATE_LIMIT, framed, request};
use crate::http::check_body;
use crate::memory::rss;
use crate::resp::RespClient;
use crate::server::{TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

/// This process and the server need that many files each, and some more.
const MAX_OPEN_FILES: u64 = 12_000;

/// One test at a time: together they would open more files than a process may.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The number of connections, and the maximum memory per connection.
struct IdleCostCase {
    protocol: &'static str,
    background_client: fn(&TestServer) -> BackgroundClient,
    connections: usize,
    max_bytes_each: u64,
}

/// Raises the limit on open files of this process, which its children inherit.
fn may_open_many() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    let limit = |word: &str| word.parse().unwrap_or(u64::MAX);
    let (soft, hard) = (limit(words[3]), limit(words[4]));
    assert!(
        hard >= MAX_OPEN_FILES,
        "at most {hard} files may be open, and this test needs {MAX_OPEN_FILES}; run it after \
         `ulimit -n {MAX_OPEN_FILES}`, or raise `nofile` in /etc/security/limits.conf"
    );
    if soft < MAX_OPEN_FILES {
        let raised = Command::new("prlimit")
            .arg(format!("--pid={}", std::process::id()))
            .arg(format!("--nofile={MAX_OPEN_FILES}:"))
            .status();
        assert!(raised.is_ok_and(|raised| raised.success()), "prlimit failed");
    }
}

/// Each connection has had one request and one response, like those of clients with connection pools.
fn check_idle_cost<T>(server: &TestServer, idle: &IdleCostCase, one: impl Fn() -> T) {
    let background = (idle.background_client)(server);
    background.wait_for_replies(50);
    let before = rss(server);
    let connections: Vec<T> = (0..idle.connections).map(|_| one()).collect();
    background.wait_for_replies(200);
    let each = rss(server).saturating_sub(before) / idle.connections as u64;
    eprintln!("an idle connection of {} takes {each} bytes", idle.protocol);
    background.end(idle.protocol);
    assert!(each <= idle.max_bytes_each, "{}: {each} bytes each", idle.protocol);
    drop(connections);
    wait_for("the idle connections to be closed", || (server.metric("tidegate_connections ") < 10).then_some(()));
}

/// A server with one listener. Others would get their share of the open files.
fn server(listeners: &[&str]) -> TestServer {
    may_open_many();
    let max_connections = (MAX_OPEN_FILES - 500).to_string();
    let flags = ["--idle-timeout", "600", "--max-connections", &max_connections];
    TestServer::with(RULES, &[&flags, listeners].concat())
}

#[test]
fn ten_thousand_of_http_1() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--grpc", "off"]);
    let case = IdleCostCase {
        protocol: "HTTP/1",
        background_client: BackgroundClient::for_http,
        connections: 10_000,
        // The target is 24 KiB in a release build, of which hyper's two buffers are 16, and `bench/run servers`
        // measures that. A waiting task in a test build is larger: 23.1 to 24.7 KiB.
        max_bytes_each: 26 << 10,
    };
    let body = check_body("192.0.2.1", "/");
    check_idle_cost(&server, &case, || {
        let mut client = server.client();
        assert_eq!(client.post("/v1/check", &body).status, 200);
        client
    });
}

#[test]
fn ten_thousand_of_redis_clients() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--resp", "127.0.0.1:0", "--http", "off", "--grpc", "off"]);
    let case = IdleCostCase {
        protocol: "RESP",
        background_client: BackgroundClient::for_resp,
        connections: 10_000,
        max_bytes_each: 8 << 10,
    };
    let address = server.resp();
    check_idle_cost(&server, &case, || {
        let mut redis = RespClient::connect(address);
        let reply = redis.send_line("CL.THROTTLE user 15 30 60 0");
        assert_eq!(reply.integers()[0], 0);
        redis
    });
}

/// Fewer: each has a table of streams and headers.
#[test]
fn three_thousand_of_http_2() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--grpc", "off"]);
    let case = IdleCostCase {
        protocol: "HTTP/2",
        background_client: BackgroundClient::for_http,
        connections: 3_000,
        max_bytes_each: 64 << 10,
    };
    let body = check_body("192.0.2.1", "/");
    check_idle_cost(&server, &case, || connected_after_one_request(server.http, "/v1/check", body.as_bytes()));
}

#[test]
fn three_thousand_of_grpc() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--http", "off"]);
    let case = IdleCostCase {
        protocol: "gRPC",
        background_client: BackgroundClient::for_grpc,
        connections: 3_000,
        max_bytes_each: 64 << 10,
    };
    let address = server.grpc.parse().unwrap();
    let body = framed(&request("shop", &[&[("a", "b")]]));
    check_idle_cost(&server, &case, || connected_after_one_request(address, SHOULD_RATE_LIMIT, &body));
}

fn connected_after_one_request(address: SocketAddr, path: &str, body: &[u8]) -> RawHttp2 {
    let mut raw = RawHttp2::connect(address).unwrap();
    let head = frame(HEADERS, END_HEADERS, 1, &post(path));
    let body = frame(DATA, END_STREAM, 1, body);
    raw.send(&[head, body].concat()).unwrap();
    raw.wait_for_response(1);
    raw
}
