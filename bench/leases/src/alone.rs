//! One node: a hot key as fast as it goes, the same key at half load, and many cold keys.

use std::sync::Arc;

use bench_load::{BenchError, Crowd, Effort, Figures, at_pace, by_tasks, middle};
use bench_process::Server;

use crate::calls::Calls;
use crate::node::{Counting, KEYS, Node, Rule, secret};

/// More than any run asks for.
const PLENTY: u64 = 10_000_000;

/// As fast as answers come.
const HOT: Crowd = Crowd {
    keys: 1,
    in_flight: 64,
};

/// So many keys that none is asked for often enough to draw in advance.
const COLD: Crowd = Crowd {
    keys: KEYS,
    in_flight: 64,
};

/// What one way of counting did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) counting: Counting,
    pub(crate) figures: Figures,
    /// Calls to the store for one decision, over all rounds.
    pub(crate) calls: f64,
}

/// How a round is driven.
#[derive(Clone, Copy)]
enum Drive {
    AsFastAs(Crowd),
    At { per_sec: f64 },
}

/// One way of counting in a measurement, and what it has done so far.
struct Turn {
    rule: Rule,
    drive: Drive,
    node: Arc<Node>,
    rounds: Vec<Figures>,
    calls: u64,
}

/// One hot key, all admitted.
pub(crate) async fn hot(server: &Server, effort: Effort) -> Result<Vec<Done>, BenchError> {
    in_turns(server, effort, ways(Counting::ALL, HOT)).await
}

/// Cold keys, all admitted.
pub(crate) async fn cold(server: &Server, effort: Effort) -> Result<Vec<Done>, BenchError> {
    in_turns(server, effort, ways(Counting::ALL, COLD)).await
}

/// The hot key at half of what each way did, which is half of its limit too.
pub(crate) async fn half(
    server: &Server,
    effort: Effort,
    hot: &[Done],
) -> Result<Vec<Done>, BenchError> {
    let ways = hot.iter().map(|done| {
        let rule = Rule {
            counting: done.counting,
            per_sec: done.figures.per_sec as u64,
        };
        let per_sec = done.figures.per_sec / 2.0;
        (rule, Drive::At { per_sec })
    });
    in_turns(server, effort, ways.collect()).await
}

fn ways(all: [Counting; 3], crowd: Crowd) -> Vec<(Rule, Drive)> {
    let rule = |counting| Rule {
        counting,
        per_sec: PLENTY,
    };
    let way = |counting| (rule(counting), Drive::AsFastAs(crowd));
    all.into_iter().map(way).collect()
}

/// Round by round, so that a disturbance hits all alike.
async fn in_turns(
    server: &Server,
    effort: Effort,
    ways: Vec<(Rule, Drive)>,
) -> Result<Vec<Done>, BenchError> {
    let mut calls = Calls::open(server.address())?;
    let mut turns = Vec::new();
    for (rule, drive) in ways {
        turns.push(Turn::new(server, rule, drive).await?);
    }
    for _ in 0..effort.rounds {
        for turn in &mut turns {
            turn.take(server, effort, &mut calls).await?;
        }
    }
    let done = turns.iter().filter_map(Turn::done).collect();
    for turn in turns {
        turn.node.drain().await;
    }
    Ok(done)
}

impl Turn {
    async fn new(server: &Server, rule: Rule, drive: Drive) -> Result<Self, BenchError> {
        Ok(Turn {
            rule,
            drive,
            node: Arc::new(Node::open(server.address(), rule, secret()?).await?),
            rounds: Vec::new(),
            calls: 0,
        })
    }

    async fn take(
        &mut self,
        server: &Server,
        effort: Effort,
        calls: &mut Calls,
    ) -> Result<(), BenchError> {
        let before = calls.so_far()?;
        self.rounds.push(match self.drive {
            Drive::AsFastAs(crowd) => by_tasks(server, &self.node, crowd, effort).await?,
            Drive::At { per_sec } => at_pace(server, &self.node, 1, per_sec, effort).await?,
        });
        self.calls += calls.so_far()? - before;
        Ok(())
    }

    fn done(&self) -> Option<Done> {
        Some(Done {
            counting: self.rule.counting,
            figures: middle(&self.rounds)?,
            calls: self.calls as f64 / self.node.decided() as f64,
        })
    }
}
