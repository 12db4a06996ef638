//! Where the present comes from. Injected, so that tests, simulator and production run one code.
//!
//! Decisions use [`Clock::now`], which never runs backwards on a [`SystemClock`] however the wall
//! clock is set: it is anchored to the epoch once, when it is made. Headers that name a date use
//! [`Clock::wall`], the wall clock of the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::units::Nanos;

/// A source of instants since the Unix epoch.
pub trait Clock: Send + Sync {
    /// The present, for decisions.
    fn now(&self) -> Nanos;

    /// The present as a calendar would have it, for dates told to people.
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

/// The machine's monotonic clock, counted from the epoch as the wall clock had it at the start.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    epoch: Nanos,
}

impl SystemClock {
    /// Anchors the clock now.
    pub fn new() -> Self {
        SystemClock {
            started: Instant::now(),
            epoch: wall(),
        }
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

/// The wall clock of this moment. One set before 1970 reads as 1970.
pub(crate) fn wall() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(Nanos::ZERO, Nanos::from)
}

/// A clock that moves only when told to. Clones share one time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that reads `now`.
    pub fn at(now: Nanos) -> Self {
        ManualClock {
            now: Arc::new(AtomicU64::new(now.get())),
        }
    }

    /// Moves it forward.
    pub fn advance(&self, span: Nanos) {
        self.now.fetch_add(span.get(), Ordering::AcqRel);
    }

    /// Moves it anywhere, also back.
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
