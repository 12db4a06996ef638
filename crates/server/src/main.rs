//! The `tidegate` binary.
#![allow(dead_code)]

mod address;
mod config;
mod drain;
mod edges;
mod ids;
mod logs;
mod net;

fn main() {}
