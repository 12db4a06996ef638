//! Lets the subjects take turns on the server.

use std::sync::Arc;
use std::time::Duration;

use bench_process::{Server, cpu};
use bench_report::{median, spread};

use crate::benchmark;
use crate::client::{BenchError, Client};
use crate::command::Command;
use crate::load::{self, Crowd, Made};
use crate::subject::{Driver, Subject};

/// Calls by which `redis-benchmark` warms up and finds out how many fill a round.
const WARM_UP_CALLS: u64 = 20_000;

/// What one subject did, as medians of the rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// Decisions in a second.
    pub(crate) per_sec: f64,
    /// How far the rounds lie apart in that.
    pub(crate) spread: f64,
    /// Processor seconds of the server for a million decisions.
    pub(crate) server_secs_per_million: f64,
    /// The same of the client.
    pub(crate) client_secs_per_million: f64,
    /// The waits at a steady pace, in milliseconds.
    pub(crate) waits: Option<Waits>,
}

impl Figures {
    /// The share of the time that the server was at work.
    pub(crate) fn server_busy(&self) -> f64 {
        self.server_secs_per_million * self.per_sec / 1e6
    }

    /// The share of the time that the client was at work.
    pub(crate) fn client_busy(&self) -> f64 {
        self.client_secs_per_million * self.per_sec / 1e6
    }
}

/// How long decisions took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Everyone decides as fast as answers come, in turns.
pub(crate) async fn full_load(
    server: &Server,
    subjects: &[Subject],
    crowd: Crowd,
    effort: Effort,
) -> Result<Vec<Figures>, BenchError> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..effort.rounds {
        for (subject, rounds) in subjects.iter().zip(&mut rounds) {
            rounds.push(match &subject.driver {
                Driver::Benchmark(command) => by_benchmark(server, command, crowd, effort).await?,
                Driver::Tasks(client) => by_tasks(server, client, crowd, effort).await?,
            });
        }
    }
    Ok(rounds.iter().filter_map(|rounds| middle(rounds)).collect())
}

/// Everyone who can decides half as often as at full load, in turns; `None` for those who cannot.
pub(crate) async fn half_load(
    server: &Server,
    subjects: &[Subject],
    full: &[Figures],
    keys: usize,
    effort: Effort,
) -> Result<Vec<Option<Figures>>, BenchError> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..effort.rounds {
        for ((subject, full), rounds) in subjects.iter().zip(full).zip(&mut rounds) {
            if let Driver::Tasks(client) = &subject.driver {
                let rate = full.per_sec / 2.0;
                rounds.push(at_pace(server, client, keys, rate, effort).await?);
            }
        }
    }
    Ok(rounds.iter().map(|rounds| middle(rounds)).collect())
}

async fn by_tasks(
    server: &Server,
    client: &Arc<Client>,
    crowd: Crowd,
    effort: Effort,
) -> Result<Figures, BenchError> {
    load::crowd(client, crowd, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let made = load::crowd(client, crowd, effort.length).await?;
    Ok(figures(
        made,
        server.cpu_secs()? - before.0,
        cpu::own()? - before.1,
    ))
}

async fn at_pace(
    server: &Server,
    client: &Arc<Client>,
    keys: usize,
    rate: f64,
    effort: Effort,
) -> Result<Figures, BenchError> {
    load::paced(client, keys, rate, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let (made, waits) = load::paced(client, keys, rate, effort.length).await?;
    let of = |share| waits.value_at_quantile(share) as f64 / 1e6;
    Ok(Figures {
        waits: Some(Waits {
            p50_ms: of(0.5),
            p99_ms: of(0.99),
        }),
        ..figures(made, server.cpu_secs()? - before.0, cpu::own()? - before.1)
    })
}

/// A process of its own, waited for on a thread of its own: the tasks here that keep connections go on.
async fn by_benchmark(
    server: &Server,
    command: &Command,
    crowd: Crowd,
    effort: Effort,
) -> Result<Figures, BenchError> {
    let address = server.address();
    let run = async |calls| {
        let command = command.clone();
        let run = move || benchmark::run(address, &command, crowd, calls);
        tokio::task::spawn_blocking(run).await
    };
    let about = run(WARM_UP_CALLS).await??;
    let decisions = (about * effort.length.as_secs_f64()) as u64;
    let before = (server.cpu_secs()?, cpu::of_ended_children()?);
    let per_sec = run(decisions).await??;
    let made = Made {
        decisions,
        elapsed: Duration::try_from_secs_f64(decisions as f64 / per_sec)?,
    };
    let client_secs = cpu::of_ended_children()? - before.1;
    Ok(figures(made, server.cpu_secs()? - before.0, client_secs))
}

fn figures(made: Made, server_secs: f64, client_secs: f64) -> Figures {
    let millions = made.decisions as f64 / 1e6;
    Figures {
        per_sec: made.decisions as f64 / made.elapsed.as_secs_f64(),
        spread: 0.0,
        server_secs_per_million: server_secs / millions,
        client_secs_per_million: client_secs / millions,
        waits: None,
    }
}

fn middle(rounds: &[Figures]) -> Option<Figures> {
    let all = |part: fn(&Figures) -> f64| rounds.iter().map(part).collect::<Vec<_>>();
    let waits: Vec<Waits> = rounds.iter().filter_map(|round| round.waits).collect();
    let wait = |part: fn(&Waits) -> f64| median(&waits.iter().map(part).collect::<Vec<_>>());
    let waits = wait(|w| w.p50_ms).zip(wait(|w| w.p99_ms));
    Some(Figures {
        per_sec: median(&all(|f| f.per_sec))?,
        spread: spread(&all(|f| f.per_sec))?,
        server_secs_per_million: median(&all(|f| f.server_secs_per_million))?,
        client_secs_per_million: median(&all(|f| f.client_secs_per_million))?,
        waits: waits.map(|(p50_ms, p99_ms)| Waits { p50_ms, p99_ms }),
    })
}
