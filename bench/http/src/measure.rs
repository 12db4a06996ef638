//! Lets the servers take turns under the load.

use std::io;
use std::time::Duration;

use bench_report::median;

use crate::load::{HttpLoad, LoadResult, RequestPace};
use crate::target::{BATCH, HttpRequestKind, HttpTarget};

/// What one server did under one question, as medians of the rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpFigures {
    /// Requests answered in a second.
    pub(crate) requests_per_sec: f64,
    /// The wait of half the requests, in milliseconds.
    pub(crate) p50_ms: f64,
    /// The wait of all but one in a hundred, in milliseconds.
    pub(crate) p99_ms: f64,
    /// Processor seconds of the server for a million requests.
    pub(crate) cpu_secs_per_million: f64,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpEffort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Asks every server as fast as it answers, in turns; `None` where the question cannot be asked.
pub(crate) fn full_load(
    targets: &[HttpTarget],
    question: HttpRequestKind,
    effort: HttpEffort,
) -> io::Result<Vec<Option<HttpFigures>>> {
    in_turns(targets, question, effort, |_| Some(RequestPace::ClosedLoop))
}

/// Asks every server half as often as it answered at full load.
pub(crate) fn half_load(
    targets: &[HttpTarget],
    full: &[Option<HttpFigures>],
    effort: HttpEffort,
) -> io::Result<Vec<Option<HttpFigures>>> {
    in_turns(targets, HttpRequestKind::Admitted, effort, |index| {
        full[index].map(|figures| RequestPace::PerSecond(figures.requests_per_sec / 2.0))
    })
}

fn in_turns(
    targets: &[HttpTarget],
    question: HttpRequestKind,
    effort: HttpEffort,
    pace: impl Fn(usize) -> Option<RequestPace>,
) -> io::Result<Vec<Option<HttpFigures>>> {
    let mut rounds = vec![Vec::new(); targets.len()];
    for _ in 0..effort.rounds {
        for (index, target) in targets.iter().enumerate() {
            if let (Some(pace), Some(requests)) = (pace(index), target.requests(question)) {
                rounds[index].push(round(target, question, requests, pace, effort.length)?);
            }
        }
    }
    Ok(rounds.iter().map(|rounds| median_figures(rounds)).collect())
}

/// One round after a warm-up of a fifth, on fresh connections.
fn round(
    target: &HttpTarget,
    question: HttpRequestKind,
    requests: Vec<Vec<u8>>,
    pace: RequestPace,
    length: Duration,
) -> io::Result<HttpFigures> {
    let mut load = HttpLoad::open(target.server.address(), requests)?;
    load.run(pace, length / 5)?;
    let cpu_before = target.server.cpu_secs()?;
    let seen = load.run(pace, length)?;
    let cpu_secs = target.server.cpu_secs()? - cpu_before;
    check_responses(target.name, question, &seen)?;
    Ok(HttpFigures {
        requests_per_sec: seen.per_second(),
        p50_ms: seen.wait_ms(0.5),
        p99_ms: seen.wait_ms(0.99),
        cpu_secs_per_million: cpu_secs * 1e6 / seen.responses as f64,
    })
}

/// A server that answered another question than the one asked has no figure.
fn check_responses(name: &str, question: HttpRequestKind, seen: &LoadResult) -> io::Result<()> {
    let share = seen.denials as f64 / seen.responses.max(1) as f64;
    let fits = match question {
        HttpRequestKind::Denied => share > 0.99,
        HttpRequestKind::Admitted | HttpRequestKind::Batch => seen.denials == 0,
    };
    if seen.responses > 0 && fits {
        return Ok(());
    }
    let percent = 100.0 * share;
    Err(io::Error::other(format!(
        "{name} refused {percent:.1}% of {} requests that should be {question:?}",
        seen.responses
    )))
}

fn median_figures(rounds: &[HttpFigures]) -> Option<HttpFigures> {
    let of = |part: fn(&HttpFigures) -> f64| median(&rounds.iter().map(part).collect::<Vec<_>>());
    Some(HttpFigures {
        requests_per_sec: of(|f| f.requests_per_sec)?,
        p50_ms: of(|f| f.p50_ms)?,
        p99_ms: of(|f| f.p99_ms)?,
        cpu_secs_per_million: of(|f| f.cpu_secs_per_million)?,
    })
}

/// Decisions a second in requests of [`BATCH`].
pub(crate) fn decisions_per_sec(figures: Option<HttpFigures>) -> Option<f64> {
    figures.map(|figures| figures.requests_per_sec * BATCH as f64)
}
