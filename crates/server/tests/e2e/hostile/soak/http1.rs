//! The ways in which an HTTP/1 connection can end.

use super::{AttackFn, SlowPeer, closed, left, left_half};

pub(super) const ATTACKS: [AttackFn; 12] = [
    // The server closes.
    |target| closed(target, b"\x00\x01\x02\xff\xfe\r\n\r\n"),
    |target| closed(target, b"GET / HTTP/1.1\r\ncontent-length: -5\r\n\r\n"),
    |target| closed(target, &long_head()),
    |target| closed(target, &[post(2_000_000), vec![b' '; 300_000]].concat()),
    |target| closed(target, b"POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
    |target| closed(target, b"CONNECT x:1 HTTP/1.1\r\nconnection: close\r\n\r\n"),
    // The client leaves.
    |target| left(target, b"POST /v1/check HTTP/1.1\r\nx: "),
    |target| left(target, &[post(50_000), vec![b' '; 20_000]].concat()),
    |target| left(target, &b"GET /openapi.json HTTP/1.1\r\n\r\n".repeat(100)),
    |target| left(target, &unread_list()),
    |target| left_half(target, b"POST /v1/check HTTP/1.1\r\nx: "),
    |target| left_half(target, &[post(50_000), vec![b' '; 20_000]].concat()),
];

pub(super) const SLOW: [SlowPeer; 3] = [
    SlowPeer { first: b"", then: b"" },
    SlowPeer { first: b"GET /healthz HTTP/1.1\r\nx: ", then: b"y" },
    SlowPeer { first: b"GET /healthz HTTP/1.1\r\n\r\n", then: b"" },
];

fn post(length: usize) -> Vec<u8> {
    format!("POST /v1/check HTTP/1.1\r\ncontent-length: {length}\r\n\r\n").into()
}

fn long_head() -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000)).into()
}

/// A short request with a long response.
fn unread_list() -> Vec<u8> {
    let list = format!("[{}]", vec![r#"{"attributes":{}}"#; 1000].join(","));
    [post(list.len()), list.into()].concat().repeat(4)
}
