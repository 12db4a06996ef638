//! What all connections of a store have in common: whether scripts may be run, and whom to tell of a
//! connection that stands. Servers come and go; this stays.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Whether a store may count, and a bell.
pub(super) struct ConnectionGate {
    open: AtomicBool,
    /// How often it was locked.
    locks: AtomicU32,
    /// Rung whenever a connection stands.
    pub(super) connected: Notify,
}

impl ConnectionGate {
    /// An open gate.
    pub(super) fn new() -> Self {
        ConnectionGate {
            open: AtomicBool::new(true),
            locks: AtomicU32::new(0),
            connected: Notify::new(),
        }
    }

    /// No scripts may be run from now on. Plain commands always may.
    pub(super) fn lock(&self) {
        self.locks.fetch_add(1, Ordering::AcqRel);
        self.open.store(false, Ordering::Release);
    }

    /// Scripts may be run from now on.
    pub(super) fn unlock(&self) {
        self.open.store(true, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether it is locked for the first time: this node is about to learn the secret of the others. A gate
    /// that is locked once more is shut, because this node has another secret than the store.
    pub(super) fn is_joining(&self) -> bool {
        !self.is_open() && self.locks.load(Ordering::Acquire) == 1
    }

    /// Waits until `is_ready`, looking whenever a connection was made.
    pub(super) async fn wait_until(&self, is_ready: impl Fn() -> bool) {
        loop {
            let changed = self.connected.notified();
            tokio::pin!(changed);
            // Heard from here on, so that what happens while looking is not missed.
            changed.as_mut().enable();
            if is_ready() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_joins_once_and_is_shut_out_whenever_it_is_locked_again() {
        let gate = ConnectionGate::new();
        assert!(gate.is_open() && !gate.is_joining());
        gate.lock();
        assert!(gate.is_joining());
        gate.unlock();
        assert!(gate.is_open() && !gate.is_joining());
        gate.lock();
        assert!(!gate.is_open() && !gate.is_joining());
        let rejected = ConnectionGate::new();
        rejected.lock();
        rejected.lock();
        assert!(!rejected.is_joining(), "another secret than the store's");
    }
}
