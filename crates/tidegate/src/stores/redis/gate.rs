//! What all connections of a store have in common: whether scripts may be run, and whom to tell of a
//! connection that stands. Servers come and go; this stays.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether a store may count, and a bell.
pub(super) struct Gate {
    open: AtomicBool,
    /// Rung whenever a connection stands.
    pub(super) connected: Notify,
}

impl Gate {
    /// An open gate.
    pub(super) fn new() -> Self {
        Gate {
            open: AtomicBool::new(true),
            connected: Notify::new(),
        }
    }

    /// Whether scripts may be run from now on. Plain commands always may.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until `stands`, looking whenever a connection was made.
    pub(super) async fn until(&self, stands: impl Fn() -> bool) {
        loop {
            let changed = self.connected.notified();
            tokio::pin!(changed);
            // Heard from here on, so that what happens while looking is not missed.
            changed.as_mut().enable();
            if stands() {
                return;
            }
            changed.await;
        }
    }
}
