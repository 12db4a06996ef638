//! Exact, leased and lenient counting side by side: the cost and latency of a decision, the number of store
//! calls, and how well the limit is kept.
//!
//! One Redis server on the first core, the nodes on the second.

mod alone;
mod calls;
mod fleet;
mod node;
mod over;
mod tables;

use std::time::Duration;

use bench_load::{BenchError, LoadEffort};
use bench_process::{ServerProcess, move_load_to_its_core};
use bench_report::{Options, Page};
use clap::Parser;

/// Measures the three counting modes
#[derive(Parser)]
struct LeaseArguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), BenchError> {
    let LeaseArguments { options } = LeaseArguments::parse();
    let effort = LoadEffort {
        rounds: options.rounds(),
        length: options.round(Duration::from_millis(250), Duration::from_secs(1)),
    };
    let shared_for = if options.quick { Duration::from_secs(2) } else { Duration::from_secs(10) };
    // Before the load is pinned: the page counts the cores, and the server would inherit its core.
    let mut page = options.page("leases");
    let server = ServerProcess::redis(None, &[])?;
    move_load_to_its_core();
    measure(&server, effort, shared_for, &mut page)?;
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}

fn measure(
    server: &ServerProcess,
    effort: LoadEffort,
    shared_for: Duration,
    page: &mut Page,
) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let hot = runtime.block_on(alone::hot(server, effort))?;
    page.table("One hot key, 64 in flight", &tables::full(&hot), HOT_NOTE);
    let half = runtime.block_on(alone::half(server, effort, &hot))?;
    page.table("The same key, half load", &tables::waits(&half), HALF_NOTE);
    let cold = runtime.block_on(alone::cold(server, effort))?;
    page.table("10,000 cold keys, 64 in flight", &tables::full(&cold), "");
    let shared = fleet::all(server, shared_for)?;
    let title = "Four nodes, one hot key of 8,000 per second";
    page.table(title, &tables::shared(&shared), SHARED_NOTE);
    page.goals(&tables::goals(&hot, &half, &cold, &shared));
    Ok(())
}

const HOT_NOTE: &str = "The library: a limiter with a rules file, on the Redis store with everything around \
    it. One server on one core, one node on the other, all admitted. *store calls*: scripts that the server \
    ran for one decision, by `INFO commandstats`; the heartbeats of all nodes, five per second each, are among \
    them. CPU-s/M: processor seconds for a million decisions. *busy*: share of its core. Medians of \
    interleaved rounds; *spread* is how far these lie apart.";

const HALF_NOTE: &str = "At a steady pace of half the rate of each mode above, under a limit of twice \
    that pace. Waits are counted from the moment a decision was due.";

const SHARED_NOTE: &str = "Four nodes in one process, each with a runtime and connections of its own, under \
    a steady load for 10 s (2 s in a quick run); the limit has a burst of 8,000. *ideal*: \
    the whole load, or what the limit allows as documented. *over*: by how many units the \
    worst interval surely exceeded the rule as written. *may be over*: the bound of docs/consistency.md, \
    with the busiest 100 ms of a node as they were.";
