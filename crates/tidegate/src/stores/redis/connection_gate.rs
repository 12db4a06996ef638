//! The state that all connections of a store share: whether scripts may run, and a notification for new
//! connections. It outlives servers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Whether scripts may run, and the notification.
pub(super) struct ConnectionGate {
    open: AtomicBool,
    /// The number of calls of `lock`.
    locks: AtomicU32,
    /// Notified whenever a connection is established.
    pub(super) connected: Notify,
}

impl ConnectionGate {
    /// A gate that is open.
    pub(super) fn new() -> Self {
        ConnectionGate { open: AtomicBool::new(true), locks: AtomicU32::new(0), connected: Notify::new() }
    }

    /// Forbids scripts from now on. Plain commands are always allowed.
    pub(super) fn lock(&self) {
        self.locks.fetch_add(1, Ordering::AcqRel);
        self.open.store(false, Ordering::Release);
    }

    /// Allows scripts from now on.
    pub(super) fn unlock(&self) {
        self.open.store(true, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether the gate is locked for the first time: this node is about to read the secret of the others. A gate
    /// that is locked again stays shut, because this node's secret differs from the store's.
    pub(super) fn is_joining(&self) -> bool {
        !self.is_open() && self.locks.load(Ordering::Acquire) == 1
    }

    /// Waits until `is_ready`, which is checked after each new connection.
    pub(super) async fn wait_until(&self, is_ready: impl Fn() -> bool) {
        loop {
            let changed = self.connected.notified();
            tokio::pin!(changed);
            // Registered before the check, so that a connection made during the check is not missed.
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
        assert!(!rejected.is_joining(), "its secret is not the store's");
    }
}
