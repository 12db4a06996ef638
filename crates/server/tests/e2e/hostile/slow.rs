//! Clients that send a byte now and then, or stop in the middle and stay.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, RawHttp2, SETTINGS, frame, literal, post, stream};
use crate::background_client::BackgroundClient;
use crate::grpc::{SHOULD_RATE_LIMIT, framed, request};
use crate::http::check_body;
use crate::memory::peak_rss;
use crate::server::{DEADLINE, TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

const CLIENTS: usize = 200;
/// The interval between the bytes of one client: short enough that no idle timer fires.
const TRICKLE: Duration = Duration::from_millis(20);

/// What a client sends first, and then again and again.
struct TricklingClient {
    what: &'static str,
    first: &'static [u8],
    then: &'static [u8],
}

const OVER_HTTP: [TricklingClient; 4] = [
    TricklingClient { what: "a header that trickles", first: b"POST /v1/check HTTP/1.1\r\nhost: x\r\nx: ", then: b"y" },
    TricklingClient { what: "headers that trickle", first: b"GET /healthz HTTP/1.1\r\n", then: b"a: b\r\n" },
    TricklingClient {
        what: "a body that trickles",
        first: b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n",
        then: b" ",
    },
    TricklingClient {
        what: "an HTTP/2 frame that trickles",
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x05\0\0\0\x01",
        then: b"\x88",
    },
];

const OVER_RESP: [TricklingClient; 3] = [
    TricklingClient { what: "a line that trickles", first: b"PIN", then: b"G" },
    TricklingClient { what: "an argument that trickles", first: b"*2\r\n$4\r\nECHO\r\n$60000\r\n", then: b"x" },
    TricklingClient { what: "nothing that trickles", first: b"*0\r\n", then: b"\r\n" },
];

const OVER_GRPC: [TricklingClient; 2] = [
    TricklingClient { what: "an opening that trickles", first: b"PRI * HTTP/2.0\r\n\r\n", then: b"S" },
    TricklingClient {
        what: "a frame that trickles",
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x05\0\0\0\x01",
        then: b"\x88",
    },
];

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Every client trickles until the server has closed all of them.
fn outlast(server: &TestServer, address: SocketAddr, background: BackgroundClient, slow: &TricklingClient) {
    let before = peak_rss(server);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(address)).collect();
    for client in &mut clients {
        client.write_all(slow.first).unwrap();
    }
    wait_for(slow.what, || {
        std::thread::sleep(TRICKLE);
        // A closed connection shows at a later write.
        clients.retain_mut(|client| client.write_all(slow.then).is_ok());
        clients.is_empty().then_some(())
    });
    background.end(slow.what);
    let held = peak_rss(server).saturating_sub(before);
    assert!(held <= 16 << 20, "{}: {held} bytes", slow.what);
}

#[test]
fn trickling_clients_are_closed_over_http() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    for slow in &OVER_HTTP {
        outlast(&server, server.http, BackgroundClient::for_http(&server), slow);
    }
}

#[test]
fn trickling_clients_are_closed_over_resp() {
    let server = TestServer::with_resp(RULES, &["--idle-timeout", "2"]);
    for slow in &OVER_RESP {
        outlast(&server, server.resp(), BackgroundClient::for_resp(&server), slow);
    }
}

#[test]
fn trickling_clients_are_closed_over_grpc() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let address = server.grpc.parse().unwrap();
    for slow in &OVER_GRPC {
        outlast(&server, address, BackgroundClient::for_grpc(&server), slow);
    }
}

/// The clients have shut down their sending side, and wait for a response to half a request.
#[test]
fn half_a_request_followed_by_a_half_close_is_closed() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let background = BackgroundClient::for_http(&server);
    for slow in &OVER_HTTP {
        let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(server.http)).collect();
        for mut client in &clients {
            client.write_all(slow.first).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        }
        for mut client in &clients {
            let mut rest = Vec::new();
            let closed = match client.read_to_end(&mut rest) {
                Ok(_) => true,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            };
            assert!(closed, "{}", slow.what);
        }
    }
    background.end("half requests");
}

/// How often connections were closed because nothing was read.
const UNREAD_CLOSED: &str = "tidegate_unread_connections_closed_total{cause=\"idle\"}";

/// A peer that never reads a response, and sends requests all the time.
struct NonReadingPeer {
    address: SocketAddr,
    path: &'static str,
    body: Vec<u8>,
    /// The header block of a request whose response has no body, whatever the peer's window.
    bodiless: Vec<u8>,
}

/// It was not idle, because requests began. So it kept its connection and the memory held for it.
fn is_closed_although_it_sends(server: &TestServer, peer: &NonReadingPeer) {
    let closed_before = server.metric(UNREAD_CLOSED);
    let mut raw = RawHttp2::connect(peer.address).unwrap();
    // The windows of its streams are closed.
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = frame(HEADERS, END_HEADERS, 1, &post(peer.path));
    let body = frame(DATA, END_STREAM, 1, &peer.body);
    raw.send(&[settings, head, body].concat()).unwrap();
    let turn = std::cell::Cell::new(1);
    wait_for("it to be closed", || {
        std::thread::sleep(TRICKLE);
        let bare = frame(HEADERS, END_HEADERS | END_STREAM, stream(turn.get()), &peer.bodiless);
        turn.set(turn.get() + 1);
        // Once it is closed nothing can be sent.
        let _ = raw.send(&bare);
        (server.metric(UNREAD_CLOSED) == closed_before + 1).then_some(())
    });
}

#[test]
fn a_peer_that_sends_and_never_reads_is_closed_over_http_2() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let background = BackgroundClient::for_http(&server);
    // 0x82 is GET.
    let mut bare = post("/v1/auth");
    bare[0] = 0x82;
    bare.extend(literal("x-forwarded-for", "192.0.2.1"));
    is_closed_although_it_sends(
        &server,
        &NonReadingPeer {
            address: server.http,
            path: "/v1/check",
            body: check_body("192.0.2.1", "/").into(),
            bodiless: bare,
        },
    );
    background.end("a peer that never reads");
    let line = server.wait_log(|line| line["cause"] == "nothing was read for too long");
    assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1")));
}

#[test]
fn a_peer_that_sends_and_never_reads_is_closed_over_grpc() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let background = BackgroundClient::for_grpc(&server);
    // A GET is not gRPC, which is 415.
    let mut bare = post(SHOULD_RATE_LIMIT);
    bare[0] = 0x82;
    is_closed_although_it_sends(
        &server,
        &NonReadingPeer {
            address: server.grpc.parse().unwrap(),
            path: SHOULD_RATE_LIMIT,
            body: framed(&request("shop", &[&[("a", "b")]])).to_vec(),
            bodiless: bare,
        },
    );
    background.end("a peer that never reads");
}

/// A response that is larger than the socket buffers, of which the peer reads nothing.
#[test]
fn a_peer_that_never_reads_is_closed_over_http_1() {
    let server = TestServer::with(RULES, &["--idle-timeout", "2"]);
    let list = format!("[{}]", vec![r#"{"attributes":{}}"#; 1000].join(","));
    let mut client = server.client();
    wait_for("it to be closed", || {
        // One more, until the sockets are full and a response stays.
        if server.metric("tidegate_unread_response_bytes ") == 0 {
            let _ = client.send("POST", "/v1/peek", &[], &list);
        }
        let reply = server.client().request("GET", "/healthz", &[], "");
        assert_eq!(reply.status, 200);
        (server.metric(UNREAD_CLOSED) == 1).then_some(())
    });
    assert_eq!(server.metric("tidegate_unread_response_bytes "), 0);
}
