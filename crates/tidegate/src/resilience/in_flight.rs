//! The calls to one store that are in flight, as its breaker counts them.
//!
//! Every call is reported to the breaker once: as answered, as failed, or as abandoned when it is dropped.
//! Changes of the breaker are published from here, outside its lock.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, FailureKind};
use tidegate_core::units::Nanos;

use super::breaker::{Breaker, Change};
use super::bulkhead::{Bulkhead, Permit};
use super::event::{Event, Watcher};
use super::failure_counts::FailureCounts;
use super::settings::Settings;

/// The breaker of one store and the bound on its calls.
pub(super) struct InFlight {
    breaker: Mutex<Breaker>,
    calls: Bulkhead,
    failures: Arc<FailureCounts>,
    watcher: Watcher,
}

/// Why a call may not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Barred {
    /// The breaker is open.
    Open,
    /// Too many calls are in flight.
    Full,
}

/// A call in flight. Dropped, it counts as abandoned.
pub(super) struct CallInFlight {
    of: Arc<InFlight>,
    _permit: Option<Permit>,
    reported: bool,
}

impl InFlight {
    pub(super) fn new(settings: &Settings, watcher: Watcher) -> Arc<Self> {
        Arc::new(InFlight {
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            calls: Bulkhead::new(settings.in_flight),
            failures: Arc::clone(&settings.failures),
            watcher,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.lock().is_open()
    }

    /// A call is about to be sent.
    pub(super) fn enter(self: &Arc<Self>, now: Nanos) -> Result<CallInFlight, Barred> {
        let mut breaker = self.breaker.lock();
        if breaker.is_open() {
            return Err(Barred::Open);
        }
        let permit = self.calls.enter().ok_or(Barred::Full)?;
        breaker.sent(now);
        Ok(self.call(Some(permit)))
    }

    /// A ping is about to be sent. Pings pass an open breaker.
    pub(super) fn ping(self: &Arc<Self>, now: Nanos) -> CallInFlight {
        self.breaker.lock().sent(now);
        self.call(None)
    }

    fn call(self: &Arc<Self>, permit: Option<Permit>) -> CallInFlight {
        CallInFlight {
            of: Arc::clone(self),
            _permit: permit,
            reported: false,
        }
    }

    fn update(&self, event: impl FnOnce(&mut Breaker) -> Option<Change>) -> Option<Change> {
        let change = event(&mut self.breaker.lock());
        match &change {
            Some(Change::Opened(cause)) => {
                let cause = cause.clone();
                if cause.kind == FailureKind::Silent {
                    self.failures.record(&cause); // no call of its own failed
                }
                (self.watcher)(Event::BreakerOpened { cause });
            }
            Some(Change::Closed) => (self.watcher)(Event::BreakerClosed),
            None => {}
        }
        change
    }
}

impl CallInFlight {
    /// The store answered, in time or late.
    pub(super) fn replied(mut self, now: Nanos) -> Option<Change> {
        self.reported = true;
        self.of.update(|breaker| breaker.replied(now))
    }

    /// The call ended with an error.
    pub(super) fn failed(
        mut self,
        now: Nanos,
        cause: impl FnOnce() -> FailureCause,
    ) -> Option<Change> {
        self.reported = true;
        let cause = cause();
        self.of.failures.record(&cause);
        self.of.update(|breaker| breaker.failed(now, || cause))
    }

    /// The ping was answered.
    pub(super) fn ping_replied(mut self, now: Nanos) -> Option<Change> {
        self.reported = true;
        self.of.update(|breaker| breaker.ping_replied(now))
    }

    /// The ping ended with an error.
    pub(super) fn ping_failed(
        mut self,
        now: Nanos,
        cause: impl FnOnce() -> FailureCause,
    ) -> Option<Change> {
        self.reported = true;
        let cause = cause();
        self.of.failures.record(&cause);
        self.of.update(|breaker| breaker.ping_failed(now, || cause))
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        if !self.reported {
            self.of.breaker.lock().abandoned();
        }
    }
}
