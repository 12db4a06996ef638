//! Clients that ask much and never read what they asked for.

use bytes::Bytes;

use crate::http::{Client, ask};
use crate::http2;
use crate::memory::most_held;
use crate::server::{Server, metric, wait_for};

const RULES: &str =
    "version: 1\nrules:\n  - { name: r, by: ip, rate: 1000000/hour, algorithm: fixed-window }\n";

/// Asks little and is answered much: some 200 KiB.
fn list() -> String {
    format!("[{}]", vec![r#"{"attributes":{}}"#; 1000].join(","))
}

fn answered(server: &Server) -> u64 {
    let page = server.admin_get("/metrics").body;
    metric(
        &page,
        "tidegate_http_answers_total{edge=\"http\",status=\"200\"}",
    )
}

/// Somebody else asks a while, long enough for the others to do what harm they can.
fn others_are_served(server: &Server) {
    let list = list();
    let mut good = server.client();
    for _ in 0..100 {
        assert_eq!(good.post("/v1/peek", &list).status, 200);
        assert_eq!(good.post("/v1/check", &ask("192.0.2.1", "/")).status, 200);
    }
}

/// Each asks fifty times on one connection, and would be owed 10 MiB; all together half a gigabyte.
#[test]
fn a_connection_whose_answers_nobody_reads_is_owed_one_of_them() {
    const READERS: u64 = 50;
    let server = Server::start(RULES);
    others_are_served(&server);
    let (before, answers) = (most_held(&server), answered(&server));
    let list = list();
    std::thread::scope(|scope| {
        let clients: Vec<Client> = (0..READERS).map(|_| server.client()).collect();
        for mut client in clients {
            let list = &list;
            // At some point nobody takes any more from it; it is closed when the server ends.
            scope.spawn(move || {
                let _ = (0..50).try_for_each(|_| client.send("POST", "/v1/peek", &[], list));
                client.wait_without_reading();
            });
        }
        wait_for("each to be answered once", || {
            (answered(&server) >= answers + READERS).then_some(())
        });
        others_are_served(&server);
        let held = most_held(&server).saturating_sub(before);
        assert!(
            held <= READERS << 20,
            "{held} bytes for those who never read"
        );
        server.signal("KILL");
    });
}

/// A connection may have 128 streams, and all of their answers waited in memory to be read: 36 MiB for
/// each connection.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_share_the_room_for_large_answers() {
    const READERS: u64 = 6;
    const STREAMS: u64 = 128;
    let server = Server::start(RULES);
    others_are_served(&server);
    let (before, answers) = (most_held(&server), answered(&server));
    let list = Bytes::from(list());
    let mut unread = Vec::new();
    for _ in 0..READERS {
        // They let nothing come.
        let client = http2::connect(&server, 0).await;
        for _ in 0..STREAMS {
            let mut client = client.clone().ready().await.unwrap();
            let (reply, mut stream) = client.send_request(http2::post("/v1/peek"), false).unwrap();
            stream.send_data(list.clone(), true).unwrap();
            unread.push(reply);
        }
    }
    wait_for("all to be answered", || {
        (answered(&server) >= answers + READERS * STREAMS).then_some(())
    });
    others_are_served(&server);
    let held = most_held(&server).saturating_sub(before);
    assert!(held < 64 << 20, "{held} bytes for those who never read");
}
