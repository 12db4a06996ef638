//! The HTTP check: Tidegate beside a bare hyper handler and `throttlecrab-server`.
//!
//! Servers are pinned to the first core, the load to the second; everything stays on loopback.

mod connection;
mod load;
mod measure;
mod tables;
mod target;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use bench_report::Options;
use clap::Parser;

use measure::HttpEffort;
use tables::HttpResults;
use target::{HttpRequestKind, HttpTarget};

/// Measures servers that respond to rate limit checks over HTTP
#[derive(Parser)]
struct HttpArguments {
    #[command(flatten)]
    options: Options,
    /// The tidegate binary; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    tidegate: Option<PathBuf>,
    /// The throttlecrab-server binary; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    throttlecrab: Option<PathBuf>,
}

fn main() -> io::Result<()> {
    let arguments = HttpArguments::parse();
    let options = &arguments.options;
    let length = options.round(Duration::from_millis(400), Duration::from_secs(2));
    let effort = HttpEffort { rounds: options.rounds(), length };
    // Both before the load is pinned: the page counts the cores, and servers would inherit its core.
    let mut page = options.page("http");
    let work = env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let targets = targets(&arguments, &work)?;
    bench_process::move_load_to_its_core();

    let results = |figures| HttpResults { names: targets.iter().map(|t| t.name).collect(), figures };
    let measure_load = |kind| measure::full_load(&targets, kind, effort).map(results);
    let (admitted, denied) = (measure_load(HttpRequestKind::Admitted)?, measure_load(HttpRequestKind::Denied)?);
    let batch = measure_load(HttpRequestKind::Batch)?;
    let half = results(measure::half_load(&targets, &admitted.figures, effort)?);

    page.table("Admitted, full load", &admitted.table(), NOTE);
    page.table("Denied, full load", &denied.table(), "");
    page.table("Admitted, half load", &half.table(), HALF_NOTE);
    page.table("Batches of 100, full load", &batch.batch_table(), "");
    page.goals(&tables::goals(&admitted, &denied, &half, &batch));
    drop(targets);
    fs::remove_dir_all(&work)?;
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}

/// Starts the servers of this run.
fn targets(arguments: &HttpArguments, work: &Path) -> io::Result<Vec<HttpTarget>> {
    let mut targets = vec![HttpTarget::bare()?];
    if let Some(program) = &arguments.tidegate {
        targets.push(HttpTarget::tidegate(program, work)?);
    }
    if let Some(program) = &arguments.throttlecrab {
        targets.push(HttpTarget::throttlecrab(program)?);
    }
    Ok(targets)
}

const NOTE: &str = "50 keep-alive connections, 1,000 clients in turn; server on one core, load on the \
    other. CPU-s/M: processor seconds of the server for a million requests, the figure that survives \
    noise. Medians of interleaved rounds.";

const HALF_NOTE: &str = "Half of the rate of each server at full load, at a steady pace; waits counted \
    from the moment a request was due.";
