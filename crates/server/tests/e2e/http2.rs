//! HTTP/2 by prior knowledge, with a client of another library.

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;

use crate::http::check_body;
use crate::server::TestServer;

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 5/hour, algorithm: fixed-window }\n";

/// A connection whose streams have a receive window of `window` bytes.
pub(crate) async fn connect(server: &TestServer, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.http).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn post(path: &str) -> Request<()> {
    let uri = format!("http://tidegate{path}");
    Request::post(uri).body(()).unwrap()
}

struct Http2Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

async fn check(client: SendRequest<Bytes>, body: Bytes) -> Http2Reply {
    let mut client = client.ready().await.unwrap();
    let (reply, mut stream) = client.send_request(post("/v1/check"), false).unwrap();
    stream.send_data(body, true).unwrap();
    let (head, mut body) = reply.await.unwrap().into_parts();
    let mut read = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        read.extend_from_slice(&piece);
    }
    Http2Reply { status: head.status, headers: head.headers, body: read.freeze() }
}

/// More streams than a connection may have at once: the others wait.
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_streams_of_one_connection_pass_exactly_the_limit() {
    let server = TestServer::start(RULES);
    let client = connect(&server, 65_535).await;
    let body = Bytes::from(check_body("192.0.2.1", "/"));
    // Until the first response the client does not know how many streams it may have.
    let mut replies = vec![check(client.clone(), body.clone()).await];
    let pending_replies: Vec<_> = (0..300).map(|_| tokio::spawn(check(client.clone(), body.clone()))).collect();
    for reply in pending_replies {
        replies.push(reply.await.unwrap());
    }
    let mut left = Vec::new();
    for reply in replies {
        let decision: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(reply.headers["ratelimit-policy"], "\"r\";q=5;w=3600");
        assert_eq!(reply.headers["x-tidegate-id"], decision["id"].as_str().unwrap());
        if reply.status == StatusCode::OK {
            left.push(decision["remaining"].as_u64().unwrap());
        } else {
            assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(decision["error"], "rate_limit_exceeded");
            assert!(reply.headers.contains_key("retry-after"));
        }
    }
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_response_arrives_complete() {
    let server = TestServer::start(RULES);
    let client = connect(&server, 65_535).await;
    let list = format!("[{}]", vec![check_body("192.0.2.1", "/"); 1000].join(","));
    let reply = check(client, Bytes::from(list)).await;
    assert_eq!(reply.headers["content-length"], reply.body.len().to_string());
    assert!(reply.body.len() > 100_000, "it is not one piece");
    let items: Vec<serde_json::Value> = serde_json::from_slice(&reply.body).unwrap();
    let allowed = items.iter().filter(|item| item["allowed"] == true).count();
    assert_eq!((items.len(), allowed), (1000, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_or_a_large_one_costs_its_own_stream_only() {
    let server = TestServer::start(RULES);
    let client = connect(&server, 65_535).await;
    for (body, status) in [
        (Bytes::from_static(b"{"), StatusCode::BAD_REQUEST),
        (Bytes::from(" ".repeat(70_000) + &check_body("192.0.2.1", "/")), StatusCode::PAYLOAD_TOO_LARGE),
        (Bytes::from(check_body("192.0.2.1", "/")), StatusCode::OK),
    ] {
        assert_eq!(check(client.clone(), body).await.status, status);
    }
}
