//! The figures of a client under load, and its cost on both sides.

use std::sync::Arc;
use std::time::Duration;

use bench_process::{ServerProcess, cpu};
use bench_report::{median, spread};

use crate::tasks::{self, Concurrency, DecisionCount};
use crate::{BenchError, LoadClient};

/// The figures of one subject, of one round or as medians of all.
#[derive(Debug, Clone, Copy)]
pub struct LoadFigures {
    /// Decisions per second.
    pub per_sec: f64,
    /// The spread of the rounds in that figure.
    pub spread: f64,
    /// Processor seconds of the server per million decisions.
    pub server_secs_per_million: f64,
    /// Processor seconds of the client per million decisions.
    pub client_secs_per_million: f64,
    /// The waits at a steady pace, in milliseconds.
    pub waits: Option<LoadWaits>,
}

impl LoadFigures {
    /// The share of the time in which the server was busy.
    #[must_use]
    pub fn server_busy(&self) -> f64 {
        self.server_secs_per_million * self.per_sec / 1e6
    }

    /// The share of the time in which the client was busy.
    #[must_use]
    pub fn client_busy(&self) -> f64 {
        self.client_secs_per_million * self.per_sec / 1e6
    }
}

/// The waits of decisions.
#[derive(Debug, Clone, Copy)]
pub struct LoadWaits {
    /// The maximum wait of half of them.
    pub p50_ms: f64,
    /// The maximum wait of all but one in a hundred.
    pub p99_ms: f64,
    /// The maximum wait of all but one in a thousand.
    pub p999_ms: f64,
}

/// The length and the number of rounds.
#[derive(Debug, Clone, Copy)]
pub struct LoadEffort {
    /// Rounds of each subject.
    pub rounds: usize,
    /// The length of each.
    pub length: Duration,
}

/// One round in a closed loop, after a short one that is not counted.
///
/// # Errors
///
/// When a decision fails.
pub async fn by_tasks<C: LoadClient>(
    server: &ServerProcess,
    client: &Arc<C>,
    concurrency: Concurrency,
    effort: LoadEffort,
) -> Result<LoadFigures, BenchError> {
    tasks::run_tasks(client, concurrency, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let count = tasks::run_tasks(client, concurrency, effort.length).await?;
    let (server_secs, client_secs) = (server.cpu_secs()? - before.0, cpu::own()? - before.1);
    Ok(figures(count, server_secs, client_secs))
}

/// One round at `rate` decisions per second, after a short one that is not counted.
///
/// # Errors
///
/// When a decision fails.
pub async fn at_pace<C: LoadClient>(
    server: &ServerProcess,
    client: &Arc<C>,
    keys: usize,
    rate: f64,
    effort: LoadEffort,
) -> Result<LoadFigures, BenchError> {
    tasks::run_paced(client, keys, rate, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let (count, waits) = tasks::run_paced(client, keys, rate, effort.length).await?;
    let (server_secs, client_secs) = (server.cpu_secs()? - before.0, cpu::own()? - before.1);
    let of = |share| waits.value_at_quantile(share) as f64 / 1e6;
    Ok(LoadFigures {
        waits: Some(LoadWaits { p50_ms: of(0.5), p99_ms: of(0.99), p999_ms: of(0.999) }),
        ..figures(count, server_secs, client_secs)
    })
}

/// The figures of these decisions with their processor time on either side.
#[must_use]
pub fn figures(count: DecisionCount, server_secs: f64, client_secs: f64) -> LoadFigures {
    let millions = count.decisions as f64 / 1e6;
    LoadFigures {
        per_sec: count.decisions as f64 / count.elapsed.as_secs_f64(),
        spread: 0.0,
        server_secs_per_million: server_secs / millions,
        client_secs_per_million: client_secs / millions,
        waits: None,
    }
}

/// The medians of all rounds; `None` if there were none.
#[must_use]
pub fn median_figures(rounds: &[LoadFigures]) -> Option<LoadFigures> {
    let all = |field: fn(&LoadFigures) -> f64| rounds.iter().map(field).collect::<Vec<_>>();
    Some(LoadFigures {
        per_sec: median(&all(|f| f.per_sec))?,
        spread: spread(&all(|f| f.per_sec))?,
        server_secs_per_million: median(&all(|f| f.server_secs_per_million))?,
        client_secs_per_million: median(&all(|f| f.client_secs_per_million))?,
        waits: median_waits(rounds),
    })
}

fn median_waits(rounds: &[LoadFigures]) -> Option<LoadWaits> {
    let waits: Vec<LoadWaits> = rounds.iter().filter_map(|round| round.waits).collect();
    let wait = |field: fn(&LoadWaits) -> f64| median(&waits.iter().map(field).collect::<Vec<_>>());
    Some(LoadWaits { p50_ms: wait(|w| w.p50_ms)?, p99_ms: wait(|w| w.p99_ms)?, p999_ms: wait(|w| w.p999_ms)? })
}
