//! Four nodes, one hot key: how much of the offered load passes, and the cost for the store.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, thread};

use bench_load::BenchError;
use bench_process::ServerProcess;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::calls::StoreCallCounter;
use crate::node::{Counting, LeaseNode, LeaseRule, secret};
use crate::over::{AdmittedRequest, max_excess, max_within};

/// Nodes, each with a runtime and connections of its own.
const NODES: usize = 4;

/// Units per second, and the burst.
const PER_SEC: u64 = 8_000;

/// The offered load, as multiples of the limit.
pub(crate) const LOADS: [f64; 3] = [0.5, 0.9, 3.0];

/// The maximum time until another node sees a lenient admission, in milliseconds: docs/consistency.md.
const UNKNOWN_MS: usize = 100;

/// The figures of one counting mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetResult {
    pub(crate) counting: Counting,
    /// The offered load, as a multiple of the limit.
    pub(crate) load: f64,
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    /// The ideal number of admissions: the whole load, or what the limit allows as documented.
    pub(crate) ideal: u64,
    /// The excess of the worst interval over the rule.
    pub(crate) over: u64,
    /// The bound of that excess, by docs/consistency.md.
    pub(crate) bound: u64,
    /// Calls to the store per decision.
    pub(crate) calls: f64,
}

/// The requests and admissions of one node.
struct NodeRun {
    offered: u64,
    passed: Vec<AdmittedRequest>,
    capacity: u64,
}

/// Every counting mode under every load.
pub(crate) fn all(server: &ServerProcess, length: Duration) -> Result<Vec<FleetResult>, BenchError> {
    let loads = |counting| LOADS.into_iter().map(move |load| (counting, load));
    let each = Counting::ALL.into_iter().flat_map(loads);
    each.map(|(counting, load)| run(server, counting, load, length)).collect()
}

fn run(server: &ServerProcess, counting: Counting, load: f64, length: Duration) -> Result<FleetResult, BenchError> {
    let rule = LeaseRule { counting, per_sec: PER_SEC };
    let mut calls = StoreCallCounter::open(server.address())?;
    let before = calls.so_far()?;
    let runs = run_nodes(server, rule, load, length)?;
    let calls = (calls.so_far()? - before) as f64;

    let offered = runs.iter().map(|run| run.offered).sum();
    let passed: Vec<AdmittedRequest> = runs.iter().flat_map(|run| run.passed.clone()).collect();
    let capacity = runs.iter().map(|run| run.capacity).max().unwrap_or(0);
    let allowed = capacity + PER_SEC * lasted_ms(&passed) / 1_000;
    Ok(FleetResult {
        counting,
        load,
        offered,
        admitted: passed.len() as u64,
        ideal: allowed.min(offered),
        over: max_excess(&passed, PER_SEC, PER_SEC),
        bound: bound(counting, &runs),
        calls: calls / offered as f64,
    })
}

/// From the first request to the last reply.
fn lasted_ms(passed: &[AdmittedRequest]) -> u64 {
    let begun = passed.iter().map(|p| p.sent_ms).min().unwrap_or(0);
    let ended = passed.iter().map(|p| p.replied_ms).max().unwrap_or(0);
    (ended - begun) as u64
}

fn bound(counting: Counting, runs: &[NodeRun]) -> u64 {
    match counting {
        Counting::Exact | Counting::Leased => 0,
        Counting::Lenient => {
            let each = runs.iter().map(|run| max_within(&run.passed, UNKNOWN_MS));
            (NODES as u64 - 1) * each.max().unwrap_or(0).min(PER_SEC)
        }
    }
}

/// Each node runs on a thread of its own. They start when all have reached their store.
fn run_nodes(server: &ServerProcess, rule: LeaseRule, load: f64, length: Duration) -> Result<Vec<NodeRun>, BenchError> {
    let (server, secret) = (server.address(), secret()?);
    let all_met = Arc::new(Barrier::new(NODES));
    let begun = Instant::now();
    let nodes: Vec<_> = iter::repeat_n((secret, all_met), NODES)
        .map(|(secret, all_met)| {
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let node = Arc::new(LeaseNode::open(server, rule, secret).await?);
                    all_met.wait().await;
                    let per_sec = load * PER_SEC as f64 / NODES as f64;
                    let run = offer(&node, per_sec, length, begun).await?;
                    node.drain().await;
                    Ok(run)
                })
            })
        })
        .collect();
    let joined = nodes.into_iter().map(thread::JoinHandle::join);
    joined.map(|run| run.map_err(|_| BenchError::from("a node panicked"))?).collect()
}

/// Sends `per_sec` requests per second, whether or not earlier replies have arrived.
async fn offer(node: &Arc<LeaseNode>, per_sec: f64, length: Duration, begun: Instant) -> Result<NodeRun, BenchError> {
    let capacity = node.capacity().await?;
    let (mut tasks, mut offered, mut passed) = (JoinSet::new(), 0, Vec::new());
    let from = Instant::now();
    while from.elapsed() < length {
        let due = (from.elapsed().as_secs_f64() * per_sec) as u64;
        for _ in offered..due {
            let node = Arc::clone(node);
            tasks.spawn(async move {
                let sent_ms = begun.elapsed().as_millis() as usize;
                let admitted = node.check(0).await?;
                let replied_ms = begun.elapsed().as_millis() as usize;
                Ok::<_, BenchError>(admitted.then_some(AdmittedRequest { sent_ms, replied_ms }))
            });
        }
        offered = due;
        while let Some(ended) = tasks.try_join_next() {
            passed.extend(ended??);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while let Some(ended) = tasks.join_next().await {
        passed.extend(ended??);
    }
    Ok(NodeRun { offered, passed, capacity })
}
