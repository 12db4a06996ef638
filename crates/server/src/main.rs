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
mod ids;
mod kept;
mod live;
mod logs;
mod net;
mod pending;
mod protobuf;
mod roster;
mod secret_file;
mod service;
mod sink;
mod store_choice;
mod store_events;
mod store_health;
mod waiting;
mod xds;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).into()
}
