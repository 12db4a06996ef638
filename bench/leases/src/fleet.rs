//! Four nodes, one hot key: what passes of what is offered, and what it costs the store.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, thread};

use bench_load::BenchError;
use bench_process::Server;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::calls::Calls;
use crate::node::{Counting, Node, Rule, secret};
use crate::over::{Passed, busiest, over};

/// Nodes, each with a runtime and connections of its own.
const NODES: usize = 4;

/// A second, and as many at once.
const PER_SEC: u64 = 8_000;

/// How much is offered, in parts of the limit.
pub(crate) const LOADS: [f64; 3] = [0.5, 0.9, 3.0];

/// How long a lenient request may be unknown to another node, in milliseconds: docs/consistency.md.
const UNKNOWN_MS: usize = 100;

/// How one way of counting got along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) counting: Counting,
    /// What was offered, in parts of the limit.
    pub(crate) load: f64,
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    /// What should have been: all of it, or what the limit allows that clients are told.
    pub(crate) ideal: u64,
    /// How much more passed in the worst interval than the rule allows.
    pub(crate) over: u64,
    /// How much more may, by what docs/consistency.md says.
    pub(crate) bound: u64,
    /// Calls to the store for one decision.
    pub(crate) calls: f64,
}

/// What one node was asked and let pass.
struct Day {
    offered: u64,
    passed: Vec<Passed>,
    capacity: u64,
}

/// Every way under every load.
pub(crate) fn all(server: &Server, length: Duration) -> Result<Vec<Shared>, BenchError> {
    let loads = |counting| LOADS.into_iter().map(move |load| (counting, load));
    let each = Counting::ALL.into_iter().flat_map(loads);
    each.map(|(counting, load)| run(server, counting, load, length))
        .collect()
}

fn run(
    server: &Server,
    counting: Counting,
    load: f64,
    length: Duration,
) -> Result<Shared, BenchError> {
    let rule = Rule {
        counting,
        per_sec: PER_SEC,
    };
    let mut calls = Calls::open(server.address())?;
    let before = calls.so_far()?;
    let days = days(server, rule, load, length)?;
    let calls = (calls.so_far()? - before) as f64;

    let offered = days.iter().map(|day| day.offered).sum();
    let passed: Vec<Passed> = days.iter().flat_map(|day| day.passed.clone()).collect();
    let capacity = days.iter().map(|day| day.capacity).max().unwrap_or(0);
    let allowed = capacity + PER_SEC * lasted_ms(&passed) / 1_000;
    Ok(Shared {
        counting,
        load,
        offered,
        admitted: passed.len() as u64,
        ideal: allowed.min(offered),
        over: over(&passed, PER_SEC, PER_SEC),
        bound: bound(counting, &days),
        calls: calls / offered as f64,
    })
}

/// From the first question to the last answer.
fn lasted_ms(passed: &[Passed]) -> u64 {
    let begun = passed.iter().map(|p| p.asked_ms).min().unwrap_or(0);
    let ended = passed.iter().map(|p| p.answered_ms).max().unwrap_or(0);
    (ended - begun) as u64
}

fn bound(counting: Counting, days: &[Day]) -> u64 {
    match counting {
        Counting::Exact | Counting::Leased => 0,
        Counting::Lenient => {
            let each = days.iter().map(|day| busiest(&day.passed, UNKNOWN_MS));
            (NODES as u64 - 1) * each.max().unwrap_or(0).min(PER_SEC)
        }
    }
}

/// Each node on a thread of its own. They begin when all have met their store.
fn days(server: &Server, rule: Rule, load: f64, length: Duration) -> Result<Vec<Day>, BenchError> {
    let (server, secret) = (server.address(), secret()?);
    let all_met = Arc::new(Barrier::new(NODES));
    let begun = Instant::now();
    let nodes: Vec<_> = iter::repeat_n((secret, all_met), NODES)
        .map(|(secret, all_met)| {
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let node = Arc::new(Node::open(server, rule, secret).await?);
                    all_met.wait().await;
                    let per_sec = load * PER_SEC as f64 / NODES as f64;
                    let day = offer(&node, per_sec, length, begun).await?;
                    node.drain().await;
                    Ok(day)
                })
            })
        })
        .collect();
    let joined = nodes.into_iter().map(thread::JoinHandle::join);
    joined
        .map(|day| day.map_err(|_| BenchError::from("a node panicked"))?)
        .collect()
}

/// Asks `per_sec` times a second, whether or not earlier ones are answered.
async fn offer(
    node: &Arc<Node>,
    per_sec: f64,
    length: Duration,
    begun: Instant,
) -> Result<Day, BenchError> {
    let capacity = node.capacity().await?;
    let (mut asked, mut offered, mut passed) = (JoinSet::new(), 0, Vec::new());
    let from = Instant::now();
    while from.elapsed() < length {
        let due = (from.elapsed().as_secs_f64() * per_sec) as u64;
        for _ in offered..due {
            let node = Arc::clone(node);
            asked.spawn(async move {
                let asked_ms = begun.elapsed().as_millis() as usize;
                let admitted = node.ask(0).await?;
                let answered_ms = begun.elapsed().as_millis() as usize;
                Ok::<_, BenchError>(admitted.then_some(Passed {
                    asked_ms,
                    answered_ms,
                }))
            });
        }
        offered = due;
        while let Some(ended) = asked.try_join_next() {
            passed.extend(ended??);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while let Some(ended) = asked.join_next().await {
        passed.extend(ended??);
    }
    Ok(Day {
        offered,
        passed,
        capacity,
    })
}
