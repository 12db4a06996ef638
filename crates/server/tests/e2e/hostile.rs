//! Malformed, oversized and slow input: a clear error, nothing charged, no other client disturbed.

mod frames;
mod http2;
mod idle;
mod resp;
mod slow;
mod soak;

use std::process::Command;

use crate::http::{HttpClient, check_body};
use crate::server::{BINARY, TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 5/hour, algorithm: fixed-window }\n";

fn left(server: &TestServer) -> u64 {
    server.post("/v1/peek", &check_body("192.0.2.1", "/")).json()["remaining"].as_u64().unwrap()
}

#[test]
fn a_bad_request_names_its_field_and_charges_nothing() {
    let server = TestServer::start(RULES);
    let good = check_body("192.0.2.1", "/");
    let cases = [
        ("{", ""),
        (r#"{"attributes": {"#, "attributes"),
        (r#"{"attributes": {"ip": "192.0.2.1"}, "cots": 1}"#, "cots"),
        (r#"{"attributes": {"ip": "not an address"}}"#, "attributes.ip"),
        (r#"{"attributes": {"ip": "192.0.2.1"}, "cost": -1}"#, "cost"),
        (&format!(r#"[{good}, {good}, {{"cost": "1"}}]"#), "[2].cost"),
        (&format!("[{}]", vec![&*good; 1001].join(",")), ""), // the whole list
    ];
    for (body, field) in cases {
        let reply = server.post("/v1/check", body);
        assert_eq!(reply.status, 400, "{body:.80}");
        assert_eq!(reply.json()["field"], field, "{body:.80}");
        assert!(reply.header("x-tidegate-id").is_some());
    }
    assert_eq!(left(&server), 5, "a rejected list has charged nothing");
}

#[test]
fn a_request_that_is_too_large_is_413_or_431() {
    let server = TestServer::start(RULES);
    let padding = " ".repeat(70_000);
    let single = format!("{padding}{}", check_body("192.0.2.1", "/"));
    assert_eq!(server.post("/v1/check", &single).status, 413);
    let mut client = server.client();
    client.send_raw(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n").unwrap();
    assert_eq!(client.receive().unwrap().status, 413);
    let mut client = server.client();
    client.send_raw(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // The server may close while the client is still sending.
    while client.send_raw(chunk.as_bytes()).is_ok() {}
    let mut client = server.client();
    let large = format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let _ = client.send_raw(large.as_bytes());
    assert_eq!(client.receive().unwrap().status, 431);
    let mut client = server.client();
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(500));
    let _ = client.send_raw(many.as_bytes());
    assert_eq!(client.receive().unwrap().status, 431);
    assert_eq!(left(&server), 5);
}

#[test]
fn malformed_bytes_end_only_their_own_connection() {
    // Some of it looks like the beginning of a request and is closed only when idle.
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    for bytes in [
        &b"\x00\x01\x02\xff\xfe\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"POST /v1/check HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x06\x00\x00\x00\x00\x00",
        b"POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = server.client();
        client.send_raw(bytes).unwrap();
        assert!(client.is_closed(), "{bytes:?}");
        let reply = server.client().request("GET", "/healthz", &[], "");
        assert_eq!(reply.status, 200);
    }
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

#[test]
fn unknown_paths_and_methods_get_404_and_405() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    assert_eq!(client.request("GET", "/nothing", &[], "").status, 404);
    let reply = client.request("GET", "/v1/check", &[], "");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(client.request("DELETE", "/healthz", &[], "").status, 405);
    assert_eq!(client.request("GET", "/metrics", &[], "").status, 404, "only on the admin listener");
}

#[test]
fn slow_clients_are_closed_and_good_ones_served_meanwhile() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let mut slow: Vec<HttpClient> = (0..50).map(|_| server.client()).collect();
    for client in &mut slow {
        client.send_raw(b"POST /v1/check HTTP/1.1\r\nhost: x\r\nx: ").unwrap();
    }
    wait_for("the slow ones to be closed", || {
        // On its own connection each time: a kept one might be idle on a busy machine.
        let reply = server.client().request("GET", "/healthz", &[], "");
        assert_eq!(reply.status, 200);
        (server.metric("tidegate_connections_timed_out_total") >= 50).then_some(())
    });
    for client in &mut slow {
        assert!(client.is_closed());
    }
}

/// An explanation has an entry for each rule and each request of a list: with many rules the response would be too
/// large to send.
#[test]
fn a_list_to_be_explained_is_shorter_where_there_are_many_rules() {
    let rules = (0..1_000).map(|n| format!("  - {{ name: r{n}, by: ip, rate: 5/hour }}\n"));
    let rules: String = rules.collect();
    let server = TestServer::start(&format!("version: 1\nrules:\n{rules}"));
    let explain = |requests: usize| {
        let list = vec![r#"{"attributes":{}}"#; requests].join(",");
        server.post("/v1/explain", &format!("[{list}]"))
    };
    assert_eq!(explain(30).status, 200);
    let rejected = explain(31);
    assert_eq!(rejected.status, 400, "{rejected:?}");
    assert_eq!(rejected.json()["field"], "[30]");
}

/// Attackers come in any number, stall in the middle of a body, and come again when they are cut off.
#[test]
fn stalled_uploads_do_not_lock_out_other_clients() {
    let server = TestServer::start(RULES);
    let stall = || {
        let mut client = server.client();
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n";
        client.send_raw(head.as_bytes()).unwrap();
        client.send_raw(&[b' '; 100_000]).unwrap();
        client
    };
    let stalled: Vec<HttpClient> = (0..100).map(|_| stall()).collect();
    let list = vec![check_body("192.0.2.9", "/"); 1000].join(",");
    let list = format!("[{}{list}]", " ".repeat(200_000));
    for _ in 0..5 {
        assert_eq!(server.post("/v1/peek", &list).status, 200);
    }
    // Each upload beyond the 64th evicts one. If a client had had to wait for the deadline of the stalled ones, all
    // of them would be gone.
    let cut = server.metric("tidegate_http_responses_total{edge=\"http\",status=\"408\"}");
    let beyond = stalled.len() as u64 + 5 - 64;
    assert!(0 < cut && cut <= beyond, "{cut} were cut off");
}

/// A proxy on this machine represents all its clients.
#[test]
fn peers_on_this_machine_have_no_connection_limit() {
    let server = TestServer::with(RULES, &["--max-connections-per-peer", "2"]);
    let mut clients: Vec<HttpClient> = (0..10).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.request("GET", "/healthz", &[], "").status, 200);
    }
}

#[test]
fn a_server_out_of_descriptors_goes_on_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    let mut command = Command::new("sh");
    let rules = dir.path().join("rules.yaml");
    command
        .arg("-c")
        .arg(format!("ulimit -n 96; exec {BINARY} serve --rules {} --idle-timeout 600 \"$@\"", rules.display()));
    command.arg("sh");
    let server = TestServer::spawn(command, dir);
    let mut first = server.client();
    assert_eq!(first.request("GET", "/healthz", &[], "").status, 200);
    // More than it may have open, fewer than the kernel's backlog.
    let crowd: Vec<HttpClient> = (0..200).filter_map(|_| HttpClient::try_connect(server.http).ok()).collect();
    for _ in 0..20 {
        assert_eq!(first.request("GET", "/healthz", &[], "").status, 200, "open connections are served");
    }
    drop(crowd);
    let reply = server.client().request("GET", "/healthz", &[], "");
    assert_eq!(reply.status, 200, "waiting connections are accepted once there is room");
}
