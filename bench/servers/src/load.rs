//! The load: request loops that each send again as soon as they have their replies.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{grpc, resp};

/// The number of keys, used in turn; a multiple of every measured pipeline.
pub(crate) const KEYS: usize = 10_000;

/// The requests of a load.
#[derive(Clone)]
pub(crate) enum ServerLoadKind {
    /// Commands of the Redis protocol.
    Resp(resp::RespCommands),
    /// Calls of one gRPC method.
    Grpc(grpc::GrpcCalls),
}

/// The concurrency of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerConcurrency {
    pub(crate) connections: usize,
    /// Commands in one write, or calls in flight on one connection.
    pub(crate) at_once: usize,
}

/// Decisions made, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerDecisionCount {
    pub(crate) decisions: u64,
    pub(crate) elapsed: Duration,
}

/// Open connections.
pub(crate) struct ServerLoad {
    loops: Vec<RequestLoop>,
}

/// A client that sends and waits.
enum RequestLoop {
    Resp(resp::RespLoop),
    Grpc(grpc::GrpcLoop),
}

impl RequestLoop {
    /// Sends once and waits for all replies; returns the number of decisions.
    async fn decide_next(&mut self) -> io::Result<u64> {
        match self {
            RequestLoop::Resp(request_loop) => request_loop.decide_next().await,
            RequestLoop::Grpc(request_loop) => request_loop.decide_next().await,
        }
    }
}

impl ServerLoad {
    /// Connects to a server.
    pub(crate) async fn open(
        server: SocketAddr,
        question: &ServerLoadKind,
        concurrency: ServerConcurrency,
    ) -> io::Result<Self> {
        let mut loops = Vec::new();
        for number in 0..concurrency.connections {
            // Loops start at different keys, so that no two use the same key at a time.
            let first = number * KEYS / concurrency.connections;
            match question {
                ServerLoadKind::Resp(commands) => {
                    let request_loop = resp::RespLoop::open(server, commands.clone(), first, concurrency.at_once);
                    loops.push(RequestLoop::Resp(request_loop.await?));
                }
                ServerLoadKind::Grpc(calls) => {
                    let opened = grpc::open(server, calls, first, concurrency.at_once).await?;
                    loops.extend(opened.into_iter().map(RequestLoop::Grpc));
                }
            }
        }
        Ok(ServerLoad { loops })
    }

    /// Every loop sends once, one after the other.
    pub(crate) async fn once(&mut self) -> io::Result<()> {
        for request_loop in &mut self.loops {
            request_loop.decide_next().await?;
        }
        Ok(())
    }

    /// Keeps up the load for `length`, then waits for everything in flight.
    pub(crate) async fn run(&mut self, length: Duration) -> io::Result<ServerDecisionCount> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for mut request_loop in self.loops.drain(..) {
            tasks.spawn(async move {
                let mut decisions = 0;
                while begun.elapsed() < length {
                    decisions += request_loop.decide_next().await?;
                }
                Ok::<_, io::Error>((request_loop, decisions))
            });
        }
        let mut decisions = 0;
        while let Some(ended) = tasks.join_next().await {
            let (request_loop, of_loop) = ended??;
            self.loops.push(request_loop);
            decisions += of_loop;
        }
        Ok(ServerDecisionCount { decisions, elapsed: begun.elapsed() })
    }
}
