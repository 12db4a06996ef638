//! The phase of the shutdown, which every connection watches.
//!
//! Invariant: phases only move forward.

use tokio::sync::{mpsc, watch};

/// The progress of the shutdown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ShutdownPhase {
    /// No shutdown.
    Serving,
    /// `/readyz` reports not ready, requests are served, connections are closed gracefully.
    Draining,
    /// No new connections; requests in flight are finished.
    Closing,
}

/// The shutdown state that all tasks share: the phase, and a guard to hold while work is in flight.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownHandle {
    phase: watch::Sender<ShutdownPhase>,
    in_flight: mpsc::Sender<()>,
}

/// The other end of a [`ShutdownHandle`]: waits until all guards are dropped.
#[derive(Debug)]
pub(crate) struct ShutdownWaiter(pub(crate) mpsc::Receiver<()>);

impl ShutdownHandle {
    /// A service in the phase `Serving`.
    pub(crate) fn new() -> (Self, ShutdownWaiter) {
        let (busy, idle) = mpsc::channel(1);
        (ShutdownHandle { phase: watch::Sender::new(ShutdownPhase::Serving), in_flight: busy }, ShutdownWaiter(idle))
    }

    /// Subscribes to the phase.
    pub(crate) fn subscribe(&self) -> watch::Receiver<ShutdownPhase> {
        self.phase.subscribe()
    }

    /// A guard to hold until a connection is finished.
    pub(crate) fn in_flight_guard(&self) -> mpsc::Sender<()> {
        self.in_flight.clone()
    }

    pub(crate) fn advance_to(&self, next: ShutdownPhase) {
        self.phase.send_if_modified(|now| {
            let forward = next > *now;
            *now = next.max(*now);
            forward
        });
    }
}
