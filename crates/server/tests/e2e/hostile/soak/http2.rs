//! The ways in which an HTTP/2 connection or its streams can end, ways to fill its tables, and floods.

use super::super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, RawHttp2, SETTINGS,
    WINDOW_UPDATE, frame, framed, literal, post, stream,
};
use super::{AttackFn, AttackTarget, SlowPeer};

/// Requests before the end of a connection: nearly all the streams it may have.
const REQUESTS: u32 = 120;
/// Frames of a flood.
const FLOOD: u32 = 2_000;

pub(super) const ATTACKS: [AttackFn; 32] = [
    // The client breaks the protocol after its requests, in the same write.
    |target| broken(target, &frame(HEADERS, END_HEADERS, next(), &connect(true))),
    |target| broken(target, &frame(DATA, 0, 0, b"x")),
    |target| broken(target, &frame(PING, 0, 0, b"x")),
    |target| broken(target, &frame(HEADERS, END_HEADERS, next(), &[0xff; 5])),
    |target| broken(target, &wide_window(0).repeat(2)),
    |target| broken(target, &frame(HEADERS, END_HEADERS, 2, &get())),
    |target| broken(target, &framed(DATA, 0, 1, 0xff_ffff, b"")),
    |target| broken(target, &frame(CONTINUATION, END_HEADERS, 1, b"")),
    |target| broken(target, &[goaway(), frame(DATA, 0, 0, b"x")].concat()),
    |target| broken(target, &unfinished_head(target).repeat(2)),
    |target| broken(target, &frame(RST_STREAM, 0, 999, &[0, 0, 0, 8])),
    // The client leaves.
    |target| left(target, &requests()),
    |target| left(target, &[requests(), goaway()].concat()),
    |target| left(target, &unfinished_head(target)),
    |target| left(target, &[requests(), unfinished_head(target)].concat()),
    |target| left_half(target, &requests()),
    |target| left_half(target, &bodiless(target)),
    |target| left_half(target, &[bodiless(target), goaway()].concat()),
    // Streams that wait when the connection ends.
    |target| seen(target, &bodiless(target)),
    |target| seen(target, &[bodiless(target), half_bodies()].concat()),
    |target| seen(target, &[bodiless(target), resets()].concat()),
    |target| seen(target, &[no_window(), requests()].concat()),
    |target| seen(target, &[no_window(), requests(), resets()].concat()),
    |target| seen(target, &frame(HEADERS, END_HEADERS, 1, &connect(false))),
    |target| broken(target, &[no_window(), frame(DATA, 0, 0, b"x")].concat()),
    // Heads that expand.
    |target| seen(target, &unfolding(target, 90)),
    |target| seen(target, &unfolding(target, 900)),
    // Floods, until the server closes or reads no more.
    |target| {
        flood(target, |turn| {
            let open = frame(HEADERS, END_HEADERS, stream(turn), &post("/"));
            [open, frame(RST_STREAM, 0, stream(turn), &[0, 0, 0, 8])].concat()
        });
    },
    |target| {
        flood(target, |turn| {
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream(turn), &get());
            [open, wide_window(stream(turn))].concat()
        });
    },
    |target| {
        flood(target, |turn| match turn % 4 {
            0 => frame(PING, 0, 0, &[7; 8]),
            1 => frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]),
            2 => frame(PRIORITY, 0, stream(turn), &[0, 0, 0, 0, 1]),
            _ => frame(0xbe, 0xff, 0, &[1; 100]),
        });
    },
    |target| {
        flood(target, |turn| match turn {
            0 => frame(HEADERS, END_HEADERS, 1, &post("/")),
            _ => frame(DATA, 0, 1, b""),
        });
    },
    |target| {
        flood(target, |turn| match turn {
            0 => frame(HEADERS, END_STREAM, 1, &post("/")),
            _ => frame(CONTINUATION, 0, 1, &literal("x", &"y".repeat(100))),
        });
    },
];

pub(super) const SLOW: [SlowPeer; 3] = [
    SlowPeer { first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", then: b"" },
    SlowPeer { first: b"PRI * HTTP/2.0\r\n\r\nS", then: b"M" },
    SlowPeer {
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x05\0\0\0\x01",
        then: b"\x88",
    },
];

/// Opens a connection and sends `bytes`. The server may close during the write.
fn sent(target: &AttackTarget, bytes: &[u8]) -> RawHttp2 {
    let mut raw = RawHttp2::connect(target.address).unwrap();
    let _ = raw.send(bytes);
    raw
}

/// Sends requests and then an invalid frame, and waits until the server closes.
fn broken(target: &AttackTarget, last: &[u8]) {
    sent(target, &[requests(), last.to_vec()].concat()).wait_for_end();
}

/// Closes at once.
fn left(target: &AttackTarget, bytes: &[u8]) {
    drop(sent(target, bytes));
}

/// Closes one side, and waits until the server closes the other.
fn left_half(target: &AttackTarget, bytes: &[u8]) {
    let mut raw = sent(target, bytes);
    raw.half_close();
    raw.wait_for_end();
}

/// Closes when the server has handled everything, unless it closes first.
fn seen(target: &AttackTarget, bytes: &[u8]) {
    let _ = sent(target, bytes).wait_for_ping();
}

fn flood(target: &AttackTarget, next: impl FnMut(u32) -> Vec<u8>) {
    RawHttp2::connect(target.address).unwrap().flood(FLOOD, next);
}

/// The head of a request that needs no body.
fn get() -> Vec<u8> {
    let mut block = post("/healthz");
    block[0] = 0x82;
    block
}

/// The head of a `CONNECT`, with a length that it may not have.
fn connect(with_length: bool) -> Vec<u8> {
    let mut block = literal(":method", "CONNECT");
    block.extend(literal(":authority", "x:1"));
    if with_length {
        block.extend(literal("content-length", "5"));
    }
    block
}

fn next() -> u32 {
    stream(REQUESTS)
}

fn streams(of: impl FnMut(u32) -> Vec<u8>) -> Vec<u8> {
    (0..REQUESTS).map(stream).flat_map(of).collect()
}

fn requests() -> Vec<u8> {
    streams(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get()))
}

/// Requests whose bodies do not come.
fn bodiless(target: &AttackTarget) -> Vec<u8> {
    streams(|stream| frame(HEADERS, END_HEADERS, stream, &post(target.path)))
}

fn half_bodies() -> Vec<u8> {
    streams(|stream| frame(DATA, 0, stream, &[b' '; 100]))
}

fn resets() -> Vec<u8> {
    streams(|stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]))
}

/// Fields of one byte each, and no bodies.
fn unfolding(target: &AttackTarget, fields: usize) -> Vec<u8> {
    let mut block = post(target.path);
    block.extend([0x40, 1, b'a', 0]);
    block.extend(vec![0x80 | 62; fields]);
    streams(|stream| frame(HEADERS, END_HEADERS, stream, &block))
}

fn unfinished_head(target: &AttackTarget) -> Vec<u8> {
    frame(HEADERS, 0, next(), &post(target.path))
}

fn no_window() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])
}

fn wide_window(stream: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff])
}

fn goaway() -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}
