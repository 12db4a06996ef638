//! Compares the store's clock with this node's wall clock at every good ping.
//!
//! No decision depends on the result. It is published for operators.

use tidegate_core::store::{Probe, Store};
use tidegate_core::units::Nanos;

use super::ShardSupervisor;
use crate::resilience::clock_watch::ClockReading;
use crate::resilience::event::StoreEvent;
use crate::runtime::Runtime;

impl<S: Store + Probe + 'static, R: Runtime> ShardSupervisor<S, R> {
    /// The store's time was `at`, in an exchange that has just ended and took `took`.
    pub(super) fn check_clock(&self, took: Nanos, at: Nanos) {
        let sent = self.runtime.wall().since(took);
        let events = self.clock_watch.lock().record(sent, took, at);
        for event in events {
            (self.watcher)(StoreEvent::Clock(event));
        }
    }

    /// The offset of the clocks, once there was a reply.
    pub(in crate::resilience) fn clock_reading(&self) -> Option<ClockReading> {
        self.clock_watch.lock().reading()
    }
}
