//! Exact decisions in Redis: Tidegate's store beside the rate of `redis-benchmark` for the same script, the
//! module redis-cell, and `limitador`.
//!
//! One server, pinned to the first core; all subjects take turns on it from the second.

mod benchmark;
mod calls;
mod client;
mod command;
mod limitador;
mod measure;
mod recorded;
mod subject;
mod tables;
mod tidegate;

use std::path::PathBuf;
use std::time::Duration;

use bench_load::{BenchError, Concurrency, LoadEffort, LoadFigures};
use bench_process::{ServerProcess, move_load_to_its_core};
use bench_report::{Options, Page};
use clap::Parser;

use client::KEYS;
use measure::{full_load, half_load};
use subject::RedisSubject;
use tables::RedisResults;

/// Measures limiters that count in Redis
#[derive(Parser)]
struct RedisArguments {
    #[command(flatten)]
    options: Options,
    /// The module redis-cell as a shared library; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    redis_cell: Option<PathBuf>,
}

fn main() -> Result<(), BenchError> {
    let RedisArguments { options, redis_cell } = RedisArguments::parse();
    let effort = LoadEffort {
        rounds: options.rounds(),
        length: options.round(Duration::from_millis(250), Duration::from_secs(1)),
    };
    // Before the load is pinned: the page counts the cores, and the server would inherit its core.
    let mut page = options.page("redis");
    let server = ServerProcess::redis(redis_cell.as_deref(), &[])?;
    move_load_to_its_core();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let subjects = subject::all(server.address(), redis_cell.is_some()).await?;
        measure(&server, &subjects, effort, &mut page).await
    })?;
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}

async fn measure(
    server: &ServerProcess,
    subjects: &[RedisSubject],
    effort: LoadEffort,
    page: &mut Page,
) -> Result<(), BenchError> {
    let names = || subjects.iter().map(|subject| subject.name).collect();
    let mut results: Vec<RedisResults> = Vec::new();
    for concurrency in CONCURRENCIES {
        let full = full_load(server, subjects, concurrency, effort).await?;
        let one = RedisResults { concurrency, names: names(), figures: full.into_iter().map(Some).collect() };
        let note = if results.is_empty() { NOTE } else { "" };
        page.table(&one.title(), &one.table(), note);
        results.push(one);
    }
    let many_keys = &results[HALF_OF];
    let full: Vec<LoadFigures> = many_keys.figures.iter().copied().flatten().collect();
    let half = RedisResults {
        concurrency: many_keys.concurrency,
        names: names(),
        figures: half_load(server, subjects, &full, KEYS, effort).await?,
    };
    page.table("10,000 keys, half load", &half.waits_table(), HALF_NOTE);
    let sides: Vec<String> = results.iter().filter_map(RedisResults::narrow_side).collect();
    let note = format!("{PROFILE_NOTE}\n\n{}", sides.join("\n"));
    page.table("Where the time goes", &tables::profile(&results), &note);
    page.goals(&results.iter().map(RedisResults::goal).collect::<Vec<_>>());
    Ok(())
}

const CONCURRENCIES: [Concurrency; 4] = [
    Concurrency { keys: 1, in_flight: 64 },
    Concurrency { keys: 1, in_flight: 256 },
    Concurrency { keys: KEYS, in_flight: 64 },
    Concurrency { keys: KEYS, in_flight: 256 },
];

/// The index of the concurrency whose rate half load halves: many keys, fewer in flight.
const HALF_OF: usize = 2;

const NOTE: &str = "One server on one core, all subjects in turn on the other; one token bucket per key, all admitted. \
    Each charge moves the expiry of its record by a second, so that every write sets it: the more expensive of \
    two cases. *of redis-benchmark*: of its rate for our script with our arguments, on 2 \
    connections with as many calls in flight. CPU-s/M: processor seconds for a million decisions. *busy*: \
    share of its core. *resilient*: the store in its breaker, deadline, fallback, mirror and deny cache. \
    limitador (0.6) counts fixed windows and reads, then increments a counter in two calls, so it may admit \
    too many. Medians of interleaved rounds; *spread* is how far these lie apart.";

const HALF_NOTE: &str = "Half of the rate of each with 64 in flight, at a steady pace; waits counted from \
    the moment a decision was due. redis-benchmark keeps no pace.";

const PROFILE_NOTE: &str = "*redis-rs* sends the calls of our store and ignores the replies; the columns \
    after it are the additional cost of the store, and then of resilience. What the server runs for a script, in \
    instructions: `cargo bench -p tidegate --features internals,redis --bench redis_figures -- \
    instructions`.";
