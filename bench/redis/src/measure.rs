//! Measures the subjects on the server, in turns.

use std::time::Duration;

use bench_load::{
    BenchError, Concurrency, DecisionCount, LoadEffort, LoadFigures, at_pace, by_tasks, figures, median_figures,
};
use bench_process::{ServerProcess, cpu};

use crate::benchmark;
use crate::command::RespCommand;
use crate::subject::{RedisDriver, RedisSubject};

/// Calls by which `redis-benchmark` warms up and estimates how many fill a round.
const WARM_UP_CALLS: u64 = 20_000;

/// All subjects in a closed loop, in turns.
pub(crate) async fn full_load(
    server: &ServerProcess,
    subjects: &[RedisSubject],
    concurrency: Concurrency,
    effort: LoadEffort,
) -> Result<Vec<LoadFigures>, BenchError> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..effort.rounds {
        for (subject, rounds) in subjects.iter().zip(&mut rounds) {
            rounds.push(match &subject.driver {
                RedisDriver::Benchmark(command) => by_benchmark(server, command, concurrency, effort).await?,
                RedisDriver::Tasks(client) => by_tasks(server, client, concurrency, effort).await?,
            });
        }
    }
    Ok(rounds.iter().filter_map(|rounds| median_figures(rounds)).collect())
}

/// All subjects that support a pace at half of their rate at full load, in turns; `None` for the others.
pub(crate) async fn half_load(
    server: &ServerProcess,
    subjects: &[RedisSubject],
    full: &[LoadFigures],
    keys: usize,
    effort: LoadEffort,
) -> Result<Vec<Option<LoadFigures>>, BenchError> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..effort.rounds {
        for ((subject, full), rounds) in subjects.iter().zip(full).zip(&mut rounds) {
            if let RedisDriver::Tasks(client) = &subject.driver {
                let rate = full.per_sec / 2.0;
                rounds.push(at_pace(server, client, keys, rate, effort).await?);
            }
        }
    }
    Ok(rounds.iter().map(|rounds| median_figures(rounds)).collect())
}

/// A separate process, awaited on a separate thread: the tasks here that serve connections continue.
async fn by_benchmark(
    server: &ServerProcess,
    command: &RespCommand,
    concurrency: Concurrency,
    effort: LoadEffort,
) -> Result<LoadFigures, BenchError> {
    let address = server.address();
    let run = async |calls| {
        let command = command.clone();
        let run = move || benchmark::run(address, &command, concurrency, calls);
        tokio::task::spawn_blocking(run).await
    };
    let about = run(WARM_UP_CALLS).await??;
    let decisions = (about * effort.length.as_secs_f64()) as u64;
    let before = (server.cpu_secs()?, cpu::of_ended_children()?);
    let per_sec = run(decisions).await??;
    let made = DecisionCount { decisions, elapsed: Duration::try_from_secs_f64(decisions as f64 / per_sec)? };
    let client_secs = cpu::of_ended_children()? - before.1;
    Ok(figures(made, server.cpu_secs()? - before.0, client_secs))
}
