//! A good client beside the bad ones: it asks all the while, and every answer must come.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::grpc::{GrpcClient, OK, request};
use crate::http::{Client, ask};
use crate::resp::RespClient;
use crate::server::{Server, wait_for};

/// Half the shortest idle time of a server beside which somebody is asked to witness.
const QUIET: Duration = Duration::from_secs(1);

/// A connection that is kept from one request to the next, as clients keep theirs.
///
/// A thread that did not run for long finds it closed as idle, and takes another. Whoever asked a moment
/// ago cannot be idle: closed then is closed on a good client.
struct KeptConnection<C> {
    connection: C,
    last_request: Instant,
}

impl<C> KeptConnection<C> {
    fn new(connection: C) -> Self {
        KeptConnection {
            connection,
            last_request: Instant::now(),
        }
    }

    fn request<A, E: std::fmt::Debug>(
        &mut self,
        connect: impl FnOnce() -> C,
        mut ask: impl FnMut(&mut C) -> Result<A, E>,
    ) -> A {
        // The server counts from its answer, which is after the question.
        let was_quiet = self.last_request.elapsed() >= QUIET;
        self.last_request = Instant::now();
        match ask(&mut self.connection) {
            Err(_) if was_quiet => {
                self.connection = connect();
                ask(&mut self.connection).unwrap()
            }
            answer => answer.unwrap(),
        }
    }
}

/// Asks in a thread of its own until it is told to stop.
pub(crate) struct BackgroundClient {
    thread: JoinHandle<Vec<Duration>>,
    replies: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl BackgroundClient {
    /// `ask` asks once, waits for the answer and panics if it is not a good one.
    pub(crate) fn spawn(mut ask: impl FnMut() + Send + 'static) -> Self {
        let (replies, stop) = <(Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let (counted, stopped) = (Arc::clone(&replies), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut waits = Vec::new();
            while !stopped.load(Relaxed) {
                let begun = Instant::now();
                ask();
                waits.push(begun.elapsed());
                counted.fetch_add(1, Relaxed);
            }
            waits
        });
        BackgroundClient {
            thread,
            replies,
            stop,
        }
    }

    /// Checks on the HTTP port: on a connection that stays, and now and then on one that is new.
    pub(crate) fn for_http(server: &Server) -> Self {
        let (address, body) = (server.http, ask("192.0.2.99", "/"));
        let mut kept = KeptConnection::new(Client::connect(address));
        let mut turn = 0;
        BackgroundClient::spawn(move || {
            turn += 1;
            let ask = |client: &mut Client| {
                client.send("POST", "/v1/check", &[], &body)?;
                client.receive()
            };
            let reply = match turn % 8 {
                0 => ask(&mut Client::connect(address)).unwrap(),
                _ => kept.request(|| Client::connect(address), ask),
            };
            assert_eq!(reply.status, 200, "{}", reply.body);
        })
    }

    /// Calls on the gRPC port, in the same way.
    pub(crate) fn for_grpc(server: &Server) -> Self {
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
            let answer = kept.request(connect, |caller| runtime.block_on(caller.try_check(&call)));
            assert_eq!(answer.overall_code, OK);
        })
    }

    /// Commands on the port for Redis clients, in the same way.
    pub(crate) fn for_resp(server: &Server) -> Self {
        let address = server.resp();
        let mut kept = KeptConnection::new(RespClient::connect(address));
        let mut turn = 0;
        BackgroundClient::spawn(move || {
            turn += 1;
            if turn % 8 == 0 {
                kept = KeptConnection::new(RespClient::connect(address));
            }
            let answer = kept.request(
                || RespClient::connect(address),
                |redis| {
                    redis
                        .stream()
                        .write_all(b"CL.THROTTLE good 1000000 1000000 1\r\n")?;
                    redis.receive()
                },
            );
            assert_eq!(answer.integers()[0], 0, "{answer:?}");
        })
    }

    /// Waits until it has been answered so many times more.
    pub(crate) fn wait_for_replies(&self, more: usize) {
        let wanted = self.replies.load(Relaxed) + more;
        wait_for("the good client to be answered", || {
            assert!(!self.thread.is_finished(), "the good client failed");
            (self.replies.load(Relaxed) >= wanted).then_some(())
        });
    }

    /// Ends it. Tells how long answers took, which decides nothing: the machine has others to serve.
    pub(crate) fn end(self, beside: &str) {
        self.wait_for_replies(50);
        self.stop.store(true, Relaxed);
        let mut waits = self.thread.join().unwrap();
        waits.sort_unstable();
        let p99 = waits[(waits.len() - 1) * 99 / 100];
        eprintln!("beside {beside}: {} answers, p99 {p99:?}", waits.len());
    }
}
