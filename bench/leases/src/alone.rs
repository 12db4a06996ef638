//! One node: a hot key in a closed loop, the same key at half load, and many cold keys.

use std::sync::Arc;

use bench_load::{BenchError, Concurrency, LoadEffort, LoadFigures, at_pace, by_tasks, median_figures};
use bench_process::ServerProcess;

use crate::calls::StoreCallCounter;
use crate::node::{Counting, KEYS, LeaseNode, LeaseRule, secret};

/// More than any run charges.
const PLENTY: u64 = 10_000_000;

/// A closed loop.
const HOT: Concurrency = Concurrency { keys: 1, in_flight: 64 };

/// So many keys that none is hot enough for a lease.
const COLD: Concurrency = Concurrency { keys: KEYS, in_flight: 64 };

/// The figures of one counting mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountingResult {
    pub(crate) counting: Counting,
    pub(crate) figures: LoadFigures,
    /// Calls to the store per decision, over all rounds.
    pub(crate) calls: f64,
}

/// The load of a round.
#[derive(Clone, Copy)]
enum LoadMode {
    ClosedLoop(Concurrency),
    Paced { per_sec: f64 },
}

/// One counting mode in a measurement, and its rounds so far.
struct CountingRun {
    rule: LeaseRule,
    drive: LoadMode,
    node: Arc<LeaseNode>,
    rounds: Vec<LoadFigures>,
    calls: u64,
}

/// One hot key, all admitted.
pub(crate) async fn hot(server: &ServerProcess, effort: LoadEffort) -> Result<Vec<CountingResult>, BenchError> {
    in_turns(server, effort, load_modes(Counting::ALL, HOT)).await
}

/// Cold keys, all admitted.
pub(crate) async fn cold(server: &ServerProcess, effort: LoadEffort) -> Result<Vec<CountingResult>, BenchError> {
    in_turns(server, effort, load_modes(Counting::ALL, COLD)).await
}

/// The hot key at half the rate of each mode, which is half of its limit, too.
pub(crate) async fn half(
    server: &ServerProcess,
    effort: LoadEffort,
    hot: &[CountingResult],
) -> Result<Vec<CountingResult>, BenchError> {
    let modes = hot.iter().map(|done| {
        let rule = LeaseRule { counting: done.counting, per_sec: done.figures.per_sec as u64 };
        let per_sec = done.figures.per_sec / 2.0;
        (rule, LoadMode::Paced { per_sec })
    });
    in_turns(server, effort, modes.collect()).await
}

fn load_modes(all: [Counting; 3], concurrency: Concurrency) -> Vec<(LeaseRule, LoadMode)> {
    let rule = |counting| LeaseRule { counting, per_sec: PLENTY };
    let mode = |counting| (rule(counting), LoadMode::ClosedLoop(concurrency));
    all.into_iter().map(mode).collect()
}

/// Modes take turns round by round, so that a disturbance affects all alike.
async fn in_turns(
    server: &ServerProcess,
    effort: LoadEffort,
    modes: Vec<(LeaseRule, LoadMode)>,
) -> Result<Vec<CountingResult>, BenchError> {
    let mut calls = StoreCallCounter::open(server.address())?;
    let mut runs = Vec::new();
    for (rule, drive) in modes {
        runs.push(CountingRun::new(server, rule, drive).await?);
    }
    for _ in 0..effort.rounds {
        for run in &mut runs {
            run.take(server, effort, &mut calls).await?;
        }
    }
    let done = runs.iter().filter_map(CountingRun::done).collect();
    for run in runs {
        run.node.drain().await;
    }
    Ok(done)
}

impl CountingRun {
    async fn new(server: &ServerProcess, rule: LeaseRule, drive: LoadMode) -> Result<Self, BenchError> {
        Ok(CountingRun {
            rule,
            drive,
            node: Arc::new(LeaseNode::open(server.address(), rule, secret()?).await?),
            rounds: Vec::new(),
            calls: 0,
        })
    }

    async fn take(
        &mut self,
        server: &ServerProcess,
        effort: LoadEffort,
        calls: &mut StoreCallCounter,
    ) -> Result<(), BenchError> {
        let before = calls.so_far()?;
        self.rounds.push(match self.drive {
            LoadMode::ClosedLoop(concurrency) => by_tasks(server, &self.node, concurrency, effort).await?,
            LoadMode::Paced { per_sec } => at_pace(server, &self.node, 1, per_sec, effort).await?,
        });
        self.calls += calls.so_far()? - before;
        Ok(())
    }

    fn done(&self) -> Option<CountingResult> {
        Some(CountingResult {
            counting: self.rule.counting,
            figures: median_figures(&self.rounds)?,
            calls: self.calls as f64 / self.node.decided() as f64,
        })
    }
}
