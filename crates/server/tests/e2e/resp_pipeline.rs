//! Many commands at once, commands in pieces, oversized input, and shutdown.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::resp::{RespReply, command};
use crate::server::{DEADLINE, TestServer, wait_for};

const NONE: &str = "version: 1\nrules: []\n";

#[test]
fn thirty_thousand_commands_at_once_get_replies_in_order() {
    const MANY: usize = 30_000;
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let mut sending = redis.stream().try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for i in 0..MANY {
            let text = i.to_string();
            bytes.extend(match i % 3 {
                0 => command(&["ECHO", &text]),
                1 => command(&["CL.THROTTLE", "one", "999999999", "1", "86400"]),
                _ => command(&["CL.THROTTLE", &text, &text, "1", "86400"]),
            });
        }
        sending.write_all(&bytes).unwrap();
    });
    for i in 0..MANY {
        let reply = redis.receive().unwrap();
        let number = i64::try_from(i).unwrap();
        match i % 3 {
            0 => assert_eq!(reply, RespReply::Bulk(i.to_string())),
            1 => assert_eq!(reply.integers()[2], 999_999_999 - number / 3),
            _ => assert_eq!(reply.integers()[..3], [0, number + 1, number]),
        }
    }
    writer.join().unwrap();
}

#[test]
fn commands_of_every_kind_keep_their_order() {
    let rules = "version: 1\nrules: [{ name: r, by: user, rate: 1/hour burst 100 }]\n";
    let server = TestServer::with_resp(rules, &[]);
    let mut redis = server.redis();
    let lines = "TG.CHECK user a\nTG.CHECK user a\nCL.THROTTLE k 9 1 3600\nTG.PEEK user a\n\
                 CL.THROTTLE k 9 1 3600 0\nTHROTTLE k 9 1 3600\nCL.THROTTLE k 9 1 3600\nNONSENSE\n\
                 CL.THROTTLE k x 1 1\nTG.CHECK user a\nPING\nTG.CHECK user\n";
    redis.send(lines.as_bytes());
    let mut next = || redis.receive().unwrap();
    assert_eq!(next().field("remaining"), &RespReply::Integer(99));
    assert_eq!(next().field("remaining"), &RespReply::Integer(98));
    assert_eq!(next().integers()[2], 9);
    assert_eq!(next().field("remaining"), &RespReply::Integer(98));
    assert_eq!(next().integers()[2], 9);
    assert_eq!(next().integers()[2], 8);
    assert_eq!(next().integers()[2], 8);
    assert!(matches!(next(), RespReply::Error(text) if text.starts_with("ERR unknown command")));
    assert!(matches!(next(), RespReply::Error(text) if text.starts_with("Cell error: Couldn't")));
    assert_eq!(next().field("remaining"), &RespReply::Integer(97));
    assert_eq!(next(), RespReply::Simple("PONG".to_owned()));
    assert!(matches!(next(), RespReply::Error(text) if text.contains("has no value")));
}

#[test]
fn a_command_may_come_in_pieces_cut_anywhere() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let bytes =
        [command(&["CL.THROTTLE", "in pieces", "999", "1", "86400"]), b"ECHO 'typed \\' line'\r\n".to_vec()].concat();
    for (round, cut) in (1..bytes.len()).enumerate() {
        redis.send(&bytes[..cut]);
        // The first piece has been read when another client, served after it, has its reply.
        assert_eq!(ping_reply(&server), "PONG");
        redis.send(&bytes[cut..]);
        let left = i64::try_from(999 - round).unwrap();
        assert_eq!(redis.receive().unwrap().integers()[2], left, "cut at {cut}");
        assert_eq!(redis.receive().unwrap(), RespReply::Bulk("typed ' line".to_owned()));
    }
    for byte in bytes {
        redis.send(&[byte]);
    }
    assert_eq!(redis.receive().unwrap().integers()[0], 0);
}

fn ping_reply(server: &TestServer) -> String {
    match server.redis().send_line("PING") {
        RespReply::Simple(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_malformed_command_gets_an_error_and_ends_the_connection() {
    let server = TestServer::with_resp(NONE, &[]);
    let cases: [(&[u8], &str); 7] = [
        (b"PING\r\n*x\r\n", "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*193\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$65537\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2\r\n$4\r\nECHO\r\n$65530\r\n", "-ERR Protocol error: too big request\r\n"),
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        (&[b'x'; 70_000], "-ERR Protocol error: too big inline request\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    ];
    for (bytes, want) in cases {
        let mut redis = server.redis();
        // It may be closed before all of it is read.
        let _ = redis.stream().write_all(bytes);
        let first = want.split_inclusive('\n').map(|line| line.trim_end().to_owned());
        for line in first {
            let error = match redis.receive() {
                Ok(RespReply::Error(text)) => format!("-{text}"),
                Ok(RespReply::Simple(text)) => format!("+{text}"),
                other => panic!("{other:?} instead of {line}"),
            };
            assert_eq!(error, line);
        }
        assert_eq!(redis.until_closed(), "");
    }
    assert_eq!(ping_reply(&server), "PONG");
}

#[test]
fn the_largest_allowed_command_gets_a_reply() {
    let units: Vec<String> = (0..16).map(|i| format!("unit{i}")).collect();
    let rules = format!("version: 1\nunits: [{}]\nrules: []\n", units.join(", "));
    let server = TestServer::with_resp(&rules, &[]);
    let mut redis = server.redis();
    let text = "x".repeat((64 << 10) - 32);
    assert_eq!(redis.send_words(&["ECHO", &text]), RespReply::Bulk(text));
    let mut words = vec!["TG.CHECK".to_owned()];
    for i in 0..64 {
        words.extend([format!("name{i}"), "value".to_owned()]);
    }
    words.push("WITH".to_owned());
    for unit in units {
        words.extend(["COSTS".to_owned(), unit, "1".to_owned()]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(redis.send_words(&words).field("allowed"), &RespReply::Integer(1));
}

/// A client that sends and never reads is stopped by its own backlog, and cut off in time; other clients do not
/// notice.
#[test]
fn a_client_that_does_not_read_replies_is_paused_and_cut_off() {
    let server = TestServer::with_resp(NONE, &["--idle-timeout", "2"]);
    let hog = server.redis();
    let sending = std::thread::spawn(move || {
        let piece = command(&["ECHO", &"x".repeat(60_000)]);
        let mut taken = 0;
        while hog.stream().write_all(&piece).is_ok() {
            taken += piece.len();
            assert!(taken < 256 << 20, "all of it is taken");
        }
    });
    wait_for("the hog to be cut off", || {
        // On its own connection each time: a kept one might be idle on a busy machine.
        assert_eq!(ping_reply(&server), "PONG");
        sending.is_finished().then_some(())
    });
    sending.join().unwrap();
    assert_eq!(server.metric("tidegate_connections_timed_out_total "), 1);
    let unread = "tidegate_unread_connections_closed_total{cause=\"idle\"}";
    assert_eq!(server.metric(unread), 1);
}

#[test]
fn a_client_with_an_unfinished_command_is_cut_off() {
    let server = TestServer::with_resp(NONE, &["--idle-timeout", "1"]);
    let mut slow = server.redis();
    slow.send(b"*2\r\n$4\r\nECHO\r\n$10\r\n");
    let begun = Instant::now();
    while slow.stream().write_all(b"x").is_ok() {
        assert!(begun.elapsed() < DEADLINE, "still open");
        std::thread::sleep(Duration::from_millis(400));
    }
}

#[test]
fn at_shutdown_commands_in_flight_get_replies() {
    const MANY: usize = 2_000;
    let server = TestServer::with_resp(NONE, &["--drain-delay", "0"]);
    let (mut busy, idle) = (server.redis(), server.redis());
    assert_eq!(busy.send_line("PING"), RespReply::Simple("PONG".to_owned()));
    let one = command(&["CL.THROTTLE", "k", "1000000", "1", "3600"]);
    busy.send(&one.repeat(MANY));
    server.signal("TERM");
    for i in 0..MANY {
        let left = i64::try_from(1_000_000 - i).unwrap();
        assert_eq!(busy.receive().unwrap().integers()[2], left);
    }
    assert_eq!(busy.until_closed(), "");
    assert_eq!(idle.until_closed(), "");
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(0), "{log:#?}");
}

#[test]
fn a_half_closed_connection_gets_replies_before_it_is_closed() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    redis.send(&command(&["PING"]).repeat(100));
    redis.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(redis.until_closed(), "+PONG\r\n".repeat(100));
}

#[test]
fn redis_clients_are_served_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("resp.sock");
    let server = TestServer::with(NONE, &["--resp", &format!("unix:{}", path.display())]);
    server.wait_log(|line| line["message"] == "listening" && line["edge"] == "resp");
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"CL.THROTTLE k 15 30 60\r\nQUIT\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(response, "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n+OK\r\n");
}
