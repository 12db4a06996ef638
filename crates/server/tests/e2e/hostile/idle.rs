//! Ten thousand connections that do nothing: what each costs, and that a good client is served beside them.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, frame, post};
use crate::grpc::{SHOULD_RATE_LIMIT, framed, request};
use crate::http::ask;
use crate::memory::held;
use crate::resp::Redis;
use crate::server::{Server, wait_for};
use crate::witness::Witness;

const RULES: &str =
    "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

/// This process and the server need that many files each, and some more.
const MOST_OPEN: u64 = 12_000;

/// One crowd at a time: together they would be more than a process may have open.
static CROWD: Mutex<()> = Mutex::new(());

/// How many connections, and the most bytes of memory that each may cost.
struct Crowd {
    of: &'static str,
    beside: fn(&Server) -> Witness,
    connections: usize,
    most_each: u64,
}

/// Raises the limit on open files of this process, which those it starts inherit.
fn may_open_many() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    let limit = |word: &str| word.parse().unwrap_or(u64::MAX);
    let (soft, hard) = (limit(words[3]), limit(words[4]));
    assert!(
        hard >= MOST_OPEN,
        "at most {hard} files may be open, and this test needs {MOST_OPEN}; run it after \
         `ulimit -n {MOST_OPEN}`, or raise `nofile` in /etc/security/limits.conf"
    );
    if soft < MOST_OPEN {
        let raised = Command::new("prlimit")
            .arg(format!("--pid={}", std::process::id()))
            .arg(format!("--nofile={MOST_OPEN}:"))
            .status();
        assert!(
            raised.is_ok_and(|raised| raised.success()),
            "prlimit failed"
        );
    }
}

/// Each has asked once and been answered, as clients do that keep their connections.
fn stand_by<T>(server: &Server, crowd: &Crowd, one: impl Fn() -> T) {
    let witness = (crowd.beside)(server);
    witness.wait_for_answers(50);
    let before = held(server);
    let connections: Vec<T> = (0..crowd.connections).map(|_| one()).collect();
    witness.wait_for_answers(200);
    let each = held(server).saturating_sub(before) / crowd.connections as u64;
    eprintln!("an idle connection of {} takes {each} bytes", crowd.of);
    witness.end(crowd.of);
    assert!(each <= crowd.most_each, "{}: {each} bytes each", crowd.of);
    drop(connections);
    wait_for("the crowd to be gone", || {
        (server.metric("tidegate_connections ") < 10).then_some(())
    });
}

/// A server for a crowd at one door. Others would get their share of what may be open.
fn server(doors: &[&str]) -> Server {
    may_open_many();
    let most = (MOST_OPEN - 500).to_string();
    let flags = ["--idle", "600", "--max-connections", &most];
    Server::with(RULES, &[&flags, doors].concat())
}

#[test]
fn ten_thousand_of_http_1() {
    let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--grpc", "off"]);
    let crowd = Crowd {
        of: "HTTP/1",
        beside: Witness::of_http,
        connections: 10_000,
        // The figure to hold is 24 KiB in a release build, of which hyper's two buffers are 16, and
        // `bench/run doors` measures that. What waits in a build for tests is larger: 23.1 to 24.7 KiB.
        most_each: 26 << 10,
    };
    let body = ask("192.0.2.1", "/");
    stand_by(&server, &crowd, || {
        let mut client = server.client();
        assert_eq!(client.post("/v1/check", &body).status, 200);
        client
    });
}

#[test]
fn ten_thousand_of_redis_clients() {
    let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--resp", "127.0.0.1:0", "--http", "off", "--grpc", "off"]);
    let crowd = Crowd {
        of: "RESP",
        beside: Witness::of_resp,
        connections: 10_000,
        most_each: 8 << 10,
    };
    let address = server.resp();
    stand_by(&server, &crowd, || {
        let mut redis = Redis::connect(address);
        let answer = redis.ask("CL.THROTTLE user 15 30 60 0");
        assert_eq!(answer.integers()[0], 0);
        redis
    });
}

/// Fewer: each is a whole table of streams and headers.
#[test]
fn three_thousand_of_http_2() {
    let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--grpc", "off"]);
    let crowd = Crowd {
        of: "HTTP/2",
        beside: Witness::of_http,
        connections: 3_000,
        most_each: 64 << 10,
    };
    let body = ask("192.0.2.1", "/");
    stand_by(&server, &crowd, || {
        asked_once(server.http, "/v1/check", body.as_bytes())
    });
}

#[test]
fn three_thousand_of_grpc() {
    let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(&["--http", "off"]);
    let crowd = Crowd {
        of: "gRPC",
        beside: Witness::of_grpc,
        connections: 3_000,
        most_each: 64 << 10,
    };
    let address = server.grpc.parse().unwrap();
    let body = framed(&request("shop", &[&[("a", "b")]]));
    stand_by(&server, &crowd, || {
        asked_once(address, SHOULD_RATE_LIMIT, &body)
    });
}

fn asked_once(address: SocketAddr, path: &str, body: &[u8]) -> Raw {
    let mut raw = Raw::connect(address).unwrap();
    let head = frame(HEADERS, END_HEADERS, 1, &post(path));
    let body = frame(DATA, END_STREAM, 1, body);
    raw.send(&[head, body].concat()).unwrap();
    raw.wait_for_answer(1);
    raw
}
