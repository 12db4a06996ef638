//! The units of Tidegate: instants, spans, ticks and costs.
//!
//! Arithmetic is defined once, here, and saturates: the end of time denies, it never wraps around and admits. Knows
//! nothing of clocks: an instant is always an argument.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// Nanoseconds: an instant since the Unix epoch, or a span between two of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// The Unix epoch, or a span of no length.
    pub const ZERO: Nanos = Nanos(0);
    /// The end of time.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A value of `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Nanos(nanos)
    }

    /// A value of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A value of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Nanos(secs.saturating_mul(1_000_000_000))
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Later by `span`, at most the end of time.
    #[must_use]
    pub const fn plus(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, rounded up: a reported wait is never too short.
    pub const fn millis_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole seconds, rounded up.
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// The same span as a `Duration`.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Prints as people write it: `1.5s`, `250ms`, `40ns`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The units that one request charges. Never zero: a query without a charge is another verb, peek.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit, the cost of a plain request.
    pub const ONE: Cost = Cost(NonZeroU64::MIN);

    /// A cost of `units`; `None` for zero.
    pub const fn new(units: u64) -> Option<Self> {
        match NonZeroU64::new(units) {
            Some(units) => Some(Cost(units)),
            None => None,
        }
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// A cost of `units` more; saturates.
    #[must_use]
    pub const fn plus(self, units: u64) -> Self {
        Cost(self.0.saturating_add(units))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The resolution at which one limit reads time. Chosen when the limit is compiled: the finest whose products stay
/// exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tick {
    /// One nanosecond.
    Nano,
    /// One microsecond.
    Micro,
    /// One millisecond.
    Milli,
}

impl Tick {
    /// Every resolution, finest first.
    pub const ALL: [Tick; 3] = [Tick::Nano, Tick::Micro, Tick::Milli];

    /// How many nanoseconds one tick lasts.
    pub const fn nanos(self) -> u64 {
        match self {
            Tick::Nano => 1,
            Tick::Micro => 1_000,
            Tick::Milli => 1_000_000,
        }
    }

    /// The tick in which `at` falls. Flooring absolute time does not drift: differences of floors
    /// telescope.
    pub const fn floor(self, at: Nanos) -> u64 {
        match self {
            Tick::Nano => at.0,
            Tick::Micro => at.0 / 1_000,
            Tick::Milli => at.0 / 1_000_000,
        }
    }

    /// The first instant of tick `count`.
    pub const fn start(self, count: u64) -> Nanos {
        Nanos(count.saturating_mul(self.nanos()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_and_never_to_zero() {
        assert_eq!(Nanos::new(1).millis_up(), 1);
        assert_eq!(Nanos::from_millis(400).secs_up(), 1);
        assert_eq!(Nanos::ZERO.secs_up(), 0);
    }

    #[test]
    fn arithmetic_saturates_at_the_ends_of_time() {
        assert_eq!(Nanos::MAX.plus(Nanos::from_secs(1)), Nanos::MAX);
        assert_eq!(Nanos::ZERO.since(Nanos::MAX), Nanos::ZERO);
        assert_eq!(Tick::Milli.start(u64::MAX), Nanos::MAX);
    }

    #[test]
    fn spans_print_as_people_write_them() {
        assert_eq!(Nanos::from_millis(1_500).to_string(), "1.5s");
        assert_eq!(Nanos::new(40).to_string(), "40ns");
    }
}
