//! Bytes per key from one to ten million keys: Tidegate beside the libraries it competes with.
//!
//! Each subject is filled in a process of its own, so that none inherits another's heap.

mod fill;
mod subjects;
mod tables;

use std::io;
use std::path::PathBuf;

use bench_report::Options;
use clap::Parser;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator with statistics.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Measures the bytes per key of the libraries
#[derive(Parser)]
struct MemoryArguments {
    #[command(flatten)]
    options: Options,
    /// Fill one subject and print its samples: how the program calls itself
    #[arg(long, value_name = "NAME", hide = true)]
    fill: Option<String>,
    /// With --fill: how many keys to go up to
    #[arg(long, default_value_t = fill::MILLION, value_name = "KEYS", hide = true)]
    keys: usize,
}

fn main() -> io::Result<()> {
    let MemoryArguments { options, fill, keys } = MemoryArguments::parse();
    match fill {
        Some(name) => subjects::fill(&name, keys),
        None => measure_all(&options).map(|path| println!("\nsaved as {}", path.display())),
    }
}

fn measure_all(options: &Options) -> io::Result<PathBuf> {
    let max_keys = if options.quick { 2 * fill::MILLION } else { 10 * fill::MILLION };
    let mut page = options.page("memory");
    let measured = subjects::NAMES
        .iter()
        .map(|name| Ok((*name, fill::in_child(name, max_keys)?)))
        .collect::<io::Result<Vec<_>>>()?;
    page.table("Bytes per key", &tables::bytes_per_key(&measured, max_keys), NOTE);
    page.goals(&tables::goals(&measured));
    page.save(&options.results)
}

const NOTE: &str = "Resident bytes beyond those of the empty limiter, divided by the keys it holds; in \
    brackets the allocated bytes. Keys of 17 bytes, each charged once and still live. Worst: \
    the largest figure of the resident bytes among samples every 250,000 keys from 1M on.";
