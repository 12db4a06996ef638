//! The shutdown of the service.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::{HttpClient, check_body};
use crate::server::{BINARY, TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1000000/hour }\n";

#[test]
fn a_term_under_load_loses_no_request_and_ends_cleanly() {
    let server = TestServer::with(RULES, &["--drain-delay", "1", "--shutdown-timeout", "5"]);
    let (http, leaving, responses) = (server.http, AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let Ok(mut client) = HttpClient::try_connect(http) else {
                    return;
                };
                // As a balancer does: a connection that the server closes gracefully is not used again, and after
                // /readyz has reported not ready, no new one is opened.
                loop {
                    client.send("POST", "/v1/check", &[], &check_body("192.0.2.1", "/")).unwrap();
                    let reply = client.receive().expect("an accepted request gets a response");
                    assert_eq!(reply.status, 200);
                    responses.fetch_add(1, Relaxed);
                    if reply.header("connection") == Some("close") {
                        assert!(client.is_closed());
                        if leaving.load(Relaxed) {
                            return;
                        }
                        client = HttpClient::connect(http);
                    }
                }
            });
        }
        wait_for("load", || (responses.load(Relaxed) > 1_000).then_some(()));
        server.signal("TERM");
        wait_for("readyz to report not ready", || {
            let reply = HttpClient::connect(http).request("GET", "/readyz", &[], "");
            (reply.status == 503).then_some(())
        });
        let health = HttpClient::connect(http).request("GET", "/healthz", &[], "");
        assert_eq!(health.status, 200, "alive, only not ready");
        leaving.store(true, Relaxed);
    });
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(0), "{log:#?}");
    assert!(has(&log, "everything finished"), "{log:#?}");
}

fn has(log: &[Value], message: &str) -> bool {
    log.iter().any(|line| line["message"] == message)
}

#[test]
fn many_signals_at_once_shut_down_once() {
    let server = TestServer::with(RULES, &["--drain-delay", "0"]);
    for _ in 0..100 {
        server.signal("HUP");
    }
    assert_eq!(server.post("/v1/check", &check_body("192.0.2.1", "/")).status, 200);
    let pid = server.pid().to_string();
    let burst = format!("for i in 1 2 3 4 5; do kill -TERM {pid} 2>/dev/null; kill -HUP {pid} 2>/dev/null; done; true");
    assert!(std::process::Command::new("sh").args(["-c", &burst]).status().unwrap().success());
    let (status, _) = server.wait_end();
    assert_eq!(status.code(), Some(0));
}

/// Opens a terminal, runs a server in it, closes it, and prints how the server ended.
const IN_A_TERMINAL: &str = r#"
import os, pty, signal, sys, time
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
while b"listening" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
if sys.argv[1] == "nohup":
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.5)
    print("ended" if os.waitpid(pid, os.WNOHANG)[0] else "running")
    os.kill(pid, signal.SIGKILL)
    sys.exit()
for _ in range(6000):
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        print("ended", os.waitstatus_to_exitcode(status))
        sys.exit()
    time.sleep(0.01)
print("running")
os.kill(pid, signal.SIGKILL)
"#;

/// When the terminal was closed, the server went on, invisible and on its port.
#[test]
fn closing_the_terminal_ends_the_server_unless_it_was_started_with_nohup() {
    for (how, want) in [("plain", "ended 0\n"), ("nohup", "running\n")] {
        let words = "serve --http 127.0.0.1:0 --grpc off --admin off --log-format json";
        let ran = std::process::Command::new("python3")
            .args(["-c", IN_A_TERMINAL, how, BINARY])
            .args(words.split(' '))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(String::from_utf8_lossy(&ran.stdout), want, "{how}: {errors}");
    }
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let server = TestServer::with(RULES, &["--drain-delay", "600"]);
    server.signal("TERM");
    server.wait_log(|line| line["message"] == "draining");
    let begun = Instant::now();
    wait_for("the first signal to be over", || (begun.elapsed() > Duration::from_millis(400)).then_some(()));
    server.signal("INT");
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(1));
    // By the signal, and not because the time for draining was over.
    assert!(has(&log, "second signal, leaving at once"), "{log:#?}");
    assert!(!has(&log, "everything finished"), "{log:#?}");
}

/// A connection that never sends anything made every shutdown last as long as it may, with status 1.
#[test]
fn a_silent_connection_does_not_delay_the_shutdown() {
    let server = TestServer::with(RULES, &["--drain-delay", "0", "--shutdown-timeout", "30"]);
    let _silent = std::net::TcpStream::connect(&server.grpc).unwrap();
    let mut unanswered = std::net::TcpStream::connect(server.http).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    std::io::Write::write_all(&mut unanswered, preface).unwrap();
    wait_for("both connections", || (server.metric("tidegate_connections ") >= 2).then_some(()));
    server.signal("TERM");
    let (status, log) = server.wait_end();
    assert_eq!(status.code(), Some(0), "{log:#?}");
    assert!(has(&log, "everything finished"), "{log:#?}");
}

#[test]
fn a_stuck_request_delays_the_shutdown_until_the_deadline_and_no_longer() {
    let server = TestServer::with(RULES, &["--drain-delay", "0", "--shutdown-timeout", "1"]);
    let mut stuck = server.client();
    stuck.send_raw(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").unwrap();
    assert_eq!(server.client().request("GET", "/healthz", &[], "").status, 200);
    wait_for("the stuck request to be taken", || (server.metric("tidegate_connections ") >= 1).then_some(()));
    server.signal("TERM");
    let (status, log) = server.wait_end();
    let cut = has(&log, "the deadline came before everything was finished");
    assert_eq!(status.code(), Some(i32::from(cut)), "{log:#?}");
}
