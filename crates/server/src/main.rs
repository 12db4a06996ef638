//! The `tidegate` binary: the rate limiter as a service, and the commands around it.

mod address;
#[cfg(test)]
mod caps;
mod cli;
mod config;
mod counters;
mod data;
mod denials;
mod doctor;
mod drain;
mod edges;
mod envoy_compat;
mod first_config;
mod ids;
#[cfg(test)]
mod instruction_counts;
mod kept;
mod live;
mod logs;
mod net;
mod panics;
mod pending;
mod protobuf;
mod readiness;
mod roster;
mod secret_file;
mod service;
mod sink;
mod store_choice;
mod store_events;
mod store_health;
mod store_log;
mod waiting;
mod xds;

use std::process::ExitCode;

use clap::Parser;

/// Returns memory to the system some seconds after it is freed. With the allocator of glibc a process keeps
/// what it took at its peak, and any stranger can cause a peak.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).into()
}
