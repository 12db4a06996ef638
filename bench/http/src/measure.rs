//! Measures the servers under load, in turns.

use std::io;
use std::time::Duration;

use bench_report::median;

use crate::load::{HttpLoad, LoadResult, RequestPace};
use crate::target::{BATCH, HttpRequestKind, HttpTarget};

/// The figures of one server for one kind of request, as medians of the rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpFigures {
    /// Responses per second.
    pub(crate) requests_per_sec: f64,
    /// The wait of half the requests, in milliseconds.
    pub(crate) p50_ms: f64,
    /// The wait of all but one in a hundred, in milliseconds.
    pub(crate) p99_ms: f64,
    /// Processor seconds of the server per million requests.
    pub(crate) cpu_secs_per_million: f64,
}

/// The length and the number of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpEffort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Loads every server in a closed loop, in turns; `None` where a server does not support the kind.
pub(crate) fn full_load(
    targets: &[HttpTarget],
    kind: HttpRequestKind,
    effort: HttpEffort,
) -> io::Result<Vec<Option<HttpFigures>>> {
    in_turns(targets, kind, effort, |_| Some(RequestPace::ClosedLoop))
}

/// Loads every server at half of its rate at full load.
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
    kind: HttpRequestKind,
    effort: HttpEffort,
    pace: impl Fn(usize) -> Option<RequestPace>,
) -> io::Result<Vec<Option<HttpFigures>>> {
    let mut rounds = vec![Vec::new(); targets.len()];
    for _ in 0..effort.rounds {
        for (index, target) in targets.iter().enumerate() {
            if let (Some(pace), Some(requests)) = (pace(index), target.requests(kind)) {
                rounds[index].push(round(target, kind, requests, pace, effort.length)?);
            }
        }
    }
    Ok(rounds.iter().map(|rounds| median_figures(rounds)).collect())
}

/// One round after a warm-up of a fifth, on fresh connections.
fn round(
    target: &HttpTarget,
    kind: HttpRequestKind,
    requests: Vec<Vec<u8>>,
    pace: RequestPace,
    length: Duration,
) -> io::Result<HttpFigures> {
    let mut load = HttpLoad::open(target.server.address(), requests)?;
    load.run(pace, length / 5)?;
    let cpu_before = target.server.cpu_secs()?;
    let seen = load.run(pace, length)?;
    let cpu_secs = target.server.cpu_secs()? - cpu_before;
    check_responses(target.name, kind, &seen)?;
    Ok(HttpFigures {
        requests_per_sec: seen.per_second(),
        p50_ms: seen.wait_ms(0.5),
        p99_ms: seen.wait_ms(0.99),
        cpu_secs_per_million: cpu_secs * 1e6 / seen.responses as f64,
    })
}

/// A server with unexpected decisions has no figure.
fn check_responses(name: &str, kind: HttpRequestKind, seen: &LoadResult) -> io::Result<()> {
    let share = seen.denials as f64 / seen.responses.max(1) as f64;
    let fits = match kind {
        HttpRequestKind::Denied => share > 0.99,
        HttpRequestKind::Admitted | HttpRequestKind::Batch => seen.denials == 0,
    };
    if seen.responses > 0 && fits {
        return Ok(());
    }
    let percent = 100.0 * share;
    Err(io::Error::other(format!("{name} denied {percent:.1}% of {} requests that should be {kind:?}", seen.responses)))
}

fn median_figures(rounds: &[HttpFigures]) -> Option<HttpFigures> {
    let of = |field: fn(&HttpFigures) -> f64| median(&rounds.iter().map(field).collect::<Vec<_>>());
    Some(HttpFigures {
        requests_per_sec: of(|f| f.requests_per_sec)?,
        p50_ms: of(|f| f.p50_ms)?,
        p99_ms: of(|f| f.p99_ms)?,
        cpu_secs_per_million: of(|f| f.cpu_secs_per_million)?,
    })
}

/// Decisions per second in requests of [`BATCH`].
pub(crate) fn decisions_per_sec(figures: Option<HttpFigures>) -> Option<f64> {
    figures.map(|figures| figures.requests_per_sec * BATCH as f64)
}
