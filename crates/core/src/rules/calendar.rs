//! Days, weeks and months of a time zone, as windows of integers.
//!
//! Decisions know no time zone: the edges of every calendar window up to 2100 are listed here, once
//! per unit, when the rules are compiled. The zone database is the one compiled in, so that all
//! nodes agree and no file is read.

use std::cell::OnceCell;
use std::sync::Arc;

use jiff::civil::{Date, Weekday, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, ToSpan};

use crate::algorithms::Window;
use crate::units::Nanos;

/// A unit of the calendar. A week begins on Monday.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
}

impl CalendarUnit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
        }
    }
}

/// After this year the last window never ends: it refuses, it does not reopen.
const LAST_YEAR: i16 = 2100;
const MONDAY_BEFORE_EPOCH: Nanos = Nanos::from_secs(3 * 86_400);

/// The calendar of one time zone.
pub(crate) struct Calendar {
    zone: Option<TimeZone>,
    days: OnceCell<Arc<[Nanos]>>,
    weeks: OnceCell<Arc<[Nanos]>>,
    months: OnceCell<Arc<[Nanos]>>,
}

impl Calendar {
    pub(crate) fn utc() -> Self {
        Self::of(None)
    }

    /// The calendar of the zone that the IANA database calls `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if matches!(name, "UTC" | "Etc/UTC") {
            return Some(Self::utc());
        }
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        Some(Self::of(Some(zone)))
    }

    fn of(zone: Option<TimeZone>) -> Self {
        Calendar {
            zone,
            days: OnceCell::new(),
            weeks: OnceCell::new(),
            months: OnceCell::new(),
        }
    }

    pub(crate) fn window(&self, unit: CalendarUnit) -> Window {
        let usual = unit.usual();
        let (cell, first, step) = match unit {
            CalendarUnit::Day if self.zone.is_none() => return Window::Span(usual),
            CalendarUnit::Week if self.zone.is_none() => {
                return Window::Shifted {
                    width: usual,
                    phase: MONDAY_BEFORE_EPOCH,
                };
            }
            CalendarUnit::Day => (&self.days, EPOCH, 1.day()),
            CalendarUnit::Week => (&self.weeks, first_monday(), 1.week()),
            CalendarUnit::Month => (&self.months, EPOCH, 1.month()),
        };
        let edges = cell.get_or_init(|| self.edges(first, step));
        Window::Edges {
            edges: Arc::clone(edges),
            usual,
        }
    }

    /// The first instants of `first` and of every `step` after it, as far as they follow the epoch.
    fn edges(&self, first: Date, step: Span) -> Arc<[Nanos]> {
        let zone = self.zone.clone().unwrap_or(TimeZone::UTC);
        let last = date(LAST_YEAR, 1, 1);
        let starts = first.series(step).take_while(|day| *day <= last);
        let instants = starts.filter_map(|day| {
            let start = day.to_zoned(zone.clone()).ok()?.start_of_day().ok()?;
            let nanos = u64::try_from(start.timestamp().as_nanosecond()).ok()?;
            (nanos > 0).then(|| Nanos::new(nanos))
        });
        instants.collect()
    }
}

const EPOCH: Date = date(1970, 1, 1);

fn first_monday() -> Date {
    EPOCH
        .nth_weekday(1, Weekday::Monday)
        .unwrap_or(date(1970, 1, 5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(zone: &str, unit: CalendarUnit) -> Arc<[Nanos]> {
        match Calendar::named(zone).unwrap().window(unit) {
            Window::Edges { edges, .. } => edges,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_has(zone: &str, unit: CalendarUnit, instant: &str) {
        let at: jiff::Timestamp = instant.parse().unwrap();
        let at = Nanos::new(u64::try_from(at.as_nanosecond()).unwrap());
        assert!(edges(zone, unit).contains(&at), "{zone} {instant}");
    }

    #[test]
    fn months_begin_on_the_first_where_the_zone_has_it() {
        check_has("UTC", CalendarUnit::Month, "2026-03-01T00:00:00Z");
        check_has("Europe/Berlin", CalendarUnit::Month, "2026-03-31T22:00:00Z");
    }

    #[test]
    fn days_follow_summer_time() {
        check_has("Europe/Berlin", CalendarUnit::Day, "2026-03-28T23:00:00Z");
        check_has("Europe/Berlin", CalendarUnit::Day, "2026-03-29T22:00:00Z");
    }

    #[test]
    fn a_day_whose_midnight_is_skipped_begins_when_the_clock_does() {
        check_has(
            "America/Sao_Paulo",
            CalendarUnit::Day,
            "2018-11-04T03:00:00Z",
        );
    }

    #[test]
    fn weeks_begin_on_monday() {
        check_has("Asia/Tokyo", CalendarUnit::Week, "2026-11-15T15:00:00Z"); // Monday the 16th there
        let utc = Calendar::utc().window(CalendarUnit::Week);
        assert!(matches!(utc, Window::Shifted { phase, .. } if phase == MONDAY_BEFORE_EPOCH));
    }

    #[test]
    fn edges_ascend_until_2100() {
        let days = edges("Europe/Berlin", CalendarUnit::Day);
        assert!(days.is_sorted() && days.len() > 47_000);
    }
}
