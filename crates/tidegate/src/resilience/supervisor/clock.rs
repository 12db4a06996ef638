//! Every good ping compares the store's clock with this node's wall clock.
//!
//! Nothing is decided by what comes out of it: it is told, and people act on it.

use tidegate_core::store::{Probe, Store};
use tidegate_core::units::Nanos;

use super::ShardSupervisor;
use crate::resilience::clock_watch::ClockReading;
use crate::resilience::event::StoreEvent;
use crate::runtime::Runtime;

impl<S: Store + Probe + 'static, R: Runtime> ShardSupervisor<S, R> {
    /// The store said it was `at`, in an exchange that has just ended and took `took`.
    pub(super) fn check_clock(&self, took: Nanos, at: Nanos) {
        let sent = self.runtime.wall().since(took);
        let events = self.clock_watch.lock().record(sent, took, at);
        for event in events {
            (self.watcher)(StoreEvent::Clock(event));
        }
    }

    /// How far the clocks are apart, once the store has answered.
    pub(in crate::resilience) fn clock_reading(&self) -> Option<ClockReading> {
        self.clock_watch.lock().reading()
    }
}
