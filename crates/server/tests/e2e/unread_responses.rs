//! Clients that send many requests and never read the responses.

use bytes::Bytes;

use crate::http::{HttpClient, check_body};
use crate::http2;
use crate::memory::peak_rss;
use crate::server::{TestServer, metric, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1000000/hour, algorithm: fixed-window }\n";

/// A short request with a long response: some 200 KiB.
fn list() -> String {
    format!("[{}]", vec![r#"{"attributes":{}}"#; 1000].join(","))
}

fn response_count(server: &TestServer) -> u64 {
    let page = server.admin_get("/metrics").body;
    metric(&page, "tidegate_http_responses_total{edge=\"http\",status=\"200\"}")
}

/// Another client sends requests for a while, long enough for the attackers to do their worst.
fn others_are_served(server: &TestServer) {
    let list = list();
    let mut good = server.client();
    for _ in 0..100 {
        assert_eq!(good.post("/v1/peek", &list).status, 200);
        assert_eq!(good.post("/v1/check", &check_body("192.0.2.1", "/")).status, 200);
    }
}

/// Each sends fifty requests on one connection, with 10 MiB of responses; all together half a gigabyte.
#[test]
fn a_connection_with_unread_responses_holds_one_response() {
    const CLIENTS: u64 = 50;
    let server = TestServer::start(RULES);
    others_are_served(&server);
    let (before, responses) = (peak_rss(&server), response_count(&server));
    let list = list();
    std::thread::scope(|scope| {
        let clients: Vec<HttpClient> = (0..CLIENTS).map(|_| server.client()).collect();
        for mut client in clients {
            let list = &list;
            // At some point the server stops reading from it; it is closed when the server ends.
            scope.spawn(move || {
                let _ = (0..50).try_for_each(|_| client.send("POST", "/v1/peek", &[], list));
                client.wait_without_reading();
            });
        }
        wait_for("one response to each", || (response_count(&server) >= responses + CLIENTS).then_some(()));
        others_are_served(&server);
        let held = peak_rss(&server).saturating_sub(before);
        assert!(held <= CLIENTS << 20, "{held} bytes for clients that never read");
        server.signal("KILL");
    });
}

const UNREAD: &str = "tidegate_unread_response_bytes ";
const EVICTED: &str = "tidegate_unread_connections_closed_total{cause=\"memory\"}";

/// Maximum memory of the service for all peers of a listener that do not read.
const MAX_UNREAD: u64 = 32 << 20;

/// The same with the streams and the requests of such peers.
const MAX_HELD: u64 = 128 << 20;

/// How the peers of a test do not read.
#[derive(Clone, Copy)]
enum ReceiveWindow {
    /// They accept nothing.
    Closed,
    /// They accept one byte of each response. The HTTP/2 library then holds all of it.
    OneByte,
}

/// Many connections, each with as many streams as it may have, and no response is read.
async fn leave_unread(windows: ReceiveWindow, list: String) {
    const CONNECTIONS: usize = 24;
    const STREAMS: usize = 128;
    let server = TestServer::start(RULES);
    others_are_served(&server);
    let before = peak_rss(&server);
    let list = Bytes::from(list);
    let mut unread = Vec::new();
    for _ in 0..CONNECTIONS {
        let window = match windows {
            ReceiveWindow::Closed => 0,
            ReceiveWindow::OneByte => 1,
        };
        let client = http2::connect(&server, window).await;
        for _ in 0..STREAMS {
            // A connection may be closed at any time.
            let Ok(mut client) = client.clone().ready().await else {
                break;
            };
            let sent = client.send_request(http2::post("/v1/peek"), false);
            let Ok((reply, mut stream)) = sent else { break };
            let _ = stream.send_data(list.clone(), true);
            unread.push(reply);
        }
    }
    wait_for("the first to be closed", || {
        others_are_served(&server);
        (server.metric(EVICTED) > 0).then_some(())
    });
    others_are_served(&server);
    assert!(server.metric(UNREAD) <= MAX_UNREAD);
    let held = peak_rss(&server).saturating_sub(before);
    eprintln!("{} KiB for clients that never read", held >> 10);
    assert!(held < MAX_HELD, "{held} bytes for clients that never read");
    let line = server.wait_log(|line| line["cause"] == "others needed the memory");
    assert!(line["bytes"].as_u64() > Some(0) && line["closed"].as_u64() > Some(0));
    drop(unread);
}

/// A connection may have 128 streams, and all of their responses waited in memory to be read: 36 MiB for each
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn large_unread_responses_are_bounded_by_bytes() {
    leave_unread(ReceiveWindow::Closed, list()).await;
}

/// Only responses above 64 KiB were counted. These have some 60 KiB, and all were held: 180 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn smaller_unread_responses_are_bounded_too() {
    let list = vec![r#"{"attributes":{}}"#; 180].join(",");
    leave_unread(ReceiveWindow::Closed, format!("[{list}]")).await;
}

/// The service had sent the response, and the HTTP/2 library held bytes that nothing counted any more.
#[tokio::test(flavor = "multi_thread")]
async fn responses_of_which_one_byte_is_read_are_bounded_too() {
    let list = vec![r#"{"attributes":{}}"#; 180].join(",");
    leave_unread(ReceiveWindow::OneByte, format!("[{list}]")).await;
}

/// Bodies up to 64 KiB were not counted. Of these all but the end comes: 180 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_are_bounded_by_bytes() {
    const CONNECTIONS: usize = 24;
    const STREAMS: usize = 128;
    let server = TestServer::start(RULES);
    others_are_served(&server);
    let before = peak_rss(&server);
    let most_of_it = Bytes::from(vec![b' '; 60 << 10]);
    let mut unfinished = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = http2::connect(&server, 65_535).await;
        for _ in 0..STREAMS {
            let mut client = client.clone().ready().await.unwrap();
            let (reply, mut stream) = client.send_request(http2::post("/v1/peek"), false).unwrap();
            stream.send_data(most_of_it.clone(), false).unwrap();
            unfinished.push((reply, stream));
        }
    }
    // Those that make room for others get 408. The others do when their time is over.
    wait_for("all requests to time out", || {
        others_are_served(&server);
        let page = server.admin_get("/metrics").body;
        let late = "tidegate_http_responses_total{edge=\"http\",status=\"408\"}";
        let late = page.contains(late).then(|| metric(&page, late));
        (late == Some((CONNECTIONS * STREAMS) as u64)).then_some(())
    });
    let held = peak_rss(&server).saturating_sub(before);
    eprintln!("{} KiB for bodies that never end", held >> 10);
    assert!(held < MAX_HELD, "{held} bytes for bodies that never end");
}

/// One connection sends many requests at once and reads all responses, as fast as its windows allow.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_reads_gets_all_its_responses() {
    const STREAMS: usize = 100;
    let server = TestServer::start(RULES);
    let client = http2::connect(&server, 65_535).await;
    let list = Bytes::from(list());
    let mut pending = Vec::new();
    for _ in 0..STREAMS {
        let mut client = client.clone().ready().await.unwrap();
        let (reply, mut stream) = client.send_request(http2::post("/v1/peek"), false).unwrap();
        stream.send_data(list.clone(), true).unwrap();
        pending.push(tokio::spawn(async move {
            let (head, mut body) = reply.await.unwrap().into_parts();
            let mut read = 0;
            while let Some(piece) = body.data().await {
                let length = piece.unwrap().len();
                read += length;
                body.flow_control().release_capacity(length).unwrap();
            }
            assert_eq!(head.headers["content-length"], read.to_string());
        }));
    }
    for response in pending {
        response.await.unwrap();
    }
    assert_eq!(server.metric(EVICTED), 0);
    wait_for("nothing to be unread", || (server.metric(UNREAD) == 0).then_some(()));
}
