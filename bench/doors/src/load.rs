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
pub(crate) enum Question {
    /// Commands of the Redis protocol.
    Resp(resp::Commands),
    /// Calls of one gRPC method.
    Grpc(grpc::Calls),
}

/// How many ask at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) connections: usize,
    /// Commands of one write, or calls under way on one connection.
    pub(crate) at_once: usize,
}

/// Decisions made, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    pub(crate) decisions: u64,
    pub(crate) elapsed: Duration,
}

/// Open connections.
pub(crate) struct Load {
    lanes: Vec<Lane>,
}

/// One who asks and waits.
enum Lane {
    Resp(resp::Lane),
    Grpc(grpc::Lane),
}

impl Lane {
    /// Asks once and waits for all answers; how many decisions these are.
    async fn ask(&mut self) -> io::Result<u64> {
        match self {
            Lane::Resp(lane) => lane.ask().await,
            Lane::Grpc(lane) => lane.ask().await,
        }
    }
}

impl Load {
    /// Connects to a server.
    pub(crate) async fn open(
        server: SocketAddr,
        question: &Question,
        crowd: Crowd,
    ) -> io::Result<Self> {
        let mut lanes = Vec::new();
        for number in 0..crowd.connections {
            // Lanes begin at different keys, so that no two ask for the same one at a time.
            let first = number * KEYS / crowd.connections;
            match question {
                Question::Resp(commands) => {
                    let lane = resp::Lane::open(server, commands.clone(), first, crowd.at_once);
                    lanes.push(Lane::Resp(lane.await?));
                }
                Question::Grpc(calls) => {
                    let opened = grpc::open(server, calls, first, crowd.at_once).await?;
                    lanes.extend(opened.into_iter().map(Lane::Grpc));
                }
            }
        }
        Ok(Load { lanes })
    }

    /// Lets every lane ask once, one after the other.
    pub(crate) async fn once(&mut self) -> io::Result<()> {
        for lane in &mut self.lanes {
            lane.ask().await?;
        }
        Ok(())
    }

    /// Keeps the load up for `length`, and until everything under way then is answered.
    pub(crate) async fn run(&mut self, length: Duration) -> io::Result<Made> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for mut lane in self.lanes.drain(..) {
            tasks.spawn(async move {
                let mut decisions = 0;
                while begun.elapsed() < length {
                    decisions += lane.ask().await?;
                }
                Ok::<_, io::Error>((lane, decisions))
            });
        }
        let mut decisions = 0;
        while let Some(ended) = tasks.join_next().await {
            let (lane, of_lane) = ended??;
            self.lanes.push(lane);
            decisions += of_lane;
        }
        Ok(Made {
            decisions,
            elapsed: begun.elapsed(),
        })
    }
}
