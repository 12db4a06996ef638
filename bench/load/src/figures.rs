//! What a client did under load, and what it cost on both sides.

use std::sync::Arc;
use std::time::Duration;

use bench_process::{Server, cpu};
use bench_report::{median, spread};

use crate::tasks::{self, Crowd, Made};
use crate::{BenchError, Client};

/// What one subject did, in one round or as medians of all.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Decisions in a second.
    pub per_sec: f64,
    /// How far the rounds lie apart in that.
    pub spread: f64,
    /// Processor seconds of the server for a million decisions.
    pub server_secs_per_million: f64,
    /// The same of the client.
    pub client_secs_per_million: f64,
    /// The waits at a steady pace, in milliseconds.
    pub waits: Option<Waits>,
}

impl Figures {
    /// The share of the time that the server was at work.
    #[must_use]
    pub fn server_busy(&self) -> f64 {
        self.server_secs_per_million * self.per_sec / 1e6
    }

    /// The share of the time that the client was at work.
    #[must_use]
    pub fn client_busy(&self) -> f64 {
        self.client_secs_per_million * self.per_sec / 1e6
    }
}

/// How long decisions took.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// Half of them no longer than this.
    pub p50_ms: f64,
    /// All but one in a hundred.
    pub p99_ms: f64,
    /// All but one in a thousand.
    pub p999_ms: f64,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds of each subject.
    pub rounds: usize,
    /// The length of each.
    pub length: Duration,
}

/// One round in which a client decides as fast as answers come, after a short one that is not counted.
///
/// # Errors
/// When a decision fails.
pub async fn by_tasks<C: Client>(
    server: &Server,
    client: &Arc<C>,
    crowd: Crowd,
    effort: Effort,
) -> Result<Figures, BenchError> {
    tasks::crowd(client, crowd, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let made = tasks::crowd(client, crowd, effort.length).await?;
    let (server_secs, client_secs) = (server.cpu_secs()? - before.0, cpu::own()? - before.1);
    Ok(figures(made, server_secs, client_secs))
}

/// One round at `rate` decisions a second, after a short one that is not counted.
///
/// # Errors
/// When a decision fails.
pub async fn at_pace<C: Client>(
    server: &Server,
    client: &Arc<C>,
    keys: usize,
    rate: f64,
    effort: Effort,
) -> Result<Figures, BenchError> {
    tasks::paced(client, keys, rate, effort.length / 5).await?;
    let before = (server.cpu_secs()?, cpu::own()?);
    let (made, waits) = tasks::paced(client, keys, rate, effort.length).await?;
    let (server_secs, client_secs) = (server.cpu_secs()? - before.0, cpu::own()? - before.1);
    let of = |share| waits.value_at_quantile(share) as f64 / 1e6;
    Ok(Figures {
        waits: Some(Waits {
            p50_ms: of(0.5),
            p99_ms: of(0.99),
            p999_ms: of(0.999),
        }),
        ..figures(made, server_secs, client_secs)
    })
}

/// The figures of decisions that took so much processor time on either side.
#[must_use]
pub fn figures(made: Made, server_secs: f64, client_secs: f64) -> Figures {
    let millions = made.decisions as f64 / 1e6;
    Figures {
        per_sec: made.decisions as f64 / made.elapsed.as_secs_f64(),
        spread: 0.0,
        server_secs_per_million: server_secs / millions,
        client_secs_per_million: client_secs / millions,
        waits: None,
    }
}

/// The medians of all rounds; nothing if there were none.
#[must_use]
pub fn middle(rounds: &[Figures]) -> Option<Figures> {
    let all = |part: fn(&Figures) -> f64| rounds.iter().map(part).collect::<Vec<_>>();
    Some(Figures {
        per_sec: median(&all(|f| f.per_sec))?,
        spread: spread(&all(|f| f.per_sec))?,
        server_secs_per_million: median(&all(|f| f.server_secs_per_million))?,
        client_secs_per_million: median(&all(|f| f.client_secs_per_million))?,
        waits: middle_of_waits(rounds),
    })
}

fn middle_of_waits(rounds: &[Figures]) -> Option<Waits> {
    let waits: Vec<Waits> = rounds.iter().filter_map(|round| round.waits).collect();
    let wait = |part: fn(&Waits) -> f64| median(&waits.iter().map(part).collect::<Vec<_>>());
    Some(Waits {
        p50_ms: wait(|w| w.p50_ms)?,
        p99_ms: wait(|w| w.p99_ms)?,
        p999_ms: wait(|w| w.p999_ms)?,
    })
}
