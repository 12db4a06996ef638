//! Measures the servers under load, in turns.

use std::io;
use std::time::Duration;

use bench_process::cpu;
use bench_report::{median, spread};

use crate::load::{ServerConcurrency, ServerLoad};
use crate::subject::ServerSubject;

/// The figures of one server, as medians of the rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerFigures {
    /// Decisions per second.
    pub(crate) per_sec: f64,
    /// Processor seconds of the server per million decisions.
    pub(crate) server_secs_per_million: f64,
    /// The spread of the rounds in that figure.
    pub(crate) spread: f64,
    /// Processor seconds of the load per million decisions.
    pub(crate) client_secs_per_million: f64,
}

impl ServerFigures {
    /// The share of the time in which the server was busy.
    pub(crate) fn server_busy(&self) -> f64 {
        self.server_secs_per_million * self.per_sec / 1e6
    }

    /// The share of the time in which the load was busy.
    pub(crate) fn client_busy(&self) -> f64 {
        self.client_secs_per_million * self.per_sec / 1e6
    }
}

/// The length and the number of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerEffort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Loads every server in a closed loop, in turns.
pub(crate) async fn in_turns(
    subjects: &[ServerSubject],
    concurrency: ServerConcurrency,
    effort: ServerEffort,
) -> io::Result<Vec<(&'static str, ServerFigures)>> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..effort.rounds {
        for (subject, rounds) in subjects.iter().zip(&mut rounds) {
            let figures = round(subject, concurrency, effort.length).await;
            rounds.push(figures.map_err(|error| io::Error::other(format!("{}: {error}", subject.name)))?);
        }
    }
    let middles = rounds.iter().map(|rounds| median_figures(rounds));
    let names = subjects.iter().map(|subject| subject.name);
    Ok(names.zip(middles).filter_map(|(name, figures)| Some((name, figures?))).collect())
}

/// One round after a warm-up of a fifth, on fresh connections.
async fn round(subject: &ServerSubject, concurrency: ServerConcurrency, length: Duration) -> io::Result<ServerFigures> {
    let mut load = ServerLoad::open(subject.address(), &subject.load, concurrency).await?;
    load.run(length / 5).await?;
    let before = (subject.server.cpu_secs()?, cpu::own()?);
    let count = load.run(length).await?;
    let server_secs = subject.server.cpu_secs()? - before.0;
    let client_secs = cpu::own()? - before.1;
    let millions = count.decisions as f64 / 1e6;
    Ok(ServerFigures {
        per_sec: count.decisions as f64 / count.elapsed.as_secs_f64(),
        server_secs_per_million: server_secs / millions,
        spread: 0.0,
        client_secs_per_million: client_secs / millions,
    })
}

fn median_figures(rounds: &[ServerFigures]) -> Option<ServerFigures> {
    let all = |field: fn(&ServerFigures) -> f64| rounds.iter().map(field).collect::<Vec<_>>();
    Some(ServerFigures {
        per_sec: median(&all(|f| f.per_sec))?,
        server_secs_per_million: median(&all(|f| f.server_secs_per_million))?,
        spread: spread(&all(|f| f.server_secs_per_million))?,
        client_secs_per_million: median(&all(|f| f.client_secs_per_million))?,
    })
}
