//! Hostile Redis clients: pipelines whose replies are not read, commands that never end, and false lengths.
//! Meanwhile a good client gets every reply, and the server uses little more memory.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::background_client::BackgroundClient;
use crate::memory::peak_rss;
use crate::resp::{RespClient, RespReply, command};
use crate::server::{DEADLINE, TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

const ATTACKERS: usize = 8;
/// The memory that all attackers together may make the server use.
const MAX_HELD_BYTES: u64 = 16 << 20;

/// How long to wait for a peer that reads nothing more. It ends an attack, never a test.
const PATIENCE: Duration = Duration::from_millis(300);

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends until the server closes, reads no more, or has received it `times` times.
fn flood(stream: &mut TcpStream, bytes: &[u8], times: usize) {
    let _ = (0..times).try_for_each(|_| stream.write_all(bytes));
}

/// Several attackers, each with one connection after another; none reads replies.
fn withstand(name: &str, attack: impl Fn(&mut TcpStream) + Sync) {
    let server = TestServer::with_resp(RULES, &["--idle-timeout", "600"]);
    let background = BackgroundClient::for_resp(&server);
    background.wait_for_replies(50);
    let before = peak_rss(&server);
    std::thread::scope(|scope| {
        for _ in 0..ATTACKERS {
            scope.spawn(|| {
                // Connections stay open until all attackers are done.
                let mut opened = Vec::new();
                for _ in 0..4 {
                    let mut stream = connect(&server);
                    attack(&mut stream);
                    opened.push(stream);
                }
            });
        }
    });
    background.end(name);
    let held = peak_rss(&server).saturating_sub(before);
    eprintln!("{name} made it hold {} KiB", held >> 10);
    assert!(held <= MAX_HELD_BYTES, "{name}: {held} bytes");
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

#[test]
fn pipelines_whose_replies_are_not_read() {
    let throttle = command(&["CL.THROTTLE", "user", "15", "30", "60"]).repeat(1_000);
    withstand("an unread pipeline", |stream| flood(stream, &throttle, 200));
    // A short command with a long reply.
    let info = b"INFO\r\n".repeat(10_000);
    withstand("long unread replies", |stream| {
        flood(stream, &info, 100);
    });
    let echo = command(&["ECHO", &"x".repeat(60_000)]);
    withstand("unread echoes", |stream| flood(stream, &echo, 200));
}

#[test]
fn commands_that_never_end() {
    withstand("a line without end", |stream| {
        flood(stream, &[b'a'; 8192], 1_000);
    });
    withstand("an array whose arguments never come", |stream| {
        let _ = stream.write_all(b"*100\r\n$10\r\n");
        flood(stream, b"0123456789\r\n$10\r\n", 100_000);
    });
    withstand("arrays of nothing", |stream| {
        flood(stream, &b"*0\r\n*-1\r\n\r\n".repeat(1_000), 500);
    });
    withstand("nonsense", |stream| {
        flood(stream, &b"\xff\0\r\n$5\r\n*zz\r\n".repeat(500), 500);
    });
    withstand("commands that do not exist", |stream| {
        flood(stream, &command(&["EVAL", "return 1", "0"]).repeat(500), 200);
    });
}

/// Input that cannot become a command gets the error of Redis, and its connection is closed; no memory is allocated
/// for a length that is only declared.
#[test]
fn false_lengths_get_an_error_and_are_closed() {
    let server = TestServer::with_resp(RULES, &[]);
    let before = peak_rss(&server);
    let cases: [(&[u8], &str); 7] = [
        (b"*2147483648\r\n", "multibulk length"),
        (b"*99999999999999999999\r\n", "multibulk length"),
        (b"*1000000\r\n", "multibulk length"),
        (b"*1\r\n$536870912\r\n", "bulk length"),
        (b"*1\r\n$-5\r\n", "bulk length"),
        (b"*1\r\n$18446744073709551615\r\n", "bulk length"),
        (b"*2\r\n$4\r\nPING\r\n:1\r\n", "expected '$'"),
    ];
    for (bytes, want) in cases {
        let mut stream = connect(&server);
        stream.write_all(bytes).unwrap();
        let mut reply = String::new();
        match stream.read_to_string(&mut reply) {
            Ok(_) => assert!(reply.contains(want), "{reply}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    let held = peak_rss(&server).saturating_sub(before);
    assert!(held <= 4 << 20, "{held} bytes for lengths that were only declared");
    assert_eq!(server.redis().send_line("PING"), RespReply::Simple("PONG".to_owned()));
}

/// A pipeline whose replies are read late still gets all of them, in order.
#[test]
fn a_client_that_reads_late_loses_nothing() {
    const COMMANDS: usize = 50_000;
    let server = TestServer::with_resp(RULES, &["--idle-timeout", "600"]);
    let mut redis = server.redis();
    let sending = redis.stream().try_clone().unwrap();
    // The reading side may fail, and then nothing makes room for the writes.
    sending.set_write_timeout(Some(DEADLINE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sending = sending;
            for n in 0..COMMANDS {
                let bytes = command(&["ECHO", &n.to_string()]);
                sending.write_all(&bytes).unwrap();
            }
        });
        // Nothing is read until another client has had enough replies. By then all is sent or the server has
        // stopped reading; which of them is the kernel's choice and makes no difference.
        let background = BackgroundClient::for_resp(&server);
        background.wait_for_replies(200);
        for n in 0..COMMANDS {
            assert_eq!(redis.receive().unwrap(), RespReply::Bulk(n.to_string()));
        }
        background.end("a client that reads late");
    });
}

/// A client that does not read is cut off when the idle time is over.
#[test]
fn a_client_that_never_reads_is_cut_off() {
    let server = TestServer::with_resp(RULES, &["--idle-timeout", "2"]);
    let background = BackgroundClient::for_resp(&server);
    let info = b"INFO\r\n".repeat(10_000);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    for stream in &mut streams {
        flood(stream, &info, 100);
    }
    wait_for("clients that never read to be cut off", || (server.metric("tidegate_connections ") < 10).then_some(()));
    drop(RespClient::connect(server.resp()));
    background.end("clients that never read");
}

/// 20,000 passwords were tried in 0.14 s, and the log had nothing about it.
#[test]
fn a_password_is_not_guessed_fast_and_guesses_are_logged_and_counted() {
    const GUESSES: usize = 100;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "the-right-password").unwrap();
    let flag = ["--resp-password-file", file.path().to_str().unwrap()];
    let server = TestServer::with_resp(RULES, &flag);
    let mut stream = connect(&server);
    stream.write_all(&b"AUTH wrong\r\nRESET\r\n".repeat(GUESSES)).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    assert_eq!(replies.matches("WRONGPASS").count(), 5, "{replies}");
    let failures = || server.metric("tidegate_authentication_failures_total{edge=\"resp\"}");
    wait_for("the guesses to be counted", || (failures() == 5).then_some(()));
    let line = server.wait_log(|line| line["message"] == "wrong password from a Redis client");
    assert_eq!(line["level"], "WARN");
    // The right password is accepted all the time. Before it is checked, this peer has to wait.
    let begun = std::time::Instant::now();
    let mut redis = server.redis();
    assert_eq!(redis.send_line("AUTH the-right-password"), RespReply::Simple("OK".to_owned()));
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

/// Each connection holds some 120 KiB: commands that wait for `EXEC`, and the beginning of another. Those of all
/// would be 75 MiB.
#[test]
fn commands_that_wait_for_their_rest_are_bounded_over_all_connections() {
    const CONNECTIONS: usize = 640;
    const MAX_LISTENER: u64 = 32 << 20;
    let server = TestServer::with_resp(RULES, &["--idle-timeout", "600"]);
    let background = BackgroundClient::for_resp(&server);
    background.wait_for_replies(50);
    let queue = command(&["ECHO", &"x".repeat(6_000)]).repeat(10);
    let unfinished = &command(&["ECHO", &"x".repeat(60_000)])[..59_000];
    let attack = [&command(&["MULTI"])[..], &queue[..], unfinished].concat();
    let opened: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = connect(&server);
            flood(&mut stream, &attack, 1);
            stream
        })
        .collect();
    let evicted = "tidegate_unread_connections_closed_total{cause=\"memory\"}";
    wait_for("connections to be closed", || (server.metric(evicted) > CONNECTIONS as u64 / 4).then_some(()));
    let held = server.metric("tidegate_unread_response_bytes");
    assert!(held <= MAX_LISTENER, "{held} bytes");
    background.end("unfinished commands");
    drop(opened);
}
