//! Time per decision: Tidegate beside `governor`, `throttlecrab` and `limitador`, in one run.

mod clock;
mod keys;
mod measure;
mod rules;
mod scenario;
mod tables;
mod timing;

use std::io;
use std::time::Duration;

use bench_report::Options;
use clap::Parser;

/// Times the decisions of the libraries
#[derive(Parser)]
struct LibraryArguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> io::Result<()> {
    let LibraryArguments { options } = LibraryArguments::parse();
    let length = options.round(Duration::from_millis(20), Duration::from_millis(150));
    let rounds = options.rounds();
    let mut page = options.page("library");

    let rows = measure::measure(rounds, length);
    let figures = tables::LibraryTables(&rows);
    page.table("Time per decision", &figures.times(), TIMES_NOTE);
    page.table("Net of the harness", &figures.ratios(), "");
    page.table("Scaling", &figures.scalings(), SCALING_NOTE);

    let ruled = rules::measure(rounds, length);
    page.table("Number of rules", &rules::table(&ruled), RULES_NOTE);

    let goals: Vec<_> = figures.goals().into_iter().chain(rules::goals(&ruled)).collect();
    page.goals(&goals);
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}

const TIMES_NOTE: &str = "Medians of interleaved rounds, per thread, with the harness included; \
    one thread by its processor time, two by wall time. \
    The spread is the largest in the row: (slowest - fastest round) / median.";

const SCALING_NOTE: &str = "Each thread has half of the keys to itself. The harness alone shows what \
    the machine can give: two threads of one core share it.";

const RULES_NOTE: &str = "One rule for each path, counting by ip; 10,000 counters in every case.";
