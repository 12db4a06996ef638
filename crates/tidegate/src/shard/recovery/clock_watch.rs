//! Measures the offset between the store's clock and this node's wall clock, and decides whether to warn.
//!
//! One exchange measures it to half its round trip. Of the last eight exchanges the one with the shortest round trip
//! counts, unless a later one contradicts it: then a clock was set, and earlier exchanges are dropped. Levels: `Fine`,
//! `Warn`, `Alarm`. Event: `record`, per exchange. Effects: a [`ClockEvent`] when the level changes or the offset
//! jumps. Decisions never use the offset, they use the store's time; but windows that follow the calendar and headers
//! that contain a date are wrong by it.

use std::collections::VecDeque;

use tidegate_core::units::Nanos;

/// The number of exchanges kept.
const MAX_EXCHANGES: usize = 8;
/// How fast clocks may drift apart before it counts as a step: 500 ppm, the allowed rate of slewing.
const DRIFT_PER_SECOND: u64 = 500_000;

/// The offsets at which the level rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockTolerance {
    /// The offset for a warning.
    pub warn: Nanos,
    /// The offset for an alarm.
    pub alarm: Nanos,
}

impl Default for ClockTolerance {
    fn default() -> Self {
        ClockTolerance { warn: Nanos::from_millis(20), alarm: Nanos::from_millis(50) }
    }
}

/// By how much the store's clock is ahead of this node's. Negative: behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOffset {
    /// In nanoseconds.
    pub nanos: i64,
    /// The maximum error: half a round trip.
    pub error: Nanos,
}

impl ClockOffset {
    /// The smallest offset that this proves.
    fn min_disagreement(self) -> Nanos {
        Nanos::new(self.nanos.unsigned_abs()).since(self.error)
    }
}

/// How bad the offset is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum ClockLevel {
    /// Within the tolerance.
    #[default]
    Fine,
    /// Worth a warning.
    Warn,
    /// Worth an alarm.
    Alarm,
}

/// The offset and its level at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockReading {
    /// The best estimate.
    pub offset: ClockOffset,
    /// The level of the offset.
    pub level: ClockLevel,
}

/// A change to report once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockEvent {
    /// The level changed.
    Level {
        /// The new level.
        level: ClockLevel,
        /// The measured offset.
        offset: ClockOffset,
    },
    /// A clock was set, or another server took over, and the offset moved by at least the warning tolerance. A clock
    /// that is slewed moves by less from one exchange to the next, and is not reported at each of them.
    Jumped {
        /// By how much the offset moved, in nanoseconds.
        by: i64,
    },
}

/// One exchange with the store.
#[derive(Clone, Copy, Debug)]
struct ClockExchange {
    at: Nanos,
    offset: ClockOffset,
}

/// Watches the clock of one shard.
#[derive(Debug, Default)]
pub struct ClockWatch {
    tolerance: ClockTolerance,
    exchanges: VecDeque<ClockExchange>,
    level: ClockLevel,
}

impl ClockWatch {
    /// A watch without exchanges.
    pub fn new(tolerance: ClockTolerance) -> Self {
        ClockWatch { tolerance, ..ClockWatch::default() }
    }

    /// Records an exchange: sent when the wall clock read `sent`, replied `took` later, with the store's time `store`.
    /// Returns at most a jump and a level.
    pub fn record(&mut self, sent: Nanos, took: Nanos, store: Nanos) -> Vec<ClockEvent> {
        let half = Nanos::new(took.get() / 2);
        let now = ClockExchange {
            at: sent,
            offset: ClockOffset { nanos: difference(store, sent.plus(half)), error: took.since(half) },
        };
        let mut events = Vec::new();
        if let Some(by) = self.jump(&now) {
            self.exchanges.clear();
            if by.unsigned_abs() >= self.tolerance.warn.get() {
                events.push(ClockEvent::Jumped { by });
            }
        }
        if self.exchanges.len() == MAX_EXCHANGES {
            self.exchanges.pop_front();
        }
        self.exchanges.push_back(now);
        events.extend(self.change());
        events
    }

    /// The best estimate, once there was a reply.
    pub fn offset(&self) -> Option<ClockOffset> {
        let best = self.exchanges.iter().min_by_key(|one| one.offset.error);
        best.map(|best| best.offset)
    }

    /// The level of the present offset.
    pub fn level(&self) -> ClockLevel {
        self.level
    }

    /// The offset and its level, once there was a reply.
    pub fn reading(&self) -> Option<ClockReading> {
        let level = self.level;
        self.offset().map(|offset| ClockReading { offset, level })
    }

    /// By how much the offset moved, if the newest exchange contradicts the best one.
    fn jump(&self, now: &ClockExchange) -> Option<i64> {
        let best = self.exchanges.iter().min_by_key(|one| one.offset.error)?;
        let seconds = now.at.since(best.at).secs_up().saturating_add(1);
        let drift = Nanos::new(seconds.saturating_mul(DRIFT_PER_SECOND));
        let possible = best.offset.error.plus(now.offset.error).plus(drift);
        let by = now.offset.nanos.saturating_sub(best.offset.nanos);
        (by.unsigned_abs() > possible.get()).then_some(by)
    }

    /// The level, if it has changed. It falls only when the offset is a fifth below the tolerance that raised it, so
    /// that the level does not flicker at the edge.
    fn change(&mut self) -> Option<ClockEvent> {
        let offset = self.offset()?;
        let disagreement = offset.min_disagreement();
        let from = |bound: Nanos, level| {
            if self.level >= level { Nanos::new(bound.get() / 5 * 4) } else { bound }
        };
        let level = if disagreement >= from(self.tolerance.alarm, ClockLevel::Alarm) {
            ClockLevel::Alarm
        } else if disagreement >= from(self.tolerance.warn, ClockLevel::Warn) {
            ClockLevel::Warn
        } else {
            ClockLevel::Fine
        };
        let changed = level != self.level;
        self.level = level;
        changed.then_some(ClockEvent::Level { level, offset })
    }
}

/// `a - b`, saturating at 64 bits.
fn difference(a: Nanos, b: Nanos) -> i64 {
    let span = |nanos: Nanos| i64::try_from(nanos.get()).unwrap_or(i64::MAX);
    if a >= b { span(a.since(b)) } else { -span(b.since(a)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(1_000_000);

    /// An exchange `secs` after the start that took `took_ms`, with the store `ahead_ms` ahead.
    fn exchange(watch: &mut ClockWatch, secs: u64, took_ms: u64, ahead_ms: i64) -> Vec<ClockEvent> {
        let sent = START.plus(Nanos::from_secs(secs));
        let middle = sent.get() + took_ms * 500_000;
        let store = middle.checked_add_signed(ahead_ms * 1_000_000).unwrap();
        watch.record(sent, Nanos::from_millis(took_ms), Nanos::new(store))
    }

    fn levels(events: &[ClockEvent]) -> Vec<ClockLevel> {
        let level = |event: &ClockEvent| match event {
            ClockEvent::Level { level, .. } => Some(*level),
            ClockEvent::Jumped { .. } => None,
        };
        events.iter().filter_map(level).collect()
    }

    #[test]
    fn the_exchange_with_the_shortest_round_trip_counts() {
        let mut watch = ClockWatch::default();
        exchange(&mut watch, 0, 20, 3);
        exchange(&mut watch, 1, 2, 7);
        exchange(&mut watch, 2, 30, -2);
        let offset = watch.offset().unwrap();
        assert_eq!(offset.nanos, 7_000_000);
        assert_eq!(offset.error, Nanos::from_millis(1));
    }

    #[test]
    fn a_slow_exchange_proves_nothing() {
        let mut watch = ClockWatch::default();
        assert_eq!(exchange(&mut watch, 0, 200, 60), []);
        assert_eq!(watch.level(), ClockLevel::Fine);
    }

    #[test]
    fn levels_are_reported_once_and_do_not_flicker() {
        let mut watch = ClockWatch::default();
        assert_eq!(levels(&exchange(&mut watch, 0, 2, 22)), [ClockLevel::Warn]);
        assert_eq!(exchange(&mut watch, 1, 2, 22), []);
        let mut watch = ClockWatch::default();
        assert_eq!(levels(&exchange(&mut watch, 0, 2, 52)), [ClockLevel::Alarm]);
        for secs in 1..20 {
            assert_eq!(exchange(&mut watch, secs, 2, 50), [], "second {secs}");
        }
        let mut later = (20..60).flat_map(|secs| exchange(&mut watch, secs * 60, 2, 0));
        assert!(matches!(later.next(), Some(ClockEvent::Level { level: ClockLevel::Fine, .. })));
        assert_eq!(later.next(), None);
    }

    #[test]
    fn a_clock_that_is_set_is_noticed_at_once() {
        let mut watch = ClockWatch::default();
        for secs in 0..8 {
            assert_eq!(exchange(&mut watch, secs, 1, 0), []);
        }
        let two_hours_ms = 2 * 3_600 * 1_000;
        let events = exchange(&mut watch, 8, 1, two_hours_ms);
        assert_eq!(events[0], ClockEvent::Jumped { by: two_hours_ms * 1_000_000 });
        assert_eq!(levels(&events), [ClockLevel::Alarm]);
        let back = exchange(&mut watch, 9, 1, 0);
        assert_eq!(back[0], ClockEvent::Jumped { by: -two_hours_ms * 1_000_000 });
        assert_eq!(levels(&back), [ClockLevel::Fine]);
    }

    /// chrony slews by up to a tenth. Reported at every ping, that would be five lines a second.
    #[test]
    fn a_clock_that_is_slewed_is_followed_without_reporting_jumps() {
        let mut watch = ClockWatch::default();
        let mut events = Vec::new();
        for tenths in 0..100 {
            let sent = START.plus(Nanos::from_millis(tenths * 100));
            let store = sent.plus(Nanos::from_millis(tenths * 8));
            events.extend(watch.record(sent, Nanos::ZERO, store));
        }
        assert_eq!(levels(&events), [ClockLevel::Warn, ClockLevel::Alarm]);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(watch.offset().unwrap().nanos, 792_000_000);
    }

    #[test]
    fn drift_is_no_jump() {
        let mut watch = ClockWatch::default();
        for hour in 0..48 {
            let events = exchange(&mut watch, hour * 3_600, 1, hour.try_into().unwrap());
            assert!(!events.iter().any(|event| matches!(event, ClockEvent::Jumped { .. })));
        }
        assert!(watch.offset().unwrap().nanos >= 40_000_000);
    }
}
