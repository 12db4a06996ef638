//! The window that tests count in: it does not end while they run.
//!
//! It is chosen once, so that every test of a run and every server counts in the same one. Rules count days, weeks
//! and months by the calendar, and descriptors by multiples since 1970: neither may end.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MONTH: u64 = 30 * DAY;

/// More than all tests take together.
const ROOM: u64 = 20 * 60;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TestWindow {
    pub(crate) name: &'static str,
    /// Its length in seconds, as descriptors count it.
    pub(crate) secs: u64,
    /// The number of the unit in the Envoy protocol.
    pub(crate) number: i32,
}

/// From the shortest on.
const WINDOWS: [TestWindow; 4] = [
    TestWindow::new("hour", HOUR, 3),
    TestWindow::new("day", DAY, 4),
    TestWindow::new("week", WEEK, 7),
    TestWindow::new("month", MONTH, 5),
];

/// The window of this run.
pub(crate) fn window() -> TestWindow {
    static CHOSEN: OnceLock<TestWindow> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        chosen(now.as_secs())
    })
}

/// Its name, as rules and descriptors write it.
pub(crate) fn unit() -> &'static str {
    window().name
}

/// The shortest window with enough time left. A month that ends on a Sunday leaves none in its last minutes; then
/// it is the month, which at least does not end for descriptors.
fn chosen(now: u64) -> TestWindow {
    let has_room = |window: &&TestWindow| window.left(now) >= ROOM;
    *WINDOWS.iter().find(has_room).unwrap_or(&WINDOWS[3])
}

impl TestWindow {
    const fn new(name: &'static str, secs: u64, number: i32) -> Self {
        TestWindow { name, secs, number }
    }

    /// Seconds until it ends for rules or for descriptors, whichever is first.
    fn left(self, now: u64) -> u64 {
        let of_rules = match self.secs {
            // The first of January 1970 was a Thursday, the fourth day of its week.
            WEEK => WEEK - (now + 3 * DAY) % WEEK,
            MONTH => end_of_month(now) - now,
            secs => secs - now % secs,
        };
        of_rules.min(self.secs - now % self.secs)
    }
}

/// The end of the calendar month of `now`.
fn end_of_month(now: u64) -> u64 {
    let months = (1970..).flat_map(|year| (1..=12).map(move |month| days(year, month) * DAY));
    let ends = months.scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    ends.into_iter().find(|end| *end > now).unwrap()
}

fn days(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[track_caller]
fn check(now: u64, want: &str) {
    assert_eq!(chosen(now).name, want, "at {now}");
}

/// The first second of 2026-11-15, a Sunday.
const SUNDAY: u64 = 1_794_700_800;

#[test]
fn the_shortest_window_with_room_is_chosen() {
    check(SUNDAY, "hour");
    check(SUNDAY + HOUR - ROOM, "hour");
    check(SUNDAY + HOUR - ROOM + 1, "day");
    check(SUNDAY + HOUR - 1, "day");
    check(SUNDAY + HOUR, "hour");
    // The last minutes of a Monday: the day ends with the hour.
    check(SUNDAY + 2 * DAY - ROOM, "hour");
    check(SUNDAY + 2 * DAY - ROOM + 1, "week");
    check(SUNDAY + 2 * DAY - 1, "week");
}

#[test]
fn a_week_ends_for_rules_on_sunday_and_for_descriptors_on_wednesday() {
    check(SUNDAY + DAY - 1, "month");
    check(SUNDAY + 4 * DAY - 1, "month");
    for day in [2, 3, 5, 6, 7] {
        check(SUNDAY + day * DAY - 1, "week");
    }
}

#[test]
fn a_month_ends_by_the_calendar_and_after_thirty_days() {
    let month = WINDOWS[3];
    // The 30th of November, a Monday, is the last of its month.
    let end = SUNDAY + 16 * DAY;
    assert_eq!(month.left(end - 1), 1);
    check(end - 1, "week");
    // Thirty days since 1970 end there for descriptors.
    let thirty = end.next_multiple_of(MONTH);
    assert_eq!(month.left(thirty - 1), 1);
    assert_eq!(end_of_month(951_782_400), 951_868_800, "2000-02-29");
    assert_eq!(end_of_month(0), 31 * DAY);
}
