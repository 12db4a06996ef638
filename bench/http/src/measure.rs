//! Lets the servers take turns under the load.

use std::io;
use std::time::Duration;

use bench_report::median;

use crate::load::{Load, Pace, Seen};
use crate::target::{BATCH, Question, Target};

/// What one server did under one question, as medians of the rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
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
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Asks every server as fast as it answers, in turns; `None` where the question cannot be asked.
pub(crate) fn full_load(
    targets: &[Target],
    question: Question,
    effort: Effort,
) -> io::Result<Vec<Option<Figures>>> {
    in_turns(targets, question, effort, |_| Some(Pace::AsFastAsAnswered))
}

/// Asks every server half as often as it answered at full load.
pub(crate) fn half_load(
    targets: &[Target],
    full: &[Option<Figures>],
    effort: Effort,
) -> io::Result<Vec<Option<Figures>>> {
    in_turns(targets, Question::Admitted, effort, |place| {
        full[place].map(|figures| Pace::PerSecond(figures.requests_per_sec / 2.0))
    })
}

fn in_turns(
    targets: &[Target],
    question: Question,
    effort: Effort,
    pace: impl Fn(usize) -> Option<Pace>,
) -> io::Result<Vec<Option<Figures>>> {
    let mut rounds = vec![Vec::new(); targets.len()];
    for _ in 0..effort.rounds {
        for (place, target) in targets.iter().enumerate() {
            if let (Some(pace), Some(requests)) = (pace(place), target.requests(question)) {
                rounds[place].push(round(target, question, requests, pace, effort.length)?);
            }
        }
    }
    Ok(rounds.iter().map(|rounds| middle(rounds)).collect())
}

/// One round after a warm-up of a fifth, on fresh connections.
fn round(
    target: &Target,
    question: Question,
    requests: Vec<Vec<u8>>,
    pace: Pace,
    length: Duration,
) -> io::Result<Figures> {
    let mut load = Load::open(target.server.address(), requests)?;
    load.run(pace, length / 5)?;
    let cpu_before = target.server.cpu_secs()?;
    let seen = load.run(pace, length)?;
    let cpu_secs = target.server.cpu_secs()? - cpu_before;
    answers_fit(target.name, question, &seen)?;
    Ok(Figures {
        requests_per_sec: seen.per_second(),
        p50_ms: seen.wait_ms(0.5),
        p99_ms: seen.wait_ms(0.99),
        cpu_secs_per_million: cpu_secs * 1e6 / seen.answers as f64,
    })
}

/// A server that answered another question than the one asked has no figure.
fn answers_fit(name: &str, question: Question, seen: &Seen) -> io::Result<()> {
    let share = seen.refusals as f64 / seen.answers.max(1) as f64;
    let fits = match question {
        Question::Refused => share > 0.99,
        Question::Admitted | Question::Batch => seen.refusals == 0,
    };
    if seen.answers > 0 && fits {
        return Ok(());
    }
    let percent = 100.0 * share;
    Err(io::Error::other(format!(
        "{name} refused {percent:.1}% of {} requests that should be {question:?}",
        seen.answers
    )))
}

fn middle(rounds: &[Figures]) -> Option<Figures> {
    let of = |part: fn(&Figures) -> f64| median(&rounds.iter().map(part).collect::<Vec<_>>());
    Some(Figures {
        requests_per_sec: of(|f| f.requests_per_sec)?,
        p50_ms: of(|f| f.p50_ms)?,
        p99_ms: of(|f| f.p99_ms)?,
        cpu_secs_per_million: of(|f| f.cpu_secs_per_million)?,
    })
}

/// Decisions a second in requests of [`BATCH`].
pub(crate) fn decisions_per_sec(figures: Option<Figures>) -> Option<f64> {
    figures.map(|figures| figures.requests_per_sec * BATCH as f64)
}
