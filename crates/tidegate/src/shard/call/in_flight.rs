//! The calls to one store that are in flight, as its breaker counts them.
//!
//! Invariant: every call is reported to the breaker once: as replied, failed, unsent, or, when it is dropped, as
//! abandoned. Changes of the breaker are published from here, outside its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, FailureKind, SINGLE_BATCH};
use tidegate_core::units::Nanos;

use crate::runtime::InFlightGuard;
use crate::shard::call::StoreCallError;
use crate::shard::call::breaker::{Breaker, BreakerChange};
use crate::shard::call::failure_counts::FailureCounts;
use crate::shard::event::{StoreEvent, Watcher};
use crate::shard::settings::ResilienceSettings;

/// The breaker and the bulkhead of one store.
pub(crate) struct InFlight {
    breaker: Mutex<Breaker>,
    calls: Arc<AtomicUsize>,
    max_calls: usize,
    failures: Arc<FailureCounts>,
    watcher: Watcher,
    /// When the breaker last closed.
    closed_at: AtomicU64,
    /// When the newest call with a reply was sent.
    newest_replied: AtomicU64,
    /// When a record that cannot be used was last reported; zero if never.
    record_reported_at: AtomicU64,
}

/// How often a record that cannot be used is reported.
const REPORT_INTERVAL: Nanos = Nanos::from_secs(60);

/// A call in flight. Dropping it reports it as abandoned.
pub(crate) struct CallInFlight {
    in_flight: Arc<InFlight>,
    /// `None`: it is a ping.
    call: Option<InFlightGuard>,
    sent: Nanos,
    reported: bool,
}

impl InFlight {
    pub(crate) fn new(settings: &ResilienceSettings, watcher: Watcher) -> Arc<Self> {
        Arc::new(InFlight {
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            calls: Arc::default(),
            max_calls: settings.max_in_flight,
            failures: Arc::clone(&settings.failures),
            watcher,
            closed_at: AtomicU64::new(0),
            newest_replied: AtomicU64::new(0),
            record_reported_at: AtomicU64::new(0),
        })
    }

    pub(crate) fn breaker_is_open(&self) -> bool {
        self.breaker.lock().is_open()
    }

    /// A call of `sets` charge sets is about to be sent. Many sets weigh as much as several calls: until their replies
    /// arrive, this node remembers all of them.
    pub(crate) fn enter(self: &Arc<Self>, now: Nanos, sets: usize) -> Result<CallInFlight, StoreCallError> {
        let mut breaker = self.breaker.lock();
        if breaker.is_open() {
            return Err(StoreCallError::BreakerOpen);
        }
        let call = InFlightGuard::begin_below(self.max_calls, sets.div_ceil(SINGLE_BATCH), &self.calls);
        let call = call.ok_or(StoreCallError::BulkheadFull)?;
        breaker.sent(now);
        Ok(self.begin(Some(call), now))
    }

    /// A ping is about to be sent. Pings pass an open breaker.
    pub(crate) fn ping(self: &Arc<Self>, now: Nanos) -> CallInFlight {
        self.breaker.lock().sent(now);
        self.begin(None, now)
    }

    fn begin(self: &Arc<Self>, call: Option<InFlightGuard>, sent: Nanos) -> CallInFlight {
        CallInFlight { in_flight: Arc::clone(self), call, sent, reported: false }
    }

    /// Opens the breaker if the store has been silent for too long.
    pub(crate) fn check_silence(&self, now: Nanos) {
        self.update(now, |breaker| breaker.check_silence(now));
    }

    /// A ping is late.
    pub(crate) fn ping_missed(&self, now: Nanos) {
        self.update(now, |breaker| {
            breaker.ping_missed();
            breaker.check_silence(now)
        });
    }

    /// When the breaker last closed; zero if it never opened.
    pub(crate) fn closed_at(&self) -> Nanos {
        Nanos::new(self.closed_at.load(Ordering::Acquire))
    }

    fn update(&self, now: Nanos, event: impl FnOnce(&mut Breaker) -> Option<BreakerChange>) {
        let change = event(&mut self.breaker.lock());
        match change {
            Some(BreakerChange::Opened(cause)) => {
                if cause.kind == FailureKind::Silent {
                    self.failures.record(&cause); // no single call failed
                }
                (self.watcher)(StoreEvent::BreakerOpened { cause });
            }
            Some(BreakerChange::Closed) => {
                self.closed_at.store(now.get(), Ordering::Release);
                (self.watcher)(StoreEvent::BreakerClosed);
            }
            None => {}
        }
    }
}

impl CallInFlight {
    /// The call was not sent: the store is not joined yet.
    pub(crate) fn unsent(mut self) {
        self.reported = true;
        self.in_flight.breaker.lock().unsent();
    }

    pub(crate) fn is_ping(&self) -> bool {
        self.call.is_none()
    }

    /// A reply arrived, in time or late.
    pub(crate) fn replied(mut self, now: Nanos) {
        self.reported = true;
        self.in_flight.newest_replied.fetch_max(self.sent.get(), Ordering::AcqRel);
        let is_ping = self.is_ping();
        let replied = |breaker: &mut Breaker| if is_ping { breaker.ping_replied(now) } else { breaker.replied(now) };
        self.in_flight.update(now, replied);
    }

    /// The call ended with an error.
    pub(crate) fn failed(mut self, now: Nanos, cause: FailureCause) {
        self.in_flight.failures.record(&cause);
        if self.is_outdated() {
            return;
        }
        self.reported = true;
        let is_ping = self.is_ping();
        self.in_flight.update(now, |breaker| {
            if is_ping { breaker.ping_failed(now, || cause) } else { breaker.failed(now, || cause) }
        });
    }

    /// The store replied that it cannot use a record. That proves nothing about other records: the store is up.
    pub(crate) fn record_rejected(self, now: Nanos, cause: FailureCause) {
        let in_flight = Arc::clone(&self.in_flight);
        in_flight.failures.record(&cause);
        self.replied(now);
        let is_due = |last| last == 0 || now.since(Nanos::new(last)) >= REPORT_INTERVAL;
        let next = |last| is_due(last).then_some(now.get());
        if in_flight.record_reported_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok() {
            (in_flight.watcher)(StoreEvent::RecordRejected { cause });
        }
    }

    /// Whether a reply to a later call has arrived: then the failure of this one proves nothing about the store. A
    /// connection that was replaced fails all of its calls at once, long after.
    fn is_outdated(&self) -> bool {
        self.sent.get() < self.in_flight.newest_replied.load(Ordering::Acquire)
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        if !self.reported {
            self.in_flight.breaker.lock().abandoned();
        }
    }
}
