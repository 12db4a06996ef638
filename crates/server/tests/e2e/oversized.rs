//! Responses to requests that are too large arrive, although the request is not read to its end.
//!
//! A connection that was closed over unread bytes was reset, and the client saw the reset instead of the response.
//! A proxy then treated Tidegate as unavailable and passed the request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::server::{DEADLINE, TestServer};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 5/hour }\n";

/// The response to a client that first sends everything, as proxies do.
fn sent_whole(server: &TestServer, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).expect("everything is read, although it is discarded");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("an end, and no reset");
    String::from_utf8(response).unwrap()
}

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn long_head(bytes: usize) -> Vec<u8> {
    let line = format!("x-padding: {}\r\n", "p".repeat(1000));
    let lines = line.repeat(bytes / line.len() + 1);
    format!("GET /v1/auth HTTP/1.1\r\nhost: x\r\n{lines}\r\n").into_bytes()
}

fn many_fields(fields: usize) -> Vec<u8> {
    let lines: String = (0..fields).map(|at| format!("x-{at}: a\r\n")).collect();
    format!("GET /v1/auth HTTP/1.1\r\nhost: x\r\n{lines}\r\n").into_bytes()
}

#[test]
fn a_431_arrives_however_long_the_head_is() {
    let server = TestServer::start(RULES);
    for kib in [33, 64, 300, 900] {
        let response = sent_whole(&server, &long_head(kib << 10));
        assert!(response.starts_with("HTTP/1.1 431"), "{kib}: {response}");
    }
    for fields in [101, 2_000, 50_000] {
        let response = sent_whole(&server, &many_fields(fields));
        assert!(response.starts_with("HTTP/1.1 431"), "{fields}: {response}");
    }
}

#[test]
fn a_413_arrives_although_the_body_is_not_read() {
    let server = TestServer::start(RULES);
    let body = " ".repeat(1_500_000);
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\n";
    let length = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}");
    for request in [length, chunked] {
        let response = sent_whole(&server, request.as_bytes());
        assert!(response.starts_with("HTTP/1.1 413"), "{response}");
        assert!(response.contains("too_large"), "{response}");
    }
}

/// The discarded bytes are bounded, so that a rejected upload cannot keep a connection open.
#[test]
fn a_client_that_never_stops_sending_is_cut_off() {
    let server = TestServer::start(RULES);
    let mut stream = connect(&server);
    stream.write_all(&long_head(64 << 10)).unwrap();
    let chunk = [b'x'; 64 << 10];
    let mut sent = 0_usize;
    while let Ok(more) = stream.write(&chunk) {
        sent += more;
        assert!(sent < 1 << 30, "a GiB is read and discarded");
    }
    let _ = stream.shutdown(Shutdown::Both);
}
