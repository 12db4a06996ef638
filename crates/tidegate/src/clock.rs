//! The source of the current time. It is injected, so that tests, simulator and production run the same code.
//!
//! Decisions use [`Clock::now`]. On a [`SystemClock`] it never runs backwards, however the wall clock is set: it
//! is anchored to the Unix epoch once, when the clock is created. Headers that contain a date use
//! [`Clock::wall`], the wall clock of the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::units::Nanos;

/// A source of instants since the Unix epoch.
pub trait Clock: Send + Sync {
    /// The current time, for decisions.
    fn now(&self) -> Nanos;

    /// The current calendar time, for dates shown to people.
    fn wall(&self) -> Nanos {
        self.now()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn wall(&self) -> Nanos {
        (**self).wall()
    }
}

/// The machine's monotonic clock, anchored to the Unix epoch by the wall clock at its creation.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    epoch: Nanos,
}

impl SystemClock {
    /// Anchors the clock now.
    pub fn new() -> Self {
        SystemClock { started: Instant::now(), epoch: wall() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        self.epoch.plus(self.started.elapsed().into())
    }

    fn wall(&self) -> Nanos {
        wall()
    }
}

/// The wall clock of this moment. A clock set before 1970 reads as 1970.
pub(crate) fn wall() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(Nanos::ZERO, Nanos::from)
}

/// A clock that moves only by `advance` and `set`. Clones share one time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that reads `now`.
    pub fn at(now: Nanos) -> Self {
        ManualClock { now: Arc::new(AtomicU64::new(now.get())) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, span: impl Into<Nanos>) {
        self.now.fetch_add(span.into().get(), Ordering::AcqRel);
    }

    /// Moves the clock to `now`, which may be earlier.
    pub fn set(&self, now: Nanos) {
        self.now.store(now.get(), Ordering::Release);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos::new(self.now.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_starts_at_the_wall_clock_and_never_runs_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.wall().since(first) < Nanos::from_secs(60));
        assert!((0..1_000).all(|_| clock.now() >= first));
    }

    #[test]
    fn clones_of_a_manual_clock_share_one_time() {
        let clock = ManualClock::at(Nanos::from_secs(5));
        let same = clock.clone();
        clock.advance(Nanos::from_secs(1));
        assert_eq!(same.now(), Nanos::from_secs(6));
        same.set(Nanos::ZERO);
        assert_eq!(clock.now(), Nanos::ZERO);
    }
}
