//! HTTP/2 attacks that cost the client next to nothing. Meanwhile a good client gets every response, and the server
//! uses little more memory than before.

use std::net::SocketAddr;

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, RawHttp2, SETTINGS,
    WINDOW_UPDATE, frame, framed, literal, post, stream,
};
use crate::background_client::BackgroundClient;
use crate::grpc::{SHOULD_RATE_LIMIT, framed as framed_message, request};
use crate::http::check_body;
use crate::memory::{peak_rss, rss};
use crate::server::{TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

const ATTACKERS: usize = 4;
const ROUNDS: usize = 8;
/// The memory that all attackers together may make the server use: a few hundred KiB for each of their connections,
/// some of which the server may not have noticed to be gone.
const MAX_HELD_BYTES: u64 = 32 << 20;

/// A listener that speaks HTTP/2.
struct Http2Listener {
    edge: &'static str,
    address: SocketAddr,
    path: &'static str,
    body: Vec<u8>,
    background: fn(&TestServer) -> BackgroundClient,
}

fn listeners(server: &TestServer) -> [Http2Listener; 2] {
    [
        Http2Listener {
            edge: "http",
            address: server.http,
            path: "/v1/check",
            body: check_body("192.0.2.1", "/").into(),
            background: BackgroundClient::for_http,
        },
        Http2Listener {
            edge: "grpc",
            address: server.grpc.parse().unwrap(),
            path: SHOULD_RATE_LIMIT,
            body: framed_message(&request("shop", &[&[("a", "b")]])).to_vec(),
            background: BackgroundClient::for_grpc,
        },
    ]
}

/// Several attackers, each with one connection after another.
fn withstand(name: &str, attack: impl Fn(&mut RawHttp2, &Http2Listener) + Sync) {
    let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
    for listener in &listeners(&server) {
        let background = (listener.background)(&server);
        background.wait_for_replies(50);
        let before = peak_rss(&server);
        std::thread::scope(|scope| {
            for _ in 0..ATTACKERS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        attack(&mut RawHttp2::connect(listener.address).unwrap(), listener);
                    }
                });
            }
        });
        let name = format!("{name} ({})", listener.edge);
        background.end(&name);
        let held = peak_rss(&server).saturating_sub(before);
        eprintln!("{name} made it hold {} KiB", held >> 10);
        assert!(held <= MAX_HELD_BYTES, "{name}: {held} bytes");
    }
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

/// A stream is opened and reset at once, so that the number of open ones never reaches its limit.
#[test]
fn streams_that_are_reset_at_once() {
    withstand("rapid reset", |raw, listener| {
        raw.flood(20_000, |turn| {
            let open = frame(HEADERS, END_HEADERS, stream(turn), &post(listener.path));
            let reset = frame(RST_STREAM, 0, stream(turn), &[0, 0, 0, 8]);
            [open, reset].concat()
        });
    });
}

/// The same with complete requests: each is begun before it is reset.
#[test]
fn requests_that_are_reset_at_once() {
    withstand("requests reset", |raw, listener| {
        raw.flood(20_000, |turn| {
            let open = frame(HEADERS, END_HEADERS, stream(turn), &post(listener.path));
            let body = frame(DATA, END_STREAM, stream(turn), &listener.body);
            let reset = frame(RST_STREAM, 0, stream(turn), &[0, 0, 0, 8]);
            [open, body, reset].concat()
        });
    });
}

/// The server is made to reset streams itself, which costs it more than the client.
#[test]
fn streams_that_the_server_must_reset() {
    withstand("resets provoked", |raw, listener| {
        raw.flood(20_000, |turn| {
            let open = frame(HEADERS, END_HEADERS, stream(turn), &post(listener.path));
            // A window update of zero is an error.
            let wrong = frame(WINDOW_UPDATE, 0, stream(turn), &[0; 4]);
            [open, wrong].concat()
        });
    });
}

/// A header that never ends, in small pieces.
#[test]
fn headers_that_never_end() {
    let piece = literal("x", &"y".repeat(120)).repeat(100);
    withstand("continuations", |raw, listener| {
        let begin = frame(HEADERS, END_STREAM, 1, &post(listener.path));
        raw.send(&begin).unwrap();
        raw.flood(10_000, |_| frame(CONTINUATION, 0, 1, &piece));
    });
}

/// Empty pieces of a header take no room in any buffer, and never end.
#[test]
fn empty_continuations_that_never_end() {
    withstand("empty continuations", |raw, listener| {
        raw.send(&frame(HEADERS, END_STREAM, 1, &post(listener.path))).unwrap();
        raw.flood(200_000, |_| frame(CONTINUATION, 0, 1, b""));
    });
}

/// One header is added to the table and then referenced in one byte each time: 4 KiB become gigabytes.
#[test]
fn headers_that_expand() {
    let remembered = {
        let value = "z".repeat(126);
        let mut block = vec![0x40, 1, b'x', value.len() as u8];
        block.extend(value.bytes());
        block
    };
    withstand("headers that expand", |raw, listener| {
        raw.flood(2_000, |turn| {
            // 62 is the entry that was added last.
            let block = [post(listener.path), remembered.clone(), vec![0x80 | 62; 8_000]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream(turn), &block)
        });
    });
}

/// Each requires a reply that the client does not read.
#[test]
fn pings_and_settings_without_end() {
    withstand("pings", |raw, _| {
        raw.flood(200_000, |_| frame(PING, 0, 0, &[7; 8]));
    });
    withstand("settings", |raw, _| {
        // The size of a window, up and down: every open stream must be updated.
        raw.flood(200_000, |turn| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, (turn % 2) as u8, 0]));
    });
}

/// Frames without any effect.
#[test]
fn empty_frames_without_end() {
    withstand("priorities", |raw, _| {
        raw.flood(100_000, |turn| frame(PRIORITY, 0, stream(turn), &[0, 0, 0, 0, 1]));
    });
    withstand("unknown frames", |raw, _| {
        raw.flood(100_000, |_| frame(0xbe, 0xff, 0, &[1; 100]));
    });
    withstand("empty data", |raw, listener| {
        raw.send(&frame(HEADERS, END_HEADERS, 1, &post(listener.path))).unwrap();
        raw.flood(100_000, |_| frame(DATA, 0, 1, b""));
    });
}

/// Windows that are too wide, or never open: responses wait, but not for ever.
#[test]
fn windows_that_lie() {
    withstand("windows that open by a byte", |raw, listener| {
        raw.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
        for turn in 0..100 {
            let open = frame(HEADERS, END_HEADERS, stream(turn), &post(listener.path));
            let body = frame(DATA, END_STREAM, stream(turn), &listener.body);
            if raw.send(&[open, body].concat()).is_err() {
                return;
            }
        }
        raw.flood(20_000, |turn| frame(WINDOW_UPDATE, 0, stream(turn % 100), &[0, 0, 0, 1]));
    });
}

/// A protocol error ends its connection, with an error code.
#[test]
fn protocol_errors_close_the_connection_with_an_error_code() {
    let cases = [
        ("a frame longer than was allowed", framed(DATA, 0, 1, 0xff_ffff, b"")),
        ("a window above its largest", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("data on no stream", frame(DATA, 0, 0, b"x")),
        ("a stream of the server's", frame(HEADERS, END_HEADERS, 2, &post("/"))),
        ("a ping of the wrong size", frame(PING, 0, 0, b"x")),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b"")),
    ];
    let server = TestServer::start(RULES);
    for listener in listeners(&server) {
        for (what, bytes) in &cases {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            raw.send(bytes).unwrap();
            let reason = raw.reason();
            // 0 would be a close without an error.
            assert!(reason.is_some_and(|reason| reason > 0), "{what}: {reason:?}");
        }
    }
}

/// The head of a `POST` with `fields` more fields, each of one byte on the wire but the first.
fn head_of_fields(path: &str, fields: usize) -> Vec<u8> {
    let mut block = post(path);
    // The first is added to the table as number 62.
    block.extend([0x40, 1, b'a', 0]);
    block.extend(vec![0x80 | 62; fields - 1]);
    block
}

/// A field takes one byte to send and a hundred to hold, and the limit on fields applied to HTTP/1 only.
#[test]
fn a_head_of_more_than_a_hundred_fields_is_431_by_http_2_too() {
    let server = TestServer::start(RULES);
    for listener in listeners(&server) {
        for (fields, is_good) in [(99, true), (900, false)] {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            let head = head_of_fields(listener.path, fields);
            raw.send(&frame(HEADERS, END_HEADERS, 1, &head)).unwrap();
            if is_good {
                raw.send(&frame(DATA, END_STREAM, 1, &listener.body)).unwrap();
            }
            let status = raw.status(1);
            let expected = if is_good { "200" } else { "431" };
            assert_eq!(status, expected, "{} with {fields} fields", listener.edge);
        }
    }
    let rejected = server.metric("tidegate_streams_refused_total{cause=\"head\"}");
    assert_eq!(rejected, 2);
}

/// 2 MiB were sent and 180 MiB held, until the bodies timed out.
#[test]
fn heads_of_small_fields_whose_bodies_never_come_take_little_memory() {
    const CONNECTIONS: usize = 16;
    let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
    for listener in listeners(&server) {
        for fields in [80, 900] {
            let before = peak_rss(&server);
            let head = head_of_fields(listener.path, fields);
            let streams = (0..128).map(|turn| frame(HEADERS, END_HEADERS, stream(turn), &head));
            let sent: Vec<u8> = streams.collect::<Vec<_>>().concat();
            let mut held = Vec::new();
            for _ in 0..CONNECTIONS {
                let mut raw = RawHttp2::connect(listener.address).unwrap();
                raw.send(&sent).unwrap();
                // Frames are handled in order: everything sent before is in memory now.
                raw.wait_for_ping().unwrap();
                held.push(raw);
            }
            let most = peak_rss(&server).saturating_sub(before);
            let what = format!("{} with {fields} fields", listener.edge);
            eprintln!("{what}: {} KiB for {} sent", most >> 10, (CONNECTIONS * sent.len()) >> 10);
            assert!(most <= MAX_HELD_BYTES, "{what}: {most} bytes");
        }
    }
    let mut good = server.client();
    assert_eq!(good.post("/v1/check", &check_body("192.0.2.1", "/")).status, 200);
}

/// The tables of evicted streams stayed with their connections: 120 KiB each, 103 MiB in all with the waiting
/// streams. All of it stayed with the process after the connections had ended.
#[test]
fn streams_of_many_connections_that_never_finish_take_little_memory_and_free_it() {
    const CONNECTIONS: usize = 400;
    const STREAMS: u32 = 120;
    /// The waiting streams of a listener, and something for connections that are about to end.
    const MAX_HELD: u64 = 80 << 20;
    /// What a process that was busy once may keep of that.
    const MAX_LEFT: u64 = 24 << 20;
    for at in 0..2 {
        let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
        let listener = &listeners(&server)[at];
        let background = (listener.background)(&server);
        background.wait_for_replies(50);
        let before = rss(&server);
        let head = post(listener.path);
        let begun = [&[0][..], &1_000_000_u32.to_be_bytes(), &[b'x'; 500]].concat();
        let streams = (0..STREAMS).map(|turn| {
            let head = frame(HEADERS, END_HEADERS, stream(turn), &head);
            [head, frame(DATA, 0, stream(turn), &begun)].concat()
        });
        let sent = streams.collect::<Vec<_>>().concat();
        let mut strangers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            raw.send(&sent).unwrap();
            strangers.push(raw);
        }
        for raw in &mut strangers {
            // Everything sent is handled now, or the connection was closed.
            let _ = raw.wait_for_ping();
        }
        background.end(listener.edge);
        let most = peak_rss(&server).saturating_sub(before);
        eprintln!("{}: {} KiB", listener.edge, most >> 10);
        assert!(most <= MAX_HELD, "{}: {most} bytes", listener.edge);
        drop(strangers);
        wait_for("the memory to be returned", || (rss(&server) <= before + MAX_LEFT).then_some(()));
    }
}

/// Memory that the HTTP/2 library had allocated for finished streams stayed with their connections, some 200 KiB
/// each, for as long as a client kept them open.
#[test]
fn few_connections_that_have_had_many_streams_stay_open() {
    const CONNECTIONS: usize = 400;
    const STREAMS: u32 = 120;
    /// Large connections of a listener, those that are closing, the background client and the reader of the metric.
    const MAX_OPEN: u64 = 256 + 64 + 4;
    for at in 0..2 {
        let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
        let listener = &listeners(&server)[at];
        let background = (listener.background)(&server);
        background.wait_for_replies(50);
        let (begun, rest) = listener.body.split_at(listener.body.len() / 2);
        let head = post(listener.path);
        let all = |each: &dyn Fn(u32) -> Vec<u8>| (0..STREAMS).map(each).collect::<Vec<_>>().concat();
        let begun = all(&|turn| {
            let head = frame(HEADERS, END_HEADERS, stream(turn), &head);
            [head, frame(DATA, 0, stream(turn), begun)].concat()
        });
        let rest = all(&|turn| frame(DATA, END_STREAM, stream(turn), rest));
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            raw.send(&begun).unwrap();
            raw.wait_for_ping().unwrap();
            raw.send(&rest).unwrap();
            raw.wait_for_response(stream(STREAMS - 1));
            clients.push(raw);
        }
        wait_for("the connections to be closed", || (server.metric("tidegate_connections ") <= MAX_OPEN).then_some(()));
        background.end(listener.edge);
    }
}

/// Filler between the frames that matter, so that each of them arrives in its own block.
fn filler() -> Vec<u8> {
    frame(0xbe, 0, 0, &[1; 16 << 10])
}

/// The HTTP/2 library keeps the block in which an indexed path arrived, and a client made it keep a hundred of them
/// for each of its connections.
#[test]
fn paths_that_a_client_has_indexed_hold_little_memory() {
    const CONNECTIONS: usize = 400;
    const PATHS: u32 = 100;
    /// 32 connections of a listener that hold blocks and 64 that are closing, with a hundred blocks each.
    const MAX_HELD: u64 = 224 << 20;
    for at in 0..2 {
        let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
        let listener = &listeners(&server)[at];
        let background = (listener.background)(&server);
        background.wait_for_replies(50);
        let before = peak_rss(&server);
        let mut strangers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            for turn in 0..PATHS {
                // GET, http, a path of two bytes that is inserted into the table, and a host.
                let block = [0x82, 0x86, 0x44, 2, b'/', b'!' + turn as u8, 1, 1, b'x'];
                let head = frame(HEADERS, END_HEADERS | END_STREAM, stream(turn), &block);
                raw.send(&[head, filler()].concat()).unwrap();
            }
            // Its requests are done.
            let _ = raw.wait_for_ping();
            strangers.push(raw);
        }
        background.end(listener.edge);
        let most = peak_rss(&server).saturating_sub(before);
        eprintln!("{}: {} KiB", listener.edge, most >> 10);
        assert!(most <= MAX_HELD, "{}: {most} bytes", listener.edge);
    }
}

/// A body that waited for its rest held the block in which its first byte arrived.
#[test]
fn bodies_that_have_only_begun_hold_little_memory() {
    const CONNECTIONS: usize = 64;
    const STREAMS: u32 = 120;
    /// What the streams take without their bodies, see `streams_of_many_connections`.
    const MAX_HELD: u64 = 64 << 20;
    for at in 0..2 {
        let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
        let listener = &listeners(&server)[at];
        let before = peak_rss(&server);
        let mut strangers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            for turn in 0..STREAMS {
                let head = frame(HEADERS, END_HEADERS, stream(turn), &post(listener.path));
                let begun = frame(DATA, 0, stream(turn), &listener.body[..1]);
                raw.send(&[head, begun, filler()].concat()).unwrap();
            }
            raw.wait_for_ping().unwrap();
            strangers.push(raw);
        }
        let most = peak_rss(&server).saturating_sub(before);
        eprintln!("{}: {} KiB", listener.edge, most >> 10);
        assert!(most <= MAX_HELD, "{}: {most} bytes", listener.edge);
    }
}

/// The fields of a head are held from its first frame on, and the last frame never comes.
#[test]
fn heads_that_are_never_finished_are_few() {
    const CONNECTIONS: usize = 200;
    const FINISHED_LATER: usize = 64;
    let server = TestServer::with(RULES, &["--idle-timeout", "600"]);
    for listener in listeners(&server) {
        let before = peak_rss(&server);
        let begun = frame(HEADERS, 0, 1, &head_of_fields(listener.path, 90));
        let mut waiting: Vec<RawHttp2> = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut raw = RawHttp2::connect(listener.address).unwrap();
            let _ = raw.send(&begun);
            waiting.push(raw);
        }
        // Connections beyond the limit are closed. The one that reads the metric is open too. While they come, the
        // same number may be open by chance: so the number has to stay.
        let stays = std::cell::Cell::new(0);
        wait_for("the others to be closed", || {
            let open = server.metric("tidegate_connections ");
            let is_bound = open == FINISHED_LATER as u64 + 1;
            stays.set(if is_bound { stays.get() + 1 } else { 0 });
            (stays.get() == 20).then_some(())
        });
        let most = peak_rss(&server).saturating_sub(before);
        assert!(most <= MAX_HELD_BYTES, "{}: {most} bytes", listener.edge);
        let finish = frame(CONTINUATION, END_HEADERS, 1, &[]);
        let rest = [finish, frame(DATA, END_STREAM, 1, &listener.body)].concat();
        let mut served = 0;
        for raw in &mut waiting {
            let sent = raw.send(&rest);
            let status = sent.and_then(|()| raw.try_status(1));
            served += usize::from(status.is_ok_and(|status| status == "200"));
        }
        // A finished head makes room for one that was not read yet.
        assert!((FINISHED_LATER..CONNECTIONS).contains(&served), "{served} served");
    }
}

/// The HTTP/2 library logged a line for each, and any client could fill a disk.
#[test]
fn frames_that_the_library_warns_of_are_not_logged() {
    const ACKNOWLEDGED: u8 = 1;
    let server = TestServer::start(RULES);
    for _ in 0..3 {
        let mut raw = RawHttp2::connect(server.http).unwrap();
        raw.flood(1_000, |_| frame(PING, ACKNOWLEDGED, 0, &[7; 8]));
        raw.wait_for_ping().unwrap();
    }
    server.signal("TERM");
    let (_, lines) = server.wait_end();
    let is_warning = |line: &&serde_json::Value| line["level"] == "WARN";
    let warnings: Vec<_> = lines.iter().filter(is_warning).collect();
    assert!(warnings.is_empty(), "{} of them", warnings.len());
}
