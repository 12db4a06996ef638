//! The `tidegate` binary: the rate limiter as a service, and the commands around it.

mod any_store;
#[cfg(test)]
mod caps;
mod cli;
mod config;
mod data_dir;
mod decision_ids;
mod denials;
mod doctor;
mod edges;
mod envoy_compat;
mod first_config;
#[cfg(test)]
mod instruction_counts;
mod listen_address;
mod log_writer;
mod logs;
mod maybe_ready;
mod membership_file;
mod net;
mod node_identity;
mod panics;
mod pending_file;
mod policy_watcher;
mod protobuf;
mod readiness;
mod secret_file;
mod service;
mod shutdown;
mod store_choice;
mod store_error_log;
mod store_events;
mod store_health;
mod xds;

use std::process::ExitCode;

use clap::Parser;

/// The allocator returns freed memory to the system after some seconds. With the allocator of glibc a process holds
/// on to the memory of its peak, and any client can cause a peak.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).into()
}
