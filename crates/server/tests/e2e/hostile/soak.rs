//! One server process under all kinds of connection attacks in a loop: its memory at rest stays flat.
//!
//! A round runs every kind of attack against every listener and then waits for rest. Attacks that fill a cap on
//! purpose are not among them, because the memory behind a cap is allowed.
//!
//! **Rest** is reached when every connection of the round has ended: attackers close theirs, the server closes
//! those of silent and slow peers after `--idle-timeout`, and `tidegate_connections` counts only the one that reads it.
//! Streams and tasks of a connection end with it. Then the resident memory is read.
//!
//! **Held** is the minimum of [`ROUNDS`] rounds. Memory that a request leaked is there after every round; pages
//! that the allocator has not returned yet come and go with the order in which requests ended. In a long run every
//! round is judged by itself, once the allocator has returned all that it returns, by the median of the first nine.
//!
//! **Flat** means that the next rounds hold no more than 5% more. The first rounds fill what stays by design:
//! thread stacks, reused buffers, pages that the allocator keeps for the maximum of open requests. With a leak the
//! memory never becomes flat.
//!
//! `make test` ends as soon as it is flat. `TG_TEST_SOAK_MINUTES=30 cargo test -p tidegate-server --all-features
//! --test e2e soak -- --nocapture` goes on for half an hour, in which it must stay flat, and prints a line after
//! each round.

mod http1;
mod http2;
mod resp;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::grpc::SHOULD_RATE_LIMIT;
use crate::http::check_body;
use crate::memory::rss;
use crate::server::{BINARY, DEADLINE, TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

/// Rounds that are judged together.
const ROUNDS: usize = 4;
/// The allocator returns memory for ten seconds after it was freed.
const SETTLED: Duration = Duration::from_secs(12);
/// Rounds of a long run by whose median the others are judged: one reading varies by some percent.
const FIRST_ROUNDS: usize = 9;
/// How often the memory may rise before it is flat.
const MAX_RISES: usize = 5;
/// Connections of each kind in one round.
const CONNECTIONS: usize = 8;
/// The interval between the bytes of a slow peer.
const TRICKLE: Duration = Duration::from_millis(50);
/// How long to wait for a peer that reads nothing more. It ends an attack, never a test.
const PATIENCE: Duration = Duration::from_millis(300);

/// A listener under attack.
struct AttackTarget {
    address: SocketAddr,
    /// A path that is served there.
    path: &'static str,
    attacks: Vec<AttackFn>,
    slow: Vec<SlowPeer>,
}

/// What an attacker does on one connection.
type AttackFn = fn(&AttackTarget);

/// A peer that sends something first and then a byte at a time, or nothing, until it is closed.
#[derive(Clone, Copy)]
struct SlowPeer {
    first: &'static [u8],
    then: &'static [u8],
}

#[test]
fn rss_at_rest_is_flat_after_every_round_of_attacks() {
    let server = server();
    let targets = targets(&server);
    match std::env::var("TG_TEST_SOAK_MINUTES") {
        Ok(minutes) => stays_flat(&server, &targets, minutes.parse().expect("minutes")),
        Err(_) => becomes_flat(&server, &targets),
    }
    assert_eq!(server.metric("tidegate_panics_total"), 0);
    let good = server.post("/v1/check", &check_body("192.0.2.1", "/"));
    assert_eq!(good.status, 200);
}

/// The rounds end as soon as the memory is flat.
fn becomes_flat(server: &TestServer, targets: &[AttackTarget]) {
    let mut before = least_at_rest(server, targets);
    for _ in 0..=MAX_RISES {
        let held = least_at_rest(server, targets);
        if held <= before + before / 20 {
            return;
        }
        before = held;
    }
    panic!("{before} bytes at rest after {MAX_RISES} rises: not flat");
}

/// Every round after the first ones holds no more than 5% more than they did.
fn stays_flat(server: &TestServer, targets: &[AttackTarget], minutes: u64) {
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let mut first: Vec<u64> = (0..FIRST_ROUNDS).map(|_| settled_at_rest(server, targets)).collect();
    first.sort_unstable();
    let level = first[FIRST_ROUNDS / 2];
    while Instant::now() < until {
        let held = settled_at_rest(server, targets);
        let max = level + level / 20;
        assert!(held <= max, "{held} bytes at rest, {level} at first: not flat");
    }
}

fn server() -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--rules"]).arg(rules).args(["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]).args([
        "--idle-timeout",
        "2",
        "--grpc-max-age",
        "3",
    ]);
    TestServer::spawn(command, dir)
}

fn targets(server: &TestServer) -> [AttackTarget; 5] {
    let is_metrics = |line: &serde_json::Value| line["message"] == "listening" && line["edge"] == "metrics";
    let metrics = server.wait_log(is_metrics);
    let over_http2 =
        |address, path| AttackTarget { address, path, attacks: http2::ATTACKS.to_vec(), slow: http2::SLOW.to_vec() };
    let mut http = over_http2(server.http, "/v1/check");
    http.attacks.extend(http1::ATTACKS);
    http.slow.extend(http1::SLOW);
    [
        http,
        over_http2(server.grpc.parse().unwrap(), SHOULD_RATE_LIMIT),
        over_http2(server.admin, "/v1/subjects"),
        over_http2(metrics["address"].as_str().unwrap().parse().unwrap(), "/metrics"),
        AttackTarget { address: server.resp(), path: "", attacks: resp::ATTACKS.to_vec(), slow: resp::SLOW.to_vec() },
    ]
}

/// Every attack on every listener. Listeners are attacked at the same time, and slow peers stay meanwhile.
fn attack_all(targets: &[AttackTarget]) {
    std::thread::scope(|scope| {
        for target in targets {
            scope.spawn(|| stay_slow(target));
            scope.spawn(|| {
                for attack in &target.attacks {
                    (0..CONNECTIONS).for_each(|_| attack(target));
                }
            });
        }
    });
}

/// Slow peers stay until the server has closed all of them.
fn stay_slow(target: &AttackTarget) {
    let peers = target.slow.iter().flat_map(|slow| [*slow; CONNECTIONS]);
    let mut peers: Vec<(TcpStream, SlowPeer)> = peers.map(|slow| (connect(target.address), slow)).collect();
    for (stream, slow) in &mut peers {
        // The server may have closed it already.
        let _ = stream.write_all(slow.first);
    }
    wait_for("slow peers to be closed", || {
        std::thread::sleep(TRICKLE);
        peers.retain_mut(|(stream, slow)| is_open(stream) && stream.write_all(slow.then).is_ok());
        peers.is_empty().then_some(())
    });
}

/// Whether the server has not closed it. Data from the server is read and dropped.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 4096]);
    stream.set_nonblocking(false).unwrap();
    match read {
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends and waits until the server closes. It may do so during the write.
fn closed(target: &AttackTarget, bytes: &[u8]) {
    let mut stream = connect(target.address);
    let _ = stream.write_all(bytes);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Sends and closes.
fn left(target: &AttackTarget, bytes: &[u8]) {
    let _ = connect(target.address).write_all(bytes);
}

/// Sends, closes one side, and waits until the server closes the other.
fn left_half(target: &AttackTarget, bytes: &[u8]) {
    let mut stream = connect(target.address);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// The minimum memory at rest after any of the next rounds.
fn least_at_rest(server: &TestServer, targets: &[AttackTarget]) -> u64 {
    let rounds = (0..ROUNDS).map(|_| {
        run_round(server, targets);
        rss(server)
    });
    rounds.min().expect("rounds")
}

/// The memory at rest after the next round, when it has not fallen for [`SETTLED`].
fn settled_at_rest(server: &TestServer, targets: &[AttackTarget]) -> u64 {
    run_round(server, targets);
    let (mut least, mut since) = (rss(server), Instant::now());
    while since.elapsed() < SETTLED {
        std::thread::sleep(SETTLED / 20);
        let held = rss(server);
        if held < least {
            (least, since) = (held, Instant::now());
        }
    }
    eprintln!("{} KiB at rest", least >> 10);
    least
}

/// Attacks, and waits until all connections have ended.
fn run_round(server: &TestServer, targets: &[AttackTarget]) {
    attack_all(targets);
    wait_for("all connections to end", || {
        // The one that reads it is open.
        (server.metric("tidegate_connections ") == 1).then_some(())
    });
}
