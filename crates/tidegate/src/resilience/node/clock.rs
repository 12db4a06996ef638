//! Every good ping compares the store's clock with this node's wall clock.
//!
//! Nothing is decided by what comes out of it: it is told, and people act on it.

use tidegate_core::store::{Probe, Store};
use tidegate_core::units::Nanos;

use super::Node;
use crate::resilience::clock_watch::ClockReading;
use crate::resilience::event::Event;
use crate::runtime::Runtime;

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// The store said it was `at`, in an exchange that has just ended and took `took`.
    pub(super) fn watch_clock(&self, took: Nanos, at: Nanos) {
        let sent = self.runtime.wall().since(took);
        let news = self.watch.lock().note(sent, took, at);
        for news in news {
            (self.watcher)(Event::Clock(news));
        }
    }

    /// How far the clocks are apart, once the store has answered.
    pub(in crate::resilience) fn clock_reading(&self) -> Option<ClockReading> {
        self.watch.lock().reading()
    }
}
