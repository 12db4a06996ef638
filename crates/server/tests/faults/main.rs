//! Four real nodes on a real store that breaks: what is promised of them, judged by what clients saw.
//!
//! Load comes on schedule, whatever the nodes do. An admission counts for an interval only if it surely
//! happened there, so a finding is a fact and not a matter of this machine's speed. What took how long
//! is reported and not judged; what a node gave up is judged by its own metrics.

// Clippy knows tests by `#[test]` only; what is beside them may fail just as loudly.
#![allow(clippy::unwrap_used)]

mod amnesia;
mod blows;
mod clocks;
mod cluster;
mod exact;
mod failover;
mod fleet;
mod glitches;
mod history;
mod late;
mod lease_death;
mod leases;
mod lenient;
mod load;
mod outage;
mod parting;
mod rates;
mod reservations;
mod restores;
mod scene;
mod slots;
mod turning;

#[path = "../e2e/http.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod http;
#[path = "../e2e/server.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod server;
#[path = "../e2e/window.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod window;
