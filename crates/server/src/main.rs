//! The `tidegate` binary: the rate limiter as a service, and the commands around it.

mod app;
mod cli;
mod config;
mod decider;
mod doctor;
mod edges;
#[cfg(test)]
mod instruction_counts;
mod logging;
mod net;
mod policy;
mod protobuf;
mod state;
mod store_condition;
#[cfg(test)]
mod tests {
    mod caps;
}

use std::process::ExitCode;

use clap::Parser;

/// The allocator returns freed memory to the system after some seconds. With the allocator of glibc a process holds
/// on to the memory of its peak, and any client can cause a peak.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).into()
}
