//! Four real nodes on a real store that breaks. Their promises are judged by what clients saw.
//!
//! Load is sent on a schedule, whatever the nodes do. An admission counts for an interval only if it surely
//! happened there, so a finding is a fact and does not depend on this machine's speed. Durations are printed and
//! not asserted; charges without a reply are taken from the nodes' own metrics.

// Clippy recognizes tests by `#[test]` only. Helpers beside them may panic, too.
#![allow(clippy::unwrap_used)]

mod clocks;
mod cluster;
mod counting_changes;
mod crashes;
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
mod node_shutdown;
mod outage;
mod permits;
mod rates;
mod reservations;
mod restores;
mod scene;
mod store_loss;

#[path = "../e2e/http.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod http;
#[path = "../e2e/server.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod server;
#[path = "../e2e/window.rs"]
#[allow(dead_code, reason = "the target `e2e` uses the rest")]
mod window;
