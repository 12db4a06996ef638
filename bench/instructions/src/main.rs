//! Instructions per decision, counted by callgrind: a figure that a noisy machine cannot change.
//!
//! Without `--count` the program starts itself under valgrind for every subject, compares the counts with the
//! recorded baseline and fails when Tidegate needs more instructions.

mod baseline;
mod callgrind;
mod subjects;
mod tables;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use bench_report::Options;
use clap::Parser;

use baseline::Baseline;

/// Counts the instructions of a decision
#[derive(Parser)]
struct InstructionsArguments {
    #[command(flatten)]
    options: Options,
    /// The recorded counts to compare with
    #[arg(long, default_value = "baselines/instructions.tsv", value_name = "FILE")]
    baseline: PathBuf,
    /// Replace the recorded counts by those of this run
    #[arg(long)]
    record: bool,
    /// Run the decisions of one case: how the program calls itself under valgrind
    #[arg(long, value_name = "CASE", hide = true)]
    count: Option<String>,
}

fn main() -> io::Result<ExitCode> {
    let InstructionsArguments { options, baseline, record, count } = InstructionsArguments::parse();
    if let Some(case) = count {
        subjects::run(&case);
        return Ok(ExitCode::SUCCESS);
    }
    let recorded = Baseline::read(&baseline)?;
    let counted = subjects::cases()
        .map(|case| Ok((case.clone(), callgrind::instructions_per_decision(&case)?)))
        .collect::<io::Result<Vec<_>>>()?;
    if record {
        Baseline::write(&baseline, &counted)?;
    }

    let mut page = options.page("instructions");
    page.table("Instructions per decision", &tables::counts(&counted, &recorded), NOTE);
    let goals = tables::goals(&counted, &recorded);
    page.goals(&goals);
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(if tables::regressed(&goals) && !record { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

const NOTE: &str = "1k keys, one thread, every decision admitted, the harness included. Instructions in \
    user space: a clock that enters the kernel counts only up to the system call, and a wait for memory counts \
    nothing. Use these counts to see a change, and times to see a cost.";
