//! The load: lanes that each ask again as soon as they have their answers.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{grpc, resp};

/// Keys that take part, in turn; a multiple of every pipeline that is measured.
pub(crate) const KEYS: usize = 10_000;

/// What a server is asked, again and again.
#[derive(Clone)]
pub(crate) enum ServerLoadKind {
    /// Commands of the Redis protocol.
    Resp(resp::RespCommands),
    /// Calls of one gRPC method.
    Grpc(grpc::GrpcCalls),
}

/// How many ask at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerConcurrency {
    pub(crate) connections: usize,
    /// Commands of one write, or calls under way on one connection.
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

/// One who asks and waits.
enum RequestLoop {
    Resp(resp::RespLoop),
    Grpc(grpc::GrpcLoop),
}

impl RequestLoop {
    /// Asks once and waits for all answers; how many decisions these are.
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
            // Lanes begin at different keys, so that no two ask for the same one at a time.
            let first = number * KEYS / concurrency.connections;
            match question {
                ServerLoadKind::Resp(commands) => {
                    let request_loop =
                        resp::RespLoop::open(server, commands.clone(), first, concurrency.at_once);
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

    /// Lets every lane ask once, one after the other.
    pub(crate) async fn once(&mut self) -> io::Result<()> {
        for request_loop in &mut self.loops {
            request_loop.decide_next().await?;
        }
        Ok(())
    }

    /// Keeps the load up for `length`, and until everything under way then is answered.
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
        Ok(ServerDecisionCount {
            decisions,
            elapsed: begun.elapsed(),
        })
    }
}
