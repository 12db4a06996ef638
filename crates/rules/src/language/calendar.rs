//! Calendar windows: days, weeks and months of a time zone, as integers.
//!
//! Decisions know no time zone. The edges of every calendar window up to 2100 are computed here, once per unit, when
//! the rules are compiled. The time zone database is compiled in, so that all nodes agree and no file is read.

use std::cell::OnceCell;
use std::sync::Arc;

use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

use tidegate_core::algorithms::Window;
use tidegate_core::rate::CalendarUnit;
use tidegate_core::units::Nanos;

/// After this year the last window never ends: it denies and does not reopen.
const LAST_YEAR: i16 = 2100;
const MONDAY_BEFORE_EPOCH: Nanos = Nanos::from_secs(3 * 86_400);

/// The calendar of one time zone.
pub(crate) struct Calendar {
    zone: Option<TimeZone>,
    /// By unit.
    edges: [OnceCell<Arc<[Nanos]>>; 3],
}

impl Calendar {
    pub(crate) fn utc() -> Self {
        Calendar { zone: None, edges: Default::default() }
    }

    /// The calendar of the zone with this `name` in the IANA database.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if matches!(name, "UTC" | "Etc/UTC") {
            return Some(Self::utc());
        }
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        Some(Calendar { zone: Some(zone), ..Self::utc() })
    }

    pub(crate) fn window(&self, unit: CalendarUnit) -> Window {
        let nominal = unit.nominal_length();
        match unit {
            CalendarUnit::Day if self.zone.is_none() => return Window::Span(nominal),
            CalendarUnit::Week if self.zone.is_none() => {
                return Window::Shifted { width: nominal, phase: MONDAY_BEFORE_EPOCH };
            }
            _ => {}
        }
        let edges = self.edges[unit as usize].get_or_init(|| match unit {
            CalendarUnit::Day => self.day_starts(0, 1),
            CalendarUnit::Week => self.day_starts(FIRST_MONDAY, 7),
            CalendarUnit::Month => self.month_starts(),
        });
        Window::Edges { edges: Arc::clone(edges), nominal }
    }

    /// The first instants of day `first` after the epoch and of every `step`th day after it.
    ///
    /// A zone lookup for each of 47,000 days takes longer than reading all the rules. The zone is looked up only
    /// around its offset changes.
    fn day_starts(&self, first: i64, step: usize) -> Arc<[Nanos]> {
        let zone = self.zone();
        let mut period = OffsetPeriod::around(&zone, Timestamp::UNIX_EPOCH);
        let days = (first..=LAST_DAY).step_by(step);
        let starts = days.filter_map(|day| {
            period.day_start(day).or_else(|| {
                let start = start_of_day(&zone, EPOCH.checked_add(day.days()).ok()?)?;
                period = OffsetPeriod::around(&zone, start);
                Some(start.as_second())
            })
        });
        starts.filter_map(after_epoch).collect()
    }

    /// The first instants of every month.
    fn month_starts(&self) -> Arc<[Nanos]> {
        let zone = self.zone();
        let days = EPOCH.series(1.month()).take_while(|day| *day <= LAST_DATE);
        days.filter_map(|day| Some(start_of_day(&zone, day)?.as_second())).filter_map(after_epoch).collect()
    }

    fn zone(&self) -> TimeZone {
        self.zone.clone().unwrap_or(TimeZone::UTC)
    }
}

const DAY_SECS: i64 = 86_400;
const EPOCH: Date = date(1970, 1, 1);
/// Days after the epoch, which was a Thursday.
const FIRST_MONDAY: i64 = 4;
const LAST_DATE: Date = date(LAST_YEAR, 1, 1);
/// `LAST_DATE` in days after the epoch.
const LAST_DAY: i64 = 47_482;

/// A period without a change of the UTC offset, in seconds.
struct OffsetPeriod {
    from: i64,
    until: i64,
    ahead_of_utc: i64,
}

impl OffsetPeriod {
    fn around(zone: &TimeZone, at: Timestamp) -> Self {
        let last = zone.preceding(at).next();
        let next = zone.following(at).next();
        OffsetPeriod {
            from: last.map_or(i64::MIN / 2, |change| change.timestamp().as_second()),
            until: next.map_or(i64::MAX / 2, |change| change.timestamp().as_second()),
            ahead_of_utc: i64::from(zone.to_offset(at).seconds()),
        }
    }

    /// When a day begins, unless the offset changes within a day of that instant.
    fn day_start(&self, day: i64) -> Option<i64> {
        let start = day * DAY_SECS - self.ahead_of_utc;
        let is_unambiguous = self.from + DAY_SECS <= start && start + DAY_SECS <= self.until;
        is_unambiguous.then_some(start)
    }
}

/// When a day begins, according to the zone.
fn start_of_day(zone: &TimeZone, day: Date) -> Option<Timestamp> {
    Some(day.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp())
}

fn after_epoch(secs: i64) -> Option<Nanos> {
    Some(Nanos::from_secs(u64::try_from(secs).ok().filter(|secs| *secs > 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Span;

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
        check_has("America/Sao_Paulo", CalendarUnit::Day, "2018-11-04T03:00:00Z");
    }

    #[test]
    fn weeks_begin_on_monday() {
        check_has("Asia/Tokyo", CalendarUnit::Week, "2026-11-15T15:00:00Z"); // Monday the 16th there
        let utc = Calendar::utc().window(CalendarUnit::Week);
        assert!(matches!(utc, Window::Shifted { phase, .. } if phase == MONDAY_BEFORE_EPOCH));
    }

    /// Zones that change their clocks often, by half an hour, at midnight, or by a whole day.
    #[test]
    fn every_edge_matches_the_time_zone() {
        let zones = [
            "America/Sao_Paulo",
            "Africa/Casablanca",
            "Africa/Cairo",
            "Asia/Gaza",
            "Asia/Tokyo",
            "Australia/Lord_Howe",
            "Europe/Berlin",
            "Pacific/Apia",
        ];
        for name in zones {
            let zone = TimeZoneDatabase::bundled().get(name).unwrap();
            let expected = |first: Date, step: Span| -> Vec<Nanos> {
                let days = first.series(step).take_while(|day| *day <= LAST_DATE);
                let starts = days.map(|day| start_of_day(&zone, day).unwrap().as_second());
                starts.filter_map(after_epoch).collect()
            };
            assert_eq!(*edges(name, CalendarUnit::Day), expected(EPOCH, 1.day()));
            let monday = date(1970, 1, 5);
            assert_eq!(*edges(name, CalendarUnit::Week), expected(monday, 1.week()));
        }
    }

    #[test]
    fn edges_ascend_until_2100() {
        let days = edges("Europe/Berlin", CalendarUnit::Day);
        assert!(days.is_sorted() && days.len() > 47_000);
    }
}
