//! A good client beside the bad ones: it sends requests all the time, and every response must come.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::grpc::{GrpcClient, OK, request};
use crate::http::{HttpClient, check_body};
use crate::resp::RespClient;
use crate::server::{TestServer, wait_for};

/// Half the shortest idle time of a server with a background client.
const QUIET: Duration = Duration::from_secs(1);

/// A connection that is kept from one request to the next, as clients keep theirs.
///
/// A thread that did not run for long finds its connection closed as idle, and opens another. A client that sent a
/// request a moment ago cannot be idle: if its connection is closed then, a good client was cut off.
struct KeptConnection<C> {
    connection: C,
    last_request: Instant,
}

impl<C> KeptConnection<C> {
    fn new(connection: C) -> Self {
        KeptConnection { connection, last_request: Instant::now() }
    }

    fn request<A, E: std::fmt::Debug>(
        &mut self,
        connect: impl FnOnce() -> C,
        mut send: impl FnMut(&mut C) -> Result<A, E>,
    ) -> A {
        // The server counts from its response, which is later than the request.
        let was_quiet = self.last_request.elapsed() >= QUIET;
        self.last_request = Instant::now();
        match send(&mut self.connection) {
            Err(_) if was_quiet => {
                self.connection = connect();
                send(&mut self.connection).unwrap()
            }
            reply => reply.unwrap(),
        }
    }
}

/// Sends requests in its own thread until it is stopped.
pub(crate) struct BackgroundClient {
    thread: JoinHandle<Vec<Duration>>,
    replies: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl BackgroundClient {
    /// `send` sends one request, waits for the response and panics if it is not a good one.
    pub(crate) fn spawn(mut send: impl FnMut() + Send + 'static) -> Self {
        let (replies, stop) = <(Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let (counted, stopped) = (Arc::clone(&replies), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut waits = Vec::new();
            while !stopped.load(Relaxed) {
                let begun = Instant::now();
                send();
                waits.push(begun.elapsed());
                counted.fetch_add(1, Relaxed);
            }
            waits
        });
        BackgroundClient { thread, replies, stop }
    }

    /// Checks on the HTTP port: on a connection that stays, and sometimes on a new one.
    pub(crate) fn for_http(server: &TestServer) -> Self {
        let (address, body) = (server.http, check_body("192.0.2.99", "/"));
        let mut kept = KeptConnection::new(HttpClient::connect(address));
        let mut turn = 0;
        BackgroundClient::spawn(move || {
            turn += 1;
            let send = |client: &mut HttpClient| {
                client.send("POST", "/v1/check", &[], &body)?;
                client.receive()
            };
            let reply = match turn % 8 {
                0 => send(&mut HttpClient::connect(address)).unwrap(),
                _ => kept.request(|| HttpClient::connect(address), send),
            };
            assert_eq!(reply.status, 200, "{}", reply.body);
        })
    }

    /// Calls on the gRPC port, in the same way.
    pub(crate) fn for_grpc(server: &TestServer) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let (address, call) = (server.grpc.clone(), request("shop", &[&[("a", "b")]]));
        let mut kept = KeptConnection::new(runtime.block_on(GrpcClient::connect_to(&address)));
        let mut turn = 0;
        BackgroundClient::spawn(move || {
            turn += 1;
            let connect = || runtime.block_on(GrpcClient::connect_to(&address));
            if turn % 8 == 0 {
                kept = KeptConnection::new(connect());
            }
            let reply = kept.request(connect, |caller| runtime.block_on(caller.try_check(&call)));
            assert_eq!(reply.overall_code, OK);
        })
    }

    /// Commands on the port for Redis clients, in the same way.
    pub(crate) fn for_resp(server: &TestServer) -> Self {
        let address = server.resp();
        let mut kept = KeptConnection::new(RespClient::connect(address));
        let mut turn = 0;
        BackgroundClient::spawn(move || {
            turn += 1;
            if turn % 8 == 0 {
                kept = KeptConnection::new(RespClient::connect(address));
            }
            let reply = kept.request(
                || RespClient::connect(address),
                |redis| {
                    redis.stream().write_all(b"CL.THROTTLE good 1000000 1000000 1\r\n")?;
                    redis.receive()
                },
            );
            assert_eq!(reply.integers()[0], 0, "{reply:?}");
        })
    }

    /// Waits for `more` further replies.
    pub(crate) fn wait_for_replies(&self, more: usize) {
        let wanted = self.replies.load(Relaxed) + more;
        wait_for("replies to the good client", || {
            assert!(!self.thread.is_finished(), "the good client failed");
            (self.replies.load(Relaxed) >= wanted).then_some(())
        });
    }

    /// Stops it. Prints how long responses took, which is not asserted: the machine has other work.
    pub(crate) fn end(self, beside: &str) {
        self.wait_for_replies(50);
        self.stop.store(true, Relaxed);
        let mut waits = self.thread.join().unwrap();
        waits.sort_unstable();
        let p99 = waits[(waits.len() - 1) * 99 / 100];
        eprintln!("beside {beside}: {} replies, p99 {p99:?}", waits.len());
    }
}
