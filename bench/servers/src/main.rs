//! RESP and gRPC servers: Tidegate beside its peers, and the memory of an idle connection.
//!
//! Servers are pinned to the first core, the load to the second; everything stays on loopback.

mod grpc;
mod idle;
mod load;
mod measure;
mod message;
mod plan;
mod profile;
mod program;
mod resp;
mod run;
mod subject;
mod tables;

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io};

use bench_report::Options;
use clap::Parser;

use measure::ServerEffort;
use run::ServersRun;
use subject::ServerPrograms;

/// Measures servers that respond over RESP and gRPC
#[derive(Parser)]
struct ServersArguments {
    #[command(flatten)]
    options: Options,
    /// The tidegate binary; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    tidegate: Option<PathBuf>,
    /// The throttlecrab-server binary; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    throttlecrab: Option<PathBuf>,
    /// The module redis-cell as a shared library; without it its rows are absent
    #[arg(long, value_name = "FILE")]
    redis_cell: Option<PathBuf>,
}

fn main() -> io::Result<()> {
    let arguments = ServersArguments::parse();
    let options = arguments.options;
    let effort = ServerEffort {
        rounds: options.rounds(),
        length: options.round(Duration::from_millis(400), Duration::from_secs(2)),
    };
    let work = env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let programs = ServerPrograms {
        tidegate: arguments.tidegate,
        throttlecrab: arguments.throttlecrab,
        redis_cell: arguments.redis_cell,
        work: work.clone(),
    };
    let run = ServersRun {
        programs,
        effort,
        idle_connections: if options.quick { 1_000 } else { 10_000 },
        // Before the load is pinned: the page counts the cores.
        page: options.page("servers"),
    };
    bench_process::move_load_to_its_core();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let page = runtime.block_on(run.measure())?;
    fs::remove_dir_all(&work)?;
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}
