//! The measurements and goals of each protocol, and the notes on how to read them.

use bench_report::Goal;

use crate::load::ServerConcurrency;
use crate::subject::{GRPC_NAMES, INCR, LIMITADOR, RESP_NAMES, THROTTLECRAB};
use crate::tables::ProtocolResults;

/// The plan of one protocol.
pub(crate) struct ProtocolPlan {
    /// The rows of its tables.
    pub(crate) names: &'static [&'static str],
    /// The server to which all others are compared.
    pub(crate) reference: &'static str,
    pub(crate) concurrencies: [(&'static str, ServerConcurrency); 2],
    pub(crate) note: &'static str,
    pub(crate) goals: fn(&ProtocolResults) -> Vec<Goal>,
}

pub(crate) const RESP: ProtocolPlan = ProtocolPlan {
    names: &RESP_NAMES,
    reference: INCR,
    concurrencies: [("RESP, pipeline 1", concurrency(50, 1)), ("RESP, pipeline 16", concurrency(50, 16))],
    note: RESP_NOTE,
    goals: |results| {
        let what = format!("{}: CPU of Redis INCR", results.title);
        vec![Goal::at_most(what, results.cpu_of(INCR), 1.0)]
    },
};

pub(crate) const GRPC: ProtocolPlan = ProtocolPlan {
    names: &GRPC_NAMES,
    reference: THROTTLECRAB,
    concurrencies: [
        ("gRPC, 50 connections, 1 call each", concurrency(50, 1)),
        ("gRPC, 10 connections, 20 calls each", concurrency(10, 20)),
    ],
    note: GRPC_NOTE,
    goals: |results| {
        let of = |whose| format!("{}: CPU of {whose}", results.title);
        vec![
            Goal::below(of(THROTTLECRAB), results.cpu_of(THROTTLECRAB), 1.0),
            Goal::at_most(of(LIMITADOR), results.cpu_of(LIMITADOR), 0.65),
        ]
    },
};

const fn concurrency(connections: usize, at_once: usize) -> ServerConcurrency {
    ServerConcurrency { connections, at_once }
}

const RESP_NOTE: &str = "50 connections, 10,000 keys in turn, all admitted; one client for all: commands \
    prepared before the run, a pipeline in one write, replies read one by one. Server on one core, load on the \
    other. CPU-s/M: processor seconds of the server for a million decisions, the figure that survives noise, \
    and *spread* the spread of its rounds. *busy*: share of the core. Medians of interleaved rounds. \
    Tidegate and redis-cell serve `CL.THROTTLE`, throttlecrab-server `THROTTLE`; `INCR` decides nothing. \
    redis-cell is a module in the same Redis. throttlecrab-server writes each reply by itself and without \
    `TCP_NODELAY`, so a pipeline waits for delayed acknowledgements.";

const GRPC_NOTE: &str = "One client on the `h2` crate for all, 10,000 keys in turn, all admitted. Tidegate \
    serves `ShouldRateLimit` with one descriptor and a file of the reference service with one limit; \
    throttlecrab-server serves its `Throttle`. limitador's server is no published crate and cannot be installed by \
    name: *limitador in tonic* is its crate in memory behind the stack that server uses, without its metrics \
    and tracing, which could only add to it.";

pub(crate) const IDLE_NOTE: &str = "Resident bytes of the server, from `/proc`, for each connection that has sent \
    one request and stays open, after buffers were freed. Each server is a fresh process that has served a few \
    connections before. What the kernel holds for sockets is not in it.";

pub(crate) const PROFILE_NOTE: &str = "By `perf`, each function without those it calls.";
